//! Whoever launches over raw handles promises in an `unsafe` block that they are alive.

use gridguard::cuda::{Kernel, RawLaunch};
use gridguard::{Guard, RawArgs, Plan};

fn launch(guard: &Guard, kernel: &Kernel, plan: &Plan, args: &RawArgs<'_>) {
    let _ = guard.launch_raw(kernel, std::ptr::null_mut(), RawLaunch::Plan(plan, args));
}

fn main() {
    let _ = launch;
}
