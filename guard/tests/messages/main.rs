//! The exact text of every message that a user can see.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod batches;
mod cuda_errors;
mod errors;
mod launches;
mod pipelines;
#[cfg(feature = "profile")]
mod profiles;
mod remedies;

use std::collections::BTreeSet;
use std::error::Error;

use gridguard::{
    Axis, Dim3, IndexLimit, IndexTerm, KernelLimits, LaunchLimits, LaunchRequest, Rule, Violations,
};

/// Violations and the text that they must have.
type Snapshot = (Violations, &'static str);

#[test]
fn every_violation_has_exactly_its_text() {
    for (violations, text) in snapshots() {
        assert_eq!(violations.iter().count(), text.lines().count(), "{text}");
        let (lines, shown) = (text.lines(), violations.to_string());
        let lines: Vec<_> =
            lines.zip(&violations).map(|(line, one)| format!("{line} [{}]", one.rule)).collect();
        assert_eq!(shown, lines.join("\n"));
    }
}

#[test]
fn every_rule_has_a_snapshot_with_its_text() {
    let seen: BTreeSet<Rule> = snapshots()
        .iter()
        .flat_map(|(violations, _)| violations.iter().map(|violation| violation.rule))
        .collect();
    let all: BTreeSet<Rule> = Rule::ALL.iter().copied().collect();
    let missing: Vec<_> = all.difference(&seen).map(|rule| rule.id()).collect();
    assert!(missing.is_empty(), "no snapshot of {missing:?}");
}

#[test]
fn every_violation_is_one_line_in_lower_case_without_a_full_stop() {
    for (violations, _) in snapshots() {
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

fn snapshots() -> Vec<Snapshot> {
    let mut all = launches::snapshots();
    all.extend(batches::snapshots());
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

/// Compares the text of each error. The text must not repeat the source error, because most programs print
/// both.
fn read_as(errors: &[(&dyn Error, &str)]) {
    for (error, text) in errors {
        assert_eq!(error.to_string(), *text);
        let cause = error.source().map(ToString::to_string);
        assert!(cause.is_none_or(|cause| !text.contains(&cause)), "printed twice: {text}");
    }
}
