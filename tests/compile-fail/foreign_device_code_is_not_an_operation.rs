//! Only the kernels of `gridguard-kernels` are operations, because it vouches for their device code.

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest};
use gridguard_kernels::{Code, KernelError, Operation};

struct Foreign;

impl Operation for Foreign {
    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        unimplemented!()
    }

    fn request(&self) -> LaunchRequest {
        LaunchRequest::new(Dim3::ONE, Dim3::ONE)
    }

    fn batch(&self) -> BatchAxis {
        BatchAxis::new(Axis::X, 1)
    }
}

fn main() {
    let _ = Foreign;
}
