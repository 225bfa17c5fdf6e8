//! On another thread the handle of a per-thread stream means another stream, which waited for nothing.

use cudarc::driver::CudaStream;
use gridguard::cuda::Args;

fn on_another_thread<T: Send>(_: T) {}

fn launch(stream: &CudaStream) {
    on_another_thread(Args::new(stream));
}

fn main() {
    let _ = launch;
}
