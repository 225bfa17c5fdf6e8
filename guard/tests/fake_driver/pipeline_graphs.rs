//! Pipelines captured as a graph, and replayed.
#![allow(unsafe_code, reason = "a stage copies memory through the driver")]

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, PinnedHostSlice};
use gridguard::cuda::{CudaPipeline, DeviceMemory, DeviceViews, PipelineGraph};
use gridguard::pipeline::{Budget, Buffer, MemoryError, RunError, StageError};
use gridguard::{Axis, Chunk, Guard};
use gridguard_test_support::fake_driver::{launches, races, unloads, with_fake, work};

use crate::kernels::{POISON, context, guard, iota, items_along, kernel, poisoned, read};

const ITEMS: u64 = 100;

/// Writes the number of each item to `out`, through scratch.
struct Numbers<'a> {
    pipeline: CudaPipeline<'a>,
    out: Buffer<u64>,
}

/// A kernel, and a call that `before` is called in.
fn numbers<'a>(
    guard: &Guard,
    on_host: bool,
    before: impl FnMut(&Chunk) -> Result<(), StageError> + 'a,
) -> Numbers<'a> {
    let mut builder = CudaPipeline::builder(ITEMS);
    let (one, two) = (builder.scratch::<u64>("one", 1), builder.scratch::<u64>("two", 1));
    let out = builder.output::<u64>("out", 1);
    if on_host {
        builder.in_host_memory(out);
    }
    let (request, batch) = items_along(Axis::Y, ITEMS);
    let spill = kernel(guard, "fake_spill_y");
    builder.kernel("spill", &spill, request, batch).writes(one).offset().length().writes(two);
    let mut before = before;
    let call = move |stream: &Arc<CudaStream>, chunk: &Chunk, views: &DeviceViews<'_>| {
        before(chunk)?;
        let (from, to) = (views.read(two)?, views.write(out)?);
        let (bytes, stream) = (usize::try_from(to.bytes)?, stream.cu_stream());
        // SAFETY: both are memory of the pipeline, of that size, for work on this stream.
        unsafe {
            cudarc::driver::result::memcpy_dtod_async(to.address, from.address, bytes, stream)
        }?;
        Ok(())
    };
    // SAFETY: it copies buffers of the pipeline on the stream that it gets.
    unsafe { builder.call_in_graphs("copy", call) }.reads(two).writes(out);
    Numbers { pipeline: builder.build().expect("two stages"), out }
}

/// Captures it over `memory`, in chunks of 30 items, two in flight.
fn captured<'a>(
    guard: &Guard,
    numbers: Numbers<'a>,
    stream: &Arc<CudaStream>,
    memory: &mut CudaSlice<u64>,
) -> Result<PipelineGraph<'a>, RunError> {
    let Numbers { pipeline, out } = numbers;
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(30).in_flight(2)).expect("it fits");
    guard.capture_pipeline(pipeline, &plan, DeviceMemory::new(stream).write(out, memory))
}

fn stream(guard: &Guard) -> Arc<CudaStream> {
    context(guard).new_stream().expect("a stream")
}

fn pinned(guard: &Guard) -> PinnedHostSlice<u64> {
    // SAFETY: it is filled before it is read.
    let memory = unsafe { context(guard).alloc_pinned::<u64>(100) };
    let mut memory = memory.expect("host memory");
    memory.as_mut_slice().expect("idle").fill(POISON);
    memory
}

#[test]
fn nothing_runs_at_the_capture_and_all_of_it_at_each_replay() {
    with_fake(&[], || {
        let guard = guard();
        let stream = stream(&guard);
        let mut memory = poisoned(&stream, ITEMS);
        let mut calls = 0;
        let numbers = numbers(&guard, false, |_| {
            calls += 1;
            Ok(())
        });
        let out = numbers.out;
        let mut graph = captured(&guard, numbers, &stream, &mut memory).expect("captured");
        assert_eq!(read(&stream, &memory), [POISON; 100]);
        // Four chunks, the last of the same size as none of the others.
        assert_eq!((graph.run().chunks, graph.run().items_done), (4, ITEMS));
        assert_eq!(guard.counts().launches, 0);
        for replay in 1..=3 {
            stream.memcpy_htod(&[POISON; 100], &mut memory).expect("poisoned");
            let again = DeviceMemory::new(&stream).write(out, &mut memory);
            guard.replay_pipeline(&mut graph, again).expect("it runs");
            assert_eq!(read(&stream, &memory), iota(ITEMS));
            assert_eq!(guard.counts().launches, 4 * replay);
        }
        drop((graph, memory));
        assert_eq!(calls, 4, "stages are called for the capture only");
        let of = |how: &str| launches().iter().filter(|line| line.contains(how)).count();
        assert_eq!((of("stream=capturing"), of("stream=graph"), of("stream=eager")), (4, 12, 0));
        assert_eq!(races(), Vec::<String>::new());
    });
}

#[test]
fn a_last_chunk_of_another_size_is_part_of_the_graph() {
    with_fake(&[], || {
        let guard = guard();
        let stream = stream(&guard);
        let Numbers { pipeline, out } = numbers(&guard, false, |_| Ok(()));
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(33).in_flight(3)).expect("it fits");
        let plan_of_34 = pipeline.plan(&Budget::UNLIMITED.at_most(34)).expect("it fits");
        assert_eq!((plan.len(), plan_of_34.remainder()), (4, Some(32)));
        let mut memory = poisoned(&stream, ITEMS);
        let bound = DeviceMemory::new(&stream).write(out, &mut memory);
        let mut graph = guard.capture_pipeline(pipeline, &plan_of_34, bound).expect("captured");
        let again = DeviceMemory::new(&stream).write(out, &mut memory);
        guard.replay_pipeline(&mut graph, again).expect("it runs");
        assert_eq!(read(&stream, &memory), iota(ITEMS));
    });
}

#[test]
fn chunks_of_host_memory_are_copied_by_the_graph() {
    with_fake(&[("GRIDGUARD_FAKE_LOG_WORK", "1")], || {
        let guard = guard();
        let stream = stream(&guard);
        let Numbers { pipeline, out } = numbers(&guard, true, |_| Ok(()));
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(50).in_flight(2)).expect("it fits");
        let mut memory = pinned(&guard);
        let bound = DeviceMemory::new(&stream).write_host(out, &mut memory);
        let mut graph = guard.capture_pipeline(pipeline, &plan, bound).expect("captured");
        assert_eq!(memory.as_slice().expect("idle"), [POISON; 100]);
        let captured = work();
        let copies = captured.iter().filter(|line| line.ends_with("copy out 400 captured"));
        let streams: Vec<_> = copies.map(|line| line.split(' ').next()).collect();
        assert!(streams.len() == 2 && streams[0] != streams[1], "{captured:?}");
        let again = DeviceMemory::new(&stream).write_host(out, &mut memory);
        guard.replay_pipeline(&mut graph, again).expect("it runs");
        let replayed = &work()[captured.len()..];
        // Two launches, two calls and two copies, between the orders.
        assert_eq!(replayed.iter().filter(|line| line.ends_with(" graph 6")).count(), 1);
        assert!(!replayed.iter().any(|line| line.contains("launch")), "{replayed:?}");
        assert_eq!(memory.as_slice().expect("it ran"), iota(ITEMS));
        drop(memory);
        assert_eq!(races(), Vec::<String>::new());
    });
}

#[test]
fn replays_on_several_streams_and_uses_between_them_are_ordered() {
    with_fake(&[], || {
        let guard = guard();
        let (one, other) = (stream(&guard), stream(&guard));
        let mut memory = poisoned(&one, ITEMS);
        let numbers = numbers(&guard, false, |_| Ok(()));
        let out = numbers.out;
        let mut graph = captured(&guard, numbers, &one, &mut memory).expect("captured");
        for stream in [&one, &other, &one] {
            let again = DeviceMemory::new(stream).write(out, &mut memory);
            guard.replay_pipeline(&mut graph, again).expect("it runs");
            other.memcpy_htod(&[POISON; 100], &mut memory).expect("written");
        }
        let again = DeviceMemory::new(&other).write(out, &mut memory);
        guard.replay_pipeline(&mut graph, again).expect("it runs");
        // Both while the replay may still run.
        drop(memory);
        drop((graph, guard));
        assert_eq!(unloads().len(), 1);
        assert_eq!(races(), Vec::<String>::new());
    });
}

#[test]
fn other_memory_than_that_of_the_capture_is_refused() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let (guard, second) = (guard(), Guard::cuda(1).expect("a second device"));
        let stream = stream(&guard);
        let mut memory = poisoned(&stream, ITEMS);
        let numbers = numbers(&guard, false, |_| Ok(()));
        let out = numbers.out;
        let mut graph = captured(&guard, numbers, &stream, &mut memory).expect("captured");
        let before = launches().len();
        let mut refused = |memory: DeviceMemory<'_>| {
            guard.replay_pipeline(&mut graph, memory).expect_err("refused")
        };
        let mut other = poisoned(&stream, ITEMS);
        let error = refused(DeviceMemory::new(&stream).write(out, &mut other));
        let buffer = || "out".to_owned();
        assert_eq!(error, MemoryError::OtherMemory { buffer: buffer() }.into());
        let error = refused(DeviceMemory::new(&stream));
        assert_eq!(error, MemoryError::Missing { buffer: buffer() }.into());
        let mut half = memory.slice_mut(..50);
        let error = refused(DeviceMemory::new(&stream).write(out, &mut half));
        let wrong = MemoryError::WrongLength { buffer: buffer(), needed: 800, given: 400 };
        assert_eq!(error, wrong.into());
        let foreign = context(&second).default_stream();
        let error = refused(DeviceMemory::new(&foreign).write(out, &mut memory));
        assert_eq!(error, MemoryError::OtherContext { what: "a stream" }.into());
        assert_eq!(launches().len(), before);
        let again = DeviceMemory::new(&stream).write(out, &mut memory);
        guard.replay_pipeline(&mut graph, again).expect("a refusal changes nothing");
        assert_eq!(read(&stream, &memory), iota(ITEMS));
    });
}

#[test]
fn a_call_that_is_not_declared_for_graphs_is_refused() {
    with_fake(&[], || {
        let guard = guard();
        let stream = stream(&guard);
        let mut builder = CudaPipeline::builder(ITEMS);
        let out = builder.output::<u64>("out", 1);
        builder.call("library", |_, _, _| panic!("it is not called")).writes(out);
        let pipeline = builder.build().expect("one stage");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let mut memory = poisoned(&stream, ITEMS);
        let bound = DeviceMemory::new(&stream).write(out, &mut memory);
        let error = guard.capture_pipeline(pipeline, &plan, bound).expect_err("refused");
        assert_eq!(error, RunError::NotCapturable { stage: "library".to_owned() });
    });
}

#[test]
fn a_capture_that_fails_leaves_streams_and_memory_usable() {
    with_fake(&[], || {
        let guard = guard();
        let stream = stream(&guard);
        let mut memory = poisoned(&stream, ITEMS);
        let out_of_memory = |chunk: &Chunk| match chunk.index {
            2 => Err(StageError::out_of_memory("no workspace")),
            _ => Ok(()),
        };
        let failing = numbers(&guard, false, out_of_memory);
        let error = captured(&guard, failing, &stream, &mut memory).expect_err("it fails");
        assert_eq!(
            error.to_string(),
            "stage copy failed at chunk 2 (items 50..75), after 50 of 100 items: no workspace"
        );
        let panics = numbers(&guard, false, |_| panic!("now"));
        let error = captured(&guard, panics, &stream, &mut memory).expect_err("it panics");
        assert!(error.to_string().ends_with("it panicked: now"), "{error}");
        assert_eq!(read(&stream, &memory), [POISON; 100]);
        let numbers = numbers(&guard, false, |_| Ok(()));
        let out = numbers.out;
        let mut graph = captured(&guard, numbers, &stream, &mut memory).expect("captured");
        let again = DeviceMemory::new(&stream).write(out, &mut memory);
        guard.replay_pipeline(&mut graph, again).expect("it runs");
        assert_eq!(read(&stream, &memory), iota(ITEMS));
        assert_eq!(races(), Vec::<String>::new());
    });
}

#[test]
fn scratch_that_does_not_fit_is_halved_before_the_capture() {
    // The output's 800 bytes, beside 16 bytes and less than 1,000 bytes of places.
    with_fake(&[("GRIDGUARD_FAKE_ALLOC_LIMIT", "1700")], || {
        let guard = guard();
        let stream = stream(&guard);
        let mut memory = poisoned(&stream, ITEMS);
        let Numbers { pipeline, out } = numbers(&guard, false, |_| Ok(()));
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let bound = DeviceMemory::new(&stream).write(out, &mut memory);
        let mut graph = guard.capture_pipeline(pipeline, &plan, bound).expect("25 fit");
        assert_eq!((&graph.run().tried[..], graph.run().chunks), (&[100, 50, 25][..], 4));
        let again = DeviceMemory::new(&stream).write(out, &mut memory);
        guard.replay_pipeline(&mut graph, again).expect("it runs");
        assert_eq!(read(&stream, &memory), iota(ITEMS));
    });
}

#[test]
fn a_graph_that_the_driver_refuses_is_an_error_and_can_be_tried_again() {
    // The four launches of the capture count too.
    let settings = [("GRIDGUARD_FAKE_FAIL_LAUNCH", "4"), ("GRIDGUARD_FAKE_FAIL_CODE", "2")];
    with_fake(&settings, || {
        let guard = guard();
        let stream = stream(&guard);
        let mut memory = poisoned(&stream, ITEMS);
        let numbers = numbers(&guard, false, |_| Ok(()));
        let out = numbers.out;
        let mut graph = captured(&guard, numbers, &stream, &mut memory).expect("captured");
        let again = DeviceMemory::new(&stream).write(out, &mut memory);
        let error = guard.replay_pipeline(&mut graph, again).expect_err("the first node");
        assert!(error.to_string().contains("cuGraphLaunch"), "{error}");
        let again = DeviceMemory::new(&stream).write(out, &mut memory);
        guard.replay_pipeline(&mut graph, again).expect("it runs");
        assert_eq!(read(&stream, &memory), iota(ITEMS));
    });
}

#[test]
fn a_pipeline_without_items_is_an_empty_graph() {
    with_fake(&[], || {
        let guard = guard();
        let stream = stream(&guard);
        let mut builder = CudaPipeline::builder(0);
        let sum = builder.accumulator::<u64>("sum", 1);
        // SAFETY: it submits nothing.
        unsafe { builder.call_in_graphs("add", |_, _, _| panic!("no chunk")) }.updates(sum);
        let pipeline = builder.build().expect("one stage");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("nothing to fit");
        let mut memory = poisoned(&stream, 1);
        let bound = DeviceMemory::new(&stream).write(sum, &mut memory);
        let mut graph = guard.capture_pipeline(pipeline, &plan, bound).expect("captured");
        let again = DeviceMemory::new(&stream).write(sum, &mut memory);
        guard.replay_pipeline(&mut graph, again).expect("nothing runs");
        assert_eq!(read(&stream, &memory), [POISON]);
    });
}
