//! Plans during stream capture: the chunks become nodes of a graph.
#![allow(unsafe_code, reason = "event tracking is switched off, and launches are captured")]

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel, LaunchError, LaunchErrorKind, capture_launches};
use gridguard::{Axis, Guard};
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{
    POISON, context, guard, iota, items_along, kernel, launch_iota, plan_along, poisoned, read,
    with_kernel,
};

#[test]
fn captured_chunks_run_at_every_replay_and_not_before() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        // SAFETY: everything happens on one stream, in order. A captured stream may not wait for
        // events of the time before the capture.
        unsafe { context(&guard).disable_event_tracking() };
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&stream, 76_800);
        let plan = plan_along(&kernel, Axis::Y, 76_800);

        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
            .expect("the stream is idle");
        // SAFETY: kernel and memory live until the graph has run, and all work is on one stream.
        let launched =
            unsafe { capture_launches(|| launch_iota(&guard, &kernel, &plan, &stream, &mut out)) };
        let graph = stream
            .end_capture(CUgraphInstantiate_flags(0))
            .expect("the capture is valid")
            .expect("and holds something");
        assert_eq!(launched, Ok(2));
        assert!(read(&stream, &out).iter().all(|item| *item == POISON), "nothing ran yet");
        let captured = launches();
        assert!(captured.iter().all(|line| line.contains(" stream=capturing ")));
        assert_eq!(captured.len(), 2);

        for _ in 0..2 {
            let poison = vec![POISON; 76_800];
            stream.memcpy_htod(&poison, &mut out).expect("the memory is ours");
            graph.launch().expect("the graph is valid");
            assert_eq!(read(&stream, &out), iota(76_800));
        }
        let replayed = &launches()[2..];
        assert!(replayed.iter().all(|line| line.contains(" stream=graph ")));
        assert_eq!(replayed.len(), 4);
    });
}

const ITEMS: u64 = 64;
const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// A guard, a stream of its context without event tracking, and memory that nobody wrote to.
fn idle() -> (Guard, Arc<CudaStream>, CudaSlice<u64>) {
    let guard = guard();
    // SAFETY: everything happens on one stream, in order.
    unsafe { context(&guard).disable_event_tracking() };
    let stream = context(&guard).new_stream().expect("a stream");
    let out = poisoned(&stream, ITEMS);
    (guard, stream, out)
}

/// Captures the kernel `fake_spill_y` over 64 items of 1,000 bytes of workspace each.
fn capture_spill(
    (guard, stream, out): (&Guard, &Arc<CudaStream>, &mut CudaSlice<u64>),
    kernel: &Kernel,
    mode: CUstreamCaptureMode,
) -> (Result<u64, LaunchError>, Option<CudaGraph>) {
    let (request, batch) = items_along(Axis::Y, ITEMS);
    // In chunks of 32.
    let batch = batch.workspace(1000, 32_000);
    stream.begin_capture(mode).expect("the stream is idle");
    let mut args = Args::new(stream);
    args.write_items(out, 1).offset().length().workspace();
    let capture = || guard.launch(kernel, (&request, &batch), args);
    // SAFETY: kernel and memory live until the graph has run, and all work is on one stream.
    let run = unsafe { capture_launches(capture) };
    let graph = stream.end_capture(CUgraphInstantiate_flags(0)).expect("the capture is valid");
    (run, graph)
}

#[test]
fn a_captured_workspace_is_allocated_at_every_replay() {
    with_fake(&[], || {
        let (guard, stream, mut out) = idle();
        let kernel = kernel(&guard, "fake_spill_y");
        let (run, graph) = capture_spill((&guard, &stream, &mut out), &kernel, GLOBAL);
        assert_eq!(run, Ok(2));
        for _ in 0..2 {
            stream.memcpy_htod(&[POISON; 64], &mut out).expect("the memory is ours");
            graph.as_ref().expect("it holds something").launch().expect("there is room");
            assert_eq!(read(&stream, &out), iota(ITEMS));
        }
    });
}

#[test]
fn a_captured_workspace_that_does_not_fit_fails_the_launch_of_the_graph() {
    with_fake(&[("GRIDGUARD_FAKE_ALLOC_LIMIT", "17000")], || {
        let (guard, stream, mut out) = idle();
        let kernel = kernel(&guard, "fake_spill_y");
        let idle = (&guard, &stream, &mut out);
        let (run, graph) = capture_spill(idle, &kernel, GLOBAL);
        assert_eq!(run, Ok(2), "the limit is not known yet");
        let refused = graph.expect("it holds something").launch().expect_err("there is no room");
        assert_eq!(refused.0, cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        assert_eq!(read(&stream, &out), [POISON; 64]);
    });
}

#[test]
fn without_memory_pools_a_workspace_is_rejected_and_the_capture_stays_valid() {
    with_fake(&[("GRIDGUARD_FAKE_MEMORY_POOLS", "0")], || {
        let (guard, stream, mut out) = idle();
        let kernel = kernel(&guard, "fake_spill_y");
        for mode in [GLOBAL, RELAXED] {
            let idle = (&guard, &stream, &mut out);
            let (run, graph) = capture_spill(idle, &kernel, mode);
            let what = "workspaces during stream capture";
            assert_eq!(
                run,
                Err(LaunchErrorKind::Unsupported { symbol: "cuMemAllocAsync", what }.into())
            );
            graph.expect("it is valid").launch().expect("and empty");
        }
        assert_eq!((launches().len(), read(&stream, &out)), (0, vec![POISON; 64]));
    });
}
