//! Runs a temporal transformer block, chunk by chunk, within a memory budget: it shows the plan, the
//! progress, time and memory, and compares the result with an f64 reference.
//!
//! Run it with `cargo run --release --example temporal_block`. On a CUDA device with NVRTC and cuBLASLt the block has
//! 15,360 items (batch 6 of a 40 x 64 map), 16 frames, 320 channels and 5 heads. Without a device, the host runs a
//! smaller block. `--weights FILE.safetensors` reads the weights of a motion module, and `--tune
//! FILE.ron` measures which algorithms and which chunk are fastest within the budget.

mod backend;
mod input;
mod tune;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use gridguard::Guard;
use gridguard_examples::{exit_code, write_out};
use gridguard_kernels::temporal_block::{BlockShape, BlockWeights, WeightsFile};
use gridguard_pipeline::Budget;
use half::f16;

use backend::{Backend, Job, Tensor};
use input::Input;

/// Runs a temporal transformer block within a memory budget, and verifies it
#[derive(Parser)]
#[command(version)]
struct Options {
    /// Read the weights of a motion module from this safetensors file, with diffusers' names; random
    /// ones otherwise
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Which block of the file, such as `down_blocks.0.motion_modules.0.transformer_blocks.0`
    #[arg(long, value_name = "NAME", requires = "weights")]
    prefix: Option<String>,
    /// Read the tensor `x`, [items, frames, channels] of F16, BF16 or F32, from this safetensors file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["items", "frames"])]
    input: Option<PathBuf>,
    /// Write the result to this safetensors file, as the tensor `out`
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Items of a random input
    #[arg(long)]
    items: Option<u64>,
    /// Frames of a random input
    #[arg(long)]
    frames: Option<u64>,
    /// Heads of the attentions; one for 64 channels by default
    #[arg(long)]
    heads: Option<u64>,
    /// Scratch of all chunks in flight, such as 256MiB or 1GB
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = bytes)]
    memory: u64,
    /// Run chunks of at most this many items
    #[arg(long, value_name = "ITEMS")]
    chunk: Option<u64>,
    /// Chunks at the same time
    #[arg(long, value_name = "CHUNKS", default_value_t = 2)]
    in_flight: u64,
    /// Tune the block within the budget on the device, and write the entries to this profile, such as
    /// nvidia-h200.ron
    #[arg(long, value_name = "FILE")]
    tune: Option<PathBuf>,
    /// Draw the time and the memory of the tuned candidates against the chunk
    #[arg(long, value_name = "FILE.svg", requires = "tune")]
    chart: Option<PathBuf>,
    /// Run as this profile says
    #[arg(long, value_name = "FILE", conflicts_with = "tune")]
    profile: Option<PathBuf>,
    /// Run on the host
    #[arg(long)]
    host: bool,
}

fn main() -> ExitCode {
    exit_code(run(&Options::parse()))
}

/// Whether the result is correct.
fn run(options: &Options) -> Result<bool, Box<dyn std::error::Error>> {
    let backend =
        if options.host { Backend::Host } else { Backend::best(Arc::new(Guard::best_or_host())) };
    let file = options.weights.as_deref().map(std::fs::read).transpose();
    let file = file.map_err(|error| format!("reading the weights: {error}"))?;
    let file = file.as_deref().map(WeightsFile::read).transpose()?;
    let input = options.input.as_deref().map(Input::read).transpose()?;
    match input {
        None => block::<f16>(options, &backend, file.as_ref(), None),
        Some(Input::F16(x, dims)) => block(options, &backend, file.as_ref(), Some((x, dims))),
        Some(Input::Bf16(x, dims)) => block(options, &backend, file.as_ref(), Some((x, dims))),
        Some(Input::F32(x, dims)) => block(options, &backend, file.as_ref(), Some((x, dims))),
    }
}

fn block<T: Tensor>(
    options: &Options,
    backend: &Backend,
    file: Option<&WeightsFile<'_>>,
    input: Option<(Vec<T>, [u64; 3])>,
) -> Result<bool, Box<dyn std::error::Error>> {
    let smaller = matches!(backend, Backend::Host) && input.is_none();
    let [items, frames, channels] = match &input {
        Some((_, dims)) => *dims,
        None if smaller => [24, 16, 64],
        None => [15_360, 16, 320],
    };
    let weights = match file {
        Some(file) => file.block::<T>(options.prefix.as_deref())?,
        None => BlockWeights::random(channels, 1)?,
    };
    // Those of the input, if it has some, are compared with the weights' when the block is made.
    let channels = if input.is_some() { channels } else { weights.channels() };
    let heads = options.heads.unwrap_or((channels / HEAD_DIM).max(1));
    let (items, frames) = (options.items.unwrap_or(items), options.frames.unwrap_or(frames));
    let shape = BlockShape::new(items, frames, channels, heads)?;
    let x = match input {
        Some((x, _)) => x,
        None => gridguard_examples::uniform(usize::try_from(shape.elements())?, 2),
    };
    backend.print();
    if smaller && options.items.is_none() {
        println!("         a smaller block than on a device, which has 15360 x 16 x 320");
    }
    println!(
        "problem  {items} items x {frames} frames x {channels} channels, {heads} heads, {}",
        T::TYPE
    );
    let megabytes = weights.elements() * T::TYPE.bytes() / 1_000_000;
    match file {
        None => println!("weights  random, {megabytes} MB"),
        Some(file) => {
            println!("weights  from the file, {megabytes} MB");
            for name in file.unused(options.prefix.as_deref())? {
                println!("         {name} is not used: the block has no such part");
            }
        }
    }
    let mut budget = Budget::bytes(options.memory).in_flight(options.in_flight);
    if let Some(chunk) = options.chunk.or(smaller.then_some(SMALL_CHUNK)) {
        budget = budget.at_most(chunk);
    }
    // Poisoned, so that an unwritten element is detected.
    let mut out = vec![T::narrow(f32::NAN); x.len()];
    let job = Job { shape, weights: &weights, x: &x, budget };
    if let Some(path) = &options.tune {
        backend.tune(&job, path, options.chart.as_deref())?;
    }
    let profile = options.tune.as_ref().or(options.profile.as_ref());
    let tuned = profile.map(|path| backend.with_profile(path)).transpose()?;
    let done = tuned.as_ref().unwrap_or(backend).run(&job, &mut out)?;
    done.print(&shape, T::TYPE);
    let is_correct = verify::verify(&done.plan, &shape, &weights, &x, &out)?;
    if let Some(path) = &options.output {
        let dims = [items, frames, channels].map(usize::try_from);
        write_out(path, &dims.into_iter().collect::<Result<Vec<_>, _>>()?, &out)?;
        println!("output   {}", path.display());
    }
    Ok(is_correct)
}

/// A size in bytes, with a unit or without.
fn bytes(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "KB" | "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(format!("unknown unit {unit:?}: use KiB, MiB, GiB, KB, MB or GB")),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(factor).ok_or_else(|| "more than 2^64 - 1 bytes".to_owned())
}

/// Items of a chunk of the small block, so that there are several.
const SMALL_CHUNK: u64 = 5;
/// Channels of a head in most models.
const HEAD_DIM: u64 = 64;
