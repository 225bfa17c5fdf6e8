//! Step 8: launches another project's kernel on an oversized grid. Its PTX is rewritten at load time, so that its
//! source stays unchanged and no batch is declared. The tuner chooses the faster form.
//!
//! The kernel is `quantize_q8_1` of the package candle-kernels, which has rows on y. A script downloads its source from
//! the package registry and compiles it.
//!
//! Run it with `cargo run --release --example 08_any_kernel -- $(tests/ptx.sh candle quantized) [PLOT.svg]`.
//! Without a CUDA device it only shows how the kernel is rewritten and planned.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DriverError, LaunchConfig};
use gridguard::cuda::{Args, Kernel};
use gridguard::profile::{Document, Key, Policy, Profile, Provenance};
use gridguard::ptx::rewrite;
use gridguard::{
    Choice, Dim3, FormLimits, Guard, KernelLimits, LaunchLimits, LaunchRequest, Parameter, Plan,
    Strategy, catalog,
};
use gridguard_autotune::{
    Budget, Candidate, Chart, DeviceClock, FailureKind, InProcess, LaunchConfig as TunedConfig,
    MeasureFailure, Portion, Space, TuningReport, Workload, tune,
};
use gridguard_files::write_output;
use half::f16;
use rayon::prelude::*;

const KERNEL: &str = "quantize_q8_1";
const ROWS: u32 = 76_800;
const COLUMNS: u32 = 512;
const THREADS: u32 = 256;
/// Numbers that share a scale, and the bytes of their block: scale and sum in f16, and the numbers in i8.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 36;

/// A block of x for 256 columns, a block of y for a row.
const CONFIG: LaunchConfig = LaunchConfig {
    grid_dim: (COLUMNS / THREADS, ROWS, 1),
    block_dim: (THREADS, 1, 1),
    shared_mem_bytes: 0,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = arguments.next().ok_or("usage: 08_any_kernel FILE.ptx [PLOT.svg]")?;
    let ptx = only(&std::fs::read_to_string(path)?, KERNEL);

    let report = rewrite(ptx.as_bytes())?.report;
    let entry = report.entry(KERNEL).ok_or("the file has no such kernel")?;
    let axes =
        |reads: [bool; 3]| "xyz".chars().zip(reads).filter(|(_, it)| *it).map(|(axis, _)| axis);
    let [index, size] = [entry.reads_block_index, entry.reads_grid_size];
    let [index, size] = [index, size].map(|reads| axes(reads).collect::<String>());
    println!("kernel     {KERNEL}, {} parameters, {} bytes of PTX", entry.parameters, ptx.len());
    println!("reads      block index: {index:?}, grid size: {size:?}");
    let forms = entry.forms.as_ref().map_err(|refusal| refusal.to_string())?;
    println!("forms      {}, {}", forms.shifted, forms.folded);

    match Guard::cuda(0) {
        Ok(guard) => on_device(Arc::new(guard), &ptx, arguments.next().as_deref().map(Path::new)),
        Err(reason) => {
            let h200 = &catalog::gpu("h200")?.limits;
            let kernel = KernelLimits::unknown(KERNEL);
            let forms = FormLimits {
                shifted: kernel.clone(),
                folded: kernel.clone(),
                reads_block_index: entry.reads_block_index,
                reads_grid_size: entry.reads_grid_size,
            };
            let original = LaunchLimits::new(h200.clone(), kernel.clone());
            show_plans(&original, &LaunchLimits::rewritten(h200.clone(), kernel, forms));
            println!("not run    planned for an {}, since there is no device: {reason}", h200.name);
            Ok(())
        }
    }
}

/// The text with this entry alone: the driver would compile all 142 entries of candle's file.
fn only(ptx: &str, name: &str) -> String {
    let mut is_other = false;
    let is_kept = |line: &&str| {
        is_other = match line.split_once(".entry ") {
            Some((_, entry)) => !entry.starts_with(&format!("{name}(")),
            None => is_other,
        };
        let is_kept = !is_other && !line.starts_with("//");
        is_other &= line.trim_end() != "}";
        is_kept
    };
    ptx.split_inclusive('\n').filter(is_kept).collect()
}

fn request() -> LaunchRequest {
    let LaunchConfig { grid_dim: (x, y, z), block_dim, .. } = CONFIG;
    LaunchRequest::new(Dim3::new(x.into(), y.into(), z.into()), block_dim.into())
}

/// Prints why the driver would refuse the launch, and the launches that replace it.
fn show_plans(original: &LaunchLimits, rewritten: &LaunchLimits) {
    for violation in Plan::new(&request(), None, original, Choice::AUTOMATIC).err().iter().flatten()
    {
        println!("rejected   {violation}");
    }
    for strategy in [Strategy::Shifted, Strategy::Folded] {
        let name = strategy.to_string();
        match Plan::new(&request(), None, rewritten, Choice::AUTOMATIC.strategy(strategy)) {
            Err(violations) => println!("{name:10} {violations}"),
            Ok(plan) => {
                println!("{name:10} launches: {}", plan.len());
                for planned in plan.launches() {
                    let ([x, y, z], first) = (planned.launch.grid(), planned.first_block);
                    println!("           grid {x} x {y} x {z}, from block {first:?}");
                }
            }
        }
    }
    if let Ok(plan) = Plan::new(&request(), None, rewritten, Choice::AUTOMATIC) {
        println!("planned    {}, untuned", plan.strategy());
    }
}

fn on_device(guard: Arc<Guard>, ptx: &str, chart: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let module = guard.load_ptx(ptx)?;
    let parameters =
        [Parameter::Memory, Parameter::Memory, Parameter::of::<i32>(), Parameter::of::<i32>()];
    #[allow(unsafe_code, reason = "the contract of candle's kernel")]
    // SAFETY: it reads rows of the first memory and writes their blocks to the second. Its grid has the rows, its
    // arguments the columns, and both memories are large enough.
    let kernel = unsafe { module.kernel(KERNEL, &parameters)? };
    let original = LaunchLimits::new(guard.limits().clone(), kernel.limits().kernel().clone());
    show_plans(&original, kernel.limits());

    // The planner's choice.
    let context = Arc::clone(guard.context().ok_or("no context")?);
    let mut rows = Rows::new(&guard, kernel)?;
    let launches = rows.launch_once()?;
    println!("launched   launches: {launches}, every number is right");

    // The tuned choice: the forms have no parameters and no chunks to choose from.
    let mut space = Space::new(rows.configurations()?);
    let clock = DeviceClock::new(&guard, Arc::clone(&rows.stream), Policy::default())?;
    let mut measurer = InProcess::new(rows, clock);
    let outcome = tune(&mut measurer, &mut space, Default::default(), &Budget::default(), &mut ())?;
    let title = format!("{KERNEL} over {ROWS} rows of {COLUMNS} on {}", guard.limits().name);
    println!("{}", TuningReport::new(&title, &outcome));
    if let Some(path) = chart {
        let subtitle = format!("{}, throughput, blocks of a grid on y", Policy::default());
        let chart = Chart { title, subtitle, ..Chart::default() };
        write_output(path, chart.svg(&outcome)?.as_bytes())?;
    }

    // The same from a profile, which is usually a file.
    let key = Key { kernel: KERNEL.into(), ..Key::default() };
    let blocks = vec![("blocks".to_owned(), request().grid.x * request().grid.y)];
    let (identity, environment) = (guard.identity(), guard.environment());
    let mut document = Document::new(identity.clone(), environment.clone());
    document.insert(outcome.entry(key.clone(), blocks, Provenance::default()))?;
    let (profile, _) = Profile::from_document(document, &identity, &environment);
    let guard = Guard::with_context(context)?.with_profile(Arc::new(profile));
    #[allow(unsafe_code, reason = "as above")]
    // SAFETY: as above.
    let kernel = unsafe { module.kernel(KERNEL, &parameters)? };
    let mut rows = Rows::new(&Arc::new(guard), kernel.with_tuning(key, "blocks", &[]))?;
    let launches = rows.launch_once()?;
    let chosen = outcome.winner.strategy;
    println!("tuned      {chosen}, launches: {launches}, every number is right");
    Ok(())
}

/// The kernel with its tensors.
struct Rows {
    guard: Arc<Guard>,
    kernel: Kernel,
    stream: Arc<CudaStream>,
    numbers: Vec<f32>,
    x: CudaSlice<f32>,
    out: CudaSlice<u8>,
}

impl Rows {
    fn new(guard: &Arc<Guard>, kernel: Kernel) -> Result<Self, Box<dyn Error>> {
        let stream = guard.context().ok_or("no context")?.new_stream()?;
        // Small whole numbers: their sums are exact in any order.
        let number =
            |at: u32| u8::try_from(at % 251).map_or(0.0, |number| f32::from(number) - 125.0);
        let numbers: Vec<f32> = (0..ROWS * COLUMNS).into_par_iter().map(number).collect();
        let x = stream.clone_htod(&numbers)?;
        let out = stream.alloc_zeros(numbers.len() / BLOCK * BLOCK_BYTES)?;
        Ok(Self { guard: Arc::clone(guard), kernel, stream, numbers, x, out })
    }

    /// Launches with the calls of cudarc's builder, as one launch or several.
    fn launch_once(&mut self) -> Result<u64, Box<dyn Error>> {
        let columns = i32::try_from(COLUMNS)?;
        let mut launch = self.guard.builder(&self.stream, &self.kernel);
        launch.arg(&self.x).arg(&mut self.out).arg(&columns).arg(&columns);
        let launches = launch.launch(CONFIG)?;
        if self.is_right()? { Ok(launches) } else { Err("a number is wrong".into()) }
    }

    /// Whether every block has its scale, its sum and its quantized numbers.
    fn is_right(&self) -> Result<bool, DriverError> {
        let out = self.stream.clone_dtoh(&self.out)?;
        let blocks = out.par_chunks(BLOCK_BYTES).zip(self.numbers.par_chunks(BLOCK));
        Ok(blocks.all(|(out, numbers)| is_quantized(out, numbers)))
    }
}

fn is_quantized(out: &[u8], numbers: &[f32]) -> bool {
    let most = numbers.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
    let (scale, sum) = (most / 127.0, numbers.iter().sum());
    let Some(([a, b, c, d], quantized)) = out.split_first_chunk() else { return false };
    [*a, *b] == f16::from_f32(scale).to_le_bytes()
        && [*c, *d] == f16::from_f32(sum).to_le_bytes()
        && quantized
            .iter()
            .zip(numbers)
            .all(|(byte, number)| f32::from(i8::from_le_bytes([*byte])) == (number / scale).round())
}

impl Workload for Rows {
    fn configurations(&mut self) -> Result<Vec<TunedConfig>, MeasureFailure> {
        let (parameters, limits) = (Vec::new(), self.kernel.limits().clone());
        Ok(vec![TunedConfig { parameters, request: request(), batch: None, limits }])
    }

    fn prepare(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
        Ok(())
    }

    // Throughput is measured on the whole grid, so that there is one portion.
    fn launch(&mut self, candidate: &Candidate, _: Portion) -> Result<(), MeasureFailure> {
        let columns = i32::try_from(COLUMNS).unwrap_or(0);
        let plan = Plan::new(&request(), None, self.kernel.limits(), candidate.choice.into())?;
        let mut args = Args::new(&self.stream);
        args.read(&self.x).write(&mut self.out).value(columns).value(columns);
        self.guard.launch(&self.kernel, &plan, args)?;
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.stream.memset_zeros(&mut self.out)?;
        Workload::launch(self, candidate, Portion::Sequence)?;
        if self.is_right()? {
            return Ok(());
        }
        Err(MeasureFailure::new(FailureKind::Mismatch, "a number is wrong"))
    }
}
