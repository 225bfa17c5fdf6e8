//! Arguments borrow the memory that they point to.

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel};
use gridguard::{Guard, Plan};

fn launch(
    guard: &Guard,
    kernel: &Kernel,
    plan: &Plan,
    stream: &CudaStream,
    memory: CudaSlice<f32>,
) {
    let mut args = Args::new(stream);
    args.read_items(&memory, 8);
    drop(memory);
    let _ = guard.launch(kernel, plan, args);
}

fn main() {
    let _ = launch;
}
