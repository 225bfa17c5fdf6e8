//! A launch builder borrows its arguments until its last launch.

use cudarc::driver::{CudaSlice, CudaStream, LaunchConfig};
use gridguard::Guard;
use gridguard::cuda::Kernel;

fn freed(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
    config: LaunchConfig,
    memory: CudaSlice<f32>,
) {
    let mut builder = guard.builder(stream, kernel);
    builder.arg(&memory);
    drop(memory);
    let _ = builder.launch(config);
}

fn view_dropped(guard: &Guard, kernel: &Kernel, stream: &CudaStream, memory: &CudaSlice<f32>) {
    let mut builder = guard.builder(stream, kernel);
    builder.arg(&memory.slice(..8));
    builder.arg(&8_u32);
}

fn read_and_written(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
    memory: &mut CudaSlice<f32>,
) {
    let mut builder = guard.builder(stream, kernel);
    builder.arg(&mut *memory).arg(&*memory);
}

fn main() {}
