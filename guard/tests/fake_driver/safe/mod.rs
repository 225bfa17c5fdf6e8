//! Programs without `unsafe` that try to make a launch touch memory that is gone, or that other work
//! uses: each one waits, is refused, or (in the workspace's `tests/compile-fail`) does not compile.
//!
//! The fake driver reports work that nothing orders.
#![forbid(unsafe_code)]

mod captures;
mod lifetimes;
mod meanwhile;
#[cfg(all(feature = "tracing", feature = "metrics", feature = "profile"))]
mod observers;
mod streams;
mod threads;

use cudarc::driver::CudaStream;
use gridguard::cuda::{Args, Kernel, LaunchError, Memory, MemoryMut};
use gridguard::{Axis, Guard};

use crate::kernels::{assert_ordered, launch_iota, plan_along};

const ITEMS: u64 = 64;

/// Launches `fake_iota_y` over `out`.
fn write(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
    out: &mut impl MemoryMut<u64>,
) -> Result<u64, LaunchError> {
    launch_iota(guard, kernel, &plan_along(kernel, Axis::Y, ITEMS), stream, out)
}

/// Launches `look` over `memory`.
fn look(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
    memory: &impl Memory<u64>,
) -> Result<u64, LaunchError> {
    let mut args = Args::new(stream);
    args.read_items(memory, 1);
    guard.launch(kernel, &plan_along(kernel, Axis::Y, ITEMS), args)
}
