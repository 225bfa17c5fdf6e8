//! Only the kernels of `gridguard-kernels` are operations, because it vouches for their device code.

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest};
use gridguard_kernels::{Code, KernelError, Operation};

#[derive(Clone)]
struct Foreign;

impl Operation for Foreign {
    const KERNEL: &'static str = "foreign";
    const SIZES: &'static [&'static str] = &[];

    fn problem(&self) -> (Vec<u64>, String) {
        (Vec::new(), String::new())
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        panic!("no program has it")
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        (LaunchRequest::new(Dim3::ONE, Dim3::ONE), BatchAxis::new(Axis::X, 1))
    }
}

fn main() {
    let _ = Foreign;
}
