//! Plans that run as one graph: captured once, and launched again over the same memory.
#![allow(unsafe_code, reason = "calls that a graph repeats")]

use gridguard::{Chunk, Guard};
use gridguard_pipeline::{Budget, DeviceMemory, Error, ErrorKind, Pipeline, Progress};
use gridguard_test_support::fake_driver::{launches, unloads, with_fake, work};

use crate::kernels::{POISON, assert_ordered, context, guard, iota, poisoned, read, with_guard};
use crate::spilling::{ITEMS, Spilling, pinned, spilling, stream, with_new_stream};

#[test]
fn stages_are_called_for_the_capture_and_each_run_launches_the_graph() {
    with_new_stream(&[], |guard, stream| {
        let mut memory = poisoned(&stream, ITEMS);
        let mut calls = 0;
        let mut numbers = spilling(&guard, false, |_| {
            calls += 1;
            Ok(())
        });
        let plan = numbers.graph();
        for run in 1..=3 {
            stream.memcpy_htod(&[POISON; 100], &mut memory).expect("poisoned");
            let ran = numbers.run_plan(&guard, &plan, &stream, &mut memory).expect("it runs");
            assert_eq!((ran.chunks, ran.items_done), (4, ITEMS));
            assert_eq!(read(&stream, &memory), iota(ITEMS));
            assert_eq!(guard.counts().launches, 4 * run);
        }
        drop((numbers, memory));
        assert_eq!(calls, 4, "stages are called for the capture only");
        let of = |how: &str| launches().iter().filter(|line| line.contains(how)).count();
        assert_eq!((of("stream=capturing"), of("stream=graph"), of("stream=eager")), (4, 12, 0));
        assert_ordered();
    });
}

#[test]
fn another_graph_and_ordinary_runs_of_a_pipeline_alternate() {
    with_new_stream(&[], |guard, stream| {
        let (mut memory, mut other) = (poisoned(&stream, ITEMS), poisoned(&stream, ITEMS));
        let mut calls = 0;
        let mut numbers = spilling(&guard, false, |_| {
            calls += 1;
            Ok(())
        });
        let plan = numbers.pipeline.plan(&Budget::UNLIMITED.at_most(50)).expect("it fits");
        let graph = numbers.graph();
        for plan in [&graph, &plan, &graph, &plan] {
            stream.memcpy_htod(&[POISON; 100], &mut memory).expect("poisoned");
            numbers.run_plan(&guard, plan, &stream, &mut memory).expect("it runs");
            assert_eq!(read(&stream, &memory), iota(ITEMS));
        }
        let again = graph.as_graph();
        numbers.run_plan(&guard, &again, &stream, &mut other).expect("it runs over other memory");
        assert_eq!(read(&stream, &other), iota(ITEMS));
        drop(numbers);
        assert_eq!(calls, 4 + 2 + 2 + 4);
        assert_ordered();
    });
}

#[test]
fn chunks_of_host_memory_are_copied_by_the_graph() {
    with_new_stream(&[("GRIDGUARD_FAKE_LOG_WORK", "1")], |guard, stream| {
        let Spilling { mut pipeline, out } = spilling(&guard, true, |_| Ok(()));
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(50).in_flight(2)).expect("it fits");
        let (plan, mut memory) = (plan.as_graph(), pinned(&guard, &[POISON; 100]));
        let bound = DeviceMemory::new(&stream).write_host(out, &mut memory);
        pipeline.run(&guard, &plan, bound).expect("captured");
        let captured = work();
        let copies = captured.iter().filter(|line| line.ends_with("copy out 400 captured"));
        let streams: Vec<_> = copies.map(|line| line.split(' ').next()).collect();
        assert!(streams.len() == 2 && streams[0] != streams[1], "{captured:?}");
        assert_eq!(memory.as_slice().expect("it ran"), iota(ITEMS));
        memory.as_mut_slice().expect("idle").fill(POISON);
        let again = DeviceMemory::new(&stream).write_host(out, &mut memory);
        pipeline.run(&guard, &plan, again).expect("it runs");
        let launched = &work()[captured.len()..];
        // Two launches, two calls and two copies, between the orders.
        assert_eq!(launched.iter().filter(|line| line.ends_with(" graph 6")).count(), 1);
        assert!(!launched.iter().any(|line| line.contains("launch")), "{launched:?}");
        assert_eq!(memory.as_slice().expect("it ran"), iota(ITEMS));
        drop(memory);
        assert_ordered();
    });
}

#[test]
fn launches_on_several_streams_and_uses_between_them_are_ordered() {
    with_guard(&[], |guard| {
        let (one, other) = (stream(&guard), stream(&guard));
        let mut memory = poisoned(&one, ITEMS);
        let mut numbers = spilling(&guard, false, |_| Ok(()));
        let plan = numbers.graph();
        for stream in [&one, &other, &one] {
            numbers.run_plan(&guard, &plan, stream, &mut memory).expect("it runs");
            other.memcpy_htod(&[POISON; 100], &mut memory).expect("written");
        }
        numbers.run_plan(&guard, &plan, &other, &mut memory).expect("it runs");
        // Both while the graph may still run.
        drop(memory);
        drop((numbers, guard));
        assert_eq!(unloads().len(), 1);
        assert_ordered();
    });
}

#[test]
fn other_memory_than_that_of_the_capture_is_refused() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let (guard, second) = (guard(), Guard::cuda(1).expect("a second device"));
        let stream = stream(&guard);
        let mut memory = poisoned(&stream, ITEMS);
        let mut numbers = spilling(&guard, false, |_| Ok(()));
        let (plan, out) = (numbers.graph(), numbers.out);
        numbers.run_plan(&guard, &plan, &stream, &mut memory).expect("it runs");
        let before = launches().len();
        let mut refused = |memory: DeviceMemory<'_>, text: &str| {
            let error = numbers.pipeline.run(&guard, &plan, memory).expect_err(text);
            assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Memory, text));
        };
        let mut other = poisoned(&stream, ITEMS);
        let text = "buffer out is other memory than the graph was captured with: give the same, or run a new \
                    plan.as_graph()";
        refused(DeviceMemory::new(&stream).write(out, &mut other), text);
        refused(DeviceMemory::new(&stream), "buffer out has no memory");
        let mut half = memory.slice_mut(..50);
        let text = "buffer out has 400 bytes, the items of the pipeline need 800";
        refused(DeviceMemory::new(&stream).write(out, &mut half), text);
        let foreign = context(&second).default_stream();
        let text = "a stream belongs to another CUDA context than the guard";
        refused(DeviceMemory::new(&foreign).write(out, &mut memory), text);
        assert_eq!(launches().len(), before);
        numbers.run_plan(&guard, &plan, &stream, &mut memory).expect("a refusal changes nothing");
        assert_eq!(read(&stream, &memory), iota(ITEMS));
    });
}

#[test]
fn a_call_that_is_not_declared_for_graphs_and_a_monitor_are_refused() {
    with_new_stream(&[], |guard, stream| {
        let mut builder = Pipeline::builder(ITEMS);
        let out = builder.output::<u64>("out", 1);
        builder.call("library", |_, _, _| panic!("it is not called")).write(out);
        let mut pipeline = builder.build().expect("one stage");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits").as_graph();
        let mut memory = poisoned(&stream, ITEMS);
        let bound = DeviceMemory::new(&stream).write(out, &mut memory);
        let error = pipeline.run(&guard, &plan, bound).expect_err("refused");
        let text = "stage library is a call, whose work a graph may not repeat: declare it with \
                    call_in_graphs, or run the pipeline without a graph";
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Unrunnable, text));
        let mut watch = |_: &Progress| panic!("it is not called");
        let bound = DeviceMemory::new(&stream).write(out, &mut memory).monitor(&mut watch);
        let error = pipeline.run(&guard, &plan, bound).expect_err("monitored");
        let text = "a graph submits all chunks at once and cannot be monitored: remove the monitor, or run \
                    the plan without as_graph";
        assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Unrunnable, text));
    });
}

#[test]
fn a_capture_that_fails_leaves_streams_and_memory_usable() {
    with_new_stream(&[], |guard, stream| {
        let mut memory = poisoned(&stream, ITEMS);
        let mut has_failed = false;
        let out_of_memory = |chunk: &Chunk| match chunk.index {
            2 if !core::mem::replace(&mut has_failed, true) => {
                Err(Error::out_of_memory("no workspace").into())
            }
            _ => Ok(()),
        };
        let mut failing = spilling(&guard, false, out_of_memory);
        let plan = failing.graph();
        let error = failing.run_plan(&guard, &plan, &stream, &mut memory).expect_err("it fails");
        assert_eq!(
            error.to_string(),
            "stage copy failed at chunk 2 (items 50..75), after 50 of 100 items: no workspace"
        );
        assert_eq!(read(&stream, &memory), [POISON; 100]);
        failing.run_plan(&guard, &plan, &stream, &mut memory).expect("the second capture");
        assert_eq!(read(&stream, &memory), iota(ITEMS));
        let mut panics = spilling(&guard, false, |_| panic!("now"));
        let plan = panics.graph();
        let error = panics.run_plan(&guard, &plan, &stream, &mut memory).expect_err("it panics");
        assert!(error.to_string().ends_with("it panicked: now"), "{error}");
        let again = panics.run_plan(&guard, &plan, &stream, &mut memory);
        assert_eq!(again.expect_err("poisoned").kind(), ErrorKind::Panicked);
        assert_ordered();
    });
}

#[test]
fn scratch_that_does_not_fit_is_halved_before_the_capture() {
    // The output's 800 bytes, beside 16 bytes and less than 1,000 bytes of places.
    with_new_stream(&[("GRIDGUARD_FAKE_ALLOC_LIMIT", "1700")], |guard, stream| {
        let mut memory = poisoned(&stream, ITEMS);
        let mut numbers = spilling(&guard, false, |_| Ok(()));
        let plan = numbers.pipeline.plan(&Budget::UNLIMITED).expect("it fits").as_graph();
        for _ in 0..2 {
            let run = numbers.run_plan(&guard, &plan, &stream, &mut memory).expect("25 fit");
            assert_eq!((&run.tried[..], run.chunks), (&[100, 50, 25][..], 4));
            assert_eq!(read(&stream, &memory), iota(ITEMS));
        }
    });
}

#[test]
fn a_graph_that_the_driver_refuses_is_an_error_and_can_be_tried_again() {
    // The four launches of the capture count too.
    let settings = [("GRIDGUARD_FAKE_FAIL_LAUNCH", "4"), ("GRIDGUARD_FAKE_FAIL_CODE", "2")];
    with_new_stream(&settings, |guard, stream| {
        let mut memory = poisoned(&stream, ITEMS);
        let mut numbers = spilling(&guard, false, |_| Ok(()));
        let plan = numbers.graph();
        let error =
            numbers.run_plan(&guard, &plan, &stream, &mut memory).expect_err("the first node");
        assert!(error.to_string().contains("cuGraphLaunch"), "{error}");
        numbers.run_plan(&guard, &plan, &stream, &mut memory).expect("it runs");
        assert_eq!(read(&stream, &memory), iota(ITEMS));
    });
}

#[test]
fn a_pipeline_without_items_is_an_empty_graph() {
    with_new_stream(&[], |guard, stream| {
        let mut builder = Pipeline::builder(0);
        let sum = builder.accumulator::<u64>("sum", 1);
        // SAFETY: it submits nothing.
        unsafe { builder.call_in_graphs("add", |_, _, _| panic!("no chunk")) }.update(sum);
        let mut pipeline = builder.build().expect("one stage");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("nothing to fit").as_graph();
        let mut memory = poisoned(&stream, 1);
        for _ in 0..2 {
            let bound = DeviceMemory::new(&stream).write(sum, &mut memory);
            pipeline.run(&guard, &plan, bound).expect("nothing runs");
        }
        assert_eq!(read(&stream, &memory), [POISON]);
    });
}
