//! Only `gridguard-kernels` makes the code of an operation, because it vouches for its device code.

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest};
use gridguard_kernels::{Code, KernelError, Operation};

#[derive(Clone)]
struct Foreign;

impl Operation for Foreign {
    const KERNEL: &'static str = "foreign";
    const SIZES: &'static [&'static str] = &[];
    const SOURCES: &'static [&'static str] = &[""];

    fn problem(&self) -> (Vec<u64>, String) {
        (Vec::new(), String::new())
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        Ok(Code {
            kernel: "foreign",
            source: "",
            defines: Vec::new(),
            architecture_specific: false,
            parameters: Vec::new(),
        })
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        (LaunchRequest::new(Dim3::ONE, Dim3::ONE), BatchAxis::new(Axis::X, 1))
    }
}

fn main() {
    let _ = Foreign;
}
