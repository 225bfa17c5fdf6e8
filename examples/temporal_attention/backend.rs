//! Runs the plan: on the device, timed by CUDA events, or on the host.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaSlice, DeviceRepr, sys::CUevent_flags};
use gridguard::cuda::Compiler;
use gridguard::{Choice, FallbackReason, Guard, KernelLimits, LaunchLimits, Plan};
use gridguard_examples::Qkv;
use gridguard_kernels::temporal_attention::{Layout, TemporalAttention, run_on_host};
use gridguard_kernels::{Element, Kernels, Operation, Tensor as Memory, TensorMut};
use indicatif::{ProgressBar, ProgressStyle};

/// An element that can be copied to a device.
pub(crate) trait Tensor: Element + Pod + DeviceRepr {}
impl<T: Element + Pod + DeviceRepr> Tensor for T {}

/// Where the plan runs.
pub(crate) enum Backend {
    Device {
        kernels: Kernels,
        context: Arc<CudaContext>,
    },
    /// With the reason why no device is used.
    Host {
        reason: Option<FallbackReason>,
    },
}

/// How long all launches of the plan took together.
pub(crate) struct Timing {
    pub(crate) launches: u64,
    /// Median over the runs.
    pub(crate) time: Duration,
    pub(crate) runs: usize,
    /// The same work in one launch on x, if it was measured.
    pub(crate) flat: Option<Duration>,
}

/// Untimed runs that bring clocks and caches to a steady state.
const WARM_UP_RUNS: usize = 5;
/// Runs whose median is reported.
const TIMED_RUNS: usize = 30;

impl Backend {
    pub(crate) fn new(guard: &Arc<Guard>) -> Self {
        let Some(context) = guard.context() else {
            return Self::Host { reason: guard.fallback().cloned() };
        };
        match Compiler::find() {
            Ok(_) => {
                let (kernels, context) = (Kernels::new(Arc::clone(guard)), Arc::clone(context));
                Self::Device { kernels, context }
            }
            // Without a compiler the host does the work.
            Err(missing) => Self::Host { reason: Some(missing.into()) },
        }
    }

    /// The limits of the kernel for `operation`: queried on a device, assumed on the host.
    pub(crate) fn limits(
        &self,
        guard: &Guard,
        operation: &TemporalAttention,
    ) -> Result<LaunchLimits, Box<dyn Error>> {
        match self {
            Self::Device { kernels, .. } => Ok(kernels.limits(operation)?),
            Self::Host { .. } => {
                let kernel = KernelLimits::unknown("temporal_attention");
                Ok(guard.limits_for(kernel).with_automatic_opt_in())
            }
        }
    }

    /// Runs the operation with `choice` and writes the result to `out`.
    pub(crate) fn run<T: Tensor>(
        &self,
        guard: &Guard,
        operation: TemporalAttention,
        choice: Choice,
        qkv: &Qkv<T>,
        out: &mut [T],
    ) -> Result<Timing, Box<dyn Error>> {
        match self {
            Self::Device { kernels, context } => {
                on_device(kernels, context, operation, choice, qkv, out)
            }
            Self::Host { .. } => {
                let limits = self.limits(guard, &operation)?;
                let batch = operation.batch();
                let plan = guard.plan(&operation.request(), Some(&batch), &limits, choice)?;
                on_host(guard, &plan, &operation, qkv, out)
            }
        }
    }
}

fn bar(length: u64, unit: &str) -> ProgressBar {
    let style = format!("run      {{bar:40}} {{pos}}/{{len}} {unit}, {{elapsed}}, {{eta}} left");
    let style = ProgressStyle::with_template(&style);
    let bar = ProgressBar::new(length);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn on_host<T: Tensor>(
    guard: &Guard,
    plan: &Plan,
    operation: &TemporalAttention,
    qkv: &Qkv<T>,
    out: &mut [T],
) -> Result<Timing, Box<dyn Error>> {
    let Qkv { q, k, v, shape, .. } = qkv;
    let bar = bar(shape.items(), "items");
    let start = Instant::now();
    let (progress, tensors) = (|| bar.inc(1), [&q[..], k, v]);
    let scale = shape.scale();
    let launches = run_on_host(guard, plan, operation, scale, tensors, None, out, progress)?;
    let time = start.elapsed();
    bar.finish_and_clear();
    Ok(Timing { launches, time, runs: 1, flat: None })
}

fn on_device<T: Tensor>(
    kernels: &Kernels,
    context: &Arc<CudaContext>,
    operation: TemporalAttention,
    choice: Choice,
    qkv: &Qkv<T>,
    out: &mut [T],
) -> Result<Timing, Box<dyn Error>> {
    let shape = &qkv.shape;
    let stream = context.new_stream()?;
    let [q, k, v] = [&qkv.q, &qkv.k, &qkv.v].map(|tensor| stream.clone_htod(tensor));
    let (q, k, v) = (q?, k?, v?);
    let mut device_out = stream.clone_htod(out)?;

    let runs = WARM_UP_RUNS + TIMED_RUNS;
    let bar = bar(u64::try_from(2 * runs)?, "runs");
    let median = |operation: TemporalAttention,
                  choice,
                  out: &mut CudaSlice<T>|
     -> Result<_, Box<dyn Error>> {
        let prepared = kernels.prepare(operation, choice)?;
        let mut times = Vec::with_capacity(TIMED_RUNS);
        let mut launches = 0;
        for run in 0..runs {
            // By default cudarc's events record no time.
            let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
            let start = stream.record_event(timed)?;
            let tensors = [&q, &k, &v].map(|tensor| Memory::new(tensor, shape.dims()));
            let out = TensorMut::new(out, shape.dims());
            launches = prepared.launch(&stream, tensors, None, shape.scale(), out)?;
            let end = stream.record_event(timed)?;
            let milliseconds = start.elapsed_ms(&end)?;
            if run >= WARM_UP_RUNS {
                times.push(Duration::from_secs_f64(f64::from(milliseconds) / 1e3));
            }
            bar.inc(1);
        }
        times.sort();
        Ok((launches, times.get(TIMED_RUNS / 2).copied().unwrap_or_default()))
    };
    let (launches, time) = median(operation, choice, &mut device_out)?;
    stream.memcpy_dtoh(&device_out, out)?;
    stream.synchronize()?;

    let flat = operation.with_layout(Layout::FlatX);
    let (_, flat_time) = median(flat, Choice::AUTOMATIC, &mut device_out)?;
    bar.finish_and_clear();
    if let Some(failure) = kernels.counts().last_failure {
        eprintln!("{failure}");
    }
    Ok(Timing { launches, time, runs: TIMED_RUNS, flat: Some(flat_time) })
}
