//! What was validated stays as it was validated.

use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, validate};

fn main() {
    let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
    let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
    let mut launch = validate(&request, &limits).unwrap();
    launch.grid = [1, 76_800, 1];
}
