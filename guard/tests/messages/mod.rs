//! The exact text of every message that a user can see.

mod batches;
mod cuda_errors;
mod errors;
mod launches;
mod profiles;

use std::collections::BTreeSet;

use expect_test::expect_file;
use gridguard::{
    Axis, Dim3, IndexLimit, IndexTerm, KernelLimits, LaunchLimits, LaunchRequest, Rule, Violations,
};
use gridguard_test_support::check_messages;

#[test]
fn every_message_has_exactly_its_text() {
    let violations = |all: Vec<Violations>| all.iter().map(ToString::to_string).collect();
    let mut sections = vec![
        ("violations of a launch", violations(launches::violations())),
        ("violations of a batch", violations(batches::violations())),
    ];
    sections.extend(errors::sections());
    sections.extend(cuda_errors::sections());
    sections.extend(profiles::sections());
    check_messages(&expect_file!["messages.txt"], &sections);
}

#[test]
fn every_rule_has_a_snapshot_with_its_text() {
    let seen: BTreeSet<Rule> = all_violations()
        .iter()
        .flat_map(|violations| violations.iter().map(|violation| violation.rule))
        .collect();
    let all: BTreeSet<Rule> = Rule::ALL.iter().copied().collect();
    let missing: Vec<_> = all.difference(&seen).map(|rule| rule.id()).collect();
    assert!(missing.is_empty(), "no snapshot of {missing:?}");
}

#[test]
fn every_violation_is_one_line_in_lower_case_without_a_full_stop() {
    for violations in all_violations() {
        for violation in &violations {
            let text = violation.to_string();
            assert!(
                text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()),
                "{text}"
            );
            assert!(!text.ends_with('.') && !text.contains('\n'), "{text}");
            assert!(text.contains(": "), "no remedy: {text}");
        }
    }
}

fn all_violations() -> Vec<Violations> {
    let mut all = launches::violations();
    all.extend(batches::violations());
    all
}

/// The limits of a kernel called `attention` on an NVIDIA H200.
fn on_h200(change: impl FnOnce(&mut KernelLimits)) -> LaunchLimits {
    let mut kernel = KernelLimits::unknown("attention");
    change(&mut kernel);
    let gpu = gridguard::catalog::gpu("h200").expect("catalogued");
    LaunchLimits::new(gpu.limits.clone(), kernel)
}

/// Each row of blocks adds 65,536 to an index.
fn by_row(kernel: &mut KernelLimits) {
    let row = IndexTerm { factor: 65_536, grid: [0, 1, 0], block: [0; 3] };
    let terms = vec![row, IndexTerm { factor: -65_536, ..IndexTerm::default() }];
    kernel.index = vec![IndexLimit { terms, most: 2_147_483_647 }];
}

/// One block of one thread, with `blocks` blocks along `axis`.
fn blocks_along(axis: Axis, blocks: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::ONE.with(axis, blocks), Dim3::ONE)
}
