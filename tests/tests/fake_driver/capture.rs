//! Plans under stream capture: the chunks become nodes of a graph.
#![allow(unsafe_code, reason = "cudarc's event tracking is switched unsafely")]

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use gridguard::Axis;

use crate::harness::{launches, with_fake};
use crate::kernels::{
    POISON, context, guard, iota, kernel, launch_iota, plan_along, poisoned, read,
};

#[test]
fn captured_chunks_run_at_every_replay_and_not_before() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        // SAFETY: everything happens on one stream, in order. A captured stream may not wait for
        // events of the time before the capture.
        unsafe { context(&guard).disable_event_tracking() };
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&stream, 76_800);
        let plan = plan_along(&kernel, Axis::Y, 76_800);

        stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL)
            .expect("the stream is idle");
        let launched = launch_iota(&guard, &kernel, &plan, &stream, &mut out);
        let graph = stream
            .end_capture(CUgraphInstantiate_flags(0))
            .expect("the capture is whole")
            .expect("and holds something");
        assert_eq!(launched, Ok(2));
        assert!(read(&stream, &out).iter().all(|item| *item == POISON), "nothing ran yet");
        let captured = launches();
        assert!(captured.iter().all(|line| line.contains(" stream=capturing ")));
        assert_eq!(captured.len(), 2);

        for _ in 0..2 {
            let poison = vec![POISON; 76_800];
            stream.memcpy_htod(&poison, &mut out).expect("the memory is ours");
            graph.launch().expect("the graph is whole");
            assert_eq!(read(&stream, &out), iota(76_800));
        }
        let replayed = &launches()[2..];
        assert!(replayed.iter().all(|line| line.contains(" stream=graph ")));
        assert_eq!(replayed.len(), 4);
    });
}
