//! Measures the guard's overhead on a device, as ratios from one run: guarded launches of an empty kernel against raw
//! ones, and the motivating case split in two against one flat launch. The forms of a rewritten kernel run against the
//! original on a legal grid, and against a flat kernel on an oversized one.
//!
//! Prints a table, and writes a JSON document to the file that its argument names. Needs a CUDA GPU
//! and NVRTC; says so without them.
#![allow(unsafe_code, reason = "raw launches to compare with")]

use core::ffi::c_void;
use core::hint::black_box;
use core::ptr::{null, null_mut};
use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::CUfunction;
use cudarc::driver::{CudaContext, CudaFunction, CudaSlice, CudaStream, LaunchConfig, result};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{Args, CompileOptions, Compiler, Kernel, RawLaunch, driver_version};
use gridguard::{Choice, Dim3, Guard, LaunchRequest, Parameter, Plan, RawArgs, Strategy};
use gridguard_capi::{
    gg_config, gg_dim3, gg_free, gg_guard, gg_guard_create, gg_guard_options, gg_kernel,
    gg_kernel_create, gg_launch, gg_status,
};
use gridguard_examples::uniform;
use gridguard_kernels::temporal_attention::{Layout, Shape, TemporalAttention};
use gridguard_kernels::{Element, Kernels, Prepared, Tensor, TensorMut};
use gridguard_tests::figures::{self, Origin, event_ms, median};
use half::f16;
use serde::Serialize;

/// Launches of each way in one round.
const LAUNCHES: u32 = 20_000;
/// Launches of one API before the next one takes its turn: few, so that drift affects all equally, but more than the
/// driver queues.
const BURST: u32 = 2000;
/// Rounds over all ways of launching.
const ROUNDS: usize = 61;
/// Rounds of the split against the flat launch.
const EVENT_ROUNDS: usize = 101;
/// Rounds that bring clocks and caches to their steady state.
const WARM_UP: usize = 5;

const SOURCE: &str = r#"extern "C" __global__ void empty() {}"#;

/// Copies 16 bytes a thread: on a grid of any shape, and flat on x.
const COPIES: &str = r#"
extern "C" __global__ void copy(const uint4 *from, uint4 *to) {
    size_t block = blockIdx.x + size_t(gridDim.x) * (blockIdx.y + size_t(gridDim.y) * blockIdx.z);
    size_t at = block * blockDim.x + threadIdx.x;
    to[at] = from[at];
}
extern "C" __global__ void copy_flat(const uint4 *from, uint4 *to) {
    size_t at = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    to[at] = from[at];
}
"#;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    origin: Origin,
    driver_cuda: i32,
    launches: u32,
    rounds: usize,
    empty_kernel: Vec<EmptyRow>,
    motivating_case: MotivatingCase,
    rewritten: Vec<RewrittenRow>,
}

/// Launches of a rewritten copy of 16 bytes a thread, against another kernel on as many blocks.
#[derive(Serialize)]
struct RewrittenRow {
    launches: &'static str,
    against: &'static str,
    grid: [u64; 3],
    us: f64,
    us_of_other: f64,
    /// Median of the ratios of the same round.
    ratio: f64,
    rounds: usize,
}

/// One way of launching the empty kernel.
#[derive(Serialize)]
struct EmptyRow {
    way: &'static str,
    /// Median over the rounds.
    ns_a_launch: f64,
    /// Median of the ratios to the raw launches of the same round.
    ratio_to_raw: f64,
    /// The fastest round against the fastest raw one.
    ratio_of_fastest: f64,
}

/// 15,360 items of 5 heads, 16 frames, head dim 64, f16.
#[derive(Serialize)]
struct MotivatingCase {
    split_launches: u64,
    split_us: f64,
    flat_us: f64,
    /// Median of the ratios of the same round.
    ratio_split_to_flat: f64,
    rounds: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(guard) = figures::guard() else { return Ok(()) };
    let empty_kernel = Empty::new(&guard)?.measure()?;
    for row in &empty_kernel {
        let EmptyRow { way, ns_a_launch, ratio_to_raw, ratio_of_fastest } = row;
        println!("{way:36} {ns_a_launch:7.0} ns  {ratio_to_raw:.4}  {ratio_of_fastest:.4}");
    }
    let report = Report {
        origin: Origin::of(&guard),
        driver_cuda: driver_version()?,
        launches: LAUNCHES,
        rounds: ROUNDS,
        empty_kernel,
        motivating_case: motivating_case(&guard)?,
        rewritten: rewritten(&guard)?,
    };
    let MotivatingCase { split_us, flat_us, ratio_split_to_flat, .. } = &report.motivating_case;
    println!("split {split_us:.0} us, flat {flat_us:.0} us, ratio {ratio_split_to_flat:.4}");
    for row in &report.rewritten {
        let RewrittenRow { launches, against, grid, us, us_of_other, ratio, .. } = row;
        println!("{launches} {us:.1} us, {against} {us_of_other:.1} us, {grid:?}: {ratio:.4}");
    }
    figures::publish(&report)
}

/// The empty kernel by all ways in.
struct Empty<'a> {
    guard: &'a Guard,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    function: CudaFunction,
    kernel: Kernel,
    rewritten: Kernel,
    raw: Kernel,
    handles: Handles,
}

/// The guard and the kernel of the C interface.
struct Handles {
    guard: *mut gg_guard,
    kernel: *mut gg_kernel,
}

type Way<'a, 'b> = (&'static str, fn(&'a Empty<'b>) -> Result<(), Box<dyn Error>>);

impl<'b> Empty<'b> {
    fn new(guard: &'b Guard) -> Result<Self, Box<dyn Error>> {
        let context = Arc::clone(guard.context().ok_or("no context")?);
        let options = CompileOptions::new("empty.cu", guard.limits().compute_capability);
        let compiler = Compiler::find()?;
        let compiled = compiler.compile(SOURCE, &options)?;
        let module = context.load_module(Ptx::from_binary(compiled.image.bytes().to_vec()))?;
        let function = module.load_function("empty")?;
        let handle: CUfunction = function.cu_function();
        // SAFETY: `function` and `context` live as long as the raw kernel, in this struct.
        let raw = unsafe { guard.raw_kernel(handle.cast(), Some("empty"))? };
        // SAFETY: the kernel touches no memory.
        let kernel = unsafe { guard.load(&compiled.image)?.kernel("empty", &[])? };
        let ptx = compiler.compile_to_ptx(SOURCE, &options)?;
        let module = guard.load_ptx(ptx.image.ptx().ok_or("no PTX")?)?;
        // SAFETY: as above.
        let rewritten = unsafe { module.kernel("empty", &[])? };
        let stream = context.new_stream()?;
        let handles = Handles::new(&context, handle)?;
        Ok(Self { guard, context, stream, function, kernel, rewritten, raw, handles })
    }

    fn measure(&self) -> Result<Vec<EmptyRow>, Box<dyn Error>> {
        let ways: [Way<'_, 'b>; 9] = [
            ("raw cuLaunchKernel", Self::raw_driver),
            ("cudarc launch_builder", Self::cudarc_builder),
            ("guard, planned at each launch", Self::guard_planned),
            ("guard, planned once", Self::guard_planned_once),
            ("rewritten, planned at each launch", Self::rewritten_planned),
            ("rewritten, launch_builder", Self::rewritten_builder),
            ("guard builder, function of cudarc", Self::guarded_builder),
            ("raw handles, planned at each launch", Self::raw_guarded),
            ("C interface, gg_launch", Self::c_interface),
        ];
        let mut times = vec![Vec::with_capacity(ROUNDS); ways.len()];
        for round in 0..WARM_UP + ROUNDS {
            let mut sums = vec![0.0; ways.len()];
            for burst in 0..LAUNCHES / BURST {
                for turn in 0..ways.len() {
                    // Each burst begins with another way.
                    let place = (turn + usize::try_from(burst)?) % ways.len();
                    let (Some((_, way)), Some(sum)) = (ways.get(place), sums.get_mut(place)) else {
                        continue;
                    };
                    self.context.bind_to_thread()?;
                    self.stream.synchronize()?;
                    let start = Instant::now();
                    way(self)?;
                    self.stream.synchronize()?;
                    *sum += start.elapsed().as_secs_f64() * 1e9 / f64::from(LAUNCHES);
                }
            }
            if round >= WARM_UP {
                times.iter_mut().zip(sums).for_each(|(times, sum)| times.push(sum));
            }
        }
        let raw = times.first().cloned().unwrap_or_default();
        let rows = ways.iter().zip(times).map(|((way, _), times)| {
            let ratios = times.iter().zip(&raw).map(|(time, raw)| time / raw).collect();
            let ratio_of_fastest = fastest(&times) / fastest(&raw);
            let ratio_to_raw = median(ratios);
            EmptyRow { way, ns_a_launch: median(times), ratio_to_raw, ratio_of_fastest }
        });
        Ok(rows.collect())
    }

    fn raw_driver(&self) -> Result<(), Box<dyn Error>> {
        let (function, stream) = (self.function.cu_function(), self.stream.cu_stream());
        for _ in 0..BURST {
            // SAFETY: function and stream are of the current context; there are no parameters.
            unsafe {
                result::launch_kernel(function, (1, 1, 1), (32, 1, 1), 0, stream, &mut [])?;
            }
        }
        Ok(())
    }

    fn cudarc_builder(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..BURST {
            // SAFETY: the kernel has no parameters.
            unsafe { self.stream.launch_builder(&self.function).launch(CONFIG)? };
        }
        Ok(())
    }

    fn guard_planned(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..BURST {
            let args = Args::new(&self.stream);
            self.guard.launch(&self.kernel, &request(), args)?;
        }
        Ok(())
    }

    fn guard_planned_once(&self) -> Result<(), Box<dyn Error>> {
        let limits = self.kernel.limits();
        let plan = self.guard.plan(&request(), None, limits, Choice::AUTOMATIC)?;
        for _ in 0..BURST {
            self.guard.launch(&self.kernel, &plan, Args::new(&self.stream))?;
        }
        Ok(())
    }

    fn rewritten_planned(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..BURST {
            let args = Args::new(&self.stream);
            self.guard.launch(&self.rewritten, &request(), args)?;
        }
        Ok(())
    }

    fn rewritten_builder(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..BURST {
            self.guard.builder(&self.stream, &self.rewritten).launch(CONFIG)?;
        }
        Ok(())
    }

    fn guarded_builder(&self) -> Result<(), Box<dyn Error>> {
        for _ in 0..BURST {
            // SAFETY: the kernel has no parameters.
            unsafe { self.guard.builder(&self.stream, &self.function).launch(CONFIG)? };
        }
        Ok(())
    }

    fn raw_guarded(&self) -> Result<(), Box<dyn Error>> {
        let stream = self.stream.cu_stream().cast();
        for _ in 0..BURST {
            // SAFETY: the stream is of the kernel's context; there are no parameters.
            unsafe {
                let launch = RawLaunch::Request(&request(), None, &RawArgs::new());
                self.guard.launch_raw(&self.raw, stream, launch)?
            };
        }
        Ok(())
    }

    fn c_interface(&self) -> Result<(), Box<dyn Error>> {
        // As a program calls it that knows its address alone.
        let launch = black_box(gg_launch);
        let stream = self.stream.cu_stream().cast();
        for _ in 0..BURST {
            let config = gg_config {
                struct_size: size_of::<gg_config>(),
                grid: gg_dim3 { x: 1, y: 1, z: 1 },
                block: gg_dim3 { x: 32, y: 1, z: 1 },
                stream,
                ..zeroed()
            };
            let (kernel, config) = (self.handles.kernel, &raw const config);
            // SAFETY: the stream is of the kernel's context; there are no parameters.
            let status = unsafe { launch(kernel, config, null(), null(), null_mut(), null_mut()) };
            if status != gg_status::GG_OK {
                return Err(format!("gg_launch failed: {status:?}").into());
            }
        }
        Ok(())
    }
}

impl Handles {
    fn new(context: &CudaContext, function: CUfunction) -> Result<Self, Box<dyn Error>> {
        let mut made = Self { guard: null_mut(), kernel: null_mut() };
        let options = gg_guard_options {
            struct_size: size_of::<gg_guard_options>(),
            context: context.cu_ctx().cast(),
            ..zeroed()
        };
        // SAFETY: context and function live as long as the handles, in the same struct; the others are of this
        // function.
        let statuses = unsafe {
            [
                gg_guard_create(&raw const options, &raw mut made.guard, null_mut()),
                gg_kernel_create(
                    made.guard,
                    function.cast(),
                    null(),
                    null(),
                    0,
                    &raw mut made.kernel,
                    null_mut(),
                ),
            ]
        };
        let failed = statuses.into_iter().find(|status| *status != gg_status::GG_OK);
        failed.map_or(Ok(made), |status| Err(format!("the C interface failed: {status:?}").into()))
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        for handle in [self.kernel.cast::<c_void>(), self.guard.cast()] {
            // SAFETY: nothing uses the handle any more; one that was never made is an error.
            unsafe { gg_free(handle) };
        }
    }
}

/// A structure of the C interface without anything set.
fn zeroed<T: Copy>() -> T {
    // SAFETY: structures of the interface consist of numbers and pointers.
    unsafe { core::mem::zeroed() }
}

const CONFIG: LaunchConfig =
    LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 0 };

fn request() -> LaunchRequest {
    LaunchRequest::new(Dim3::ONE, Dim3::new(32, 1, 1))
}

fn motivating_case(guard: &Arc<Guard>) -> Result<MotivatingCase, Box<dyn Error>> {
    let shape = Shape::new(15_360, 5, 16, 64)?;
    let kernels = Kernels::new(Arc::clone(guard));
    let stream = guard.context().ok_or("no context")?.new_stream()?;
    let len = usize::try_from(shape.elements())?;
    let memory = |seed| stream.clone_htod(&uniform::<f16>(len, seed));
    let (q, k, v) = (memory(1)?, memory(2)?, memory(3)?);
    let mut out = stream.alloc_zeros::<f16>(len)?;
    let attention = TemporalAttention::new(shape, f16::TYPE, guard.limits())?;
    let prepare = |layout| kernels.prepare(attention.with_layout(layout), Choice::AUTOMATIC);
    let (split, flat) = (prepare(Layout::FoldedY)?, prepare(Layout::FlatX)?);
    type Attention = Prepared<TemporalAttention>;
    let time = |prepared: &Attention, out: &mut CudaSlice<f16>| -> Result<f64, Box<dyn Error>> {
        let ms = event_ms(&stream, || {
            let tensors = [&q, &k, &v].map(|tensor| Tensor::new(tensor, shape.dims()));
            let out = TensorMut::new(out, shape.dims());
            prepared.launch(&stream, tensors, None, shape.scale(), out)?;
            Ok(())
        })?;
        Ok(ms * 1e3)
    };
    let (mut splits, mut flats, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + EVENT_ROUNDS {
        let one = time(&split, &mut out)?;
        let other = time(&flat, &mut out)?;
        if round >= WARM_UP {
            splits.push(one);
            flats.push(other);
            ratios.push(one / other);
        }
    }
    Ok(MotivatingCase {
        split_launches: split.plan().len(),
        split_us: median(splits),
        flat_us: median(flats),
        ratio_split_to_flat: median(ratios),
        rounds: EVENT_ROUNDS,
    })
}

fn rewritten(guard: &Guard) -> Result<Vec<RewrittenRow>, Box<dyn Error>> {
    let options = CompileOptions::new("copies.cu", guard.limits().compute_capability);
    let compiled = Compiler::find()?.compile_to_ptx(COPIES, &options)?;
    let module = guard.load_ptx(compiled.image.ptx().ok_or("no PTX")?)?;
    let parameters = [Parameter::Memory; 2];
    // SAFETY: both copy 16 bytes for each thread; below, both slices have as many.
    let (copy, flat) =
        unsafe { (module.kernel("copy", &parameters)?, module.kernel("copy_flat", &parameters)?) };
    // SAFETY: as above.
    let untouched = unsafe { guard.load(&compiled.image)?.kernel("copy", &parameters)? };
    let (legal, large) = (Dim3::new(4, 60_000, 1), Dim3::new(4, 76_800, 1));
    let stream = guard.context().ok_or("no context")?.new_stream()?;
    let bytes = usize::try_from(large.volume() * u128::from(COPY_THREADS) * 16)?;
    let (from, mut to) = (stream.alloc_zeros::<u8>(bytes)?, stream.alloc_zeros::<u8>(bytes)?);
    let mut time = |kernel: &Kernel, plan: &Plan| -> Result<f64, Box<dyn Error>> {
        let mut args = Args::new(&stream);
        args.read(&from).write(&mut to);
        let ms = event_ms(&stream, || {
            guard.launch(kernel, plan, args)?;
            Ok(())
        })?;
        Ok(ms * 1e3)
    };
    let plan = |kernel: &Kernel, grid: Dim3, choice| {
        let request = LaunchRequest::new(grid, Dim3::new(COPY_THREADS, 1, 1));
        guard.plan(&request, None, kernel.limits(), choice)
    };
    let (automatic, shifted) = (Choice::AUTOMATIC, Choice::AUTOMATIC.strategy(Strategy::Shifted));
    let folded = Choice::AUTOMATIC.strategy(Strategy::Folded);
    let on_x = |grid: Dim3| Dim3::new(grid.x * grid.y, 1, 1);
    let cases = [
        ("whole", automatic, "not rewritten", &untouched, legal, legal),
        ("shifted", shifted, "original", &copy, legal, legal),
        ("folded", folded, "original", &copy, legal, legal),
        ("shifted", shifted, "flat", &flat, large, on_x(large)),
        ("folded", folded, "flat", &flat, large, on_x(large)),
    ];
    let mut rows = Vec::new();
    for (launches, choice, against, other, grid, other_grid) in cases {
        let form = plan(&copy, grid, choice)?;
        let reference = plan(other, other_grid, automatic)?;
        let (mut times, mut others, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..WARM_UP + EVENT_ROUNDS {
            // Each round begins with another one.
            let first = if round % 2 == 0 { Some(time(&copy, &form)?) } else { None };
            let one = time(other, &reference)?;
            let it = first.map_or_else(|| time(&copy, &form), Ok)?;
            if round >= WARM_UP {
                times.push(it);
                others.push(one);
                ratios.push(it / one);
            }
        }
        rows.push(RewrittenRow {
            launches,
            against,
            grid: [grid.x, grid.y, grid.z],
            us: median(times),
            us_of_other: median(others),
            ratio: median(ratios),
            rounds: EVENT_ROUNDS,
        });
    }
    Ok(rows)
}

/// Threads of a block of the copies.
const COPY_THREADS: u64 = 128;

fn fastest(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}
