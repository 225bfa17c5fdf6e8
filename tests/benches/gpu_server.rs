//! Measures the upper bound of the inference server: direct launches of its block over tensors in device memory. The
//! server's load test is compared with it.
//!
//! Prints a line for each block, and writes a JSON document to the file that its argument names. Needs a CUDA GPU,
//! NVRTC and cuBLASLt; says so without a GPU.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gridguard::Guard;
use gridguard::pipeline::Budget;
use gridguard_examples::uniform;
use gridguard_kernels::temporal_block::{BlockShape, BlockWeights, TemporalBlock};
use gridguard_kernels::{Element, Kernels};
use gridguard_server::admission::WORKSPACE_BYTES;
use gridguard_tests::figures::{self, Origin};
use half::f16;
use serde::Serialize;

/// Items of a batch.
const ITEMS: u64 = 1600;
const FRAMES: u64 = 16;
const HEAD_DIM: u64 = 64;
const WARM_UP: usize = 3;
const AT_LEAST: Duration = Duration::from_secs(2);

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    origin: Origin,
    blocks: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    channels: u64,
    dtype: String,
    batch_items: u64,
    frames: u64,
    batches: u32,
    items_per_second: f64,
}

fn main() -> Outcome<()> {
    let Some(guard) = figures::guard() else { return Ok(()) };
    let blocks = vec![
        measure::<f32>(&guard, 1280)?,
        measure::<f16>(&guard, 1280)?,
        measure::<f16>(&guard, 320)?,
    ];
    figures::publish(&Report { origin: Origin::of(&guard), blocks })
}

fn measure<T: Element>(guard: &Arc<Guard>, channels: u64) -> Outcome<Row> {
    let kernels = Kernels::new(Arc::clone(guard));
    let stream = guard.context().ok_or("no context")?.new_stream()?;
    let shape = BlockShape::new(ITEMS, FRAMES, channels, channels / HEAD_DIM)?;
    let weights = BlockWeights::<T>::random(channels, 1)?;
    let block = TemporalBlock::new(&kernels, &stream, shape, &weights)?;
    let block = block.with_workspace(WORKSPACE_BYTES);
    let (mut pipeline, memory) = block.pipeline()?;
    let plan = pipeline.plan(&Budget::UNLIMITED)?;
    let elements = usize::try_from(shape.elements())?;
    let x = stream.clone_htod(&uniform::<T>(elements, 1))?;
    let mut y = stream.alloc_zeros::<T>(elements)?;
    let mut batch = || guard.run_pipeline(&mut pipeline, &plan, memory.bind(&stream, &x, &mut y));
    for _ in 0..WARM_UP {
        batch()?;
    }
    stream.synchronize()?;
    let (begun, mut batches) = (Instant::now(), 0_u32);
    while begun.elapsed() < AT_LEAST {
        // Two at a time, so that the device always has one to begin.
        batch()?;
        batch()?;
        stream.synchronize()?;
        batches += 2;
    }
    let items = f64::from(batches) * f64::from(u32::try_from(ITEMS)?);
    let items_per_second = items / begun.elapsed().as_secs_f64();
    println!("{channels} channels, {}: {items_per_second:.0} items a second", T::TYPE);
    Ok(Row {
        channels,
        dtype: T::TYPE.to_string(),
        batch_items: ITEMS,
        frames: FRAMES,
        batches,
        items_per_second,
    })
}
