//! Step 5: tunes a workload of your own: anything you can launch from a `Candidate` can be tuned.
//! Here it is a chain of eight passes over rows. The largest chunk is not the fastest: a smaller chunk's output is
//! still in the cache for the next pass.
//!
//! Run it with `cargo run --release --example 05_tune [PLOT.svg]`. It uses the CUDA device with the most
//! free memory, or the host.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel};
use gridguard::profile::Policy;
use gridguard::{
    Axis, BatchAxis, Chunk, Dim3, Guard, KernelLimits, LaunchLimits, LaunchRequest, Parameter, Plan,
};
use gridguard_autotune::{
    Budget, Candidate, Chart, DeviceClock, FailureKind, HostClock, InProcess, LaunchConfig,
    MeasureFailure, Measurer, Portion, Space, TuningReport, Workload, tune,
};
use gridguard_files::write_output;
use rayon::prelude::*;

/// Rows of 1,024 floats, 512 MiB on a device: more than the 65,535 blocks of y.
const ROWS: u64 = 131_072;
/// 64 MiB on the host.
const HOST_ROWS: u64 = 16_384;
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
    let guard = Arc::new(Guard::best_or_host());
    let mut measurer: Box<dyn Measurer> = match guard.context() {
        Some(context) => {
            let stream = context.new_stream()?;
            let clock = DeviceClock::new(&guard, Arc::clone(&stream), Policy::default())?;
            Box::new(InProcess::new(OnDevice::new(&guard, stream)?, clock))
        }
        None => Box::new(InProcess::new(OnHost::new(&guard), HostClock::new(Policy::default()))),
    };
    let mut space = Space::new(measurer.configurations()?);
    let measurer: &mut dyn Measurer = measurer.as_mut();
    let outcome = tune(measurer, &mut space, Default::default(), &Budget::default(), &mut ())?;
    let device = if guard.is_cuda() { &guard.limits().name } else { "the host" };
    let name = format!("{PASSES} passes over rows of {COLUMNS} on {device}");
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

/// The chunks of a candidate, or only the largest one.
fn chunks(
    configuration: &LaunchConfig,
    candidate: &Candidate,
    portion: Portion,
) -> Result<impl Iterator<Item = Chunk>, MeasureFailure> {
    let LaunchConfig { request, batch, limits, .. } = configuration;
    let plan = Plan::new(request, batch.as_ref(), limits, candidate.choice.into())?;
    let largest = plan.largest_chunk();
    let (some, least) = match portion {
        Portion::Sequence => (usize::MAX, 0),
        Portion::LargestLaunch => (1, largest),
    };
    Ok(plan.chunks().filter(move |chunk| chunk.items >= least).take(some))
}

/// Compares every element with the result of one chain that began with zeros.
fn check(mut elements: impl Iterator<Item = f32>) -> Result<(), MeasureFailure> {
    let expected = (0..PASSES).fold(0.0_f32, |x, _| x * 0.5 + 1.0);
    match elements.find(|x| *x != expected) {
        None => Ok(()),
        Some(x) => {
            Err(MeasureFailure::new(FailureKind::Mismatch, format!("{x} is not {expected}")))
        }
    }
}

struct OnDevice {
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    kernel: Kernel,
    x: CudaSlice<f32>,
    configuration: LaunchConfig,
}

impl OnDevice {
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

impl Workload for OnDevice {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        Ok(vec![self.configuration.clone()])
    }

    fn prepare(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
        Ok(())
    }

    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
        for chunk in chunks(&self.configuration, candidate, portion)? {
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
        check(self.stream.clone_dtoh(&self.x)?.into_iter())
    }
}

struct OnHost {
    x: Vec<f32>,
    configuration: LaunchConfig,
}

impl OnHost {
    fn new(guard: &Guard) -> Self {
        let limits = guard.limits_for(KernelLimits::unknown("pass"));
        let configuration = configuration(HOST_ROWS, limits);
        let x = vec![0.0; usize::try_from(HOST_ROWS * COLUMNS).unwrap_or(0)];
        Self { x, configuration }
    }
}

impl Workload for OnHost {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        Ok(vec![self.configuration.clone()])
    }

    fn prepare(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
        Ok(())
    }

    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
        let row = usize::try_from(COLUMNS).unwrap_or(1);
        for chunk in chunks(&self.configuration, candidate, portion)? {
            let place = |item| usize::try_from(item).unwrap_or(0) * row;
            let rows = self.x.get_mut(place(chunk.start)..place(chunk.end())).unwrap_or_default();
            for _ in 0..PASSES {
                rows.par_chunks_mut(row).for_each(|row| {
                    row.iter_mut().for_each(|x| *x = *x * 0.5 + 1.0);
                });
            }
        }
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.x.fill(0.0);
        self.launch(candidate, Portion::Sequence)?;
        check(self.x.iter().copied())
    }
}
