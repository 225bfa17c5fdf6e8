//! Tunes the block on a device: first the algorithms of its products for every chunk worth running, then, with
//! these, the chunk and how many are in flight.

use std::collections::BTreeSet;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gridguard::Guard;
use gridguard::profile::{Document, Key, Objective, Policy, Profile, Provenance, publish};
use gridguard_autotune::{
    Budget, Candidate, Chart, DeviceClock, FailureKind, InProcess, MeasureFailure, PipelineProblem,
    PipelineWorkload, ProductWorkload, Space, TuningReport, tune,
};
use gridguard_files::write_output;
use gridguard_kernels::temporal_block::{BlockMemory, BlockReference, TemporalBlock, tolerance};
use gridguard_kernels::{Deviation, Kernels};
use gridguard_pipeline::{Pipeline, PipelinePlan, PipelineRun, PipelineScratch, ProductShape};

use crate::backend::{Job, Tensor};

/// The key of the block's entry in profiles: the fastest plan within `bytes` of scratch.
pub(crate) fn key(pipeline: &Pipeline<'_>, bytes: u64) -> Key {
    let objective = Objective::Memory { bytes_per_item: 0, bytes };
    pipeline.key("temporal_block", Policy::default(), objective)
}

/// Tunes the block of `job` within its budget, writes the entries to `profile`, and draws the curve of
/// time and memory against chunk.
pub(crate) fn tune_block<T: Tensor>(
    context: &Arc<CudaContext>,
    job: &Job<'_, T>,
    profile: &Path,
    chart: Option<&Path>,
) -> Result<(), Box<dyn Error>> {
    let guard = Arc::new(Guard::with_context(Arc::clone(context))?);
    let stream = context.new_stream()?;
    let mut document = Document::new(guard.identity(), guard.environment());
    let environment = guard.environment();
    let found = Provenance {
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        driver: environment.driver,
        compiler: environment.compiler,
        tuner: environment.tuner,
        ..Provenance::default()
    };

    let kernels = Kernels::new(Arc::clone(&guard));
    let block = TemporalBlock::new(&kernels, &stream, job.shape, job.weights)?;
    let (pipeline, _) = block.pipeline()?;
    let space = Space::pipelines(vec![pipeline.outline()], &job.budget);
    for rows in rows(space.candidates(), job.shape.items(), job.shape.frames()) {
        for shape in job.shape.products() {
            let shape = ProductShape { rows, ..shape };
            let (bytes, values) = (block.workspace_bytes(), job.x);
            let stream = Arc::clone(&stream);
            let workload = ProductWorkload::new(&guard, Arc::clone(&stream), shape, bytes, values)?;
            let (key, sizes) = (workload.key(Policy::default()), workload.entry_shape());
            let mut space = workload.space();
            let clock = DeviceClock::new(&guard, stream, Policy::default())?;
            let mut measurer = InProcess::new(workload, clock);
            let budget = Budget { wall_time: Some(PRODUCT_TIME), ..Budget::default() };
            let outcome = tune(&mut measurer, &mut space, Objective::Throughput, &budget, &mut ())?;
            let ProductShape { inner, columns, .. } = shape;
            let [chosen, first] = [&outcome.chosen, &outcome.baseline]
                .map(|times| Duration::from_nanos(times.median_ns));
            println!(
                "tune     product {rows} x {inner} x {columns}: {}: {chosen:.1?}, the library's first \
                 {first:.1?}",
                outcome.winner
            );
            document.insert(outcome.entry(key, sizes, found.clone()))?;
        }
    }

    // The same block with these algorithms.
    let (tuned, _) =
        Profile::from_document(document.clone(), &guard.identity(), &guard.environment());
    let guard = Guard::with_context(Arc::clone(context))?.with_profile(Arc::new(tuned));
    let guard = Arc::new(guard);
    let kernels = Kernels::new(Arc::clone(&guard));
    let block = TemporalBlock::new(&kernels, &stream, job.shape, job.weights)?;
    let problem = Problem::new(&guard, &block, Arc::clone(&stream), job)?;
    let (key, shape) = (key(&problem.pipeline, job.budget.max_bytes()), problem.pipeline.shape());
    let workload = PipelineWorkload::new(problem, job.budget);
    let mut space = workload.space();
    let clock = DeviceClock::new(&guard, stream, Policy::default())?;
    let mut measurer = InProcess::new(workload, clock);
    let outcome = tune(&mut measurer, &mut space, key.objective, &Budget::default(), &mut ())?;
    let [items, frames] = [job.shape.items(), job.shape.frames()];
    let [channels, heads] = [job.shape.channels(), job.shape.heads()];
    let name = format!("temporal_block {items}x{frames}x{channels}, {heads} heads, {}", T::TYPE);
    println!("{}", TuningReport::new(&name, &outcome));
    if let Some(path) = chart {
        let limits = guard.limits();
        let subtitle = format!("{}, {}", limits.name, Policy::default());
        let chart = Chart { title: name, subtitle, ..Chart::default() };
        write_output(path, chart.svg(&outcome)?.as_bytes())?;
    }
    document.insert(outcome.entry(key, shape, found))?;
    publish(profile, &document)?;
    println!("profile  {}", profile.display());
    Ok(())
}

/// The rows of the products of all candidates: those of their chunks, and of a last one that is smaller.
fn rows(candidates: &[Candidate], items: u64, frames: u64) -> BTreeSet<u64> {
    let chunks = candidates.iter().flat_map(|one| {
        let before_last = one.launches.saturating_sub(1).saturating_mul(one.largest_chunk);
        [one.largest_chunk, items.saturating_sub(before_last)]
    });
    chunks.filter(|items| *items > 0).map(|items| items.saturating_mul(frames)).collect()
}

/// The block with its memory, for runs of any plan.
struct Problem<'b, T> {
    guard: Arc<Guard>,
    pipeline: Pipeline<'b>,
    memory: BlockMemory<'b, T>,
    stream: Arc<CudaStream>,
    more: Vec<Arc<CudaStream>>,
    x: CudaSlice<T>,
    y: CudaSlice<T>,
    scratch: PipelineScratch,
    /// Items spread over the batch, and their references.
    expected: Vec<(usize, Vec<f64>)>,
}

impl<'b, T: Tensor> Problem<'b, T> {
    fn new(
        guard: &Arc<Guard>,
        block: &'b TemporalBlock<T>,
        stream: Arc<CudaStream>,
        job: &Job<'_, T>,
    ) -> Result<Self, Box<dyn Error>> {
        let (pipeline, memory) = block.pipeline()?;
        let more = (1..job.budget.max_in_flight()).map(|_| stream.context().new_stream());
        let reference = BlockReference::new(&job.shape, job.weights)?;
        let size = usize::try_from(job.shape.elements_per_item())?.max(1);
        let items = job.x.len() / size;
        let places: BTreeSet<usize> =
            (0..COMPARED).map(|n| n * items.saturating_sub(1) / (COMPARED - 1)).collect();
        let expected = places.into_iter().filter_map(|item| {
            Some((item, reference.item(job.x.get(item * size..(item + 1) * size)?)))
        });
        Ok(Self {
            guard: Arc::clone(guard),
            pipeline,
            memory,
            more: more.collect::<Result<_, _>>()?,
            x: stream.clone_htod(job.x)?,
            y: stream.alloc_zeros(job.x.len())?,
            stream,
            scratch: PipelineScratch::new(),
            expected: expected.collect(),
        })
    }
}

impl<T: Tensor> PipelineProblem for Problem<'_, T> {
    fn pipelines(&self) -> Vec<Pipeline<'static>> {
        vec![self.pipeline.outline()]
    }

    fn run(
        &mut self,
        _: usize,
        plan: &PipelinePlan,
    ) -> Result<PipelineRun, gridguard_pipeline::Error> {
        let Self { guard, pipeline, memory, stream, more, x, y, scratch, .. } = self;
        let bound = memory.bind(stream, x, y).on_streams(more).scratch(scratch);
        pipeline.run(guard, plan, bound)
    }

    fn poison(&mut self) -> Result<(), MeasureFailure> {
        Ok(self.stream.memset_zeros(&mut self.y)?)
    }

    fn compare(&mut self) -> Result<(), MeasureFailure> {
        let mut deviation = Deviation::new();
        for (item, expected) in &self.expected {
            let start = item * expected.len();
            let out = self.stream.clone_dtoh(&self.y.slice(start..start + expected.len()))?;
            deviation.add(&out, expected);
        }
        if deviation.within(tolerance(T::TYPE)) {
            return Ok(());
        }
        let message = format!("differs from the reference by {:e}", deviation.relative());
        Err(MeasureFailure::new(FailureKind::Mismatch, message))
    }
}

/// Items that are compared with the reference.
const COMPARED: usize = 9;
/// The longest time for the algorithms of one product: the library's first few are the likely ones.
const PRODUCT_TIME: Duration = Duration::from_secs(2);
