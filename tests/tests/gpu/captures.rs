//! Captures that begin while a call runs, on a real driver: what makes them invalid, and what can be waited for.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, LaunchErrorKind};
use gridguard::{Axis, BatchAxis, Choice, Dim3, LaunchRequest};
use gridguard_pipeline::{Budget, Buffer, DeviceMemory, Pipeline, StageResult};

use super::support::{guard, kernel, plan, stream};

const MODES: [CUstreamCaptureMode; 3] = [
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
];
const ITEMS: u64 = 60_000;

/// Ends the capture of the stream, which must yield no graph.
#[track_caller]
fn assert_no_graph(stream: &Arc<CudaStream>) {
    // It would return what cudarc recorded, and end nothing.
    let _ = stream.context().check_err();
    let ended = stream.end_capture(CUgraphInstantiate_flags(0));
    assert!(!matches!(ended, Ok(Some(_))), "a graph");
    stream.synchronize().expect("the stream works on");
}

/// Adds one to each item, on a stream that works.
#[track_caller]
fn assert_works(on: &Arc<CudaStream>) {
    let kernel = kernel("add_one");
    let mut x = on.alloc_zeros::<u64>(1000).expect("memory");
    let mut args = Args::new(on);
    args.write_items(&mut x, 1);
    let plan = plan(&kernel, Axis::Y, 1000, Choice::AUTOMATIC);
    assert_eq!(guard().launch(&kernel, &plan, args), Ok(1));
    assert_eq!(on.clone_dtoh(&x).expect("copies"), vec![1; 1000]);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_split_launch_stops_when_another_thread_captures_its_stream() {
    let kernel = kernel("add_one");
    let (on, owner) = (stream(), stream());
    // A launch of one item each takes some microseconds: far longer than the other thread sleeps.
    let plan = plan(&kernel, Axis::Y, ITEMS, Choice::at_most(1));
    for mode in MODES {
        let mut x: CudaSlice<u64> = owner.alloc_zeros(60_000).expect("memory");
        owner.synchronize().expect("synchronizes");
        let launched = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(5));
                on.begin_capture(mode).expect("nobody captures it");
                thread::sleep(Duration::from_millis(50));
                assert_no_graph(&on);
            });
            let mut args = Args::new(&on);
            args.write_items(&mut x, 1);
            guard().launch(&kernel, &plan, args)
        });
        let error = launched.expect_err("a capture began");
        let LaunchErrorKind::Stopped(stopped) = error.kind() else { panic!("{error:?}") };
        assert_eq!(stopped.source.code, 900, "{stopped}");
        // All earlier chunks have run. Only the last of them may have been captured instead.
        let written = owner.clone_dtoh(&x).expect("copies").iter().filter(|x| **x == 1).count();
        let written = u64::try_from(written).expect("fits");
        assert!((stopped.chunk - 1..=stopped.chunk).contains(&written), "{written}: {stopped}");
        drop(x);
        assert_works(&on);
    }
}

/// A pipeline of a slow kernel that reads memory, and a call that does this.
fn with_call<'a>(
    call: impl FnMut(&Arc<CudaStream>) -> StageResult + Send + 'a,
) -> (Pipeline<'a>, Buffer<u64>) {
    let mut builder = Pipeline::builder(ITEMS);
    let x = builder.in_place::<u64>("x", 1);
    let request = LaunchRequest::new(Dim3::new(1, ITEMS, 1), Dim3::ONE);
    let stage = builder.kernel("add", &kernel("add_one"), request, BatchAxis::new(Axis::Y, ITEMS));
    stage.update(x);
    let mut call = call;
    builder.call("call", move |stream, _, _| call(stream)).update(x);
    (builder.build().expect("two stages"), x)
}

/// Runs it over memory of another stream, ends the captures with `end`, and reads the memory.
fn run_with_call(
    on: &Arc<CudaStream>,
    call: impl FnMut(&Arc<CudaStream>) -> StageResult + Send,
    end: impl FnOnce(),
) {
    let owner = stream();
    let (mut pipeline, x) = with_call(call);
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
    let mut memory: CudaSlice<u64> = owner.alloc_zeros(60_000).expect("memory");
    let bound = DeviceMemory::new(on).write(x, &mut memory);
    let error = pipeline.run(guard(), &plan, bound).expect_err("a capture began");
    assert!(error.to_string().contains("being captured"), "{error}");
    end();
    // What cudarc could not record.
    let _ = on.context().check_err();
    assert_eq!(owner.clone_dtoh(&memory).expect("copies"), vec![1; 60_000]);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_stage_that_begins_a_capture_ends_the_run_and_the_stream_works_on() {
    for mode in MODES {
        let on = stream();
        run_with_call(&on, |stream| Ok(stream.begin_capture(mode)?), || assert_no_graph(&on));
        assert_works(&on);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_stage_whose_stream_joins_a_capture_ends_the_run() {
    for mode in MODES {
        let (on, origin) = (stream(), stream());
        let join = |stream: &Arc<CudaStream>| {
            origin.begin_capture(mode)?;
            Ok(stream.join(&origin)?)
        };
        run_with_call(&on, join, || assert_no_graph(&origin));
        assert_works(&on);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_stage_whose_thread_began_a_capture_and_ended_does_not_stop_the_run_for_ever() {
    let on = stream();
    let capture = |stream: &Arc<CudaStream>| {
        let begin = || stream.begin_capture(MODES[1]).expect("nobody captures it");
        thread::scope(|scope| scope.spawn(begin).join()).expect("it began");
        Ok(())
    };
    // Nobody can end that capture any more.
    run_with_call(&on, capture, || ());
}
