//! 4. Code on cudarc's launch builder changes by one word, and an overflow gets its true name.
//!
//! `cargo run --release --example 04_cudarc`, on a machine with a CUDA device and NVRTC.

use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
use gridguard::cuda::{CompileOptions, Compiler, GuardedStream};

const SOURCE: &str = r#"
extern "C" __global__ void scale(float *x, float by, unsigned n) {
    unsigned i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}"#;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // cudarc panics where there is no driver; the guard's own look finds out before.
    let device = match gridguard::cuda::device_limits(0) {
        Ok(device) => device,
        Err(reason) => {
            println!("no device to show this on: {reason}");
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
        let mut launch = stream.launch_builder_guarded(&function); // was: launch_builder
        launch.arg(&mut x).arg(&2.0_f32).arg(&n);
        #[allow(unsafe_code, reason = "as with cudarc's own launch")]
        // SAFETY: the arguments are what `scale` takes, and it checks its index against n.
        match unsafe { launch.launch(config) } {
            Ok(_) => println!("{blocks} blocks: launched"),
            Err(error) => println!("{blocks} blocks: {error}"),
        }
    }
    Ok(())
}

fn load(
    context: &std::sync::Arc<CudaContext>,
    image: &[u8],
) -> Result<CudaFunction, Box<dyn std::error::Error>> {
    let image = cudarc::nvrtc::Ptx::from_binary(image.to_vec());
    Ok(context.load_module(image)?.load_function("scale")?)
}
