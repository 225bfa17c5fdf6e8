//! A graph holds neither kernels nor memory, so that capturing needs a promise.

use cudarc::driver::CudaStream;
use gridguard::cuda::{Args, Kernel, capture_launches};
use gridguard::{Guard, Plan};

fn main() {
    let _ = |guard: &Guard, kernel: &Kernel, plan: &Plan, stream: &CudaStream| {
        capture_launches(|| guard.launch(kernel, plan, Args::new(stream)))
    };
}
