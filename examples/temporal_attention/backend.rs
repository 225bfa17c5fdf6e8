//! Runs the plan: on the device, timed by CUDA events, or on the host.

use std::error::Error;
use std::time::{Duration, Instant};

use bytemuck::Pod;
use cudarc::driver::{CudaContext, CudaSlice, DeviceRepr, sys::CUevent_flags};
use gridguard::cuda::{CudaError, NvrtcError};
use gridguard::{Guard, KernelLimits, LaunchLimits, LaunchRequest, Plan};
use gridguard_examples::Qkv;
use gridguard_kernels::temporal_attention::{Layout, Shape, TemporalAttention, run_on_host};
use gridguard_kernels::{Element, KernelError};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;

/// An element that this program moves about.
pub(crate) trait Tensor: Element + Pod + DeviceRepr {}
impl<T: Element + Pod + DeviceRepr> Tensor for T {}

/// Where the plan runs.
pub(crate) enum Backend {
    Device {
        attention: TemporalAttention,
        context: Arc<CudaContext>,
    },
    /// With the reason where a device is there but cannot be used.
    Host {
        reason: Option<CudaError>,
    },
}

/// How long the launches of the plan took together.
pub(crate) struct Timing {
    pub(crate) launches: u64,
    /// Median over the runs.
    pub(crate) time: Duration,
    pub(crate) runs: usize,
    /// The same work in one launch on x, where it was measured beside.
    pub(crate) flat: Option<Duration>,
}

/// Runs that bring clocks and caches to their steady state.
const WARM_UP_RUNS: usize = 5;
/// Runs whose median counts.
const TIMED_RUNS: usize = 30;

impl Backend {
    pub(crate) fn new(guard: &Guard) -> Result<Self, Box<dyn Error>> {
        let Some(context) = guard.context() else {
            return Ok(Self::Host { reason: guard.fallback().cloned() });
        };
        match TemporalAttention::new(guard) {
            Ok(attention) => Ok(Self::Device { attention, context: Arc::clone(context) }),
            // Without a compiler the host can still do the work, and says why it does.
            Err(KernelError::Cuda(reason @ CudaError::Compile(NvrtcError::Unavailable(_)))) => {
                Ok(Self::Host { reason: Some(reason) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The launch over the whole shape, and the limits of its kernel: as queried, or as the host
    /// assumes them.
    pub(crate) fn geometry<T: Tensor>(
        &self,
        guard: &Guard,
        shape: &Shape,
        layout: Layout,
    ) -> Result<(LaunchRequest, LaunchLimits), Box<dyn Error>> {
        match self {
            Self::Device { attention, .. } => {
                let (kernel, request) = attention.geometry(guard, shape, T::TYPE, layout)?;
                Ok((request, kernel.limits().clone()))
            }
            Self::Host { .. } => {
                let kernel = KernelLimits::unknown("temporal_attention");
                let limits = guard.limits_for(kernel).with_automatic_opt_in();
                Ok((shape.request(layout), limits))
            }
        }
    }

    /// Runs the plan and leaves the result in `out`.
    pub(crate) fn run<T: Tensor>(
        &self,
        guard: &Guard,
        plan: &Plan,
        layout: Layout,
        qkv: &Qkv<T>,
        out: &mut [T],
    ) -> Result<Timing, Box<dyn Error>> {
        match self {
            Self::Device { attention, context } => {
                on_device(guard, attention, context, plan, layout, qkv, out)
            }
            Self::Host { .. } => on_host(guard, plan, qkv, out),
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
    qkv: &Qkv<T>,
    out: &mut [T],
) -> Result<Timing, Box<dyn Error>> {
    let Qkv { q, k, v, shape, .. } = qkv;
    let bar = bar(shape.items, "items");
    let start = Instant::now();
    let progress = || bar.inc(1);
    let launches = run_on_host(guard, plan, shape, shape.scale(), q, k, v, out, progress)?;
    let time = start.elapsed();
    bar.finish_and_clear();
    Ok(Timing { launches, time, runs: 1, flat: None })
}

fn on_device<T: Tensor>(
    guard: &Guard,
    attention: &TemporalAttention,
    context: &Arc<CudaContext>,
    plan: &Plan,
    layout: Layout,
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
    let median = |plan: &Plan, layout, out: &mut CudaSlice<T>| -> Result<_, Box<dyn Error>> {
        let mut times = Vec::with_capacity(TIMED_RUNS);
        let mut launches = 0;
        for run in 0..runs {
            // cudarc's events keep no time unless asked.
            let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
            let start = stream.record_event(timed)?;
            let tensors = [&q, &k, &v];
            let scale = shape.scale();
            launches =
                attention.launch(guard, &stream, plan, shape, layout, scale, tensors, out)?;
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
    let (launches, time) = median(plan, layout, &mut device_out)?;
    stream.memcpy_dtoh(&device_out, out)?;
    stream.synchronize()?;

    let flat = Layout::FlatX;
    let choice = gridguard::Choice::AUTOMATIC;
    let flat_plan = attention.plan(guard, shape, T::TYPE, flat, choice)?;
    let (_, flat_time) = median(&flat_plan, flat, &mut device_out)?;
    bar.finish_and_clear();
    Ok(Timing { launches, time, runs: TIMED_RUNS, flat: Some(flat_time) })
}
