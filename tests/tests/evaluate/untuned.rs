//! The problems whose defaults nobody tuned.

use gridguard::{DeviceLimits, Guard, KernelLimits};
use gridguard_autotune::Space;

use crate::program::untuned::UntunedProblem;

#[test]
fn problems_of_devices_fill_128_mib_and_have_several_launch_parameters() {
    for problem in UntunedProblem::of_device() {
        let bytes = problem.elements() * 4;
        assert!((120 << 20..=128 << 20).contains(&bytes), "{problem}: {bytes} bytes");
        let parameters = problem.parameters();
        assert!(parameters.len() >= 15, "{problem}");
        let guard = Guard::host(DeviceLimits::any_device());
        let limits = || guard.limits_for(KernelLimits::unknown("k"));
        let configurations = parameters.into_iter().map(|set| problem.configuration(set, limits()));
        let space = Space::new(configurations.collect());
        assert!(space.candidates().len() >= 15, "{problem}");
    }
}
