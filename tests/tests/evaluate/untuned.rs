//! The problems whose defaults nobody tuned.

use gridguard::{DeviceLimits, Guard, KernelLimits};
use gridguard_autotune::{Space, Workload};

use crate::program::untuned::UntunedProblem;
use crate::program::untuned::host::OnHost;
use crate::program::untuned::workload::{BackEnd, UntunedWorkload};

#[test]
fn each_candidate_on_the_host_is_correct_and_a_wrong_element_is_found() {
    let guard = Guard::host(DeviceLimits::any_device());
    for problem in UntunedProblem::of_host() {
        let mut workload = UntunedWorkload::new(problem, OnHost::new(problem, &guard));
        let space = Space::new(workload.configurations().expect("configurations"));
        for candidate in space.candidates() {
            workload.prepare(candidate).expect("legal");
            workload.check(candidate).expect("correct");
        }
        assert_eq!(workload.back_end.wrong(), Ok(0));
        workload.back_end.output[77] += 1.0;
        assert_eq!(workload.back_end.wrong(), Ok(1));
    }
}

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
