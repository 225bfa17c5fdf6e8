//! Step 4: guards code that uses cudarc's launch builder by changing one call. An oversized launch
//! is then reported precisely before it reaches the driver.
//!
//! Run it with `cargo run --release --example 04_cudarc`; it needs a CUDA device and NVRTC.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use gridguard::cuda::{CompileOptions, Compiler, GuardedStream};

const SOURCE: &str = r#"
extern "C" __global__ void scale(float *x, float by, unsigned n) {
    unsigned i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}"#;

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
    let stream = context.default_stream();
    let function = load(&context, compiled.image.bytes())?;

    for blocks in [1000_u32, 76_800] {
        let n = blocks * 128;
        let mut x = stream.alloc_zeros::<f32>(usize::try_from(n)?)?;
        let config =
            LaunchConfig { grid_dim: (1, blocks, 1), block_dim: (128, 1, 1), shared_mem_bytes: 0 };
        // Without the guard: stream.launch_builder(&function).
        let mut launch = stream.launch_builder_guarded(&function);
        launch.arg(&mut x).arg(&2.0_f32).arg(&n);
        #[allow(unsafe_code, reason = "as with cudarc's own launch")]
        // SAFETY: the arguments match the parameters of `scale`, which checks its index against n.
        match unsafe { launch.launch(config) } {
            Ok(_) => println!("{blocks} blocks: launched"),
            Err(error) => println!("{blocks} blocks: {error}"),
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
