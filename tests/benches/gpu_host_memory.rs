//! Times a pipeline over pinned host memory that exceeds the device's budget: it copies chunks in and out while it
//! computes. The baseline copies the same bytes in both directions at once, without computation.
//!
//! Prints a line for each measurement, and writes a JSON document to the file that its argument names. Needs
//! a CUDA GPU, NVRTC, and as much host memory as the batch; says so without a GPU.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::{CudaContext, CudaStream, PinnedHostSlice};
use gridguard::cuda::Kernel;
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter};
use gridguard_pipeline::{Budget, DeviceMemory, Pipeline, PipelineScratch};
use gridguard_tests::figures::{self, Origin, median};
use rayon::prelude::*;
use serde::Serialize;

/// Items of 4 KiB: 24 GiB of input and as much output.
const ITEMS: u64 = 6 << 20;
const FLOATS: u64 = 1024;
/// Scratch of all chunks in flight.
const BUDGET: u64 = 2 << 30;
const IN_FLIGHT: [u64; 4] = [1, 2, 3, 4];
const CHUNK_MIB: [u64; 2] = [64, 256];
const ROUNDS: usize = 3;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    origin: Origin,
    rounds: usize,
    /// Bytes of the input, and of the output.
    bytes_each_way: u64,
    budget_bytes: u64,
    /// Seconds of the same bytes copied both ways at once.
    copies_s: f64,
    plans: Vec<PlanRow>,
}

/// One plan. Times are medians on the host's clock, from the submission to the end.
#[derive(Serialize)]
struct PlanRow {
    chunk: u64,
    chunks: u64,
    in_flight: u64,
    scratch_bytes: u64,
    seconds: f64,
    /// The time of the copies over that of the pipeline.
    of_copies: f64,
}

fn main() -> Outcome<()> {
    let Some(guard) = figures::guard() else { return Ok(()) };
    let context = Arc::clone(guard.context().ok_or("no context")?);
    let begun = Instant::now();
    let mut x = pinned(&context)?;
    let mut y = pinned(&context)?;
    let floats = usize::try_from(FLOATS)?;
    let fill = |(item, part): (usize, &mut [f32])| part.fill(value(item));
    x.as_mut_slice()?.par_chunks_mut(floats).enumerate().for_each(fill);
    println!("{} GiB of pinned memory in {:.1?}", 2 * (x.num_bytes() >> 30), begun.elapsed());
    let copies = copies(&context, &x, &mut y)?;
    println!("copied both ways at once: {:.1} GB/s each way", rate(copies));

    let kernel = kernel(&guard)?;
    let mut report = Report {
        origin: Origin::of(&guard),
        rounds: ROUNDS,
        bytes_each_way: ITEMS * FLOATS * 4,
        budget_bytes: BUDGET,
        copies_s: copies,
        plans: Vec::new(),
    };
    for in_flight in IN_FLIGHT {
        for chunk in CHUNK_MIB.map(|mib| mib << 20) {
            let budget = Budget::bytes(BUDGET).in_flight(in_flight).at_most(chunk / (4 * FLOATS));
            let row = run(&guard, &kernel, &budget, (&x, &mut y), copies)?;
            println!(
                "{} chunks of {} MiB, {} in flight, {} MiB of scratch: {:.3} s, {:.3} of the copies' rate",
                row.chunks,
                (row.chunk * 4 * FLOATS) >> 20,
                row.in_flight,
                row.scratch_bytes >> 20,
                row.seconds,
                row.of_copies
            );
            report.plans.push(row);
        }
    }
    figures::publish(&report)
}

/// What the items hold, exact in f32.
fn value(item: usize) -> f32 {
    f32::from(u16::try_from(item % 8191).unwrap_or(0))
}

fn rate(seconds: f64) -> f64 {
    let gib = f64::from(u32::try_from((ITEMS * FLOATS * 4) >> 20).unwrap_or(0)) / 1024.0;
    gib * 1.073_741_824 / seconds
}

#[allow(unsafe_code, reason = "any bytes are floats, and the memory is written before it is read")]
fn pinned(context: &Arc<CudaContext>) -> Outcome<PinnedHostSlice<f32>> {
    // SAFETY: the input is filled before it is read, and the output is written by each run.
    Ok(unsafe { context.alloc_pinned_with_flags(usize::try_from(ITEMS * FLOATS)?, 0) }?)
}

#[allow(unsafe_code, reason = "the contract of the kernel above")]
fn kernel(guard: &Guard) -> Outcome<Kernel> {
    let module = guard.compile("affine.cu", figures::AFFINE)?;
    let memory = Parameter::AlignedMemory { bytes: 16 };
    // SAFETY: a block of x accesses the 1,024 floats of its item, and writes those of y.
    Ok(unsafe { module.kernel("affine", &[memory, memory]) }?)
}

/// The median seconds of `run` and its submitted work.
fn median_s(stream: &CudaStream, mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..=ROUNDS {
        let begun = Instant::now();
        run()?;
        stream.synchronize()?;
        // The first warms up.
        if round > 0 {
            times.push(begun.elapsed().as_secs_f64());
        }
    }
    Ok(median(times))
}

/// The seconds to copy all of `x` to the device and as much to `y`, at once, in parts of 256 MiB.
fn copies(
    context: &Arc<CudaContext>,
    x: &PinnedHostSlice<f32>,
    y: &mut PinnedHostSlice<f32>,
) -> Outcome<f64> {
    let (into, out_of) = (context.new_stream()?, context.new_stream()?);
    let part = usize::try_from((256_u64 << 20) / 4)?;
    let mut to = into.alloc_zeros::<f32>(part)?;
    let from = out_of.alloc_zeros::<f32>(part)?;
    let (x, y) = (x.as_slice()?, y.as_mut_slice()?);
    median_s(&into, || {
        for (x, y) in x.chunks(part).zip(y.chunks_mut(part)) {
            into.memcpy_htod(x, &mut to)?;
            out_of.memcpy_dtoh(&from, y)?;
        }
        into.join(&out_of)?;
        Ok(())
    })
}

fn run(
    guard: &Guard,
    kernel: &Kernel,
    budget: &Budget,
    (x, y): (&PinnedHostSlice<f32>, &mut PinnedHostSlice<f32>),
    copies: f64,
) -> Outcome<PlanRow> {
    let context = guard.context().ok_or("no context")?;
    let stream = context.new_stream()?;
    let more = (1..budget.max_in_flight()).map(|_| context.new_stream());
    let more = more.collect::<Result<Vec<_>, _>>()?;
    let mut builder = Pipeline::builder(ITEMS);
    let (from, to) = (builder.input::<f32>("x", FLOATS), builder.output::<f32>("y", FLOATS));
    builder.in_host_memory(from);
    builder.in_host_memory(to);
    let request = LaunchRequest::new(Dim3::new(ITEMS, 1, 1), Dim3::new(256, 1, 1));
    let stage = builder.kernel("affine", kernel, request, BatchAxis::new(Axis::X, ITEMS));
    stage.read(from).write(to);
    let mut pipeline = builder.build()?;
    let plan = pipeline.plan(budget)?;
    let mut scratch = PipelineScratch::new();
    y.as_mut_slice()?.par_iter_mut().for_each(|y| *y = f32::NAN);
    let seconds = median_s(&stream, || {
        let memory = DeviceMemory::new(&stream).on_streams(&more).scratch(&mut scratch);
        pipeline.run(guard, &plan, memory.read_host(from, x).write_host(to, y))?;
        Ok(())
    })?;
    let floats = usize::try_from(FLOATS)?;
    let parts = y.as_slice()?.par_chunks(floats).enumerate();
    let wrong = parts.filter(|(item, part)| part.iter().any(|y| *y != 2.0 * value(*item) + 1.0));
    match wrong.count() {
        0 => Ok(PlanRow {
            chunk: plan.chunk_items(),
            chunks: plan.len(),
            in_flight: plan.in_flight(),
            scratch_bytes: plan.bytes(),
            seconds,
            of_copies: copies / seconds,
        }),
        wrong => Err(format!("{wrong} items are wrong: {plan}").into()),
    }
}
