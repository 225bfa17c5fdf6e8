//! Pipelines on a device: the same output for every chunk and every number of streams.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaStream, PinnedHostSlice};
use gridguard::cuda::{Kernel, Module};
use gridguard::{Axis, BatchAxis, Chunk, Dim3, LaunchRequest, Parameter};
use gridguard_pipeline::{
    Budget, Buffer, DeviceMemory, DeviceViews, ErrorKind, Pipeline, PipelineBuilder, PipelineRun,
    StageBuilder, StageResult,
};

use super::support::{guard, kernel, stream};

const COLUMNS: u64 = 64;
const TIMES: u64 = 4;

/// One block of y an item, 64 threads.
const SOURCE: &str = r#"
typedef unsigned int u32;
typedef unsigned long long u64;

// t[i][k][c] = (k + 1) * x[i][c] + w[c], for k below `times`.
extern "C" __global__ void spread(const u32 *x, const u32 *w, u32 *t, u64 times, u64 items) {
    u64 item = blockIdx.y, c = threadIdx.x;
    if (item >= items) return;
    for (u64 k = 0; k < times; k++)
        t[(item * times + k) * 64 + c] = u32(k + 1) * x[item * 64 + c] + w[c];
}

// y[i][c] is the sum of t[i][k][c] over k, plus the item's number; x[i][c] grows by y[i][c].
extern "C" __global__ void gather(const u32 *t, u32 *x, u32 *y, u64 times, u64 first, u64 items) {
    u64 item = blockIdx.y, c = threadIdx.x;
    if (item >= items) return;
    u32 sum = u32(first + item);
    for (u64 k = 0; k < times; k++) sum += t[(item * times + k) * 64 + c];
    y[item * 64 + c] = sum;
    x[item * 64 + c] += sum;
}
"#;

#[allow(unsafe_code, reason = "the promise for the kernels above")]
fn kernels() -> (Kernel, Kernel) {
    static MODULE: OnceLock<Module> = OnceLock::new();
    let module = MODULE.get_or_init(|| guard().compile("pipelines.cu", SOURCE).expect("compiles"));
    let (memory, u64) = (Parameter::Memory, Parameter::of::<u64>());
    // SAFETY: they access 64 elements an item, in scratch a multiple that an argument gives. They write only buffers
    // that the pipeline below declares as written.
    let kernel = |name, parameters| unsafe { module.kernel(name, parameters) }.expect("a kernel");
    (
        kernel("spread", &[memory, memory, memory, u64, u64]),
        kernel("gather", &[memory, memory, memory, u64, u64, u64]),
    )
}

/// Spreads, copies by a call, and gathers.
struct Spreading<'a> {
    pipeline: Pipeline<'a>,
    x: Buffer<u32>,
    w: Buffer<u32>,
    y: Buffer<u32>,
}

fn spreading(items: u64, on_host: bool) -> Spreading<'static> {
    let (spread, gather) = kernels();
    let mut builder = Pipeline::builder(items);
    let (x, y) = (builder.in_place::<u32>("x", COLUMNS), builder.output::<u32>("y", COLUMNS));
    if on_host {
        builder.in_host_memory(x);
        builder.in_host_memory(y);
    }
    let w = builder.shared_input::<u32>("w", COLUMNS);
    let t = builder.scratch::<u32>("t", TIMES * COLUMNS);
    let copied = builder.scratch::<u32>("copied", TIMES * COLUMNS);
    let threads = Dim3::new(64, 1, 1);
    let request = LaunchRequest::new(Dim3::new(1, items, 1), threads);
    let batch = BatchAxis::new(Axis::Y, items);
    let stage = builder.kernel("spread", &spread, request, batch);
    stage.read(x).read(w).write(t).value(TIMES).length();
    let call = move |stream: &Arc<CudaStream>, _: &Chunk, views: &DeviceViews<'_>| {
        copy(stream, views, t, copied)
    };
    copying(&mut builder, call).read(t).write(copied);
    let stage = builder.kernel("gather", &gather, request, batch);
    stage.read(copied).update(x).write(y).value(TIMES).offset().length();
    Spreading { pipeline: builder.build().expect("three stages"), x, w, y }
}

#[allow(unsafe_code, reason = "the promise for the call")]
fn copying<'b, F>(builder: &'b mut PipelineBuilder<'static>, call: F) -> StageBuilder<'b, 'static>
where
    F: FnMut(&Arc<CudaStream>, &Chunk, &DeviceViews<'_>) -> StageResult + Send + 'static,
{
    // SAFETY: it copies buffers of the pipeline on the stream that it gets.
    unsafe { builder.call_in_graphs("copy", call) }
}

#[allow(unsafe_code, reason = "stands for a library's call")]
fn copy(
    stream: &CudaStream,
    views: &DeviceViews<'_>,
    from: Buffer<u32>,
    to: Buffer<u32>,
) -> StageResult {
    let (from, to) = (views.read(from)?, views.write(to)?);
    let (bytes, stream) = (usize::try_from(to.bytes)?, stream.cu_stream());
    // SAFETY: both are memory of the pipeline, of that size, for work on this stream.
    unsafe { cudarc::driver::result::memcpy_dtod_async(to.address, from.address, bytes, stream) }?;
    Ok(())
}

fn inputs(items: u64) -> (Vec<u32>, Vec<u32>) {
    let numbers = |count: u64, seed: u32| -> Vec<u32> {
        let number = |at: u32| at.wrapping_mul(2_654_435_761) ^ seed;
        (0..u32::try_from(count).expect("few")).map(number).collect()
    };
    (numbers(items * COLUMNS, 17), numbers(COLUMNS, 99))
}

/// What a plain loop gives: y, and x after it.
fn expected(x: &[u32], w: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let width = w.len();
    let y: Vec<u32> = x
        .iter()
        .enumerate()
        .map(|(place, x)| {
            let item = u32::try_from(place / width).expect("few");
            let terms = (1..=u32::try_from(TIMES).expect("few"))
                .map(|k| k.wrapping_mul(*x).wrapping_add(w[place % width]));
            terms.fold(item, u32::wrapping_add)
        })
        .collect();
    let after = x.iter().zip(&y).map(|(x, y)| x.wrapping_add(*y)).collect();
    (y, after)
}

/// Runs on as many streams as chunks are in flight, and compares both outputs with the plain loop.
fn run_and_compare(items: u64, budget: Budget, in_flight: usize) -> PipelineRun {
    let mut spreading = spreading(items, false);
    let main = stream();
    let more: Vec<_> = (1..in_flight).map(|_| stream()).collect();
    let budget = budget.in_flight(u64::try_from(in_flight).expect("few"));
    let plan = spreading.pipeline.plan(&budget).expect("it fits");
    let (from, weights) = inputs(items);
    let mut x = main.clone_htod(&from).expect("memory");
    let w = main.clone_htod(&weights).expect("memory");
    let mut y = main.clone_htod(&vec![u32::MAX; from.len()]).expect("memory");
    let memory = DeviceMemory::new(&main).on_streams(&more);
    let memory = memory.write(spreading.x, &mut x).read(spreading.w, &w).write(spreading.y, &mut y);
    let run = spreading.pipeline.run(guard(), &plan, memory).expect("it runs");
    assert_eq!((run.items_done, run.scratch_bytes), (items, plan.bytes()));
    let (y, x) = (main.clone_dtoh(&y).expect("copied"), main.clone_dtoh(&x).expect("copied"));
    let (expected_y, expected_x) = expected(&from, &weights);
    assert!(y == expected_y && x == expected_x, "{items} items, {in_flight} in flight: {plan}");
    run
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_output_is_the_same_for_every_chunk_and_number_of_streams() {
    for items in [1, 7, 1000, 70_001] {
        for at_most in [1 + items / 2, 1 + items / 37, 1000] {
            for in_flight in 1..=3 {
                let run = run_and_compare(items, Budget::UNLIMITED.at_most(at_most), in_flight);
                assert_eq!(run.tried.len(), 1);
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_budget_in_bytes_and_one_of_what_is_free_are_kept() {
    let run = run_and_compare(20_000, Budget::bytes(3 << 20), 2);
    assert!(run.scratch_bytes <= 3 << 20 && run.chunks > 10, "{run:?}");
    let free = guard().free_memory().expect("known").0;
    let run = run_and_compare(20_000, Budget::of_free_memory(guard(), 50).expect("known"), 1);
    assert!(run.scratch_bytes <= free, "{run:?}");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn scratch_larger_than_the_device_is_halved_until_it_fits() {
    // 64 items take more than twice the device, 16 about half.
    let total = guard().free_memory().expect("known").1;
    let mut builder = Pipeline::builder(64);
    let (huge, out) = (builder.scratch::<u8>("huge", total / 30), builder.output::<u64>("out", 1));
    let request = LaunchRequest::new(Dim3::new(1, 64, 1), Dim3::ONE);
    let batch = BatchAxis::new(Axis::Y, 64);
    builder.call("touch", |_, _, _| Ok(())).write(huge);
    let stage = builder.kernel("count", &kernel("count_y"), request, batch);
    stage.write(out).offset().length();
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("planned");
    let stream = stream();
    let mut memory = stream.clone_htod(&[u64::MAX; 64]).expect("memory");
    let bound = DeviceMemory::new(&stream).write(out, &mut memory);
    let run = pipeline.run(guard(), &plan, bound).expect("16 or fewer fit");
    assert!(run.tried.starts_with(&[64, 32]) && run.items_done == 64, "{run:?}");
    let written = stream.clone_dtoh(&memory).expect("copied");
    assert!(written.iter().zip(0..).all(|(number, item)| *number == item), "{written:?}");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn chunks_on_other_streams_wait_for_earlier_work_and_later_work_waits_for_them() {
    let (main, more) = (stream(), [stream(), stream()]);
    let items = 12;
    let mut builder = Pipeline::builder(items);
    let (x, seen) = (builder.input::<u64>("x", 1), builder.output::<u64>("seen", 1));
    let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::ONE);
    let batch = BatchAxis::new(Axis::Y, items);
    let stage = builder.kernel("look", &kernel("slow_look"), request, batch);
    stage.read(x).write(seen).value(3_000_000_u64);
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(2).in_flight(3)).expect("it fits");
    let mut memory = main.clone_htod(&[0_u64; 12]).expect("memory");
    let mut out = main.clone_htod(&[u64::MAX; 12]).expect("memory");
    for round in 1..=5 {
        // Written on the first stream, late, and again as soon as the call has returned.
        let fill = kernel("slow_fill");
        let plan_of_fill =
            super::support::plan(&fill, Axis::Y, items, gridguard::Choice::AUTOMATIC);
        let mut args = gridguard::cuda::Args::new(&main);
        args.write_items(&mut memory, 1).value(round).value(30_000_000_u64);
        guard().launch(&fill, &plan_of_fill, args).expect("launched");
        let bound = DeviceMemory::new(&main).on_streams(&more);
        let bound = bound.read(x, &memory).write(seen, &mut out);
        pipeline.run(guard(), &plan, bound).expect("it runs");
        main.memcpy_htod(&[0_u64; 12], &mut memory).expect("written");
        assert_eq!(main.clone_dtoh(&out).expect("copied"), [round; 12]);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_call_that_panics_leaves_the_device_usable() {
    let mut builder = Pipeline::builder(10);
    let t = builder.scratch::<u64>("t", 1 << 20);
    let request = LaunchRequest::new(Dim3::new(1, 10, 1), Dim3::ONE);
    let batch = BatchAxis::new(Axis::Y, 10);
    builder
        .kernel("fill", &kernel("slow_fill"), request, batch)
        .write(t)
        .value(7_u64)
        .value(1_000_000_u64);
    builder.call("panic", |_, chunk, _| match chunk.start {
        4.. => panic!("no item {}", chunk.start),
        _ => Ok(()),
    });
    let mut pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED.at_most(2).in_flight(2)).expect("it fits");
    let (main, more) = (stream(), [stream()]);
    let run = pipeline.run(guard(), &plan, DeviceMemory::new(&main).on_streams(&more));
    let error = run.expect_err("it panics");
    assert_eq!(error.kind(), ErrorKind::Panicked);
    assert_eq!(error.done().map(|done| done.items_done), Some(4));
    run_and_compare(100, Budget::UNLIMITED.at_most(30), 2);
}

/// Pinned host memory with these contents.
#[allow(unsafe_code, reason = "it is written before it is read")]
fn pinned(contents: &[u32]) -> PinnedHostSlice<u32> {
    let context = guard().context().expect("a device");
    // SAFETY: it is filled before it is read.
    let memory = unsafe { context.alloc_pinned_with_flags::<u32>(contents.len(), 0) };
    let mut memory = memory.expect("host memory");
    memory.as_mut_slice().expect("idle").copy_from_slice(contents);
    memory
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_batch_in_host_memory_gives_the_same_output() {
    for (items, at_most, in_flight) in [(1, 1, 1), (1000, 999, 1), (1000, 37, 3), (70_001, 3000, 4)]
    {
        let mut spreading = spreading(items, true);
        let main = stream();
        let more: Vec<_> = (1..in_flight).map(|_| stream()).collect();
        let budget = Budget::UNLIMITED.at_most(at_most).in_flight(in_flight);
        let plan = spreading.pipeline.plan(&budget).expect("it fits");
        let (from, weights) = inputs(items);
        let w = main.clone_htod(&weights).expect("memory");
        let (mut x, mut y) = (pinned(&from), pinned(&vec![u32::MAX; from.len()]));
        let (first_y, first_x) = expected(&from, &weights);
        // Twice, with nothing that waits between: the second run continues from the first.
        for _ in 0..2 {
            let memory = DeviceMemory::new(&main).on_streams(&more).read(spreading.w, &w);
            let memory = memory.write_host(spreading.x, &mut x).write_host(spreading.y, &mut y);
            let run = spreading.pipeline.run(guard(), &plan, memory);
            assert_eq!(run.expect("it runs").items_done, items);
        }
        let (expected_y, expected_x) = expected(&first_x, &weights);
        assert!(expected_y != first_y);
        assert!(y.as_slice().expect("it ran") == expected_y, "{plan}");
        assert!(x.as_slice().expect("it ran") == expected_x, "{plan}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn host_memory_can_be_dropped_while_the_run_uses_it() {
    let items = 100_000;
    let mut spreading = spreading(items, true);
    let (main, more) = (stream(), [stream(), stream()]);
    let budget = Budget::UNLIMITED.at_most(2000).in_flight(3);
    let plan = spreading.pipeline.plan(&budget).expect("it fits");
    let (from, weights) = inputs(items);
    let w = main.clone_htod(&weights).expect("memory");
    for _ in 0..10 {
        let (mut x, mut y) = (pinned(&from), pinned(&from));
        let memory = DeviceMemory::new(&main).on_streams(&more).read(spreading.w, &w);
        let memory = memory.write_host(spreading.x, &mut x).write_host(spreading.y, &mut y);
        spreading.pipeline.run(guard(), &plan, memory).expect("it runs");
    }
    guard().synchronize(&main).expect("every run was legal");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_graph_of_all_chunks_gives_the_same_output_at_each_launch() {
    for (items, at_most, in_flight) in [(1, 1, 1), (1000, 37, 1), (70_001, 3000, 3)] {
        let Spreading { mut pipeline, x: x_buffer, w: w_buffer, y: y_buffer } =
            spreading(items, false);
        let (main, other) = (stream(), stream());
        let budget = Budget::UNLIMITED.at_most(at_most).in_flight(in_flight);
        let plan = pipeline.plan(&budget).expect("it fits").as_graph();
        let (from, weights) = inputs(items);
        let w = main.clone_htod(&weights).expect("memory");
        let mut x = main.clone_htod(&from).expect("memory");
        let mut y = main.clone_htod(&vec![u32::MAX; from.len()]).expect("memory");
        let mut expected_x = from;
        for stream in [&main, &other, &main] {
            let memory = DeviceMemory::new(stream).write(x_buffer, &mut x).read(w_buffer, &w);
            let memory = memory.write(y_buffer, &mut y);
            pipeline.run(guard(), &plan, memory).expect("it runs");
            let (expected_y, after) = expected(&expected_x, &weights);
            expected_x = after;
            assert!(main.clone_dtoh(&y).expect("copied") == expected_y, "{plan}");
        }
        // Without anything that waits between: the last launch may still run when all is dropped.
        for _ in 0..3 {
            let memory = DeviceMemory::new(&other).write(x_buffer, &mut x).read(w_buffer, &w);
            let memory = memory.write(y_buffer, &mut y);
            pipeline.run(guard(), &plan, memory).expect("it runs");
            expected_x = expected(&expected_x, &weights).1;
        }
        drop(pipeline);
        assert!(main.clone_dtoh(&x).expect("copied") == expected_x, "{plan}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_graph_copies_chunks_of_host_memory() {
    let items = 10_000;
    let Spreading { mut pipeline, x: x_buffer, w: w_buffer, y: y_buffer } = spreading(items, true);
    let main = stream();
    let budget = Budget::UNLIMITED.at_most(700).in_flight(3);
    let plan = pipeline.plan(&budget).expect("it fits").as_graph();
    let (from, weights) = inputs(items);
    let w = main.clone_htod(&weights).expect("memory");
    let (mut x, mut y) = (pinned(&from), pinned(&vec![u32::MAX; from.len()]));
    let mut expected_x = from;
    for _ in 0..3 {
        let memory = DeviceMemory::new(&main).write_host(x_buffer, &mut x).read(w_buffer, &w);
        let memory = memory.write_host(y_buffer, &mut y);
        pipeline.run(guard(), &plan, memory).expect("it runs");
        let (expected_y, after) = expected(&expected_x, &weights);
        expected_x = after;
        assert!(y.as_slice().expect("it ran") == expected_y, "{plan}");
        assert!(x.as_slice().expect("it ran") == expected_x, "{plan}");
    }
}
