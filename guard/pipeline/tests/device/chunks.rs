//! Pipelines on a device: kernels and calls, on one stream and on several.
#![allow(unsafe_code, reason = "events are not tracked during a capture")]

use core::ops::ControlFlow;

use cudarc::driver::sys::CUstreamCaptureMode;
use gridguard::{Axis, DeviceLimits, Guard};
use gridguard_pipeline::{Budget, DeviceMemory, ErrorKind, Pipeline, Progress};
use gridguard_test_support::fake_driver::launches;

use crate::kernels::{
    POISON, assert_ordered, context, iota, items_along, kernel, poisoned, read, with_guard,
    with_stream,
};
use crate::spilling::{ITEMS, launched_arguments, spilling, streams};

#[test]
fn every_chunk_goes_through_all_stages_in_order() {
    with_guard(&[], |guard| {
        for (at_most, chunks) in [(100, 1), (50, 2), (33, 4), (1, 100)] {
            let mut spilling = spilling(&guard, false, |_| Ok(()));
            let budget = Budget::bytes(guard.free_memory().expect("known").0).at_most(at_most);
            let (run, written) = spilling.run(&guard, budget, &[]);
            let run = run.expect("it runs");
            assert_eq!(
                (run.chunks, run.items_done, run.tried),
                (chunks, ITEMS, vec![at_most.min(ITEMS.div_ceil(chunks))])
            );
            assert_eq!(written, iota(ITEMS));
        }
        assert_ordered();
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches), (4, 107));
    });
}

#[test]
fn a_kernel_gets_the_chunk_of_the_callers_memory_and_scratch_of_its_own() {
    with_stream(&[], |guard, stream| {
        let kernel = kernel(&guard, "fake_spill_y");
        let mut builder = Pipeline::builder(10);
        let (out, t) = (builder.output::<u64>("out", 1), builder.scratch::<u64>("t", 1));
        let (request, batch) = items_along(Axis::Y, 10);
        builder.kernel("spill", &kernel, request, batch).write(out).offset().length().write(t);
        let mut pipeline = builder.build().expect("built");
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(4).in_flight(2)).expect("it fits");
        let mut memory = poisoned(&stream, 10);
        let more = streams(&guard, 1);
        let bound = DeviceMemory::new(&stream).on_streams(&more).write(out, &mut memory);
        pipeline.run(&guard, &plan, bound).expect("it runs");
        assert_eq!(read(&stream, &memory), iota(10));
        let args = launched_arguments();
        let [base, first, second] = [args[0][0], args[0][3], args[1][3]];
        assert_ne!(first, second, "each chunk in flight has scratch of its own");
        assert_eq!(
            args,
            [vec![base, 0, 4, first], vec![base + 32, 4, 4, second], vec![base + 64, 8, 2, first],]
        );
    });
}

#[test]
fn chunks_in_flight_are_ordered_after_earlier_work_and_before_later_work() {
    with_guard(&[], |guard| {
        let kernel = kernel(&guard, "look");
        let stream = context(&guard).new_stream().expect("a stream");
        let more = streams(&guard, 2);
        let mut builder = Pipeline::builder(ITEMS);
        let (x, t) = (builder.in_place::<u64>("x", 1), builder.scratch::<u64>("t", 1));
        let (request, batch) = items_along(Axis::Y, ITEMS);
        builder.kernel("look at x", &kernel, request, batch).update(x);
        builder.kernel("look at t", &kernel, request, batch).write(t);
        let mut pipeline = builder.build().expect("built");
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(10).in_flight(3)).expect("it fits");
        assert_eq!(plan.in_flight(), 3);
        let mut memory = poisoned(&stream, ITEMS);
        for _ in 0..2 {
            stream.memcpy_htod(&iota(ITEMS), &mut memory).expect("written");
            let bound = DeviceMemory::new(&stream).on_streams(&more).write(x, &mut memory);
            pipeline.run(&guard, &plan, bound).expect("it runs");
        }
        // Written again and freed, as its scratch was.
        stream.memcpy_htod(&iota(ITEMS), &mut memory).expect("written");
        drop(memory);
        assert_eq!(launches().len(), 2 * 2 * 10);
        assert_ordered();
    });
}

#[test]
fn a_launch_that_fails_is_named_with_stage_chunk_and_items_done() {
    let settings = [("GRIDGUARD_FAKE_FAIL_LAUNCH", "3"), ("GRIDGUARD_FAKE_FAIL_CODE", "2")];
    with_guard(&settings, |guard| {
        let budget = Budget::UNLIMITED.at_most(10);
        let (run, written) = spilling(&guard, false, |_| Ok(())).run(&guard, budget, &[]);
        let error = run.expect_err("the fourth launch");
        let begins = "stage spill failed at chunk 3 (items 30..40), after 30 of 100 items: ";
        assert!(error.to_string().starts_with(begins), "{error}");
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Stage, Some("spill")));
        let cause = error.cause().expect("the driver's");
        assert!(cause.is::<gridguard::cuda::DriverError>(), "{cause}");
        let done = error.done().expect("it began");
        assert_eq!((done.items_done, done.chunks), (30, 3));
        assert_eq!(written[..30], iota(30)[..]);
        assert_eq!(written[30..], [POISON; 70]);
        let counts = guard.counts();
        assert_eq!((counts.refused_by_driver, counts.launches), (1, 3));
    });
}

#[test]
fn a_stream_that_is_being_captured_is_refused() {
    with_guard(&[], |guard| {
        // SAFETY: everything happens on one stream, in order.
        unsafe { context(&guard).disable_event_tracking() };
        let stream = context(&guard).new_stream().expect("a stream");
        // By the caller.
        let mut spilling = spilling(&guard, false, |_| Ok(()));
        let plan = spilling.pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let mut memory = poisoned(&stream, ITEMS);
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
        stream.begin_capture(mode).expect("the stream is idle");
        let bound = DeviceMemory::new(&stream).write(spilling.out, &mut memory);
        let run = spilling.pipeline.run(&guard, &plan, bound);
        assert_eq!(run.expect_err("captured").kind(), ErrorKind::Captured);
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_monitored_run_reports_what_has_run_and_can_be_cancelled() {
    with_stream(&[], |guard, stream| {
        let mut spilling = spilling(&guard, false, |_| Ok(()));
        let budget = Budget::UNLIMITED.at_most(10).in_flight(2);
        let plan = spilling.pipeline.plan(&budget).expect("it fits");
        let mut memory = poisoned(&stream, ITEMS);
        let more = streams(&guard, 1);
        let mut seen = Vec::new();
        let mut watch = |progress: &Progress| {
            seen.push((progress.items_done, progress.bytes_done));
            match progress.items_done {
                60.. => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        };
        let bound = DeviceMemory::new(&stream).on_streams(&more).write(spilling.out, &mut memory);
        let pipeline = &mut spilling.pipeline;
        let run = pipeline.run(&guard, &plan, bound.monitor(&mut watch)).expect("it runs");
        assert_eq!((run.items_done, run.cancelled), (60, true));
        assert_eq!(seen, [(20, 160), (40, 320), (60, 480)]);
        let written = read(&stream, &memory);
        assert_eq!(written[..60], iota(60)[..]);
        assert_eq!(written[60..], [POISON; 40]);
    });
}

#[test]
fn a_fault_that_surfaces_while_a_monitored_run_waits_is_reported() {
    with_stream(&[("GRIDGUARD_FAKE_FAULT_LAUNCH", "1")], |guard, stream| {
        let look = kernel(&guard, "look");
        let mut builder = Pipeline::builder(ITEMS);
        let x = builder.in_place::<u64>("x", 1);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        builder.kernel("look", &look, request, batch).update(x);
        let mut pipeline = builder.build().expect("built");
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(10)).expect("it fits");
        let mut memory = poisoned(&stream, ITEMS);
        let bound = DeviceMemory::new(&stream).write(x, &mut memory);
        let mut watch = |_: &Progress| ControlFlow::Continue(());
        let error = pipeline.run(&guard, &plan, bound.monitor(&mut watch));
        let error = error.expect_err("the second launch faults");
        let text = error.to_string();
        assert!(text.starts_with("the device failed after 10 of 100 items: "), "{text}");
        assert!(text.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{text}");
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Device, None));
        core::mem::forget(memory);
    });
}

#[test]
fn a_budget_is_a_share_of_what_is_free() {
    with_guard(&[("GRIDGUARD_FAKE_FREE_0", "100000")], |guard| {
        assert_eq!(Budget::of_free_memory(&guard, 40), Ok(Budget::bytes(40_000)));
        let host = Guard::host(DeviceLimits::any_device());
        assert!(Budget::of_free_memory(&host, 40).is_err());
    });
}
