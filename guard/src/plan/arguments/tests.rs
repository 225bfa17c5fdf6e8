//! Arguments from chunk to chunk, and those that do not fit a batch.

use super::*;
use crate::plan::chunks::Chunk;
use crate::plan::signature::Parameter;

const CHUNK: Chunk = Chunk { index: 1, start: 7680, items: 5 };

fn bits(args: &RawArgs<'_>) -> Vec<u64> {
    args.list.slots().iter().map(|slot| slot.bits(&CHUNK)).collect()
}

fn check(args: &RawArgs<'_>, items: Option<u64>) -> Result<(), ArgsError> {
    args.list.check(items, &Signature::Unknown, &KernelLimits::unknown("k"))
}

#[test]
fn only_pointers_offset_and_length_follow_the_chunk() {
    let mut args = RawArgs::new();
    args.items_at(1 << 40, 2048).value(7_u32).value(-1_i32).offset().length_as::<u32>();
    assert_eq!(bits(&args), [(1 << 40) + 7680 * 2048, 7, 0xffff_ffff, 7680, 5]);
    let sizes: Vec<_> = args.list.slots().iter().map(Slot::size).collect();
    assert_eq!(sizes, [8, 4, 4, 8, 4]);
}

#[test]
fn items_past_the_buffer_are_rejected() {
    let mut args = RawArgs::new();
    args.items_within(4096, 8, 8, 800);
    assert_eq!(check(&args, Some(100)), Ok(()));
    let refused = ArgsError::BufferTooSmall { index: 0, needed: 808, available: 800 };
    assert_eq!(check(&args, Some(101)), Err(refused));
}

#[test]
fn interleaved_items_reach_over_their_span() {
    let mut args = RawArgs::new();
    args.items_within(4096, 8, 72, 800);
    assert_eq!(check(&args, Some(92)), Ok(()));
    let refused = ArgsError::BufferTooSmall { index: 0, needed: 808, available: 800 };
    assert_eq!(check(&args, Some(93)), Err(refused));
    assert_eq!(check(&args, Some(0)), Ok(()));
    let mut one_for_all = RawArgs::new();
    one_for_all.items_within(4096, 0, 800, 800);
    assert_eq!(check(&one_for_all, Some(u64::MAX)), Ok(()));
}

#[test]
fn parts_are_those_of_the_chunk_and_of_a_batch_that_64_bits_can_count() {
    let mut args = RawArgs::new();
    args.address(0).parts(1 << 60);
    assert_eq!(check(&args, Some(15)), Ok(()));
    let refused = ArgsError::PartsPast64Bits { index: 1, per_item: 1 << 60, items: 16 };
    assert_eq!(check(&args, Some(16)), Err(refused));
    assert_eq!(check(&args, None), Err(ArgsError::NoBatch { index: 1 }));
    assert_eq!((bits(&args)[1], args.list.slots()[1].size()), (5 << 60, 8));
}

#[test]
fn addresses_and_offsets_do_not_wrap() {
    let mut args = RawArgs::new();
    args.items_at(u64::MAX - 8, 8);
    assert_eq!(check(&args, Some(2)), Err(ArgsError::AddressOverflow { index: 0 }));
    let mut args = RawArgs::new();
    args.value(0_u8).offset_as::<u32>();
    let refused = ArgsError::ItemsPast32Bits { index: 1, signed: false, items: 1 << 32 };
    assert_eq!(check(&args, Some(1 << 32)), Err(refused));
}

#[test]
fn a_signed_offset_or_length_never_turns_negative() {
    for fill in [RawArgs::offset_as::<i32>, RawArgs::length_as::<i32>] {
        let mut args = RawArgs::new();
        fill(&mut args);
        assert_eq!(check(&args, Some((1 << 31) - 1)), Ok(()));
        let refused = ArgsError::ItemsPast32Bits { index: 0, signed: true, items: 1 << 31 };
        assert_eq!(check(&args, Some(1 << 31)), Err(refused));
        assert_eq!(args.list.slots()[0].size(), 4);
    }
}

#[test]
fn what_follows_items_needs_a_batch() {
    let fills: [fn(&mut RawArgs<'_>); 3] = [
        |args| _ = args.items_within(4096, 8, 8, 8),
        |args| _ = args.offset_as::<i32>(),
        |args| _ = args.length(),
    ];
    for fill in fills {
        let mut args = RawArgs::new();
        fill(args.value(1_u64).address(4096));
        assert_eq!(check(&args, None), Err(ArgsError::NoBatch { index: 2 }));
        assert_eq!(check(&args, Some(1)), Ok(()));
    }
}

#[test]
fn an_integer_that_is_the_number_of_items_is_found_whatever_its_type() {
    let total = |fill: fn(&mut RawArgs<'_>)| {
        let mut args = RawArgs::new();
        fill(args.address(100).length());
        args.list.check_values(100)
    };
    let found = Err(ArgsError::TotalInChunks { index: 2, items: 100 });
    assert_eq!(total(|args| _ = args.value(100_u64)), found);
    assert_eq!(total(|args| _ = args.value(100_i32)), found);
    assert_eq!(total(|args| _ = args.value(100_u8)), found);
    assert_eq!(total(|args| _ = args.value(99_u64)), Ok(()));
    assert_eq!(total(|args| _ = args.constant(100_u64)), Ok(()));
    assert_eq!(total(|args| _ = args.bytes(&[100, 0, 0, 0])), Ok(()));
    assert_eq!(total(|args| _ = args.value(f64::from_bits(100))), Ok(()));
}

#[test]
fn too_many_arguments_are_rejected() {
    let mut args = RawArgs::new();
    for _ in 0..=MAX_ARGS {
        args.value(0_u64);
    }
    assert_eq!(check(&args, Some(1)), Err(ArgsError::TooMany { given: MAX_ARGS + 1 }));
}

#[test]
fn unaligned_memory_is_rejected() {
    let check = |fill: fn(&mut RawArgs<'_>), bytes| {
        let (mut args, aligned) = (RawArgs::new(), vec![Parameter::AlignedMemory { bytes }]);
        fill(&mut args);
        args.list.check(Some(1), &Signature::Declared(aligned), &KernelLimits::unknown("k"))
    };
    let misaligned = Err(ArgsError::Misaligned { kernel: "k".into(), index: 0, alignment: 16 });
    assert_eq!(check(|args| _ = args.items_at(4096, 32), 16), Ok(()));
    assert_eq!(check(|args| _ = args.address(4096), 16), Ok(()));
    assert_eq!(check(|args| _ = args.items_at(4098, 32), 16), misaligned);
    assert_eq!(check(|args| _ = args.items_at(4096, 40), 16), misaligned);
    assert_eq!(check(|args| _ = args.address(4104), 16), misaligned);
    // An alignment of zero accepts any address.
    assert_eq!(check(|args| _ = args.items_at(4097, 3), 0), Ok(()));
}
