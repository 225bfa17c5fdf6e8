//! Step 7: runs a batch through several stages, chunk by chunk, within a memory budget. Intermediates need memory for
//! one chunk, and share it if their lifetimes do not overlap.
//!
//! Run it with `cargo run --release --example 07_pipeline`.

use core::ops::ControlFlow;

use gridguard::{DeviceLimits, Guard};
use gridguard_pipeline::{Budget, HostMemory, Pipeline, Progress};
use rayon::prelude::*;

const ROWS: usize = 100_000;
const COLUMNS: u16 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Each row: centre it, widen it four times, and sum the positive parts.
    let (columns, width) = (u64::from(COLUMNS), usize::from(COLUMNS));
    let mut builder = Pipeline::builder(u64::try_from(ROWS)?);
    let x = builder.input::<f32>("x", columns);
    let weights = builder.shared_input::<f32>("weights", 4);
    let centred = builder.scratch::<f32>("centred", columns);
    let wide = builder.scratch::<f32>("wide", 4 * columns);
    let y = builder.output::<f32>("y", 1);
    let centre = builder.stage("centre", move |_, views| {
        let rows = views.read(x)?.par_chunks(width);
        views.write(centred)?.par_chunks_mut(width).zip(rows).for_each(|(centred, row)| {
            let mean = row.iter().sum::<f32>() / f32::from(COLUMNS);
            centred.iter_mut().zip(row).for_each(|(centred, x)| *centred = x - mean);
        });
        Ok(())
    });
    centre.read(x).write(centred);
    let widen = builder.stage("widen", move |_, views| {
        let (centred, weights) = (views.read(centred)?, views.read(weights)?);
        views.write(wide)?.par_chunks_mut(4).zip(centred).for_each(|(wide, x)| {
            wide.iter_mut().zip(weights).for_each(|(wide, weight)| *wide = weight * x);
        });
        Ok(())
    });
    widen.read(centred).read(weights).write(wide);
    let sum = builder.stage("sum", move |_, views| {
        let rows = views.read(wide)?.par_chunks(4 * width);
        let sum = |row: &[f32]| row.iter().map(|x| x.max(0.0)).sum();
        views.write(y)?.par_iter_mut().zip(rows).for_each(|(y, row)| *y = sum(row));
        Ok(())
    });
    sum.read(wide).write(y);
    let mut pipeline = builder.build()?;

    // The same pipeline within any budget: the plan has its memory before anything runs.
    println!("{}", pipeline.plan(&Budget::UNLIMITED)?);
    if let Err(error) = pipeline.plan(&Budget::bytes(1000)) {
        println!("rejected: {error}");
    }
    let plan = pipeline.plan(&Budget::bytes(16 << 20).in_flight(2))?;
    println!("{plan}");

    let from: Vec<f32> = (0_u16..128).cycle().take(ROWS * width).map(f32::from).collect();
    let mut to = vec![f32::NAN; ROWS];
    let guard = Guard::host(DeviceLimits::any_device());
    let memory =
        HostMemory::new().read(x, &from).read(weights, &[1.0, -1.0, 0.5, 2.0]).write(y, &mut to);
    let mut report = |progress: &Progress| {
        println!("{} of {} rows, {:?}", progress.items_done, progress.items, progress.elapsed);
        ControlFlow::Continue(())
    };
    let run = pipeline.run(&guard, &plan, memory.monitor(&mut report))?;
    println!("{} chunks, {} bytes of scratch", run.chunks, run.scratch_bytes);
    println!("row {}: {}", ROWS - 1, to[ROWS - 1]);
    Ok(())
}
