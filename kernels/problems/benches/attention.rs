//! Times temporal attention and, as its limit, the fastest kernel that only moves the same bytes. Without a
//! CUDA device, times the host implementation.
//!
//! Launches run back to back between events, over tensors larger than the caches. The result is compared
//! with the f64 reference before anything is timed.

mod support;

use std::hint::black_box;
use std::time::Duration;

use cudarc::driver::{CudaEvent, CudaSlice};
use gridguard::{Choice, DeviceLimits, Guard, KernelLimits};
use gridguard_kernels::temporal_attention::{
    Layout, Shape, TemporalAttention, reference, run_on_host, tolerance,
};
use gridguard_kernels::{Deviation, Element, Extent, KernelError, Operation, Prepared};
use gridguard_kernels::{Tensor, TensorMut, synthetic};
use gridguard_problems::Traffic;
use half::{bf16, f16};

use support::{Bench, Case, Device, Failure, Repeated, within};

/// Items, heads, frames and head dimension, for f16 and bf16.
const HALF: [[u64; 4]; 12] = [
    [15_360, 5, 8, 64],
    MOTIVATING,
    [15_360, 5, 25, 64],
    [15_360, 5, 32, 64],
    [61_440, 5, 16, 64],
    [8192, 8, 16, 40],
    [16_384, 8, 16, 40],
    [18_432, 5, 25, 64],
    [25_440, 15, 16, 72],
    [9216, 10, 24, 80],
    [15_360, 5, 81, 64],
    [15_360, 5, 128, 64],
];
/// For f16 only; of two there are more items than y and z have blocks.
const MANY: [[u64; 4]; 3] = [[65_536, 8, 16, 64], [65_536, 8, 32, 128], [13_111, 7, 19, 48]];
const SINGLE: [[u64; 4]; 2] = [MOTIVATING, [8192, 8, 16, 40]];
/// 76,800 problems; y has 65,535 blocks.
const MOTIVATING: [u64; 4] = [15_360, 5, 16, 64];
/// More problems than y has blocks: in 2, 2, 6 and 2 launches on y.
const SPLIT: [[u64; 4]; 4] =
    [MOTIVATING, [9216, 10, 24, 80], [25_440, 15, 16, 72], [13_111, 7, 19, 48]];
/// Small enough for the host: a few milliseconds.
const SMALL: [u64; 4] = [64, 5, 16, 64];

/// Where q, k, v and out lie: the bytes between two of them, and whether out comes first. The slowest is published.
const PLACEMENTS: [(&str, usize, bool); 3] =
    [("side by side", 0, false), ("out first", 0, true), ("32 MiB apart", 32 << 20, false)];
/// Launches that tell which placement is the slowest.
const LAUNCHES: u64 = 20;

/// Rounds that compare the split launch with the flat one.
const ROUNDS: usize = 101;
/// Rounds before clocks and caches are in a steady state.
const WARM_UP: usize = 5;

fn main() {
    let mut bench = Bench::new();
    match Device::new() {
        Ok(device) => on_device(&mut bench, &device),
        Err(reason) => {
            eprintln!("no CUDA device ({reason}): host references are measured");
            on_host(&mut bench);
        }
    }
    bench.finish();
}

fn on_device(bench: &mut Bench, device: &Device) {
    for dims in HALF.into_iter().chain(MANY) {
        beside_limit::<f16>(bench, device, dims);
    }
    for dims in HALF {
        beside_limit::<bf16>(bench, device, dims);
    }
    for dims in SINGLE {
        beside_limit::<f32>(bench, device, dims);
    }
    let plain = Setup { dims: MOTIVATING, name: "flat", ..Setup::default() };
    attention::<f16>(bench, device, plain);
    attention::<f16>(bench, device, Setup { name: "split", layout: Layout::FoldedY, ..plain });
    attention::<f16>(bench, device, Setup { name: "strided", strided: true, ..plain });
    attention::<f16>(bench, device, Setup { name: "causal", causal: true, ..plain });
    attention::<f16>(bench, device, Setup { name: "biased", biased: true, ..plain });
    for dims in SPLIT {
        split_to_flat(bench, device, Setup { dims, ..plain });
    }
}

/// A shape and how to run it.
#[derive(Clone, Copy)]
struct Setup {
    name: &'static str,
    dims: [u64; 4],
    layout: Layout,
    strided: bool,
    causal: bool,
    biased: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            name: "ours",
            dims: MOTIVATING,
            layout: Layout::FlatX,
            strided: false,
            causal: false,
            biased: false,
        }
    }
}

impl Setup {
    fn case<T: Element>(&self) -> Case {
        let [items, heads, frames, head_dim] = self.dims;
        let elements = self.dims.into_iter().map(u128::from).product::<u128>();
        let tensor = elements * u128::from(T::TYPE.bytes());
        Case {
            operation: "attention",
            shape: format!("{items}x{heads}x{frames}x{head_dim}"),
            element: T::TYPE,
            name: self.name,
            traffic: Traffic { read: 3 * tensor, written: tensor },
        }
    }

    fn operation<T: Element>(
        &self,
        device: &DeviceLimits,
    ) -> Result<TemporalAttention, KernelError> {
        let [items, heads, frames, head_dim] = self.dims;
        let shape = Shape::new(items, heads, frames, head_dim)?;
        let plain = TemporalAttention::new(shape, T::TYPE, device)?.with_layout(self.layout);
        let masked = if self.causal { plain.causal() } else { plain };
        let biased = if self.biased { masked.with_bias() } else { masked };
        Ok(if self.strided { biased.with_strides() } else { biased })
    }

    /// `[items, heads, frames, head_dim]`; with strides, `[items, frames, heads, head_dim]` as a projection
    /// writes it.
    fn extent(&self) -> Extent<4> {
        let [items, heads, frames, head_dim] = self.dims;
        if self.strided {
            Extent::contiguous([items, frames, heads, head_dim]).swap_axes(1, 2)
        } else {
            Extent::contiguous(self.dims)
        }
    }
}

fn beside_limit<T: Element>(bench: &mut Bench, device: &Device, dims: [u64; 4]) {
    let setup = Setup { dims, ..Setup::default() };
    attention::<T>(bench, device, setup);
    device.measure_limit::<T>(bench, setup.case::<T>());
}

fn attention<T: Element>(bench: &mut Bench, device: &Device, setup: Setup) {
    bench.measure(&setup.case::<T>(), || {
        let prepared = prepare::<T>(device, setup)?;
        let mut slowest: Option<(Duration, Tensors<T>, f64, &str)> = None;
        for placement in PLACEMENTS {
            let mut tensors = Tensors::<T>::new(device, setup, placement)?;
            tensors.launch(device, &prepared)?;
            let error = tensors.error(device, prepared.operation())?;
            let time = device.repeated(|| tensors.launch(device, &prepared)).time(LAUNCHES)?;
            if slowest.as_ref().is_none_or(|&(longest, ..)| time > longest) {
                slowest = Some((time, tensors, error, placement.0));
            }
        }
        let (_, mut tensors, error, placement) = slowest.ok_or("no placement")?;
        let launch = move || tensors.launch(device, &prepared);
        Ok(device.repeated(launch).with_error(error).made_by(placement.to_owned()))
    });
}

fn prepare<T: Element>(
    device: &Device,
    setup: Setup,
) -> Result<Prepared<TemporalAttention>, Failure> {
    let operation = setup.operation::<T>(device.limits())?;
    Ok(device.kernels().prepare(operation, Choice::AUTOMATIC)?)
}

/// The time of several launches on y relative to one on x, in alternation on a device that is never idle.
fn split_to_flat(bench: &mut Bench, device: &Device, plain: Setup) {
    let case = Case { name: "split to flat", ..plain.case::<f16>() };
    bench.compare(&case, || {
        let flat = prepare::<f16>(device, plain)?;
        let split = prepare::<f16>(device, Setup { layout: Layout::FoldedY, ..plain })?;
        let mut tensors = Tensors::<f16>::new(device, plain, PLACEMENTS[0])?;
        let mut events = Vec::new();
        for _ in 0..WARM_UP + ROUNDS {
            let start = device.event()?;
            tensors.launch(device, &split)?;
            let middle = device.event()?;
            tensors.launch(device, &flat)?;
            events.push([start, middle, device.event()?]);
        }
        let ratio = |[start, middle, end]: &[CudaEvent; 3]| -> Result<f64, Failure> {
            Ok(f64::from(start.elapsed_ms(middle)?) / f64::from(middle.elapsed_ms(end)?))
        };
        events.iter().skip(WARM_UP).map(ratio).collect()
    });
}

/// The tensors of one launch.
struct Tensors<T> {
    q: CudaSlice<T>,
    k: CudaSlice<T>,
    v: CudaSlice<T>,
    bias: Option<CudaSlice<T>>,
    out: CudaSlice<T>,
    extent: Extent<4>,
    scale: f32,
}

impl<T: Element> Tensors<T> {
    fn new(
        device: &Device,
        setup: Setup,
        (_, gap, out_first): (&str, usize, bool),
    ) -> Result<Self, Failure> {
        let [items, heads, frames, head_dim] = setup.dims;
        let shape = Shape::new(items, heads, frames, head_dim)?;
        let len = usize::try_from(shape.elements())?;
        let bias = usize::try_from(frames * frames)?;
        let mut gaps = Vec::new();
        let mut place = |seed| {
            gaps.push(device.zeros::<u8>(gap.max(1))?);
            device.filled(len, seed)
        };
        let first = place(if out_first { 4 } else { 1 })?;
        let (k, v) = (place(2)?, place(3)?);
        let last = place(if out_first { 1 } else { 4 })?;
        let (q, out) = if out_first { (last, first) } else { (first, last) };
        Ok(Self {
            q,
            k,
            v,
            bias: setup.biased.then(|| device.filled(bias, 5)).transpose()?,
            out,
            extent: setup.extent(),
            scale: shape.scale(),
        })
    }

    fn launch(
        &mut self,
        device: &Device,
        prepared: &Prepared<TemporalAttention>,
    ) -> Result<(), Failure> {
        let of_bias = prepared.operation().shape().shared_bias();
        let [q, k, v] =
            [&self.q, &self.k, &self.v].map(|memory| Tensor::with_extent(memory, self.extent));
        let bias = self.bias.as_ref().map(|bias| Tensor::with_extent(bias, of_bias));
        let out = TensorMut::with_extent(&mut self.out, self.extent);
        prepared.launch(device.stream(), [q, k, v], bias, self.scale, out)?;
        Ok(())
    }

    /// The relative error over the first and the last problem; an error above the tolerance is a failure.
    fn error(&self, device: &Device, operation: &TemporalAttention) -> Result<f64, Failure> {
        let [items, heads, _, _] = self.extent.dims;
        let bias = match &self.bias {
            Some(bias) => Some(device.fetch(bias, 0..bias.len())?),
            None => None,
        };
        let mut deviation = Deviation::new();
        for (item, head) in [(0, 0), (items.saturating_sub(1), heads.saturating_sub(1))] {
            let problem = |memory| self.problem(device, memory, item, head);
            let (q, k, v) = (problem(&self.q)?, problem(&self.k)?, problem(&self.v)?);
            let expected = reference(operation, self.scale, [&q, &k, &v], bias.as_deref());
            deviation.add(&problem(&self.out)?, &expected);
        }
        within(&deviation, tolerance(T::TYPE))
    }

    /// Copies one problem to the host, row by row.
    fn problem(
        &self,
        device: &Device,
        memory: &CudaSlice<T>,
        item: u64,
        head: u64,
    ) -> Result<Vec<T>, Failure> {
        let [_, _, frames, head_dim] = self.extent.dims;
        let [items_stride, heads_stride, frames_stride, _] = self.extent.strides;
        let mut rows = Vec::new();
        for frame in 0..frames {
            let row = item * items_stride + head * heads_stride + frame * frames_stride;
            let row = usize::try_from(row)?..usize::try_from(row + head_dim)?;
            rows.extend(device.fetch(memory, row)?);
        }
        Ok(rows)
    }
}

fn on_host(bench: &mut Bench) {
    on_host_of::<f16>(bench);
    on_host_of::<f32>(bench);
}

/// The host implementation, and the reference over all items.
fn on_host_of<T: Element>(bench: &mut Bench) {
    let setup = Setup { dims: SMALL, name: "host", ..Setup::default() };
    bench.measure(&setup.case::<T>(), || {
        let guard = Guard::host(DeviceLimits::any_device());
        let host = Host::<T>::new(guard.limits(), setup)?;
        let Host { operation, q, k, v, scale } = host;
        let limits = guard.limits_for(KernelLimits::unknown("host")).with_automatic_opt_in();
        let (request, batch) = (operation.request(), operation.batch());
        let plan = guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC)?;
        let mut out = vec![T::narrow(0.0); q.len()];
        Ok(Repeated::on_host(move || {
            let tensors = [&q[..], &k, &v];
            run_on_host(&guard, &plan, &operation, scale, tensors, None, &mut out, || {})
        }))
    });
    bench.measure(&Setup { name: "reference", ..setup }.case::<T>(), || {
        let host = Host::<T>::new(&DeviceLimits::any_device(), setup)?;
        let Host { operation, q, k, v, scale } = host;
        let problem = usize::try_from(operation.shape().elements_per_problem())?;
        Ok(Repeated::on_host(move || {
            for ((q, k), v) in q.chunks(problem).zip(k.chunks(problem)).zip(v.chunks(problem)) {
                black_box(reference(&operation, scale, [q, k, v], None));
            }
        }))
    });
}

/// Small tensors on the host.
struct Host<T> {
    operation: TemporalAttention,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    scale: f32,
}

impl<T: Element> Host<T> {
    fn new(device: &DeviceLimits, setup: Setup) -> Result<Self, Failure> {
        let operation = setup.operation::<T>(device)?;
        let len = usize::try_from(operation.shape().elements())?;
        let [q, k, v] = [1, 2, 3].map(|seed| synthetic(len, seed));
        Ok(Self { operation, q, k, v, scale: operation.shape().scale() })
    }
}
