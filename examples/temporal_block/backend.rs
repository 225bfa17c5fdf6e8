//! Runs the block: on the device, timed, or on the host.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DeviceRepr};
use gridguard::cuda::Compiler;
use gridguard::profile::Layers;
use gridguard::{DeviceLimits, Guard};
use gridguard_kernels::temporal_block::{BlockShape, BlockWeights, TemporalBlock, host_pipeline};
use gridguard_kernels::{Element, ElementType, Kernels};
use gridguard_pipeline::{
    Budget, CublasLt, HostMemory, PipelinePlan, PipelineRun, PipelineScratch, Progress, TunedPlan,
};
use indicatif::{ProgressBar, ProgressStyle};

use crate::tune::{key, tune_block};

/// An element that can be copied to a device.
pub(crate) trait Tensor: Element + DeviceRepr + Into<f64> {}
impl<T: Element + DeviceRepr + Into<f64>> Tensor for T {}

/// Where the block runs.
pub(crate) enum Backend {
    Device { kernels: Kernels, context: Arc<CudaContext> },
    Host,
}

/// What is to be done.
pub(crate) struct Job<'a, T> {
    pub(crate) shape: BlockShape,
    pub(crate) weights: &'a BlockWeights<T>,
    pub(crate) x: &'a [T],
    pub(crate) budget: Budget,
}

/// What was done.
pub(crate) struct Done {
    pub(crate) plan: PipelinePlan,
    run: PipelineRun,
    /// Median over the runs.
    time: Duration,
    runs: usize,
    /// The same as one graph, if it was measured.
    graph: Option<Duration>,
}

/// Untimed runs that bring clocks and caches to a steady state.
const WARM_UP_RUNS: usize = 3;
/// Runs whose median is reported.
const TIMED_RUNS: usize = 15;

impl Backend {
    /// The guard's device with everything that the block needs there, or the host; prints the reason.
    pub(crate) fn best(guard: Arc<Guard>) -> Self {
        let missing = match (guard.context(), Compiler::find(), CublasLt::find()) {
            (Some(context), Ok(_), Ok(_)) => {
                let context = Arc::clone(context);
                return Self::Device { kernels: Kernels::new(guard), context };
            }
            (None, ..) => guard.fallback().map_or_else(String::new, ToString::to_string),
            (_, Err(missing), _) => missing.to_string(),
            (.., Err(missing)) => missing.to_string(),
        };
        eprintln!("no GPU is used: {missing}");
        Self::Host
    }

    /// The same device with the entries of a profile; prints what of it is left out or may be stale.
    pub(crate) fn with_profile(&self, path: &Path) -> Result<Self, Box<dyn Error>> {
        let Self::Device { context, .. } = self else {
            return Err("a profile is for a device: the block runs on the host".into());
        };
        let guard = Guard::with_context(Arc::clone(context))?;
        let loaded = Layers::new().explicit(path).load(&guard.identity(), &guard.environment());
        for notice in &loaded.notices {
            eprintln!("{notice}");
        }
        let guard = guard.with_profile(Arc::new(loaded.profile));
        let context = Arc::clone(context);
        Ok(Self::Device { kernels: Kernels::new(Arc::new(guard)), context })
    }

    /// Tunes the job on the device, and writes the profile and the chart.
    pub(crate) fn tune<T: Tensor>(
        &self,
        job: &Job<'_, T>,
        profile: &Path,
        chart: Option<&Path>,
    ) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Device { context, .. } => tune_block(context, job, profile, chart),
            Self::Host => Err("tuning needs a device: the block runs on the host".into()),
        }
    }

    pub(crate) fn print(&self) {
        match self {
            Self::Device { kernels, .. } => {
                let limits = kernels.guard().limits();
                let capability = limits.compute_capability;
                println!("device   {}, compute capability {capability}", limits.name);
            }
            Self::Host => println!("device   the host"),
        }
    }

    /// Runs the job and writes the result to `out`.
    pub(crate) fn run<T: Tensor>(
        &self,
        job: &Job<'_, T>,
        out: &mut [T],
    ) -> Result<Done, Box<dyn Error>> {
        match self {
            Self::Device { kernels, context } => on_device(kernels, context, job, out),
            Self::Host => on_host(job, out),
        }
    }
}

impl Done {
    pub(crate) fn print(&self, shape: &BlockShape, element: ElementType) {
        let Self { run, time, runs, graph, .. } = self;
        let PipelineRun { chunks, scratch_bytes, tried, .. } = run;
        if tried.len() > 1 {
            println!("         memory ran out: chunks of {tried:?} items were tried in turn");
        }
        let megabytes = |bytes: u128| bytes.div_ceil(1_000_000);
        println!(
            "memory   {} MB of scratch; input and output {} MB",
            megabytes(u128::from(*scratch_bytes)),
            megabytes(shape.least_bytes(element))
        );
        let median = if *runs > 1 { format!(", median of {runs} runs") } else { String::new() };
        let rate = rate(shape, *time);
        println!("time     {time:.3?} for {chunks} chunks{median}: {rate:.3} TFLOP/s");
        if let Some(graph) = graph {
            println!("         {graph:.3?} as one graph");
        }
    }
}

#[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "rounded for display")]
fn rate(shape: &BlockShape, time: Duration) -> f64 {
    shape.operations() as f64 / time.as_secs_f64() / 1e12
}

/// A bar that follows a run.
fn bar(items: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("run      {bar:40} {pos}/{len} items, {elapsed}, {eta} left");
    ProgressBar::new(items).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn on_host<T: Tensor>(job: &Job<'_, T>, out: &mut [T]) -> Result<Done, Box<dyn Error>> {
    let (mut pipeline, x, y) = host_pipeline(&job.shape, job.weights)?;
    let plan = pipeline.plan(&job.budget)?;
    println!("plan     {plan}");
    let bar = bar(job.shape.items());
    let mut watch = |progress: &Progress| {
        bar.set_position(progress.items_done);
        ControlFlow::Continue(())
    };
    let guard = Guard::host(DeviceLimits::any_device());
    let memory = HostMemory::new().read(x, job.x).write(y, out);
    let start = Instant::now();
    let run = pipeline.run(&guard, &plan, memory.monitor(&mut watch))?;
    let time = start.elapsed();
    bar.finish_and_clear();
    Ok(Done { plan, run, time, runs: 1, graph: None })
}

fn on_device<T: Tensor>(
    kernels: &Kernels,
    context: &Arc<CudaContext>,
    job: &Job<'_, T>,
    out: &mut [T],
) -> Result<Done, Box<dyn Error>> {
    let (guard, stream) = (kernels.guard(), context.new_stream()?);
    let block = TemporalBlock::new(kernels, &stream, job.shape, job.weights)?;
    let (mut pipeline, memory) = block.pipeline()?;
    let tuned = pipeline.tuned(guard, &key(&pipeline, job.budget.max_bytes()));
    let TunedPlan { plan, matched, refused } = pipeline.plan_tuned(tuned, &job.budget)?;
    if guard.profile().is_some() {
        println!("profile  {matched}");
    }
    if let Some(refused) = refused {
        println!("         not used: {refused}");
    }
    println!("plan     {plan}");
    let more = (1..plan.in_flight()).map(|_| context.new_stream());
    let more = more.collect::<Result<Vec<_>, _>>()?;
    let (x, mut y) = (stream.clone_htod(job.x)?, stream.clone_htod(out)?);

    // The first run's result is compared and written.
    let bar = bar(job.shape.items());
    let mut watch = |progress: &Progress| {
        bar.set_position(progress.items_done);
        ControlFlow::Continue(())
    };
    let bound = memory.bind(&stream, &x, &mut y).on_streams(&more);
    let run = pipeline.run(guard, &plan, bound.monitor(&mut watch))?;
    bar.finish_and_clear();
    stream.memcpy_dtoh(&y, out)?;

    let median =
        |run: &mut dyn FnMut() -> Result<(), Box<dyn Error>>| -> Result<_, Box<dyn Error>> {
            let mut times = Vec::with_capacity(TIMED_RUNS);
            for round in 0..WARM_UP_RUNS + TIMED_RUNS {
                stream.synchronize()?;
                let start = Instant::now();
                run()?;
                stream.synchronize()?;
                if round >= WARM_UP_RUNS {
                    times.push(start.elapsed());
                }
            }
            times.sort_unstable();
            Ok(times.get(TIMED_RUNS / 2).copied().unwrap_or_default())
        };
    let mut scratch = PipelineScratch::new();
    let time = median(&mut || {
        let bound = memory.bind(&stream, &x, &mut y).on_streams(&more).scratch(&mut scratch);
        pipeline.run(guard, &plan, bound)?;
        Ok(())
    })?;
    drop(scratch);
    let as_graph = plan.clone().as_graph();
    let graph = median(&mut || {
        pipeline.run(guard, &as_graph, memory.bind(&stream, &x, &mut y))?;
        Ok(())
    })?;
    if let Some(failure) = kernels.counts().last_failure {
        eprintln!("{failure}");
    }
    Ok(Done { plan, run, time, runs: TIMED_RUNS, graph: Some(graph) })
}
