//! The entries of the shipped profiles are those that the kernels look up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::HashSet;
use std::fs;

use gridguard::profile::{Document, Entry};
use gridguard::{DeviceLimits, Plan, catalog};
use gridguard_problems::Problem;

/// The shipped profiles, each with the limits of its device.
fn profiles() -> Vec<(DeviceLimits, Document)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench-data/profiles");
    let files = fs::read_dir(folder).expect("the folder of shipped profiles");
    let read = |path| {
        let text = fs::read_to_string(path).expect("a profile");
        let parsed = Document::parse(&text).expect("valid");
        assert!(parsed.faults.is_empty(), "{:?}", parsed.faults);
        let gpu = catalog::gpu(&parsed.document.device().name).expect("in the catalogue");
        (DeviceLimits::clone(&gpu.limits), parsed.document)
    };
    files.map(|file| read(file.expect("a file").path())).collect()
}

/// The problem that an entry was measured for.
fn problem(Entry { key, shape, .. }: &Entry) -> Problem {
    let sizes: Vec<String> = shape.iter().map(|(_, size)| size.to_string()).collect();
    Problem::new(&key.kernel, &key.dtypes, &sizes.join("x")).expect("a kernel of this workspace")
}

#[test]
fn every_entry_has_the_key_and_the_sizes_of_its_problem() {
    for (device, profile) in profiles() {
        for entry in profile.entries() {
            let problem = problem(entry);
            let key = problem.key(&device, entry.key.policy, entry.key.objective);
            assert_eq!(key.expect("supported"), entry.key, "{problem}");
            assert_eq!(problem.shape(), entry.shape, "{problem}");
        }
    }
}

#[test]
fn every_entry_has_launch_parameters_and_a_choice_that_its_kernel_takes() {
    for (device, profile) in profiles() {
        for entry in profile.entries() {
            let problem = problem(entry);
            let setup = problem.setup(&device, &entry.parameters).expect("supported");
            // The kernel may have more parameters since, which are then at their defaults.
            for parameter in &entry.parameters {
                assert!(setup.parameters.contains(parameter), "{problem}: {parameter:?}");
            }
            let (request, batch) = (&setup.request, Some(&setup.batch));
            let plan = Plan::new(request, batch, &setup.limits, entry.choice.into());
            let launches = plan.expect("legal").len();
            assert!(entry.is_confirmed() || launches == entry.launches, "{problem}");
        }
    }
}

#[test]
fn an_entry_beats_the_default_or_confirms_it() {
    for (device, profile) in profiles() {
        for entry in profile.entries() {
            assert!(!entry.gains_nothing(), "{}: {}", device.name, problem(entry));
        }
    }
}

#[test]
fn every_shipped_problem_has_an_entry_in_one_profile_and_no_profile_has_others() {
    let expected: HashSet<Problem> = Problem::shipped().iter().copied().collect();
    let names =
        |problems: Vec<&Problem>| problems.into_iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut all = HashSet::new();
    for (device, profile) in profiles() {
        let known: HashSet<Problem> = profile.entries().iter().map(problem).collect();
        let unexpected = names(known.difference(&expected).collect());
        assert!(unexpected.is_empty(), "{}: {unexpected:?}", device.name);
        all.extend(known);
    }
    // A kernel may have changed since a card was tuned.
    let missing = names(expected.difference(&all).collect());
    assert!(missing.is_empty(), "{missing:?}");
}
