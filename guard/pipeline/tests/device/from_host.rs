//! Pipelines over pinned host memory: the copies, their order and their streams.

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::{Axis, Guard};
use gridguard_pipeline::{
    Budget, Buffer, DeviceMemory, ErrorKind, Pipeline, PipelineRun, PipelineScratch,
};
use gridguard_test_support::fake_driver::{with_fake, work};

use crate::kernels::{
    POISON, assert_ordered, context, guard, iota, items_along, kernel, poisoned, with_guard,
    with_stream,
};
use crate::spilling::{ITEMS, copy, pinned, streams, with_new_stream};

/// Writes the number of each item to `number`, and copies `x` to `copied`.
struct Copying<'a> {
    pipeline: Pipeline<'a>,
    x: Buffer<u64>,
    number: Buffer<u64>,
    copied: Buffer<u64>,
}

/// All buffers of the caller are in host memory. `x` is used by the second stage only, `number` by the
/// first.
fn copying<'a>(guard: &Guard) -> Copying<'a> {
    let mut builder = Pipeline::builder(ITEMS);
    let (x, t) = (builder.input::<u64>("x", 1), builder.scratch::<u64>("t", 1));
    let (number, copied) = (builder.output::<u64>("number", 1), builder.output("copied", 1));
    builder.in_host_memory(x);
    builder.in_host_memory(number);
    builder.in_host_memory(copied);
    let (request, batch) = items_along(Axis::Y, ITEMS);
    let spill = kernel(guard, "fake_spill_y");
    builder.kernel("spill", &spill, request, batch).write(number).offset().length().write(t);
    builder.call("copy", move |on, _, views| copy(on, views, x, copied)).read(x).write(copied);
    Copying { pipeline: builder.build().expect("two stages"), x, number, copied }
}

/// Runs it, with scratch that is kept or not, and checks both outputs.
pub(crate) fn run(
    guard: &Guard,
    budget: Budget,
    stream: &Arc<CudaStream>,
    more: &[Arc<CudaStream>],
    scratch: Option<&mut PipelineScratch>,
) -> PipelineRun {
    let mut copying = copying(guard);
    let plan = copying.pipeline.plan(&budget).expect("it fits");
    let values: Vec<u64> = iota(ITEMS).iter().map(|item| item * 7 + 3).collect();
    let poison = [POISON; 100];
    let x = pinned(guard, &values);
    let (mut number, mut copied) = (pinned(guard, &poison), pinned(guard, &poison));
    let memory = DeviceMemory::new(stream).on_streams(more).read_host(copying.x, &x);
    let memory = memory.write_host(copying.number, &mut number);
    let memory = memory.write_host(copying.copied, &mut copied);
    let memory = match scratch {
        Some(scratch) => memory.scratch(scratch),
        None => memory,
    };
    let run = copying.pipeline.run(guard, &plan, memory).expect("it runs");
    assert_eq!(run.items_done, ITEMS);
    assert_eq!(run.scratch_bytes == plan.bytes(), run.tried.len() == 1);
    assert_eq!(number.as_slice().expect("it ran"), iota(ITEMS));
    assert_eq!(copied.as_slice().expect("it ran"), values);
    run
}

#[test]
fn chunks_of_host_memory_are_copied_in_and_out() {
    with_stream(&[], |guard, stream| {
        let more = streams(&guard, 2);
        for (at_most, in_flight) in [(100, 1), (33, 1), (20, 2), (7, 3), (1, 3)] {
            let budget = Budget::UNLIMITED.at_most(at_most).in_flight(in_flight);
            run(&guard, budget, &stream, &more, None);
        }
        assert_ordered();
    });
}

#[test]
fn the_plan_counts_the_memory_for_copies() {
    with_guard(&[], |guard| {
        let pipeline = copying(&guard).pipeline;
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(64).in_flight(2)).expect("it fits");
        // Chunks of 50 items. Two buffers of 8 bytes an item are live at a time.
        assert_eq!((plan.chunk_items(), plan.in_flight()), (50, 2));
        assert_eq!(plan.stages().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [800, 800]);
        assert_eq!(plan.bytes(), 2 * (1024 + 256));
        let smallest = pipeline.plan(&Budget::bytes(1)).expect_err("too small").to_string();
        assert!(smallest.contains("needs 512 bytes of scratch"), "{smallest}");
    });
}

/// What each stream was given, by its number, without the allocations and events' numbers.
fn work_by_stream() -> BTreeMap<u32, Vec<String>> {
    let mut streams = BTreeMap::<u32, Vec<String>>::new();
    for line in work() {
        let (stream, what) = line.split_once(' ').expect("a stream and what it got");
        let stream = stream.parse().expect("a number");
        streams.entry(stream).or_default().push(what.to_owned());
    }
    streams
}

#[test]
fn each_stream_copies_in_computes_and_copies_out_in_order() {
    with_new_stream(&[("GRIDGUARD_FAKE_LOG_WORK", "1")], |guard, stream| {
        let more = streams(&guard, 1);
        let before = work().len();
        run(&guard, Budget::UNLIMITED.at_most(25).in_flight(2), &stream, &more, None);
        let all = work();
        let names = |line: &&String| !line.contains(" record ") && !line.contains(" wait ");
        let chunks: Vec<_> = all[before..].iter().filter(names).map(String::as_str).collect();
        // Streams take turns, a chunk each.
        let chunk = |stream: u32| {
            let work =
                ["launch fake_spill_y", "copy out 200", "copy in 200", "copy 200", "copy out 200"];
            work.map(|what| format!("{stream} {what}"))
        };
        let allocate = || format!("1 allocate {}", 512 + 256);
        let expected = [vec![allocate(), allocate()], [1, 2, 1, 2].map(chunk).concat()].concat();
        let freed = ["1 free", "1 free"].map(str::to_owned);
        assert_eq!(chunks, [&expected[..], &freed[..]].concat());

        // The second stream begins after the first, which ends after it; then come the events of the
        // pinned memory, which the first stream waited for before.
        let by_stream = work_by_stream();
        let event = |stream: u32, what: &str| -> Vec<&str> {
            by_stream[&stream].iter().filter_map(|line| line.strip_prefix(what)).collect()
        };
        let (waits, records) = (event(1, "wait "), event(1, "record "));
        let (forked, joined) = (event(2, "wait "), event(2, "record "));
        assert_eq!((forked.len(), joined.len()), (1, 1));
        assert!(records.contains(&forked[0]) && waits.contains(&joined[0]));
        let pinned = &waits[..3];
        assert_eq!(&records[records.len() - 3..], pinned, "{by_stream:?}");
        assert_eq!(by_stream[&2].first(), Some(&format!("wait {}", forked[0])));
        assert_eq!(by_stream[&2].last(), Some(&format!("record {}", joined[0])));
    });
}

#[test]
fn memory_that_is_changed_in_place_is_copied_both_ways_around_all_its_uses() {
    with_guard(&[("GRIDGUARD_FAKE_LOG_WORK", "1")], |guard| {
        let mut builder = Pipeline::builder(ITEMS);
        let x = builder.in_place::<u64>("x", 1);
        builder.in_host_memory(x);
        let (request, batch) = items_along(Axis::Y, ITEMS);
        let (idle, look, iota_y) = ("idle", "look", "fake_iota_y");
        let kernel = |name| kernel(&guard, name);
        builder.kernel("before", &kernel(idle), request, batch).value(0_u64);
        builder.kernel("look", &kernel(look), request, batch).read(x);
        builder.kernel("write", &kernel(iota_y), request, batch).update(x).offset().length();
        builder.kernel("after", &kernel(idle), request, batch).value(0_u64);
        let mut pipeline = builder.build().expect("four stages");
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(60)).expect("it fits");
        let stream = context(&guard).new_stream().expect("a stream");
        let mut memory = pinned(&guard, &[POISON; 100]);
        let bound = DeviceMemory::new(&stream).write_host(x, &mut memory);
        pipeline.run(&guard, &plan, bound).expect("it runs");
        assert_eq!(memory.as_slice().expect("it ran"), iota(ITEMS));
        let all = work();
        let lines = all.iter().filter(|line| line.contains("launch") || line.contains("copy"));
        let chunk = [
            "1 launch idle",
            "1 copy in 400",
            "1 launch look",
            "1 launch fake_iota_y",
            "1 copy out 400",
            "1 launch idle",
        ];
        assert_eq!(lines.collect::<Vec<_>>(), [chunk, chunk].concat());
    });
}

#[test]
fn host_memory_is_freed_after_the_run_that_uses_it() {
    with_guard(&[], |guard| {
        let more = streams(&guard, 1);
        let stream = context(&guard).new_stream().expect("a stream");
        let mut copying = copying(&guard);
        let budget = Budget::UNLIMITED.at_most(10).in_flight(2);
        let plan = copying.pipeline.plan(&budget).expect("it fits");
        let x = pinned(&guard, &iota(ITEMS));
        let (mut number, mut copied) =
            (pinned(&guard, &[POISON; 100]), pinned(&guard, &[POISON; 100]));
        // Twice, so that the second run uses what the first does.
        for _ in 0..2 {
            let memory = DeviceMemory::new(&stream).on_streams(&more).read_host(copying.x, &x);
            let memory = memory.write_host(copying.number, &mut number);
            let memory = memory.write_host(copying.copied, &mut copied);
            copying.pipeline.run(&guard, &plan, memory).expect("it runs");
        }
        // Nothing waited for the runs.
        drop((x, number, copied));
        assert_ordered();
    });
}

#[test]
fn host_memory_for_a_device_buffer_is_refused_and_the_other_way_round() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let (guard, other) = (guard(), Guard::cuda(1).expect("a second device"));
        let stream = context(&guard).default_stream();
        let mut builder = Pipeline::builder(ITEMS);
        let (x, y) = (builder.input::<u64>("x", 1), builder.output::<u64>("y", 1));
        builder.in_host_memory(y);
        builder.call("copy", move |stream, _, views| copy(stream, views, x, y)).read(x).write(y);
        let mut pipeline = builder.build().expect("one stage");
        let plan = pipeline.plan(&Budget::UNLIMITED).expect("it fits");
        let mut refused = |memory: DeviceMemory<'_>, text: &str| {
            let error = pipeline.run(&guard, &plan, memory).expect_err(text);
            assert_eq!((error.kind(), &*error.to_string()), (ErrorKind::Memory, text));
        };
        let on_host = pinned(&guard, &iota(ITEMS));
        let (on_device, mut output) = (poisoned(&stream, ITEMS), poisoned(&stream, ITEMS));
        let text = "buffer x takes memory to read, not pinned host memory to read";
        refused(DeviceMemory::new(&stream).read_host(x, &on_host), text);
        let bound = || DeviceMemory::new(&stream).read(x, &on_device);
        let text = "buffer y takes pinned host memory to write, not memory to write";
        refused(bound().write(y, &mut output), text);
        let text = "buffer y takes pinned host memory to write, not pinned host memory to read";
        refused(bound().read_host(y, &on_host), text);
        let mut short = pinned(&guard, &iota(ITEMS - 1));
        let text = "buffer y has 792 bytes, the items of the pipeline need 800";
        refused(bound().write_host(y, &mut short), text);
        let mut foreign = pinned(&other, &iota(ITEMS));
        let text = "memory belongs to another CUDA context than the guard";
        refused(bound().write_host(y, &mut foreign), text);
    });
}

#[test]
fn a_run_in_smaller_chunks_copies_the_rest() {
    // A chunk of 100 items takes 1,800 bytes, of 50 less than 1,100, of 25 less than 700.
    with_stream(&[("GRIDGUARD_FAKE_ALLOC_LIMIT", "1000")], |guard, stream| {
        let done = run(&guard, Budget::UNLIMITED, &stream, &[], None);
        assert_eq!((&done.tried[..], done.chunks), (&[100, 50, 25][..], 4));
        assert_ordered();
    });
}
