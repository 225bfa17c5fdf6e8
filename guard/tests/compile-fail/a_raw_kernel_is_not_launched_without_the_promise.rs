//! Whoever launches over raw handles promises in an `unsafe` block that they are alive.

use gridguard::cuda::RawKernel;
use gridguard::{KernelArgs, Plan};

fn launch(kernel: &RawKernel, plan: &Plan, args: &KernelArgs<'_>) {
    let _ = kernel.launch(std::ptr::null_mut(), plan, args);
}

fn main() {
    let _ = launch;
}
