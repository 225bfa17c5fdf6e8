//! Pipelines on memory of other CUDA bindings, by its address, also on streams that they capture.
#![allow(unsafe_code, reason = "memory by its address, and a capture")]

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use gridguard::cuda::capture_launches;
use gridguard::{Axis, Guard};
use gridguard_pipeline::{Budget, Buffer, DeviceMemory, ErrorKind, Pipeline};
use gridguard_test_support::fake_driver::{launches, races, work};

use crate::kernels::{
    POISON, context, iota, items_along, kernel, poisoned, read, with_guard, with_stream,
};
use crate::spilling::{ITEMS, streams, with_new_stream};

const BYTES: u64 = 8 * ITEMS;
const LOGGED: &[(&str, &str)] = &[("GRIDGUARD_FAKE_LOG_WORK", "1")];

/// Writes the number of each item to scratch, and to the output.
fn numbering(guard: &Guard) -> (Pipeline<'static>, Buffer<u64>) {
    let mut builder = Pipeline::builder(ITEMS);
    let (t, y) = (builder.scratch::<u64>("t", 1), builder.output::<u64>("y", 1));
    let (request, batch) = items_along(Axis::Y, ITEMS);
    let spill = kernel(guard, "fake_spill_y");
    builder.kernel("spill", &spill, request, batch).write(y).offset().length().write(t);
    (builder.build().expect("one stage"), y)
}

fn address(stream: &Arc<CudaStream>, memory: &CudaSlice<u64>) -> u64 {
    memory.device_ptr(stream).0
}

/// How often memory was allocated so far.
fn allocations() -> usize {
    work().iter().filter(|line| line.contains(" allocate ")).count()
}

#[test]
fn memory_and_scratch_by_address_are_used_and_nothing_is_allocated() {
    with_new_stream(LOGGED, |guard, stream| {
        let more = streams(&guard, 1);
        let (mut pipeline, y) = numbering(&guard);
        for (at_most, in_flight) in [(100, 1), (30, 1), (20, 2)] {
            let budget = Budget::UNLIMITED.at_most(at_most).in_flight(in_flight);
            let plan = pipeline.plan(&budget).expect("it fits");
            let (out, scratch) = (poisoned(&stream, ITEMS), poisoned(&stream, plan.bytes() / 8));
            let before = allocations();
            let memory = DeviceMemory::new(&stream).on_streams(&more);
            // SAFETY: both live until the stream has done the run, and nothing else uses them.
            let memory = unsafe {
                memory
                    .write_raw(y, address(&stream, &out), BYTES)
                    .scratch_raw(address(&stream, &scratch), plan.bytes())
            };
            let run = pipeline.run(&guard, &plan, memory).expect("it runs");
            assert_eq!((run.items_done, allocations()), (ITEMS, before));
            assert_eq!(read(&stream, &out), iota(ITEMS));
            assert!(read(&stream, &scratch).iter().any(|item| *item != POISON), "it was used");
            // The fake driver orders uses of a whole allocation. Chunks in flight write parts of it.
            assert!(in_flight > 1 || races().is_empty(), "{:?}", races());
        }
    });
}

#[test]
fn scratch_that_is_too_small_is_not_used() {
    with_stream(LOGGED, |guard, stream| {
        let (mut pipeline, y) = numbering(&guard);
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let (mut out, scratch) = (poisoned(&stream, ITEMS), poisoned(&stream, ITEMS));
        let before = allocations();
        let memory = DeviceMemory::new(&stream).write(y, &mut out);
        // SAFETY: as above.
        let memory = unsafe { memory.scratch_raw(address(&stream, &scratch), plan.bytes() - 1) };
        pipeline.run(&guard, &plan, memory).expect("it runs");
        assert_eq!(allocations(), before + 1);
        assert!(read(&stream, &scratch).iter().all(|item| *item == POISON));
    });
}

#[test]
fn memory_of_another_length_is_refused() {
    with_stream(&[], |guard, stream| {
        let (mut pipeline, y) = numbering(&guard);
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let out = poisoned(&stream, ITEMS);
        // SAFETY: as above.
        let memory =
            unsafe { DeviceMemory::new(&stream).write_raw(y, address(&stream, &out), BYTES - 8) };
        let error = pipeline.run(&guard, &plan, memory).expect_err("too short");
        let text = "buffer y has 792 bytes, the items of the pipeline need 800";
        assert_eq!(error.to_string(), text);
        assert!(launches().is_empty());
    });
}

#[test]
fn a_stream_that_is_being_captured_is_refused_but_where_the_caller_vouches_for_the_graph() {
    with_guard(&[], |guard| {
        // SAFETY: everything happens on one stream, in order.
        unsafe { context(&guard).disable_event_tracking() };
        let stream = context(&guard).new_stream().expect("a stream");
        let (mut pipeline, y) = numbering(&guard);
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(50)).expect("it fits");
        let (mut out, scratch) = (poisoned(&stream, ITEMS), poisoned(&stream, plan.bytes() / 8));
        let (of_out, of_scratch) = (address(&stream, &out), address(&stream, &scratch));
        let memory = || {
            let memory = DeviceMemory::new(&stream);
            // SAFETY: as above, until the graph is dropped.
            unsafe { memory.write_raw(y, of_out, BYTES).scratch_raw(of_scratch, plan.bytes()) }
        };
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        stream.begin_capture(mode).expect("the stream is idle");
        let refused = pipeline.run(&guard, &plan, memory()).expect_err("captured");
        assert_eq!(refused.kind(), ErrorKind::Captured, "{refused}");
        let run = || pipeline.run(&guard, &plan, memory());
        // SAFETY: kernel and memory live until the graph has run, and all work is on one stream.
        let ran = unsafe { capture_launches(run) };
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).expect("it is valid");
        let graph = graph.expect("it holds the chunks");
        assert_eq!(ran.expect("it is captured").items_done, ITEMS);
        assert!(read(&stream, &out).iter().all(|item| *item == POISON), "nothing ran yet");
        for _ in 0..2 {
            stream.memcpy_htod(&vec![POISON; 100], &mut out).expect("the memory is ours");
            graph.launch().expect("the graph is valid");
            assert_eq!(read(&stream, &out), iota(ITEMS));
        }
    });
}
