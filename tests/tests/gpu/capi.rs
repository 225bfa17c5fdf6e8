//! The C interface: guards over a context of the caller's, and split launches by handle.
#![allow(unsafe_code, reason = "launches as C programs make them")]

use core::ffi::c_void;
use core::ptr::{null, null_mut};

use cudarc::driver::DevicePtrMut;
use gridguard_capi::{
    GG_AXIS_Y, GG_ITEMS, GG_LENGTH, GG_OFFSET, gg_batch, gg_config, gg_dim3, gg_error_driver_code,
    gg_following, gg_free, gg_guard_create, gg_guard_options, gg_kernel_create, gg_launch,
    gg_status, gg_synchronize,
};

use super::support::{context, cudarc_module, is_counting, stream};

const ITEMS: u64 = 131_071;

/// A structure of the interface without anything set.
fn zeroed<T: Copy>() -> T {
    // SAFETY: structures of the interface consist of numbers and pointers.
    unsafe { core::mem::zeroed() }
}

fn following(parameter: u32, kind: u32) -> gg_following {
    gg_following { parameter, kind, stride_bytes: 8, span_bytes: 0, reach_bytes: 8 * ITEMS }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_launch_by_handles_is_split_and_writes_every_item() {
    let function = cudarc_module().load_function("count_y").expect("a function");
    let stream = stream();
    let usize_items = usize::try_from(ITEMS).expect("few");
    let mut out = stream.clone_htod(&vec![u64::MAX; usize_items]).expect("memory");

    let options = gg_guard_options {
        struct_size: size_of::<gg_guard_options>(),
        context: context().cu_ctx().cast(),
        ..zeroed()
    };
    let (mut made, mut kernel, mut error) = (null_mut(), null_mut(), null_mut());
    // SAFETY: cudarc keeps context and function alive through this test.
    unsafe {
        let status = gg_guard_create(&raw const options, &raw mut made, &raw mut error);
        assert_eq!(status, gg_status::GG_OK);
        let function: *mut c_void = function.cu_function().cast();
        let out = &raw mut kernel;
        let status = gg_kernel_create(made, function, null(), null(), 0, out, &raw mut error);
        assert_eq!(status, gg_status::GG_OK);
    }
    let follow = [following(0, GG_ITEMS), following(1, GG_OFFSET), following(2, GG_LENGTH)];
    let batch = gg_batch {
        struct_size: size_of::<gg_batch>(),
        axis: GG_AXIS_Y,
        items: ITEMS,
        following: follow.as_ptr(),
        following_count: 3,
        ..zeroed()
    };
    let config = gg_config {
        struct_size: size_of::<gg_config>(),
        grid: gg_dim3 { x: 1, y: ITEMS, z: 1 },
        block: gg_dim3 { x: 1, y: 1, z: 1 },
        stream: stream.cu_stream().cast(),
        ..zeroed()
    };
    {
        let (mut address, _written) = out.device_ptr_mut(&stream);
        let (mut first, mut items) = (0_u64, ITEMS);
        let mut params: [*mut c_void; 3] =
            [(&raw mut address).cast(), (&raw mut first).cast(), (&raw mut items).cast()];
        let (params, mut launches) = (params.as_mut_ptr(), 0);
        let (config, batch, error) = (&raw const config, &raw const batch, &raw mut error);
        // SAFETY: the arguments match count_y, and the stream is of its context.
        unsafe {
            let refused = gg_launch(kernel, config, params, null(), null_mut(), error);
            assert_eq!((refused, gg_error_driver_code(*error)), (gg_status::GG_REJECTED, 1));
            assert_eq!(gg_free((*error).cast()), gg_status::GG_OK);
            let status = gg_launch(kernel, config, params, batch, &raw mut launches, error);
            assert_eq!((status, launches), (gg_status::GG_OK, 3));
            let stream: *mut c_void = stream.cu_stream().cast();
            assert_eq!(gg_synchronize(kernel, stream, error), gg_status::GG_OK);
        }
    }
    assert!(is_counting(&stream.clone_dtoh(&out).expect("copies back")));
    // SAFETY: nothing uses the handles any more.
    unsafe {
        assert_eq!(
            (gg_free(kernel.cast()), gg_free(made.cast())),
            (gg_status::GG_OK, gg_status::GG_OK)
        );
    };
}
