//! Step 5: tunes a workload of your own: anything you can launch from a `Candidate` can be tuned.
//! Here it is a chain of eight passes over rows. The largest chunk is not the fastest: a smaller chunk's output is
//! still in the cache for the next pass.
//!
//! Run it with `cargo run --release --example 05_tune [PLOT.svg]`. It needs a CUDA device; step 9 tunes on the host.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel};
use gridguard::profile::Policy;
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchLimits, LaunchRequest, Parameter, Plan};
use gridguard_autotune::{
    Budget, Candidate, Chart, DeviceClock, FailureKind, InProcess, LaunchConfig, MeasureFailure,
    Measurer, Portion, Space, TuningReport, Workload, tune,
};
use gridguard_files::write_output;

/// Rows of 1,024 floats, 512 MiB: more than the 65,535 blocks of y.
const ROWS: u64 = 131_072;
const COLUMNS: u64 = 1024;
const PASSES: usize = 8;

const SOURCE: &str = r#"
// One row of 1,024 floats per block, rows on y.
extern "C" __global__ void pass(float4 *x) {
    float4 &four = x[blockIdx.y * 256ull + threadIdx.x];
    four.x = four.x * 0.5f + 1; four.y = four.y * 0.5f + 1;
    four.z = four.z * 0.5f + 1; four.w = four.w * 0.5f + 1;
}
"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guard = Arc::new(Guard::cuda(0)?);
    let stream = guard.context().ok_or("no context")?.new_stream()?;
    let clock = DeviceClock::new(&guard, Arc::clone(&stream), Policy::default())?;
    let mut measurer = InProcess::new(Chain::new(&guard, stream)?, clock);
    let mut space = Space::new(measurer.configurations()?);
    let outcome = tune(&mut measurer, &mut space, Default::default(), &Budget::default(), &mut ())?;
    let name = format!("{PASSES} passes over rows of {COLUMNS} on {}", guard.limits().name);
    println!("{}", TuningReport::new(&name, &outcome));
    if let Some(path) = std::env::args_os().nth(1) {
        let chart = Chart {
            title: name,
            subtitle: format!("{}, throughput", Policy::default()),
            largest_legal_chunk: space.largest_legal_chunk(),
        };
        write_output(path.as_ref(), chart.svg(&outcome)?.as_bytes())?;
    }
    Ok(())
}

/// The launch of one pass over `rows` rows.
fn configuration(rows: u64, limits: LaunchLimits) -> LaunchConfig {
    let request = LaunchRequest::new(Dim3::new(1, rows, 1), Dim3::new(256, 1, 1));
    let batch = Some(BatchAxis::new(Axis::Y, rows));
    LaunchConfig { parameters: Vec::new(), request, batch, limits }
}

struct Chain {
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    kernel: Kernel,
    x: CudaSlice<f32>,
    configuration: LaunchConfig,
}

impl Chain {
    #[allow(unsafe_code, reason = "the contract of the kernel above")]
    fn new(
        guard: &Arc<Guard>,
        stream: Arc<CudaStream>,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let module = guard.compile("pass.cu", SOURCE)?;
        // SAFETY: `pass` takes one pointer, aligned to 16 bytes, and accesses 1,024 floats per
        // block on y.
        let kernel = unsafe { module.kernel("pass", &[Parameter::AlignedMemory { bytes: 16 }])? };
        let x = stream.alloc_zeros(usize::try_from(ROWS * COLUMNS)?)?;
        let configuration = configuration(ROWS, kernel.limits().clone());
        Ok(Self { guard: Arc::clone(guard), stream, kernel, x, configuration })
    }
}

impl Workload for Chain {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        Ok(vec![self.configuration.clone()])
    }

    fn prepare(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
        Ok(())
    }

    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
        let LaunchConfig { request, batch, limits, .. } = &self.configuration;
        let plan = Plan::new(request, batch.as_ref(), limits, candidate.choice.into())?;
        let (some, least) = match portion {
            Portion::Sequence => (usize::MAX, 0),
            Portion::LargestLaunch => (1, plan.largest_chunk()),
        };
        for chunk in plan.chunks().filter(|chunk| chunk.items >= least).take(some) {
            let place = |row| usize::try_from(row * COLUMNS).unwrap_or(usize::MAX);
            let mut rows = self.x.slice_mut(place(chunk.start)..place(chunk.end()));
            let request = configuration(chunk.items, self.kernel.limits().clone()).request;
            for _ in 0..PASSES {
                let mut args = Args::new(&self.stream);
                args.write(&mut rows);
                self.guard.launch(&self.kernel, &request, args)?;
            }
        }
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.stream.memset_zeros(&mut self.x)?;
        self.launch(candidate, Portion::Sequence)?;
        // One chain that began with zeros.
        let expected = (0..PASSES).fold(0.0_f32, |x, _| x * 0.5 + 1.0);
        match self.stream.clone_dtoh(&self.x)?.into_iter().find(|x| *x != expected) {
            None => Ok(()),
            Some(x) => {
                Err(MeasureFailure::new(FailureKind::Mismatch, format!("{x} is not {expected}")))
            }
        }
    }
}
