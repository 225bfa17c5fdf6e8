//! Compares the limits of kernels.

use gridguard::{Choice, Dim3, LaunchLimits, LaunchRequest, Plan};

/// Whether all are the same kernel: a plan for one is a plan for each.
///
/// # Panics
///
/// If a launch of one thread is illegal.
pub fn are_one(kernels: &[LaunchLimits]) -> bool {
    let plan = |limits: &LaunchLimits| {
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        Plan::new(&request, None, limits, Choice::AUTOMATIC).expect("legal")
    };
    kernels.iter().all(|limits| plan(&kernels[0]).is_for(limits))
}
