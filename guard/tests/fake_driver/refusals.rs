//! Valid launches that the driver refuses.

use gridguard::Axis;
use gridguard::cuda::LaunchErrorKind;
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{POISON, iota, launch_iota, loaded, plan_along, poisoned, read, with_kernel};

/// The boundaries of the three chunks of 131,071 items.
const CHUNK_STARTS: [usize; 4] = [0, 43_690, 87_380, 131_071];

/// Launches three chunks. The driver refuses number `chunk`. Checks the error, the counts and the
/// output.
fn stops_at(chunk: u8) {
    let (guard, kernel, stream) = loaded("fake_iota_y");
    let mut out = poisoned(&stream, 131_071);
    let plan = plan_along(&kernel, Axis::Y, 131_071);
    let error = launch_iota(&guard, &kernel, &plan, &stream, &mut out)
        .expect_err("the driver refuses a chunk");
    let done = CHUNK_STARTS[usize::from(chunk)];
    assert_eq!(
        error.to_string(),
        format!(
            "launch {chunk} of 3 was refused after {done} of 131071 items: cuLaunchKernel returned \
             CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701): too many resources requested for launch"
        )
    );
    let code = cudarc::driver::DriverError::from(&error).0;
    assert_eq!(code, cudarc::driver::sys::CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    let LaunchErrorKind::Stopped(stopped) = error.kind() else {
        panic!("another error: {error:?}");
    };
    assert_eq!((stopped.chunk, stopped.launches), (chunk.into(), 3));
    assert_eq!(usize::try_from(stopped.items_done), Ok(done));
    assert_eq!(stopped.items, 131_071);
    assert_eq!(stopped.source.code, 701);

    let written = read(&stream, &out);
    assert_eq!(written[..done], iota(stopped.items_done), "the chunks before it ran");
    assert!(written[done..].iter().all(|item| *item == POISON), "and no other");
    assert_eq!(launches().len(), usize::from(chunk));
    let counts = guard.counts();
    assert_eq!(counts.refused_by_driver, 1);
    assert_eq!((counts.plans, counts.launches), (1, chunk.into()));
}

#[test]
fn a_refusal_of_the_first_chunk_leaves_nothing_done() {
    let settings = [("GRIDGUARD_FAKE_FAIL_LAUNCH", "0"), ("GRIDGUARD_FAKE_FAIL_CODE", "701")];
    with_fake(&settings, || stops_at(0));
}

#[test]
fn a_refusal_in_the_middle_reports_the_items_done() {
    let settings = [("GRIDGUARD_FAKE_FAIL_LAUNCH", "1"), ("GRIDGUARD_FAKE_FAIL_CODE", "701")];
    with_fake(&settings, || stops_at(1));
}

#[test]
fn after_a_refusal_the_next_plan_runs() {
    with_kernel(&[("GRIDGUARD_FAKE_FAIL_LAUNCH", "1")], "fake_iota_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 70_000);
        let plan = plan_along(&kernel, Axis::Y, 70_000);
        launch_iota(&guard, &kernel, &plan, &stream, &mut out).expect_err("the second fails");
        assert_eq!(launch_iota(&guard, &kernel, &plan, &stream, &mut out), Ok(2));
        assert_eq!(read(&stream, &out), iota(70_000));
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches), (2, 3));
        assert_eq!((counts.refused_by_driver, counts.split), (1, 1));
    });
}
