//! Cooperative launches in contexts and on streams that have only a share of the multiprocessors: under
//! execution affinity, and in green contexts.
#![allow(unsafe_code, reason = "launches as cudarc and C++ make them")]

use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::cuda::{Args, LaunchError, RawLaunch};
use gridguard::{Dim3, LaunchRequest, RawArgs, Violation};
use gridguard_test_support::fake_driver::{
    Driver, launches, occupancy_queries, with_driver, with_each, with_fake,
};

use crate::kernels::{context, function, guard, kernel, loaded, raw, with_kernel};

/// Blocks of 32 threads that can be co-resident on 16 multiprocessors.
const OF_SIXTEEN: u64 = 512;
/// The same on all 132.
const OF_ALL: u64 = 4224;

fn cooperative(blocks: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(blocks, 1, 1), Dim3::new(32, 1, 1)).cooperative()
}

/// Asserts that `most` blocks run on `stream` and one more never reaches the driver, whoever launches.
#[track_caller]
fn takes_at_most(most: u64, stream: &Arc<CudaStream>) {
    let (guard, kernel, _) = loaded("idle");
    let by_guard = |blocks| {
        let mut args = Args::new(stream);
        args.value(0_u64);
        guard.launch(&kernel, &cooperative(blocks), args).map(drop)
    };
    let function = function(context(&guard), "idle");
    let by_builder = |blocks: u64| {
        let mut launch = guard.builder(stream, &function);
        launch.arg(&0_u64);
        // SAFETY: the function takes a number and does nothing.
        unsafe { launch.launch(cooperative(blocks)) }.map(drop)
    };
    let raw = raw(&guard, &function, Some("idle"));
    let by_handle = |blocks| {
        let mut args = RawArgs::new();
        args.value(0_u64);
        let request = cooperative(blocks);
        // SAFETY: stream and function live through this test.
        unsafe {
            guard.launch_raw(
                &raw,
                stream.cu_stream().cast(),
                RawLaunch::Request(&request, None, &args),
            )
        }
        .map(drop)
    };
    let launchers: [&dyn Fn(u64) -> Result<(), LaunchError>; 3] =
        [&by_guard, &by_builder, &by_handle];
    for launch in launchers {
        assert_eq!(launch(most), Ok(()));
        let error = launch(most + 1).expect_err("one block too many");
        let violations = error.violations().expect("a rule");
        let limits: Vec<u64> = violations.iter().map(|Violation { limit, .. }| *limit).collect();
        assert_eq!(limits, [most]);
    }
    assert_eq!(launches().len(), 3);
}

#[test]
fn a_cooperative_grid_has_the_multiprocessors_of_its_context_and_stream() {
    let cases = [
        (("GRIDGUARD_FAKE_AFFINITY", "16"), (false, OF_SIXTEEN)),
        (("GRIDGUARD_FAKE_GREEN_CONTEXT", "16"), (true, OF_SIXTEEN)),
        (("GRIDGUARD_FAKE_GREEN_STREAMS", "16"), (true, OF_SIXTEEN)),
        (("GRIDGUARD_FAKE_GREEN_STREAMS", "16"), (false, OF_ALL)),
    ];
    with_each(Driver::Whole, &cases, |(on_new_stream, most)| {
        let guard = guard();
        let stream = context(&guard).new_stream().expect("a stream");
        takes_at_most(
            *most,
            &if *on_new_stream { stream } else { stream.context().default_stream() },
        );
    });
}

#[test]
fn the_occupancy_of_a_kernel_is_that_of_its_context() {
    with_fake(&[("GRIDGUARD_FAKE_GREEN_CONTEXT", "16")], || {
        let kernel = kernel(&guard(), "idle");
        let occupancy = kernel.occupancy(&cooperative(1)).expect("the query succeeds");
        assert_eq!(occupancy.blocks, Some(OF_SIXTEEN));
        let in_clusters = cooperative(8).cluster(Dim3::new(8, 1, 1));
        let occupancy = kernel.occupancy(&in_clusters).expect("the query succeeds");
        assert_eq!((occupancy.blocks, occupancy.cluster_blocks), (Some(OF_SIXTEEN), Some(8)));
    });
}

#[test]
fn the_occupancy_is_queried_once_for_each_share() {
    with_kernel(&[("GRIDGUARD_FAKE_GREEN_STREAMS", "16")], "idle", |guard, kernel, _| {
        let green = context(&guard).new_stream().expect("a stream");
        for stream in [&green, &context(&guard).default_stream(), &green] {
            let mut args = Args::new(stream);
            args.value(0_u64);
            assert_eq!(guard.launch(&kernel, &cooperative(8), args), Ok(1));
        }
        assert_eq!(occupancy_queries(), ["idle blocks", "idle blocks"]);
    });
}

#[test]
fn a_driver_without_these_queries_has_whole_devices() {
    with_driver(Driver::Old, &[], || {
        takes_at_most(OF_ALL, &context(&guard()).new_stream().expect("a stream"));
    });
}
