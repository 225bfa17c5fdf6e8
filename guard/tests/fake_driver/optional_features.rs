//! Large shared memory, clusters and cooperative launches, which not all drivers and kernels support.

use expect_test::expect;
use gridguard::cuda::{Args, Kernel, LaunchError, LaunchErrorKind, driver_version};
use gridguard::{ArgsError, Choice, Dim3, Guard, LaunchRequest, Plan, Rule};
use gridguard_test_support::fake_driver::{Driver, launches, set_attributes, with_driver};

use crate::kernels::{context, loaded, with_kernel};

/// Launches `request` of the kernel `idle`, which takes one value of 8 bytes.
pub(crate) fn launch_idle(
    guard: &Guard,
    kernel: &Kernel,
    request: &LaunchRequest,
) -> Result<u64, LaunchError> {
    let stream = context(guard).default_stream();
    let mut args = Args::new(&stream);
    args.value(0_u64);
    guard.launch(kernel, request, args)
}

pub(crate) fn small() -> LaunchRequest {
    LaunchRequest::new(Dim3::new(8, 1, 1), Dim3::new(128, 1, 1))
}

#[test]
fn large_dynamic_shared_memory_is_opted_in_to_once() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        assert_eq!(launch_idle(&guard, &kernel, &small().dynamic_shared_bytes(49_152)), Ok(1));
        assert_eq!(set_attributes(), Vec::<String>::new(), "48 KiB need no opt-in");
        for bytes in [60_000, 49_153, 232_448, 60_000] {
            let request = small().dynamic_shared_bytes(bytes);
            assert_eq!(launch_idle(&guard, &kernel, &request), Ok(1), "{bytes} bytes");
        }
        // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, to the limit of the device.
        assert_eq!(set_attributes(), ["idle 8=232448"]);
    });
}

#[test]
fn an_opt_in_that_fails_is_tried_again_by_the_next_launch() {
    with_kernel(&[("GRIDGUARD_FAKE_FAIL_ATTRIBUTE", "0")], "idle", |guard, kernel, _| {
        let large = small().dynamic_shared_bytes(60_000);
        let error = launch_idle(&guard, &kernel, &large).expect_err("the driver refuses");
        let LaunchErrorKind::Driver(error) = error.kind() else { panic!("{error:?}") };
        assert_eq!((error.call, error.code), ("cuFuncSetAttribute", 999));
        assert_eq!(launch_idle(&guard, &kernel, &large), Ok(1));
        assert_eq!(set_attributes(), ["idle 8=232448"]);
    });
}

#[test]
fn a_driver_of_cuda_12_0_rejects_cluster_launches_only() {
    with_driver(Driver::Old, &[("GRIDGUARD_FAKE_DRIVER_VERSION", "12000")], || {
        assert_eq!(driver_version(), Ok(12_000));
        let (guard, kernel, _) = loaded("idle");
        let error = launch_idle(&guard, &kernel, &small().cluster(Dim3::new(4, 1, 1)))
            .expect_err("no cuLaunchKernelEx");
        let unsupported =
            LaunchErrorKind::Unsupported { symbol: "cuLaunchKernelEx", what: "clusters" };
        assert_eq!(error.kind(), &unsupported);
        assert_eq!(launches(), Vec::<String>::new());
        assert_eq!(launch_idle(&guard, &kernel, &small()), Ok(1));
        assert_eq!(launches().len(), 1);
    });
}

#[test]
fn declared_parameters_are_checked_if_the_driver_knows_none() {
    with_driver(Driver::Old, &[], || {
        let (guard, kernel, stream) = loaded("idle");
        let plan = Plan::new(&small(), None, kernel.limits(), Choice::AUTOMATIC).expect("legal");
        let mut args = Args::new(&stream);
        args.value(7_u64).value(0_u8);
        let refused = guard.launch(&kernel, &plan, args).expect_err("one too many");
        let count = ArgsError::WrongCount { kernel: "idle".into(), expected: 1, given: 2 };
        assert_eq!(refused, count.into());
        let memory = stream.alloc_zeros::<u64>(1).expect("memory");
        let mut args = Args::new(&stream);
        args.read(&memory);
        let refused = guard.launch(&kernel, &plan, args).expect_err("memory for a number");
        expect!["parameter 0 of kernel idle is a value, the argument is memory"]
            .assert_eq(&refused.to_string());
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_kernel_with_a_compiled_in_cluster_runs_with_no_other() {
    with_kernel(&[], "clustered", |guard, kernel, _| {
        assert_eq!(kernel.limits().kernel().required_cluster, Some(Dim3::new(2, 1, 1)));
        let stream = context(&guard).default_stream();
        let launch = |request: &LaunchRequest| guard.launch(&kernel, request, Args::new(&stream));
        assert_eq!(launch(&small()), Ok(1));
        let odd = LaunchRequest::new(Dim3::new(7, 1, 1), Dim3::ONE);
        for (request, rule) in [
            (small().cluster(Dim3::new(4, 1, 1)), Rule::ClusterRequired),
            (odd, Rule::ClusterDividesGrid),
        ] {
            let refused = launch(&request).expect_err("illegal");
            assert!(refused.violations().is_some_and(|found| found.contains(rule)), "{refused}");
        }
        assert_eq!(launches().len(), 1);
    });
}
