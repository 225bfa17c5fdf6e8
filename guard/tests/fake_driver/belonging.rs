//! Plans, kernels, streams and contexts that do not belong together.

use cudarc::driver::CudaContext;
use gridguard::cuda::LaunchError;
use gridguard::{Axis, Guard};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{PTX, context, guard, iota, kernel, launch_iota, plan_along, poisoned, read};

#[test]
fn a_plan_made_for_another_kernel_is_refused() {
    with_fake(&[], || {
        let guard = guard();
        let (kernel, other) = (kernel(&guard, "fake_iota_y"), kernel(&guard, "idle"));
        let stream = context(&guard).default_stream();
        let mut out = poisoned(&stream, 8);
        let plan = plan_along(&other, Axis::Y, 8);
        let error = launch_iota(&guard, &kernel, &plan, &stream, &mut out)
            .expect_err("the plan is for another kernel");
        let refused = LaunchError::OtherKernel { kernel: "fake_iota_y".into() };
        assert_eq!(error, refused);
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_plan_fits_clones_of_its_kernel() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = context(&guard).default_stream();
        let mut out = poisoned(&stream, 70_000);
        let plan = plan_along(&kernel.clone(), Axis::Y, 70_000);
        assert_eq!(launch_iota(&guard, &kernel, &plan, &stream, &mut out), Ok(2));
    });
}

#[test]
fn a_stream_of_another_device_is_refused() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let other = Guard::cuda(1).expect("a second device");
        let stream = context(&other).new_stream().expect("a stream");
        let mut out = poisoned(&stream, 8);
        let plan = plan_along(&kernel, Axis::Y, 8);
        let error = launch_iota(&guard, &kernel, &plan, &stream, &mut out)
            .expect_err("the stream is of the second device");
        let refused =
            LaunchError::OtherContext { what: "the stream", kernel: "fake_iota_y".into() };
        assert_eq!(error, refused);
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_stream_of_another_context_of_the_same_device_is_refused() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let other = CudaContext::new_non_primary(0, 0).expect("a context beside the primary one");
        let stream = other.default_stream();
        let mut out = poisoned(&stream, 8);
        let plan = plan_along(&kernel, Axis::Y, 8);
        let error = launch_iota(&guard, &kernel, &plan, &stream, &mut out)
            .expect_err("the stream is of another context");
        assert!(matches!(error, LaunchError::OtherContext { .. }), "{error}");
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_kernel_that_cudarc_loaded_has_no_declared_signature() {
    with_fake(&[], || {
        let guard = guard();
        let module = context(&guard).load_module(PTX.into()).expect("PTX");
        let function = module.load_function("fake_iota_y").expect("it is in the PTX");
        let stream = context(&guard).default_stream();
        let kernel = guard.builder(&stream, &function).kernel().expect("known");
        let plan = plan_along(&kernel, Axis::Y, 8);
        let mut out = poisoned(&stream, 8);
        let refused = launch_iota(&guard, &kernel, &plan, &stream, &mut out);
        assert_eq!(refused, Err(LaunchError::Undeclared { kernel: "fake_iota_y".into() }));
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_guard_can_use_the_caller_s_context() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let own = CudaContext::new_non_primary(1, 0).expect("a context beside the primary one");
        let guard = Guard::with_context(own.clone()).expect("its device can be asked");
        assert_eq!(context(&guard), &own);
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = own.new_stream().expect("a stream");
        let mut out = poisoned(&stream, 70_000);
        let plan = plan_along(&kernel, Axis::Y, 70_000);
        assert_eq!(launch_iota(&guard, &kernel, &plan, &stream, &mut out), Ok(2));
        assert_eq!(read(&stream, &out), iota(70_000));
        assert!(launches().iter().all(|line| line.ends_with(" device=1")));
    });
}

#[test]
fn a_kernel_outlives_its_module_and_guard() {
    with_fake(&[], || {
        let (kernel, stream) = {
            let guard = guard();
            let stream = context(&guard).default_stream();
            (kernel(&guard, "fake_iota_y"), stream)
        };
        let plan = plan_along(&kernel, Axis::Y, 70_000);
        let mut out = poisoned(&stream, 70_000);
        let launched = launch_iota(&guard(), &kernel, &plan, &stream, &mut out);
        assert_eq!(launched, Ok(2));
        assert_eq!(read(&stream, &out), iota(70_000));
    });
}
