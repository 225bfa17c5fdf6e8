//! On another thread the handle of a per-thread stream means another stream, which waited for nothing.

use cudarc::driver::CudaStream;
use gridguard::cuda::{Args, Kernel};
use gridguard::{Guard, Plan};

fn launch(guard: &Guard, kernel: &Kernel, plan: &Plan, stream: &CudaStream) {
    let args = Args::new(stream);
    std::thread::scope(|scope| {
        scope.spawn(|| guard.launch(kernel, plan, args));
    });
}

fn main() {
    let _ = launch;
}
