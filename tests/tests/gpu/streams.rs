//! Stream capture, several streams, several threads.

use std::thread;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use gridguard::cuda::{Args, LaunchErrorKind, capture_launches};
use gridguard::{Axis, Choice, Guard};

use super::support::{SOURCE, guard, is_counting, kernel, kernel_of, plan, stream};

#[test]
#[ignore = "needs a CUDA GPU"]
#[allow(unsafe_code, reason = "event tracking and capture exclude each other")]
fn chunks_become_nodes_of_a_graph_and_replay_gives_the_same() {
    // A context of its own: tracking events across streams cannot be captured.
    let context = CudaContext::new(0).expect("a context");
    // SAFETY: this test uses one stream, and frees its memory after it was synchronized.
    unsafe { context.disable_event_tracking() };
    let guard = Guard::with_context(context.clone()).expect("a guard");
    let module = guard.compile("support.cu", SOURCE).expect("compiles");
    let kernel = kernel_of(&module, "add_one");
    let stream = context.new_stream().expect("a stream");
    let items = 131_071;
    let plan = plan(&kernel, Axis::Y, items, Choice::AUTOMATIC);
    let mut x = stream.alloc_zeros::<u64>(131_071).expect("memory");
    stream.synchronize().expect("synchronizes");

    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).expect("captures");
    let mut args = Args::new(&stream);
    args.write_items(&mut x, 1);
    // SAFETY: kernel and memory live until the graph has run, and all work is on one stream.
    let launched = unsafe { capture_launches(|| guard.launch(&kernel, &plan, args)) };
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).expect("ends").expect("a graph");
    assert_eq!(launched, Ok(3));
    assert!(stream.clone_dtoh(&x).expect("copies").iter().all(|x| *x == 0), "ran while captured");

    for replays in 1..=3 {
        graph.launch().expect("replays");
        let values = stream.clone_dtoh(&x).expect("copies back");
        assert!(values.iter().all(|x| *x == replays), "replay {replays}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_capture_without_the_promise_is_refused_and_the_stream_works_on() {
    let kernel = kernel("add_one");
    let stream = stream();
    let plan = plan(&kernel, Axis::Y, 1000, Choice::AUTOMATIC);
    let mut x = stream.alloc_zeros::<u64>(1000).expect("memory");
    stream.synchronize().expect("synchronizes");
    for mode in [
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
    ] {
        stream.begin_capture(mode).expect("captures");
        let mut args = Args::new(&stream);
        args.write_items(&mut x, 1);
        let refused = guard().launch(&kernel, &plan, args);
        let refused = refused.expect_err("it is captured");
        assert!(matches!(refused.kind(), LaunchErrorKind::Captured { .. }), "{refused}");
        // cudarc's wait for the allocation, on record as its failure, may have ended the capture.
        let _ = stream.end_capture(CUgraphInstantiate_flags(0));
    }
    let mut args = Args::new(&stream);
    args.write_items(&mut x, 1);
    assert_eq!(guard().launch(&kernel, &plan, args), Ok(1));
    assert_eq!(stream.clone_dtoh(&x).expect("copies"), vec![1; 1000]);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_launch_that_writes_waits_for_readers_on_two_other_streams() {
    let (look, add) = (kernel("slow_look"), kernel("add_one"));
    let (owner, first, second) = (stream(), stream(), stream());
    let items = 70_000;
    let mut x = owner.alloc_zeros::<u64>(70_000).expect("memory");
    let mut seen = first.alloc_zeros::<u64>(70_000).expect("memory");
    let look_plan = plan(&look, Axis::Y, items, Choice::AUTOMATIC);
    let add_plan = plan(&add, Axis::Y, items, Choice::AUTOMATIC);
    let mut other = second.alloc_zeros::<u64>(70_000).expect("memory");
    for round in 0..20_u64 {
        let mut args = Args::new(&first);
        args.read_items(&x, 1).write_items(&mut seen, 1).value(20_000_u64);
        assert_eq!(guard().launch(&look, &look_plan, args), Ok(2));
        // Its read is the last one that cudarc keeps.
        let mut args = Args::new(&second);
        args.read_items(&x, 1).write_items(&mut other, 1).value(0_u64);
        assert_eq!(guard().launch(&look, &look_plan, args), Ok(2));
        let mut args = Args::new(&second);
        args.write_items(&mut x, 1);
        assert_eq!(guard().launch(&add, &add_plan, args), Ok(2));
        let values = first.clone_dtoh(&seen).expect("copies back");
        assert!(values.iter().all(|x| *x == round), "round {round}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_second_stream_waits_for_what_the_first_one_writes() {
    let (fill, add) = (kernel("slow_fill"), kernel("add_one"));
    let (first, second) = (stream(), stream());
    let items = 70_000;
    let mut x = first.alloc_zeros::<u64>(70_000).expect("memory");
    let fill_plan = plan(&fill, Axis::Y, items, Choice::AUTOMATIC);
    let add_plan = plan(&add, Axis::Y, items, Choice::AUTOMATIC);
    for round in 0..20_u64 {
        let mut args = Args::new(&first);
        // Some 50 microseconds of busy blocks before each write.
        args.write_items(&mut x, 1).value(round * 10).value(20_000_u64);
        assert_eq!(guard().launch(&fill, &fill_plan, args), Ok(2));
        let mut args = Args::new(&second);
        args.write_items(&mut x, 1);
        assert_eq!(guard().launch(&add, &add_plan, args), Ok(2));
        let values = second.clone_dtoh(&x).expect("copies back");
        assert!(values.iter().all(|x| *x == round * 10 + 1), "round {round}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn eight_threads_share_a_guard_and_every_launch_is_counted() {
    let guard = Guard::cuda(0).expect("a guard of its own, for its counters");
    let kernel = kernel("count_y");
    let (rounds, items) = (50, 131_071_u64);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let stream = stream();
                let poison = vec![u64::MAX; 131_071];
                for _ in 0..rounds {
                    let plan = plan(&kernel, Axis::Y, items, Choice::AUTOMATIC);
                    let mut out = stream.clone_htod(&poison).expect("memory");
                    let mut args = Args::new(&stream);
                    args.write_items(&mut out, 1).offset().length();
                    assert_eq!(guard.launch(&kernel, &plan, args), Ok(3));
                    assert!(is_counting(&stream.clone_dtoh(&out).expect("copies back")));
                }
            });
        }
    });
    let counts = guard.counts();
    assert_eq!((counts.plans, counts.launches, counts.split), (400, 1200, 400));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn threads_racing_to_a_kernel_s_first_large_launch_all_succeed() {
    use gridguard::{Dim3, LaunchRequest};
    let module = guard().compile("support.cu", SOURCE).expect("a fresh module");
    let kernel = kernel_of(&module, "large_shared");
    let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE).dynamic_shared_bytes(100_000);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let stream = stream();
                let mut out = stream.alloc_zeros::<u32>(1).expect("memory");
                let mut args = Args::new(&stream);
                args.write(&mut out).value(25_000_u32);
                assert_eq!(guard().launch(&kernel, &request, args), Ok(1));
                assert_eq!(stream.clone_dtoh(&out).expect("copies back"), [7]);
            });
        }
    });
}
