//! Explains, splits, runs, times and verifies temporal attention whose launch exceeds the grid limit. It uses the CUDA
//! device with the most free memory, or the host under the limits of an NVIDIA H200.
//!
//! Run it with `cargo run --release --example temporal_attention`. By default the problem has 15,360 items (batch 6 of
//! a 40 x 64 map), 5 heads, 16 frames and head dim 64 in f16. `--input FILE.safetensors` reads your own q, k and v.

mod backend;
mod report;
mod tuned;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use gridguard::{Choice, Guard, catalog};
use gridguard_examples::{Qkv, Tensors, exit_code, read_qkv, uniform, write_out};
use gridguard_kernels::Operation;
use gridguard_kernels::temporal_attention::{Layout, Shape, TemporalAttention};
use half::f16;

/// Runs temporal attention whose launch exceeds the grid limit: explained, split, run and verified
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Read q, k and v from this safetensors file (F16, BF16 or F32; [items, frames, head_dim] or
    /// [items, heads, frames, head_dim])
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Write the result to this safetensors file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Run on the host under the limits of this GPU of the catalogue, such as h200
    #[arg(long, value_name = "GPU")]
    host_as: Option<String>,
    /// Split into chunks of at most this many items
    #[arg(long, value_name = "ITEMS")]
    max_items: Option<u64>,
}

fn main() -> ExitCode {
    exit_code(run(&Options::parse()))
}

/// Whether the result is correct.
fn run(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let tensors = match &options.input {
        Some(path) => read_qkv(path)?,
        None => Tensors::F16(default_case()?),
    };
    let guard = Arc::new(tuned::with_profile(match &options.host_as {
        Some(name) => Guard::host(catalog::gpu(name)?.limits.clone()),
        None => Guard::best_or_host(),
    }));
    match &tensors {
        Tensors::F16(qkv) => attend(&guard, qkv, options),
        Tensors::Bf16(qkv) => attend(&guard, qkv, options),
        Tensors::F32(qkv) => attend(&guard, qkv, options),
    }
}

fn default_case() -> Result<Qkv<f16>, Box<dyn std::error::Error>> {
    let shape = Shape::new(6 * 40 * 64, 5, 16, 64)?;
    let dims: Result<Vec<usize>, _> = shape.dims().into_iter().map(usize::try_from).collect();
    let len = usize::try_from(shape.elements())?;
    Ok(Qkv { q: uniform(len, 1), k: uniform(len, 2), v: uniform(len, 3), shape, dims: dims? })
}

fn attend<T: backend::Tensor>(
    guard: &Arc<Guard>,
    qkv: &Qkv<T>,
    options: &Options,
) -> Result<bool, Box<dyn std::error::Error>> {
    let attention = TemporalAttention::new(qkv.shape, T::TYPE, guard.limits())?;
    let attention = attention.with_layout(Layout::FoldedY);
    let backend = backend::Backend::new(guard);
    report::device(guard, &backend);
    let (request, limits) = (attention.request(), backend.limits(guard, &attention)?);
    report::launch(&attention, &request);
    report::unsplit(&guard.validate(&request, &limits));
    let (attention, choice) = match options.max_items {
        Some(items) => (attention, Choice::at_most(items)),
        None => tuned::choose(guard, &backend, attention)?,
    };
    let (request, limits) = (attention.request(), backend.limits(guard, &attention)?);
    let plan = match guard.plan(&request, Some(&attention.batch()), &limits, choice) {
        Ok(plan) => plan,
        Err(violations) => {
            report::rejected("plan    ", &violations);
            return Ok(false);
        }
    };
    report::plan(&plan);

    // Poisoned, so that an unwritten element is detected.
    let mut out = vec![T::narrow(f32::NAN); qkv.q.len()];
    let timing = backend.run(guard, attention, choice, qkv, &mut out)?;
    report::timing::<T>(&qkv.shape, &timing);

    let is_correct = verify::verify(&plan, &attention, qkv, &out);
    if let Some(path) = &options.output {
        write_out(path, &qkv.dims, &out)?;
        println!("output   {}", path.display());
    }
    Ok(is_correct)
}
