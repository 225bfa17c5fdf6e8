//! Recorders of metrics that begin a capture, or change the current context.

use std::cell::Cell;
use std::sync::Arc;

use cudarc::driver::sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
use cudarc::driver::{CudaContext, CudaStream};
use gridguard::{Axis, Guard};
use gridguard_pipeline::{Budget, Buffer, DeviceMemory, Error, Pipeline, PipelinePlan};
use gridguard_test_support::fake_driver::with_fake;
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};

use crate::kernels::{assert_ordered, guard, iota, items_along, kernel, poisoned, read};
use crate::meanwhile::{ITEMS, MODES, assert_captured};
use crate::spilling::stream;

/// Acts at one of the counters of a run.
struct Observer<'a> {
    at: usize,
    seen: Cell<usize>,
    act: &'a dyn Fn(),
}

impl Recorder for Observer<'_> {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        if self.seen.replace(self.seen.get() + 1) == self.at {
            (self.act)();
        }
        Counter::noop()
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// A pipeline that writes the number of each item.
fn numbering(guard: &Guard) -> (Pipeline<'static>, Buffer<u64>, PipelinePlan) {
    let mut builder = Pipeline::builder(ITEMS);
    let out = builder.output::<u64>("out", 1);
    let (request, batch) = items_along(Axis::Y, ITEMS);
    let iota = kernel(guard, "fake_iota_y");
    builder.kernel("iota", &iota, request, batch).write(out).offset().length();
    let pipeline = builder.build().expect("one stage");
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(32)).expect("it fits");
    (pipeline, out, plan)
}

/// Runs chunks, and a graph of them, with `act` at its first counter, its second, and so on, over memory of each owner.
fn at_each_counter(
    guard: &Guard,
    act: impl Fn(&Arc<CudaStream>),
    check: impl Fn(Result<(), Error>),
) {
    let (mut pipeline, out, chunks) = numbering(guard);
    let on = stream(guard);
    for owner in [&stream(guard), &on] {
        for is_graph in [false, true] {
            for at in 0.. {
                let plan = chunks.clone();
                let plan = if is_graph { plan.as_graph() } else { plan };
                let mut memory = poisoned(owner, ITEMS);
                let act = || act(&on);
                let observer = Observer { at, seen: Cell::new(0), act: &act };
                let bound = DeviceMemory::new(&on).write(out, &mut memory);
                let run = || pipeline.run(guard, &plan, bound).map(drop);
                let ran = metrics::with_local_recorder(&observer, run);
                let is_over = observer.seen.get() <= at;
                if !is_over {
                    check(ran);
                }
                assert_eq!(read(owner, &memory), iota(ITEMS));
                drop(memory);
                assert_ordered();
                let status = on.capture_status().expect("its context works");
                assert_eq!(status, CU_STREAM_CAPTURE_STATUS_NONE);
                if is_over {
                    assert!(at > 0, "nothing is observed");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_capture_that_an_observer_begins_is_ended_and_memory_waits_for_the_run() {
    with_fake(&[], || {
        for mode in MODES {
            let begin = |on: &Arc<CudaStream>| on.begin_capture(mode).expect("it is idle");
            at_each_counter(&guard(), begin, |ran| {
                assert_captured(&ran.expect_err("a capture began"));
            });
        }
    });
}

#[test]
fn an_observer_may_make_another_context_current() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let change = |_: &Arc<CudaStream>| {
            let other = CudaContext::new(1).expect("a second device");
            other.bind_to_thread().expect("it is current");
        };
        at_each_counter(&guard(), change, |ran| assert_eq!(ran, Ok(())));
    });
}
