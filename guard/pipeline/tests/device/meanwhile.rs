//! Captures that begin while a call runs: by another thread, by a stage, by a monitor.

use core::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

use cudarc::driver::sys::CUstreamCaptureMode;
use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::{Axis, Chunk, Guard};
use gridguard_pipeline::{
    Budget, Buffer, DeviceMemory, Error, ErrorKind, Monitor, Pipeline, PipelineScratch, Progress,
    StageResult,
};
use gridguard_test_support::fake_driver::with_fake;

use crate::kernels::{
    assert_nothing_is_captured, assert_ordered, guard, items_along, kernel, poisoned, with_guard,
};
use crate::spilling::stream;

pub(crate) const ITEMS: u64 = 64;

const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
pub(crate) const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    RELAXED,
];

/// A pipeline of a kernel that reads the caller's memory, a call, and a kernel that writes scratch.
fn with_call<'a>(
    guard: &Guard,
    call: impl FnMut(&Arc<CudaStream>, &Chunk) -> StageResult + Send + 'a,
) -> (Pipeline<'a>, Buffer<u64>) {
    let mut builder = Pipeline::builder(ITEMS);
    let x = builder.input::<u64>("x", 1);
    let one = builder.scratch::<u64>("one", 1);
    let (request, batch) = items_along(Axis::Y, ITEMS);
    builder.kernel("look", &kernel(guard, "look"), request, batch).read(x);
    let mut call = call;
    builder.call("call", move |stream, chunk, _| call(stream, chunk)).write(one);
    let iota = kernel(guard, "fake_iota_y");
    builder.kernel("iota", &iota, request, batch).update(one).offset().length();
    (builder.build().expect("three stages"), x)
}

/// Runs it on two streams over memory of a third, with a call that does this at the second chunk.
fn run_with_call(act: impl Fn(&Arc<CudaStream>) + Sync) -> (Arc<CudaStream>, Error) {
    let guard = guard();
    let (on, more) = (stream(&guard), [stream(&guard)]);
    let mut scratch = PipelineScratch::new();
    let (mut pipeline, x) = with_call(&guard, |stream, chunk| {
        if chunk.index == 1 {
            act(stream);
        }
        Ok(())
    });
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(16).in_flight(2)).expect("it fits");
    let memory: CudaSlice<u64> = poisoned(&stream(&guard), ITEMS);
    let bound = DeviceMemory::new(&on).on_streams(&more).scratch(&mut scratch);
    let ran = pipeline.run(&guard, &plan, bound.read(x, &memory));
    let error = ran.expect_err("a capture began");
    drop(memory);
    drop(scratch);
    assert_ordered();
    for stream in [&on, &more[0]] {
        assert_nothing_is_captured(stream);
    }
    (on, error)
}

#[track_caller]
pub(crate) fn assert_captured(error: &Error) {
    let text = "a stream is being captured, and a graph keeps no memory of a pipeline: run it after the \
                capture";
    assert!(error.to_string().ends_with(text), "{error}");
    assert_eq!(error.kind(), ErrorKind::Captured);
}

#[test]
fn a_stage_that_begins_a_capture_ends_the_run_and_memory_waits_for_it() {
    with_fake(&[], || {
        for mode in MODES {
            let (_, error) =
                run_with_call(|stream| stream.begin_capture(mode).expect("it is idle"));
            assert_captured(&error);
        }
    });
}

#[test]
fn a_stage_whose_stream_joins_a_capture_ends_the_run_and_memory_waits_for_it() {
    with_fake(&[], || {
        let origin = stream(&guard());
        let (_, error) = run_with_call(|stream| {
            origin.begin_capture(RELAXED).expect("it is idle");
            stream.join(&origin).expect("it becomes part of the capture");
        });
        assert_captured(&error);
        assert_nothing_is_captured(&origin);
    });
}

#[test]
fn a_stage_whose_thread_began_a_capture_and_ended_does_not_stop_the_run_for_ever() {
    with_fake(&[], || {
        let (_, error) = run_with_call(|stream| {
            let begin = || stream.begin_capture(MODES[0]).expect("it is idle");
            thread::scope(|scope| scope.spawn(begin).join()).expect("it began");
        });
        assert_captured(&error);
    });
}

/// Runs it in two chunks over memory of another stream, and frees the memory at once.
fn failed(
    on: &Arc<CudaStream>,
    guard: &Guard,
    monitor: Option<&mut dyn Monitor>,
    call: impl FnMut(&Arc<CudaStream>, &Chunk) -> StageResult + Send,
) -> Error {
    let (mut pipeline, x) = with_call(guard, call);
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(32)).expect("it fits");
    let memory: CudaSlice<u64> = poisoned(&stream(guard), ITEMS);
    let mut bound = DeviceMemory::new(on).read(x, &memory);
    if let Some(monitor) = monitor {
        bound = bound.monitor(monitor);
    }
    let error = pipeline.run(guard, &plan, bound).expect_err("it ends");
    drop(memory);
    assert_nothing_is_captured(on);
    error
}

#[test]
fn a_stage_that_fails_after_it_began_a_capture_is_waited_for_too() {
    with_guard(&[], |guard| {
        let error = failed(&stream(&guard), &guard, None, |stream, _| {
            stream.begin_capture(RELAXED).expect("it is idle");
            Err("no library".into())
        });
        assert!(error.to_string().ends_with("no library"), "{error}");
    });
}

/// Begins a capture between the first chunk and the second, and ends the run then or not.
struct Begins {
    on: Arc<CudaStream>,
    cancels: bool,
}

impl Monitor for Begins {
    fn progress(&mut self, _: &Progress) -> ControlFlow<()> {
        self.on.begin_capture(MODES[1]).expect("it is idle");
        if self.cancels { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_monitor_that_begins_a_capture_ends_the_run() {
    with_fake(&[], || {
        for cancels in [false, true] {
            let guard = guard();
            let on = stream(&guard);
            let mut monitor = Begins { on: Arc::clone(&on), cancels };
            assert_captured(&failed(&on, &guard, Some(&mut monitor), |_, _| Ok(())));
        }
    });
}

#[test]
fn a_pipeline_whose_kernel_another_thread_captured_ends() {
    with_guard(&[("GRIDGUARD_FAKE_CAPTURE_BEFORE", "1")], |guard| {
        assert_captured(&failed(&stream(&guard), &guard, None, |_, _| Ok(())));
    });
}

#[test]
fn the_payload_of_a_stage_s_panic_may_panic_when_it_is_dropped() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("again");
        }
    }
    with_guard(&[], |guard| {
        let error = failed(&stream(&guard), &guard, None, |_, _| std::panic::panic_any(Panics));
        assert!(error.to_string().ends_with("it panicked: no message"), "{error}");
    });
}
