//! Why a request cannot be served, or not as one launch.

use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::validate::{broken_rules, explain};
use crate::launch::violation::{Owner, Remedy, Violation, Violations};
use crate::limits::LaunchLimits;
use crate::plan::batch::{BatchAxis, INDEX_32_ELEMENTS};
use crate::plan::chunk::Chunks;

/// All violations of `request` as one launch, also those that a batch brings: index width and
/// workspace memory. Empty where the whole launch is legal.
#[must_use]
pub fn explain_whole(
    request: &LaunchRequest,
    batch: Option<&BatchAxis>,
    limits: &LaunchLimits,
) -> Violations {
    let Some(batch) = batch else {
        return explain(request, limits, broken_rules(request, limits));
    };
    if batch.blocks(batch.items()) != Some(request.grid.along(batch.axis())) {
        return batch_mismatch(request, batch);
    }
    if batch.items() == 0 {
        let (one, broken) = judge_empty(request, batch, limits);
        return explain(&one, limits, broken);
    }
    let mut violations = explain(request, limits, broken_rules(request, limits));
    push_item_violations(&mut violations, batch);
    violations
}

/// A request of which nothing is to be done, judged as if one item came, and the rules that it
/// breaks even so: a wrong block is wrong for a full batch too, and better found early.
pub(crate) fn judge_empty(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
) -> (LaunchRequest, RuleSet) {
    let blocks = batch.blocks(1).unwrap_or(1);
    let one = LaunchRequest { grid: request.grid.with(batch.axis(), blocks), ..*request };
    let broken = broken_rules(&one, limits)
        .without(Rule::grid_dim(batch.axis()))
        .without(Rule::ClusterDividesGrid);
    (one, broken)
}

#[cold]
pub(crate) fn batch_mismatch(request: &LaunchRequest, batch: &BatchAxis) -> Violations {
    let mut violations = Violations::default();
    violations.push(Violation {
        rule: Rule::BatchCoversGrid,
        axis: Some(batch.axis()),
        requested: request.grid.along(batch.axis()).into(),
        limit: batch.blocks(batch.items()).unwrap_or(u64::MAX),
        owner: Owner::Batch,
        remedy: Remedy::MatchBatch { items: batch.items() },
    });
    violations
}

#[cold]
pub(crate) fn fold_refused(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
) -> Violations {
    let mut violations = explain_whole(request, Some(batch), limits);
    let cluster = request.cluster_with(limits.kernel());
    match batch.fold(request, cluster) {
        None => violations.push(fold_unavailable()),
        // What the folded launch breaks, where the whole one does not break it already.
        Some(folded) => {
            for violation in explain(&folded, limits, broken_rules(&folded, limits)) {
                if !violations.contains(violation.rule) {
                    violations.push(violation);
                }
            }
        }
    }
    violations
}

pub(crate) fn fold_unavailable() -> Violation {
    Violation {
        rule: Rule::FoldUnavailable,
        axis: None,
        requested: 1,
        limit: 0,
        owner: Owner::Batch,
        remedy: Remedy::DeclareFold,
    }
}

#[cold]
fn push_item_violations(violations: &mut Violations, batch: &BatchAxis) {
    let items = batch.items();
    let mut report = |rule, requested: u128, limit, cap: u64, owner, hopeless| {
        let remedy = if cap == 0 {
            hopeless
        } else {
            let chunks = Chunks::balanced(items, cap, batch.unit().unwrap_or(1));
            Remedy::SplitItems { launches: chunks.launches(), items: chunks.largest() }
        };
        violations.push(Violation { rule, axis: None, requested, limit, owner, remedy });
    };
    if items > batch.index_cap() {
        let owner = Owner::IndexBits(batch.index_bits());
        let cap = batch.index_cap();
        let elements = batch.elements(items);
        report(Rule::IndexWidth, elements, INDEX_32_ELEMENTS, cap, owner, Remedy::WiderIndex);
    }
    if items > batch.workspace_cap() {
        let bytes = batch.workspace_bytes(items);
        let cap = batch.workspace_cap();
        let limit = batch.memory_bytes();
        report(Rule::WorkspaceMemory, bytes, limit, cap, Owner::Memory, Remedy::MoreMemory);
    }
}
