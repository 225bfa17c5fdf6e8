//! Plans, kernels, streams and contexts that do not belong together.

use cudarc::driver::CudaContext;
use gridguard::cuda::LaunchErrorKind;
use gridguard::{Axis, Guard};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{
    context, function, guard, iota_launches, kernel, launch_iota, plan_along, poisoned,
    with_kernel, with_stream,
};

#[test]
fn a_plan_made_for_another_kernel_is_refused() {
    with_stream(&[], |guard, stream| {
        let (kernel, other) = (kernel(&guard, "fake_iota_y"), kernel(&guard, "idle"));
        let mut out = poisoned(&stream, 8);
        let plan = plan_along(&other, Axis::Y, 8);
        let error = launch_iota(&guard, &kernel, &plan, &stream, &mut out)
            .expect_err("the plan is for another kernel");
        let refused = LaunchErrorKind::OtherKernel { kernel: "fake_iota_y".into() };
        assert_eq!(error.kind(), &refused);
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_stream_of_another_device_or_of_another_context_of_the_same_one_is_refused() {
    with_kernel(&[("GRIDGUARD_FAKE_DEVICES", "2")], "fake_iota_y", |guard, kernel, _| {
        let device = Guard::cuda(1).expect("a second device");
        let beside = CudaContext::new_non_primary(0, 0).expect("beside the primary one");
        let plan = plan_along(&kernel, Axis::Y, 8);
        for context in [context(&device), &beside] {
            let stream = context.new_stream().expect("a stream");
            let mut out = poisoned(&stream, 8);
            let launched = launch_iota(&guard, &kernel, &plan, &stream, &mut out);
            let (what, kernel) = ("the stream", "fake_iota_y".into());
            assert_eq!(launched, Err(LaunchErrorKind::OtherContext { what, kernel }.into()));
        }
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_kernel_that_cudarc_loaded_has_no_declared_signature() {
    with_stream(&[], |guard, stream| {
        let function = function(context(&guard), "fake_iota_y");
        let kernel = guard.builder(&stream, &function).kernel().expect("known");
        let plan = plan_along(&kernel, Axis::Y, 8);
        let mut out = poisoned(&stream, 8);
        let refused = launch_iota(&guard, &kernel, &plan, &stream, &mut out);
        assert_eq!(
            refused,
            Err(LaunchErrorKind::Undeclared { kernel: "fake_iota_y".into() }.into())
        );
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
        let plan = plan_along(&kernel, Axis::Y, 70_000);
        assert_eq!(iota_launches(&guard, &kernel, &plan, &stream, 70_000), 2);
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
        assert_eq!(iota_launches(&guard(), &kernel, &plan, &stream, 70_000), 2);
    });
}
