//! Step 5: tunes a chain of eight passes over rows on a CUDA device. The largest chunk is not the fastest: a smaller
//! chunk's output is still in the cache for the next pass. Step 9 tunes on the host.
//!
//! Run it with `cargo run --release --example 05_tune [PLOT.svg]`.

use std::sync::Arc;

use gridguard::cuda::Args;
use gridguard::profile::Key;
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter};
use gridguard_autotune::{Chart, FnSpace, LaunchConfig, TuningReport, tune_fn};

/// Rows of 1,024 floats, 512 MiB: more than the 65,535 blocks of y.
const ROWS: u64 = 131_072;
const SOURCE: &str = r#"
extern "C" __global__ void pass(float4 *x) {
    float4 &four = x[blockIdx.y * 256ull + threadIdx.x]; // one row per block, rows on y
    four.x = four.x * 0.5f + 1; four.y = four.y * 0.5f + 1;
    four.z = four.z * 0.5f + 1; four.w = four.w * 0.5f + 1;
}
"#;

#[allow(unsafe_code, reason = "the contract of the kernel above")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guard = Arc::new(Guard::cuda(0)?);
    let stream = guard.context().ok_or("no context")?.new_stream()?;
    let module = guard.compile("pass.cu", SOURCE)?;
    // SAFETY: `pass` takes one pointer, aligned to 16 bytes, and accesses 1,024 floats per block on y.
    let kernel = unsafe { module.kernel("pass", &[Parameter::AlignedMemory { bytes: 16 }])? };
    let mut x = stream.alloc_zeros::<f32>(usize::try_from(ROWS * 1024)?)?;
    let pass = |rows| LaunchRequest::new(Dim3::new(1, rows, 1), Dim3::new(256, 1, 1));

    let key = Key { kernel: "chain".into(), dtypes: "f32".into(), ..Key::default() };
    let batch = Some(BatchAxis::new(Axis::Y, ROWS));
    let space = FnSpace::new([("rows", ROWS)])
        .guarded(|_| Ok(LaunchConfig::new(pass(ROWS), batch, kernel.limits().clone())))
        .on_stream(&guard, &stream);
    let tuned = tune_fn(&key, space.chunk_auto(), |trial| {
        trial.before(|| Ok(stream.memset_zeros(&mut x)?))?;
        for rows in trial.chunks() {
            let place = |row| usize::try_from(row * 1024).unwrap_or(usize::MAX);
            let mut part = x.slice_mut(place(rows.start)..place(rows.end));
            for _ in 0..8 {
                let mut args = Args::new(&stream);
                args.write(&mut part);
                guard.launch(&kernel, &pass(rows.end - rows.start), args)?;
            }
        }
        trial.output(|| Ok(stream.clone_dtoh(&x)?))
    })?;

    let title = format!("8 passes over rows of 1024 on {}", guard.limits().name);
    println!("{}", TuningReport::new(&title, &tuned.outcome));
    if let Some(path) = std::env::args_os().nth(1) {
        let chart = Chart { title, subtitle: key.policy.to_string(), ..Chart::default() };
        std::fs::write(path, chart.svg(&tuned.outcome)?)?;
    }
    Ok(())
}
