//! What the driver reads through the pointers that it gets; also under Miri.

use super::*;
use crate::launch::request::LaunchRequest;
use crate::limits::{DeviceLimits, KernelLimits, LaunchLimits};
use crate::{Dim3, validate};

const CHUNK: Chunk = Chunk { index: 1, start: 7680, items: 5 };

/// The bytes of each parameter, read as the driver does: the pointer, then as many bytes.
fn read(params: *mut *mut c_void, sizes: &[usize]) -> Vec<Vec<u8>> {
    let parameter = |(place, size): (usize, &usize)| {
        // SAFETY: `fill` returned as many pointers as there are sizes.
        let from = unsafe { params.add(place).read() }.cast::<u8>();
        // SAFETY: each points to as many bytes as its parameter has.
        (0..*size).map(|byte| unsafe { from.add(byte).read() }).collect()
    };
    sizes.iter().enumerate().map(parameter).collect()
}

fn sizes(args: &KernelArgs<'_>) -> Vec<usize> {
    args.slots().iter().map(Slot::size).collect()
}

#[test]
fn the_driver_reads_every_kind_of_argument_unchanged() {
    let structure: Vec<u8> = (0..100).collect();
    let mut args = KernelArgs::new();
    args.address(0x7f00_dead_beef)
        .value(7_u8)
        .value(-2_i16)
        .value(0.125_f32)
        .value(-1.5_f64)
        .bytes(&structure)
        .bytes(&[])
        .items_at(1 << 40, 2048)
        .strided_items_within(4096, 8, 72, 1 << 20)
        .offset()
        .offset_u32()
        .length()
        .length_u32()
        .workspace();
    let args = args.with_workspace_at(0x5000);
    let expected: [&[u8]; 14] = [
        &0x7f00_dead_beef_u64.to_ne_bytes(),
        &[7],
        &(-2_i16).to_ne_bytes(),
        &0.125_f32.to_ne_bytes(),
        &(-1.5_f64).to_ne_bytes(),
        &structure,
        &[],
        &((1_u64 << 40) + 7680 * 2048).to_ne_bytes(),
        &(4096_u64 + 7680 * 8).to_ne_bytes(),
        &7680_u64.to_ne_bytes(),
        &7680_u32.to_ne_bytes(),
        &5_u64.to_ne_bytes(),
        &5_u32.to_ne_bytes(),
        &0x5000_u64.to_ne_bytes(),
    ];
    let mut packed = Packed::new();
    let params = packed.fill(&args, &CHUNK);
    assert_eq!(read(params, &sizes(&args)), expected);
}

#[test]
fn arguments_are_packed_anew_for_each_chunk() {
    let mut args = KernelArgs::new();
    args.value(9_u64).items_at(1 << 32, 16).offset().length();
    let mut packed = Packed::new();
    for index in 0..3 {
        let chunk = Chunk { index, start: 100 * index, items: 7 + index };
        let params = packed.fill(&args, &chunk);
        let expected = [9, (1 << 32) + 1600 * index, 100 * index, 7 + index];
        assert_eq!(read(params, &[8; 4]), expected.map(u64::to_ne_bytes));
    }
}

#[test]
fn as_many_arguments_as_fit_are_all_read() {
    let mut args = KernelArgs::new();
    for value in 0..u64::try_from(MAX_ARGS).expect("few") {
        args.value(value.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
    let mut packed = Packed::new();
    let params = packed.fill(&args, &CHUNK);
    for (value, bytes) in (0..).zip(read(params, &[8; MAX_ARGS])) {
        let value: u64 = value;
        assert_eq!(bytes, value.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
    }
    assert_eq!(args.len(), MAX_ARGS);
}

#[test]
fn no_arguments_are_no_pointers() {
    let (args, mut packed) = (KernelArgs::new(), Packed::new());
    let params = packed.fill(&args, &CHUNK);
    assert_eq!(read(params, &[]), [[0; 0]; 0]);
}

#[test]
fn the_driver_reads_a_launch_s_attributes_in_their_order() {
    let mut device = DeviceLimits::any_device();
    (device.cluster_launch, device.max_portable_cluster_blocks) = (true, 8);
    device.cooperative_launch = true;
    let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
    let request = LaunchRequest::new(Dim3::new(4, 2, 1), Dim3::ONE).cluster(Dim3::new(2, 1, 1));
    let request = LaunchRequest { priority: Some(-5), ..request.cooperative() };
    let launch = validate(&request, &limits).expect("legal");
    let (mut attributes, count) = attributes(&launch, true);
    let first = attributes.as_mut_ptr();
    let read: Vec<(u32, [i32; 3])> = (0..usize::try_from(count).expect("few"))
        .map(|place| {
            // SAFETY: `place` is below the returned count.
            let attribute = unsafe { first.add(place).read() };
            let [x, y, z, ..] = attribute.value;
            (attribute.id, [x, y, z].map(u32::cast_signed))
        })
        .collect();
    let expected = [
        (ATTRIBUTE_CLUSTER_DIMENSION, [2, 1, 1]),
        (ATTRIBUTE_COOPERATIVE, [1, 0, 0]),
        (ATTRIBUTE_OVERLAP, [1, 0, 0]),
        (ATTRIBUTE_PRIORITY, [-5, 0, 0]),
    ];
    assert_eq!(read, expected);
}
