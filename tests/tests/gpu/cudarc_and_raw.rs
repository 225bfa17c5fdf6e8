//! The two other ways in: cudarc's launch builder, and raw handles.
#![allow(unsafe_code, reason = "launches as cudarc and C++ make them")]

use core::ffi::c_void;

use cudarc::driver::{DevicePtrMut, LaunchConfig, PushKernelArg, result, sys};
use gridguard::cuda::{RawLaunch, forget_functions};
use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, LaunchRequest, Plan, RawArgs, Rule};

use super::support::{context, cudarc_module, guard, is_counting, stream};

fn grid_y(blocks: u32) -> LaunchConfig {
    LaunchConfig { grid_dim: (1, blocks, 1), block_dim: (1, 1, 1), shared_mem_bytes: 0 }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn cudarc_s_builder_launches_what_is_legal_and_explains_what_is_not() {
    let function = cudarc_module().load_function("count_y").expect("a function");
    let stream = stream();
    let mut out = stream.alloc_zeros::<u64>(70_000).expect("memory");
    let mut launch = guard().builder(&stream, &function);
    launch.arg(&mut out).arg(&0_u64).arg(&65_535_u64);
    // SAFETY: the arguments match count_y, with room for 70,000 elements.
    unsafe { launch.launch(grid_y(65_535)) }.expect("legal");
    // SAFETY: as above.
    let refused = unsafe { launch.launch(grid_y(70_000)) };
    let refused = refused.expect_err("too many blocks");
    let violations = refused.violations().expect("a rule");
    assert!(violations.contains(Rule::GridDimY));
    let written = stream.clone_dtoh(&out).expect("copies back");
    assert!(is_counting(&written[..65_535]));
    assert!(written[65_535..].iter().all(|x| *x == 0));
    forget_functions();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn cudarc_s_builder_opts_in_to_large_shared_memory() {
    let function = cudarc_module().load_function("large_shared").expect("a function");
    let stream = stream();
    let mut out = stream.alloc_zeros::<u32>(1).expect("memory");
    let config =
        LaunchConfig { grid_dim: (1, 1, 1), block_dim: (1, 1, 1), shared_mem_bytes: 100_000 };
    let mut plain = stream.launch_builder(&function);
    plain.arg(&mut out).arg(&25_000_u32);
    // SAFETY: the arguments match large_shared.
    let refused = unsafe { plain.launch(config) }.expect_err("no opt-in");
    assert_eq!(refused.0, sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    let mut guarded = guard().builder(&stream, &function);
    guarded.arg(&mut out).arg(&25_000_u32);
    // SAFETY: as above.
    unsafe { guarded.launch(config) }.expect("opts in");
    assert_eq!(stream.clone_dtoh(&out).expect("copies back"), [7]);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn raw_handles_are_split_alike_and_the_current_context_stays() {
    let context = context();
    let function = cudarc_module().load_function("count_y").expect("a function");
    let stream = stream();
    let items = 131_071_u64;
    let mut out = stream.clone_htod(&vec![u64::MAX; 131_071]).expect("memory");
    // SAFETY: cudarc keeps the context alive through this test.
    let guard = unsafe { Guard::with_raw_context(context.cu_ctx().cast()) }.expect("a guard");
    // SAFETY: as above.
    let kernel = unsafe { guard.raw_kernel(function.cu_function().cast(), Some("count_y")) }
        .expect("limits");
    let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE);
    let batch = BatchAxis::new(Axis::Y, items);
    let plan =
        Plan::new(&request, Some(&batch), kernel.limits(), Choice::AUTOMATIC).expect("a plan");
    {
        let (address, _written) = out.device_ptr_mut(&stream);
        let mut args = RawArgs::new();
        args.items_at(address, 8).offset().length();
        // SAFETY: a thread without a current context, as a C++ caller may be.
        unsafe { result::ctx::set_current(core::ptr::null_mut()) }.expect("unbinds");
        let raw: *mut c_void = stream.cu_stream().cast();
        // SAFETY: the stream belongs to the kernel's context, and the arguments match count_y.
        assert_eq!(unsafe { guard.launch_raw(&kernel, raw, RawLaunch::Plan(&plan, &args)) }, Ok(3));
        assert!(result::ctx::get_current().expect("asks").is_none(), "the context leaked");
    }
    assert!(is_counting(&stream.clone_dtoh(&out).expect("copies back")));
}
