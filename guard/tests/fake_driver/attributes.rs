//! Launch priorities and programmatic dependent launches.
#![allow(unsafe_code, reason = "promises about kernels that do nothing")]

use cudarc::driver::sys::CUstreamCaptureMode;
use gridguard::cuda::{Args, Kernel, LaunchErrorKind, capture_launches};
use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, LaunchRequest, Plan};
use gridguard_test_support::allocator::allocations_of;
use gridguard_test_support::fake_driver::{Driver, launches, with_driver, with_each, with_fake};

use crate::kernels::{
    context, guard, iota_launches, items_along, kernel, poisoned, with_guard, with_kernel,
    with_stream,
};
use crate::optional_features::{launch_idle, small};

/// The kernel `name`, which takes dependent launches.
fn dependent(guard: &Guard, name: &str) -> Kernel {
    // SAFETY: the fake driver runs one launch after another.
    unsafe { kernel(guard, name).with_dependent_launches() }
}

/// Launches 131,071 items on y, in three chunks, and returns the requested overlap and priority.
fn launch_three(
    guard: &Guard,
    kernel: &Kernel,
    change: impl Fn(LaunchRequest) -> LaunchRequest,
) -> Vec<String> {
    let stream = context(guard).default_stream();
    let (request, batch) = items_along(Axis::Y, 131_071);
    let launched = iota_launches(guard, kernel, (&change(request), &batch), &stream, 131_071);
    assert_eq!(launched, 3);
    launches().iter().rev().take(3).rev().map(|line| attributes(line)).collect()
}

/// What follows the arguments of a launch.
fn attributes(line: &str) -> String {
    let (_, rest) = line.split_once("args=").expect("a launch has arguments");
    rest.split_once(' ').map_or(String::new(), |(_, attributes)| attributes.to_owned())
}

#[test]
fn a_priority_reaches_the_driver_with_every_chunk() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let seen = launch_three(&guard, &kernel, |request| request.priority(-3));
        assert_eq!(seen, ["priority=-3"; 3]);
        assert_eq!(launch_three(&guard, &kernel, |request| request), [""; 3]);
    });
}

#[test]
fn a_barrier_and_a_cluster_reach_the_driver_with_and_without_a_priority() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let barrier = small().cooperative();
        let both = barrier.cluster(Dim3::new(2, 1, 1));
        for request in [barrier, both, barrier.priority(1000), both.priority(1000)] {
            assert_eq!(launch_idle(&guard, &kernel, &request), Ok(1));
        }
        let seen: Vec<String> = launches().iter().map(|line| attributes(line)).collect();
        let expected = [
            "cooperative=1",
            "cluster=2,1,1 cooperative=1",
            "cooperative=1 priority=1000",
            "cluster=2,1,1 cooperative=1 priority=1000",
        ];
        assert_eq!(seen, expected);
    });
}

#[test]
fn only_the_first_chunk_of_a_dependent_launch_is_dependent() {
    with_guard(&[], |guard| {
        let idle = dependent(&guard, "idle");
        assert_eq!(launch_idle(&guard, &idle, &small().dependent()), Ok(1));
        assert_eq!(attributes(&launches()[0]), "overlap=1");
        assert_eq!(launch_idle(&guard, &idle, &small()), Ok(1));
        assert_eq!(attributes(&launches()[1]), "");
        let split = dependent(&guard, "fake_iota_y");
        let seen = launch_three(&guard, &split, |request| request.dependent());
        assert_eq!(seen, ["overlap=1", "", ""]);
        // SAFETY: as above.
        let overlapping = unsafe { split.with_overlapping_chunks() };
        let seen = launch_three(&guard, &overlapping, |request| request.dependent());
        assert_eq!(seen, ["overlap=1"; 3]);
        assert_eq!(launch_three(&guard, &overlapping, |request| request)[0], "");
    });
}

/// What the driver is given of a dependent launch, eager and then captured.
fn captured_dependent() -> Vec<String> {
    let guard = guard();
    let idle = dependent(&guard, "idle");
    let stream = context(&guard).new_stream().expect("a stream");
    let launch = || {
        let mut args = Args::new(&stream);
        args.value(0_u64);
        guard.launch(&idle, &small().dependent(), args)
    };
    assert_eq!(launch(), Ok(1));
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    stream.begin_capture(mode).expect("the stream is idle");
    // SAFETY: the graph never runs.
    assert_eq!(unsafe { capture_launches(launch) }, Ok(1));
    launches().iter().map(|line| attributes(line)).collect()
}

#[test]
fn a_dependent_launch_is_captured_as_such_unless_the_driver_cannot() {
    const VERSION: &str = "GRIDGUARD_FAKE_DRIVER_VERSION";
    let cases = [((VERSION, "13000"), "overlap=1"), ((VERSION, "12020"), "")];
    with_each(Driver::Whole, &cases, |captured| {
        assert_eq!(captured_dependent(), ["overlap=1", captured]);
    });
}

#[test]
fn a_kernel_without_the_declaration_rejects_dependent_launches() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let error = launch_idle(&guard, &kernel, &small().dependent());
        assert_eq!(error, Err(LaunchErrorKind::NotDependent { kernel: "idle".into() }.into()));
        assert_eq!(launches().len(), 0);
    });
}

#[test]
fn a_launch_with_its_own_workspace_is_validated_as_dependent_and_waits_for_the_one_before_it() {
    with_kernel(&[], "fake_spill_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 8);
        let (request, batch) = items_along(Axis::Y, 8);
        let (request, batch) = (request.dependent().priority(-1), batch.workspace(8, 32));
        let mut launch = |kernel: &Kernel| {
            let mut args = Args::new(&stream);
            args.write_items(&mut out, 1).offset().length().workspace();
            guard.launch(kernel, (&request, &batch), args)
        };
        let name = "fake_spill_y".to_owned();
        assert_eq!(launch(&kernel), Err(LaunchErrorKind::NotDependent { kernel: name }.into()));
        assert_eq!(launches().len(), 0);
        assert_eq!(launch(&dependent(&guard, "fake_spill_y")), Ok(2));
        let seen: Vec<String> = launches().iter().map(|line| attributes(line)).collect();
        assert_eq!(seen, ["priority=-1"; 2]);
    });
}

#[test]
fn attributes_that_the_driver_lacks_are_named_in_the_error() {
    with_driver(Driver::Old, &[], || {
        let guard = guard();
        let kernel = dependent(&guard, "idle");
        let symbol = "cuLaunchKernelEx";
        for (request, what) in [
            (small().priority(0), "launch priorities"),
            (small().dependent(), "dependent launches"),
        ] {
            let refused = launch_idle(&guard, &kernel, &request);
            assert_eq!(refused, Err(LaunchErrorKind::Unsupported { symbol, what }.into()));
        }
        assert_eq!(launches().len(), 0);
    });
}

#[test]
fn the_range_of_priorities_begins_with_the_highest() {
    with_fake(&[], || assert_eq!(guard().priorities(), Ok(Some(-5..=0))));
}

#[test]
fn a_launch_with_attributes_allocates_nothing() {
    with_stream(&[], |guard, stream| {
        let kernel = dependent(&guard, "idle");
        let batch = BatchAxis::new(Axis::X, 8);
        let request = small().priority(-2).dependent();
        let plan = Plan::new(&request, Some(&batch), kernel.limits(), Choice::at_most(4));
        let plan = plan.expect("a plan");
        let launch = || {
            let mut args = Args::new(&stream);
            args.value(0_u64);
            guard.launch(&kernel, &plan, args)
        };
        assert_eq!(launch(), Ok(2));
        assert_eq!(allocations_of(launch), (Ok(2), 0));
    });
}
