//! Whoever loads a kernel promises in an `unsafe` block that it keeps its contract.

use gridguard::cuda::{Kernel, Module};

fn kernel(module: &Module) -> Kernel {
    module.kernel("attention", &[]).unwrap()
}

fn main() {
    let _ = kernel;
}
