//! Arguments hold the stream and the views that they point to, and go with their launch.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel};
use gridguard::{Guard, Plan};

fn launched_twice(guard: &Guard, kernel: &Kernel, plan: &Plan, stream: &CudaStream) {
    let args = Args::new(stream);
    let _ = guard.launch(kernel, plan, args);
    let _ = guard.launch(kernel, plan, args);
}

fn stream_dropped(guard: &Guard, kernel: &Kernel, plan: &Plan, stream: Arc<CudaStream>) {
    let args = Args::new(&stream);
    drop(stream);
    let _ = guard.launch(kernel, plan, args);
}

fn view_dropped<'a>(args: &mut Args<'a>, memory: &'a CudaSlice<f32>) {
    args.read(&memory.slice(..8));
}

fn main() {}
