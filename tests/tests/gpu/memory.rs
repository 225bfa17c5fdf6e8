//! Workspaces larger than the memory of the device: a launch backs off to chunks that fit, and its output is correct.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaGraph, CudaSlice, CudaStream, DriverError};
use gridguard::cuda::{Args, LaunchError, LaunchErrorKind, capture_launches};
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter};
use gridguard_test_support::conformance::raw::RawDriver;

use super::support::{SOURCE, alone, guard, is_counting, kernel, kernel_of, stream};

const ITEMS: u64 = 64;

/// Counts 64 items through a workspace of `bytes` each, whose last word the kernel uses.
fn count_through(bytes: u64) -> (Result<u64, LaunchError>, Vec<u64>) {
    let (kernel, stream) = (kernel("count_through"), stream());
    let items = usize::try_from(ITEMS).expect("items");
    let mut out = stream.clone_htod(&vec![u64::MAX; items]).expect("memory");
    let request = LaunchRequest::new(Dim3::new(1, ITEMS, 1), Dim3::ONE);
    let batch = BatchAxis::new(Axis::Y, ITEMS).workspace(bytes, u64::MAX);
    let mut args = Args::new(&stream);
    args.write_items(&mut out, 1).workspace().value(bytes / 8).offset().length();
    let settled = guard().launch(&kernel, (&request, &batch), args);
    (settled, stream.clone_dtoh(&out).expect("copies back"))
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_workspace_larger_than_the_device_settles_and_the_output_is_right() {
    let (free, total) = guard().free_memory().expect("answers");
    assert!(0 < free && free <= total, "{free} of {total}");
    // 64 items take more than twice the device, 32 more than all of it, 16 about half.
    let bytes = total / 30 / 256 * 256;
    let (settled, out) = count_through(bytes);
    let settled = settled.expect("settles");
    assert!((4..=64).contains(&settled), "{settled} launches of at most 16 items");
    assert!(is_counting(&out), "{out:?}");
    // What was brought went back.
    stream().synchronize().expect("no sticky error");
    let (settled, out) = count_through(4096);
    assert_eq!(settled, Ok(1), "it fits");
    assert!(is_counting(&out));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn an_item_that_no_device_has_memory_for_is_an_error() {
    let (settled, out) = count_through(1 << 45);
    let refused = settled.expect_err("no memory");
    let LaunchErrorKind::Workspace(error) = refused.kind() else { panic!("{refused:?}") };
    assert_eq!((error.chunk, error.bytes, error.is_smallest), (1, 1 << 45, true));
    assert_eq!(error.source.code, 2);
    assert!(out.iter().all(|word| *word == u64::MAX), "nothing was launched");
}

/// Captures a count of 64 items through a workspace of `bytes` each, in a context of its own, and
/// launches it three times.
#[allow(unsafe_code, reason = "event tracking and capture exclude each other")]
fn replay_count(bytes: u64) -> (u64, Result<(), DriverError>) {
    let context = CudaContext::new(0).expect("a context");
    // SAFETY: one stream is used, and its memory freed after it was synchronized.
    unsafe { context.disable_event_tracking() };
    let guard = Guard::with_context(context.clone()).expect("a guard");
    let kernel =
        kernel_of(&guard.compile("support.cu", SOURCE).expect("compiles"), "count_through");
    let stream = context.new_stream().expect("a stream");
    let poison = vec![u64::MAX; usize::try_from(ITEMS).expect("items")];
    let mut out = stream.clone_htod(&poison).expect("memory");
    stream.synchronize().expect("synchronizes");

    let request = LaunchRequest::new(Dim3::new(1, ITEMS, 1), Dim3::ONE);
    // In chunks of 16.
    let batch = BatchAxis::new(Axis::Y, ITEMS).workspace(bytes, 16 * bytes);
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).expect("captures");
    let mut args = Args::new(&stream);
    args.write_items(&mut out, 1).workspace().value(bytes / 8).offset().length();
    let capture = || guard.launch(&kernel, (&request, &batch), args);
    // SAFETY: kernel and memory live until the graph has run, and all work is on one stream.
    let settled = unsafe { capture_launches(capture) };
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags);
    let settled = settled.expect("captured");
    let replayed =
        graph.and_then(|graph| replay(&graph.expect("it holds something"), &stream, &mut out));
    (settled, replayed)
}

fn replay(
    graph: &CudaGraph,
    stream: &Arc<CudaStream>,
    out: &mut CudaSlice<u64>,
) -> Result<(), DriverError> {
    for _ in 0..3 {
        let poison = vec![u64::MAX; out.len()];
        stream.memcpy_htod(&poison, out)?;
        graph.launch()?;
        assert!(is_counting(&stream.clone_dtoh(out)?));
    }
    Ok(())
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_captured_workspace_is_there_at_every_replay() {
    let (settled, replayed) = replay_count(1 << 20);
    assert_eq!((settled, replayed), (4, Ok(())));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_captured_workspace_larger_than_the_device_is_refused_with_the_graph() {
    // The driver keeps memory that a graph got before it was refused, until the process ends (H200, 580.159.04).
    let test = "memory::a_captured_workspace_larger_than_the_device_is_refused_with_the_graph";
    alone(test, || {
        let (_, total) = guard().free_memory().expect("answers");
        let bytes = total / 8 / 256 * 256;
        let (settled, replayed) = replay_count(bytes);
        assert_eq!(settled, 4, "an allocation cannot fail in a capture");
        let refused = replayed.expect_err("twice the device");
        assert_eq!(refused.0, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        stream().synchronize().expect("no sticky error");
    });
}

#[test]
#[ignore = "needs a CUDA GPU"]
#[allow(unsafe_code, reason = "the promise for a kernel that does nothing")]
fn a_launch_without_memory_for_its_local_memory_names_it() {
    const SOURCE: &str = "extern \"C\" __global__ void stacked(unsigned *out) {\n\
        if (!out) return;\n\
        volatile unsigned local[16384];\n\
        for (unsigned i = 0; i < 16384; i++) local[i] = out[0];\n\
        out[0] = local[out[1] % 16384];\n\
        }";
    let test = "memory::a_launch_without_memory_for_its_local_memory_names_it";
    alone(test, || {
        let module = guard().compile("stacked.cu", SOURCE).expect("compiles");
        // SAFETY: with a null pointer the kernel touches nothing.
        let kernel = unsafe { module.kernel("stacked", &[Parameter::of::<u64>()]) };
        let kernel = kernel.expect("a kernel");
        let launch = || {
            let stream = stream();
            let mut args = Args::new(&stream);
            args.value(0_u64);
            let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
            let launched = guard().launch(&kernel, &request, args);
            stream.synchronize().expect("no sticky error");
            launched
        };
        let (free, _) = guard().free_memory().expect("memory");
        let taken = usize::try_from(free - (1 << 30)).expect("bytes");
        let without = RawDriver::open().with_memory_taken(taken, launch).expect("memory");
        let stopped = without.expect_err("no memory");
        let source = stopped.driver().expect("its error");
        let local = source.local_memory().expect("out of memory for it");
        assert_eq!((source.code, local.bytes_per_thread), (2, 65_536));
        assert_eq!(local.resident_threads, guard().limits().resident_threads());
        assert_eq!(launch().expect("enough is free"), 1);
    });
}
