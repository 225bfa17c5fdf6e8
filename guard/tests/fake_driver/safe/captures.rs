//! Captures, whose graphs would run on memory that is gone.

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, LaunchError, LaunchErrorKind};
use gridguard::{Axis, Dim3, Guard, LaunchRequest};
use gridguard_test_support::fake_driver::launches;

use super::{ITEMS, assert_ordered, write};
use crate::kernels::{context, items_along, poisoned, with_kernel};

const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(launched: Result<T, LaunchError>, kernel: &str) {
    let refused = launched.expect_err("it is captured");
    assert_eq!(refused, LaunchErrorKind::Captured { kernel: kernel.into() }.into());
    assert_eq!(launches(), Vec::<String>::new());
}

#[test]
fn capture_drop_replay_ends_at_the_capture() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let stream = context(&guard).new_stream().expect("a stream");
        for mode in MODES {
            let mut out = poisoned(&stream, ITEMS);
            stream.begin_capture(mode).expect("the stream is idle");
            assert_refused(write(&guard, &kernel, &stream, &mut out), "fake_iota_y");
            // cudarc's wait for earlier work on the memory invalidates the capture.
            let _ = stream.end_capture(CUgraphInstantiate_flags(0));
            drop(out);
            assert_ordered();
        }
    });
}

#[test]
fn memory_of_a_refused_capture_is_used_and_freed_as_before() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out: CudaSlice<u64> = poisoned(&context(&guard).default_stream(), ITEMS);
        stream.begin_capture(MODES[0]).expect("the stream is idle");
        assert_refused(write(&guard, &kernel, &stream, &mut out), "fake_iota_y");
        let _ = stream.end_capture(CUgraphInstantiate_flags(0));
        assert_eq!(write(&guard, &kernel, &stream, &mut out), Ok(1));
        drop(out);
        assert_ordered();
    });
}

#[test]
fn a_capture_that_begins_between_arguments_and_launch_is_seen() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&stream, ITEMS);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length();
        stream.begin_capture(MODES[2]).expect("the stream is idle");
        let (request, batch) = items_along(Axis::Y, ITEMS);
        let launched = guard.launch(&kernel, (&request, &batch), args);
        assert_refused(launched, "fake_iota_y");
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
        graph.expect("it is empty").launch().expect("and does nothing");
    });
}

#[test]
fn a_stream_that_joins_a_capture_is_refused_too() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let (origin, joined) = (new_stream(&guard), new_stream(&guard));
        origin.begin_capture(MODES[2]).expect("the stream is idle");
        joined.join(&origin).expect("it becomes part of the capture");
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        let mut args = Args::new(&joined);
        args.value(0_u64);
        assert_refused(guard.launch(&kernel, &request, args), "idle");
    });
}

#[test]
fn a_launch_with_a_workspace_is_refused_too() {
    with_kernel(&[], "fake_spill_y", |guard, kernel, _| {
        let stream = new_stream(&guard);
        let mut out = poisoned(&stream, ITEMS);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        let batch = batch.workspace(1000, 32_000);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length().workspace();
        stream.begin_capture(MODES[1]).expect("the stream is idle");
        let run = guard.launch(&kernel, (&request, &batch), args);
        assert_refused(run, "fake_spill_y");
    });
}

fn new_stream(guard: &Guard) -> std::sync::Arc<CudaStream> {
    context(guard).new_stream().expect("a stream")
}
