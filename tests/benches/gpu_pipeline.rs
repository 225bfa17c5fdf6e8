//! Measures the overhead of a pipeline of four stages. The baseline is the same launches written by hand with cudarc.
//! Both run as launches and as a graph, in turn.
//!
//! Prints a line for each measurement, and writes a JSON document to the file that its argument names. Needs a
//! CUDA GPU and NVRTC; says so without a GPU.
#![allow(unsafe_code, reason = "launches by hand to compare with")]

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{
    CudaFunction, CudaSlice, CudaStream, CudaView, CudaViewMut, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{CompileOptions, Compiler, Kernel};
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter};
use gridguard_examples::uniform;
use gridguard_pipeline::{
    Budget, Buffer, DeviceMemory, Pipeline, PipelineBuilder, PipelineScratch,
};
use gridguard_tests::figures::{self, Origin, event_ms, median};
use serde::Serialize;

/// Items of as many floats as a block has threads for: 320 MiB.
const ITEMS: u64 = 80 << 10;
const FLOATS: u64 = 1024;
const THREADS: u32 = 256;
const STAGES: usize = 4;
/// Parts of the batch: kernels of about 150, 40 and 3 microseconds.
const PARTS: [u64; 3] = [1, 4, 80];
const WARM_UP: usize = 5;
const ROUNDS: usize = 41;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    origin: Origin,
    rounds: usize,
    items: u64,
    bytes_an_item: u64,
    plans: Vec<PlanRow>,
}

/// Times are medians of events around a run, the ratios medians of those of the same round.
#[derive(Serialize)]
struct PlanRow {
    chunk: u64,
    launches: u64,
    by_hand_ms: f64,
    pipeline_ms: f64,
    ratio: f64,
    graph_by_hand_ms: f64,
    graph_ms: f64,
    graph_ratio: f64,
}

fn main() -> Outcome<()> {
    let Some(guard) = figures::guard() else { return Ok(()) };
    let context = guard.context().ok_or("no context")?;
    // SAFETY: all work is submitted to one stream. Events of memory that was allocated before a capture cannot be
    // waited for in it.
    unsafe { context.disable_event_tracking() };
    // Captures need a stream of their own.
    let stream = context.new_stream()?;
    let options = CompileOptions::new("affine.cu", guard.limits().compute_capability);
    let compiled = Compiler::find()?.compile(figures::AFFINE, &options)?;
    let memory = Parameter::AlignedMemory { bytes: 16 };
    // SAFETY: a block of x accesses the 1,024 floats of its item, and writes those of y.
    let kernel = unsafe { guard.load(&compiled.image)?.kernel("affine", &[memory, memory]) }?;
    let module = context.load_module(Ptx::from_binary(compiled.image.bytes().to_vec()))?;
    let function = module.load_function("affine")?;
    let x = stream.clone_htod(&uniform::<f32>(usize::try_from(ITEMS * FLOATS)?, 1))?;
    let case = Case { guard: &guard, stream, kernel, function, x };
    let mut plans = Vec::new();
    for parts in PARTS {
        let row = case.measure(ITEMS / parts)?;
        println!(
            "{} launches of {} items: {:.4} of those by hand, as a graph {:.4}",
            row.launches, row.chunk, row.ratio, row.graph_ratio
        );
        plans.push(row);
    }
    let origin = Origin::of(&guard);
    figures::publish(&Report {
        origin,
        rounds: ROUNDS,
        items: ITEMS,
        bytes_an_item: FLOATS * 4,
        plans,
    })
}

struct Case<'g> {
    guard: &'g Guard,
    stream: Arc<CudaStream>,
    kernel: Kernel,
    function: CudaFunction,
    x: CudaSlice<f32>,
}

impl Case<'_> {
    fn measure(&self, chunk: u64) -> Outcome<PlanRow> {
        let Self { guard, stream, .. } = self;
        let mut y = stream.alloc_zeros::<f32>(self.x.len())?;
        let mut same = stream.alloc_zeros::<f32>(self.x.len())?;
        let mut scratch = stream.alloc_zeros::<f32>(usize::try_from(2 * chunk * FLOATS)?)?;
        let budget = Budget::UNLIMITED.at_most(chunk);

        let (mut pipeline, [from, to]) = self.pipeline()?;
        let plan = pipeline.plan(&budget)?;
        let mut places = PipelineScratch::new();
        let [by_hand_ms, pipeline_ms, ratio] = self.compare(
            || self.by_hand(chunk, &mut scratch, &mut same),
            || {
                let memory = DeviceMemory::new(stream).read(from, &self.x).write(to, &mut y);
                pipeline.run(guard, &plan, memory.scratch(&mut places))?;
                Ok(())
            },
        )?;
        if stream.clone_dtoh(&y)? != stream.clone_dtoh(&same)? {
            return Err("a pipeline and launches by hand differ".into());
        }

        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
        self.by_hand(chunk, &mut scratch, &mut same)?;
        let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph_by_hand = stream.end_capture(flags)?.ok_or("nothing captured")?;
        let as_graph = plan.clone().as_graph();
        let [graph_by_hand_ms, graph_ms, graph_ratio] = self.compare(
            || Ok(graph_by_hand.launch()?),
            || {
                let bound = DeviceMemory::new(stream).read(from, &self.x).write(to, &mut y);
                pipeline.run(guard, &as_graph, bound)?;
                Ok(())
            },
        )?;
        let launches = plan.len() * u64::try_from(STAGES)?;
        Ok(PlanRow {
            chunk,
            launches,
            by_hand_ms,
            pipeline_ms,
            ratio,
            graph_by_hand_ms,
            graph_ms,
            graph_ratio,
        })
    }

    /// The stages: each kernel reads the output of the previous one.
    fn pipeline(&self) -> Outcome<(Pipeline<'_>, [Buffer<f32>; 2])> {
        let mut builder: PipelineBuilder<'_> = Pipeline::builder(ITEMS);
        let x = builder.input::<f32>("x", FLOATS);
        let scratch = ["a", "b", "c"].map(|name| builder.scratch::<f32>(name, FLOATS));
        let y = builder.output::<f32>("y", FLOATS);
        let to: Vec<_> = scratch.into_iter().chain([y]).collect();
        let grid = Dim3::new(u32::try_from(ITEMS)?.into(), 1, 1);
        let request = LaunchRequest::new(grid, Dim3::new(THREADS.into(), 1, 1));
        let batch = BatchAxis::new(Axis::X, ITEMS);
        for (number, (from, to)) in [x].iter().chain(&to).zip(&to).enumerate() {
            builder
                .kernel(format!("affine {number}"), &self.kernel, request, batch)
                .read(*from)
                .write(*to);
        }
        Ok((builder.build()?, [x, y]))
    }

    fn by_hand(
        &self,
        chunk: u64,
        scratch: &mut CudaSlice<f32>,
        y: &mut CudaSlice<f32>,
    ) -> Outcome<()> {
        let length = usize::try_from(chunk * FLOATS)?;
        let (mut a, mut b) = scratch.split_at_mut(length);
        for start in (0..y.len()).step_by(length) {
            let x = self.x.slice(start..start + length);
            let mut y = y.slice_mut(start..start + length);
            self.launch(chunk, &x, &mut a)?;
            self.launch(chunk, &a.as_view(), &mut b)?;
            self.launch(chunk, &b.as_view(), &mut a)?;
            self.launch(chunk, &a.as_view(), &mut y)?;
        }
        Ok(())
    }

    fn launch(
        &self,
        chunk: u64,
        x: &CudaView<'_, f32>,
        y: &mut CudaViewMut<'_, f32>,
    ) -> Outcome<()> {
        let grid_dim = (u32::try_from(chunk)?, 1, 1);
        let config = LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
        let mut launch = self.stream.launch_builder(&self.function);
        launch.arg(x).arg(y);
        // SAFETY: both have an item for each block.
        unsafe { launch.launch(config) }?;
        Ok(())
    }

    /// Median times of both in turn, and the median of the second's over the first's.
    fn compare(
        &self,
        mut first: impl FnMut() -> Outcome<()>,
        mut second: impl FnMut() -> Outcome<()>,
    ) -> Outcome<[f64; 3]> {
        let mut times = [(); 3].map(|()| Vec::with_capacity(ROUNDS));
        for round in 0..WARM_UP + ROUNDS {
            let first = event_ms(&self.stream, &mut first)?;
            let second = event_ms(&self.stream, &mut second)?;
            if round >= WARM_UP {
                for (times, value) in times.iter_mut().zip([first, second, second / first]) {
                    times.push(value);
                }
            }
        }
        Ok(times.map(median))
    }
}
