//! Step 4: guards code on cudarc's launch builder by changing one call. An oversized launch is reported before it
//! reaches the driver. With a declared batch it runs in chunks.
//!
//! Run it with `cargo run --release --example 04_cudarc`; it needs a CUDA device and NVRTC.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig};
use gridguard::cuda::{CompileOptions, Compiler};
use gridguard::{Axis, BatchAxis, Guard};

const SOURCE: &str = r#"
// One block a row.
extern "C" __global__ void scale(float *x, float by, unsigned rows) {
    if (blockIdx.y < rows) x[blockIdx.y * size_t(blockDim.x) + threadIdx.x] *= by;
}"#;

const COLUMNS: u32 = 128;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // cudarc panics if there is no driver; the guard returns an error.
    let device = match gridguard::cuda::device_limits(0) {
        Ok(device) => device,
        Err(reason) => {
            println!("this example needs a CUDA device: {reason}");
            return Ok(());
        }
    };
    let options = CompileOptions::new("scale.cu", device.compute_capability);
    let compiled = Compiler::find()?.compile(SOURCE, &options)?;
    let context = CudaContext::new(0)?;
    let guard = Guard::with_context(Arc::clone(&context))?;
    let stream = context.default_stream();
    let function = load(&context, compiled.image.bytes())?;

    for (rows, in_chunks) in [(1000_u32, false), (76_800, false), (76_800, true)] {
        let mut x = stream.alloc_zeros::<f32>(usize::try_from(rows * COLUMNS)?)?;
        let grid_dim = (1, rows, 1);
        let config = LaunchConfig { grid_dim, block_dim: (COLUMNS, 1, 1), shared_mem_bytes: 0 };
        // Without the guard: stream.launch_builder(&function).
        let mut launch = guard.builder(&stream, &function);
        if in_chunks {
            // Each chunk gets the address of its first row, and its number of rows.
            launch.batch(BatchAxis::new(Axis::Y, rows));
            launch.write_items(&mut x, COLUMNS.into()).arg(&2.0_f32).length();
        } else {
            launch.arg(&mut x).arg(&2.0_f32).arg(&rows);
        }
        #[allow(unsafe_code, reason = "as with cudarc's own launch")]
        // SAFETY: the arguments match the parameters of `scale`, which checks its row against theirs.
        match unsafe { launch.launch(config) } {
            Ok(launches) => println!("{rows} rows: launches: {launches}"),
            Err(error) => println!("{rows} rows: {error}"),
        }
    }
    Ok(())
}

fn load(
    context: &Arc<CudaContext>,
    image: &[u8],
) -> Result<CudaFunction, Box<dyn std::error::Error>> {
    let image = cudarc::nvrtc::Ptx::from_binary(image.to_vec());
    Ok(context.load_module(image)?.load_function("scale")?)
}
