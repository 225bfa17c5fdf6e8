//! Arguments that do not fit the kernel or the batch are refused before anything is launched.

use cudarc::driver::CudaSlice;
use gridguard::cuda::{Args, Kernel, LaunchError};
use gridguard::{ArgsError, Axis, BatchAxis, Choice, Dim3, Guard, LaunchRequest, MAX_ARGS, Plan};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{context, loaded, plan_along, poisoned, with_kernel};

/// What is wrong with the arguments that `fill` gives to a launch over `items` items, with memory for
/// `elements`. Nothing was launched with them.
fn refused(
    elements: u64,
    items: u64,
    fill: impl for<'a> FnOnce(&mut Args<'a>, &'a mut CudaSlice<u64>),
) -> ArgsError {
    let (guard, kernel, stream) = loaded("fake_iota_y");
    let mut memory = poisoned(&stream, elements);
    let mut args = Args::new(&stream);
    fill(&mut args, &mut memory);
    refusal_of(&guard, &kernel, &plan_along(&kernel, Axis::Y, items), args)
}

fn refusal_of(guard: &Guard, kernel: &Kernel, plan: &Plan, args: Args<'_>) -> ArgsError {
    let error = guard.launch(kernel, plan, args).expect_err("the arguments do not fit");
    assert_eq!(launches(), Vec::<String>::new());
    assert_eq!(guard.counts().launches, 0);
    match error {
        LaunchError::Args(error) => error,
        other => panic!("another error: {other:?}"),
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused_with_the_first_that_does_not() {
    with_fake(&[], || {
        let kernel = || "fake_iota_y".to_owned();
        let count = |given| ArgsError::WrongCount { kernel: kernel(), expected: 3, given };
        let few = refused(8, 8, |args, out| _ = args.write_items(out, 1).offset());
        assert_eq!(few, count(2));
        let many = |args: &mut Args<'_>| _ = args.offset().length().value(0_u64);
        assert_eq!(refused(8, 8, |args, out| many(args.write_items(out, 1))), count(4));
        let size = ArgsError::WrongSize { kernel: kernel(), index: 2, expected: 8, given: 4 };
        let narrow = |args: &mut Args<'_>| _ = args.offset().length_as::<u32>();
        assert_eq!(refused(8, 8, |args, out| narrow(args.write_items(out, 1))), size);
        let values = |args: &mut Args<'_>| (0..=MAX_ARGS).for_each(|_| _ = args.value(0_u64));
        assert_eq!(refused(8, 8, |args, _| values(args)), ArgsError::TooMany { given: 33 });
        // Memory that is one item short, to write and only to read.
        let short = ArgsError::BufferTooSmall { index: 0, needed: 560_000, available: 559_992 };
        let write = |args: &mut Args<'_>| _ = args.offset().length();
        assert_eq!(refused(69_999, 70_000, |args, out| write(args.write_items(out, 1))), short);
        let short = ArgsError::BufferTooSmall { index: 1, needed: 128, available: 120 };
        let read =
            refused(15, 8, |args, input| _ = args.value(0_u64).read_items(&*input, 2).length());
        assert_eq!(read, short);
    });
}

#[test]
fn a_32_bit_offset_into_a_batch_past_32_bits_is_refused() {
    with_kernel(&[], "fake_iota_x", |guard, kernel, stream| {
        let items = 1 << 32;
        let batch = BatchAxis::new(Axis::X, items).items_per_block(4);
        let request = LaunchRequest::new(Dim3::new(items / 4, 1, 1), Dim3::ONE);
        let plan = Plan::new(&request, Some(&batch), kernel.limits(), Choice::AUTOMATIC)
            .expect("x takes 2^30 blocks");
        let mut args = Args::new(&stream);
        args.value(0_u64).offset_as::<u32>().length();
        let wrong = ArgsError::ItemsPast32Bits { index: 1, signed: false, items };
        assert_eq!(refusal_of(&guard, &kernel, &plan, args), wrong);
    });
}

/// The result of a launch of `idle`, which takes a value, over `items` items, `shared` of them in a
/// block, in chunks of at most `chunk`.
fn launch_idle(
    (items, shared, chunk): (u64, u64, u64),
    fill: impl FnOnce(&mut Args<'_>),
) -> Result<u64, LaunchError> {
    let (guard, kernel, _) = loaded("idle");
    let batch = BatchAxis::new(Axis::X, items).items_per_block(shared);
    let request = LaunchRequest::new(Dim3::new(items.div_ceil(shared), 1, 1), Dim3::ONE);
    let plan = Plan::new(&request, Some(&batch), kernel.limits(), Choice::at_most(chunk))
        .expect("legal in chunks");
    let stream = context(&guard).default_stream();
    let mut args = Args::new(&stream);
    fill(&mut args);
    guard.launch(&kernel, &plan, args)
}

#[test]
fn the_total_of_a_batch_whose_blocks_share_items_is_refused_in_chunks() {
    with_fake(&[], || {
        let refused = launch_idle((101, 4, 40), |args| _ = args.value(101_u64));
        let wrong = ArgsError::TotalInChunks { index: 0, items: 101 };
        assert_eq!(refused, Err(LaunchError::Args(wrong)));
        assert_eq!(launches().len(), 0);
        // In one launch it is the number of items, and a block of one item never has fewer.
        assert_eq!(launch_idle((101, 4, 101), |args| _ = args.value(101_u64)), Ok(1));
        assert_eq!(launch_idle((101, 1, 40), |args| _ = args.value(101_u64)), Ok(3));
        assert_eq!(launch_idle((101, 4, 40), |args| _ = args.value(100_u64)), Ok(3));
        assert_eq!(launch_idle((101, 4, 40), |args| _ = args.constant(101_u64)), Ok(3));
        assert_eq!(launch_idle((101, 4, 40), |args| _ = args.length()), Ok(3));
        assert_eq!(launch_idle((0, 4, 40), |args| _ = args.value(0_u64)), Ok(0));
    });
}

#[test]
fn a_workspace_that_may_split_the_launch_refuses_the_total_of_the_batch_too() {
    with_kernel(&[], "fake_spill_y", |guard, kernel, stream| {
        let batch = BatchAxis::new(Axis::Y, 10).items_per_block(4).workspace(8, 1 << 20);
        let request = LaunchRequest::new(Dim3::new(1, 3, 1), Dim3::ONE);
        let mut out = poisoned(&stream, 10);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().value(10_u64).workspace();
        let refused = guard.launch(&kernel, (&request, &batch), args);
        let wrong = ArgsError::TotalInChunks { index: 2, items: 10 };
        assert_eq!(refused, Err(LaunchError::Args(wrong)));
    });
}

#[test]
fn items_are_refused_where_no_batch_says_how_many_there_are() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, stream| {
        // Room for one item, and a grid that writes eight.
        let mut out = poisoned(&stream, 1);
        let request = LaunchRequest::new(Dim3::new(1, 8, 1), Dim3::ONE);
        let plan = Plan::new(&request, None, kernel.limits(), Choice::AUTOMATIC).expect("legal");
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).value(0_u64).value(8_u64);
        assert_eq!(refusal_of(&guard, &kernel, &plan, args), ArgsError::NoBatch { index: 0 });
        let mut args = Args::new(&stream);
        args.write(&mut out).value(0_u64).length();
        let refused = guard.launch(&kernel, &request, args);
        assert_eq!(refused, Err(LaunchError::Args(ArgsError::NoBatch { index: 2 })));
    });
}

#[test]
fn memory_values_and_structs_reach_the_kernel_unchanged() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 8);
        let plan = plan_along(&kernel, Axis::Y, 8);
        let first = 1000_u64.to_le_bytes();
        let mut args = Args::new(&stream);
        args.write(&mut out).bytes(&first).value(-1_i64);
        assert_eq!(guard.launch(&kernel, &plan, args), Ok(1));
        let line = launches().pop().expect("one launch");
        assert!(line.ends_with(",3e8,ffffffffffffffff"), "{line}");
        let written = crate::kernels::read(&stream, &out);
        assert_eq!(written, (1000..1008).collect::<Vec<u64>>());
    });
}
