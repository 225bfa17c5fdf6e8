//! A wish is no plan: it must be planned first.

use gridguard::cuda::{Args, Kernel};
use gridguard::{Guard, LaunchRequest};

fn launch(guard: &Guard, kernel: &Kernel, request: &LaunchRequest, args: Args<'_>) {
    let _ = guard.launch(kernel, request, args);
}

fn main() {
    let _ = launch;
}
