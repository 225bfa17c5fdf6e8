//! Explains why a request is not legal as one launch, or cannot be split.

use crate::launch::explain::violations;
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, RuleSet};
use crate::launch::validate::{broken_rules, validate};
use crate::launch::violation::{Owner, Remedy, Violation, Violations};
use crate::limits::launch::LaunchLimits;
use crate::limits::occupancy::OccupancyLimits;
use crate::plan::batch::{BatchAxis, INDEX_32_ELEMENTS};
use crate::plan::choice::Strategy;
use crate::plan::chunks::Chunks;

/// All violations of `request` as one launch, including the rules of its batch: index width and workspace memory. Empty
/// if the unsplit launch is legal.
#[must_use]
pub fn explain(
    request: &LaunchRequest,
    batch: Option<&BatchAxis>,
    limits: &LaunchLimits,
) -> Violations {
    match batch {
        Some(batch) if !batch.covers(request) => batch_mismatch(request, batch),
        Some(batch) if batch.items() == 0 => {
            let (one_item, broken) = check_empty(request, batch, limits);
            violations(&one_item, limits, &OccupancyLimits::UNKNOWN, broken)
        }
        _ => {
            let mut violations = validate(request, limits).err().unwrap_or_default();
            if let Some(batch) = batch {
                if violations.contains(Rule::IndexWrap) {
                    let cap = batch.item_cap().min(batch.items_by_index(request, limits));
                    let remedy = split_items(batch, cap).unwrap_or(Remedy::WiderIndex);
                    violations.set_remedy(Rule::IndexWrap, &remedy);
                }
                push_item_violations(&mut violations, batch);
            }
            violations
        }
    }
}

/// The request for one item of an empty batch, and the rules that it breaks: a wrong block is wrong
/// for a full batch too, and better found early.
pub(crate) fn check_empty(
    request: &LaunchRequest,
    batch: &BatchAxis,
    limits: &LaunchLimits,
) -> (LaunchRequest, RuleSet) {
    let blocks = batch.blocks(1).unwrap_or(1);
    let one_item = LaunchRequest { grid: request.grid.with(batch.axis(), blocks), ..*request };
    let broken = broken_rules(&one_item, limits, &OccupancyLimits::UNKNOWN)
        .without(Rule::grid_dim(batch.axis()))
        .without(Rule::CooperativeResidency)
        .without(Rule::ClusterDividesGrid);
    (one_item, broken)
}

#[cold]
pub(crate) fn batch_mismatch(request: &LaunchRequest, batch: &BatchAxis) -> Violations {
    let (axis, blocks) = (batch.axis(), batch.blocks(batch.items()).unwrap_or(u64::MAX));
    let remedy = Remedy::MatchBatch { items: batch.items() };
    let along = request.grid.along(axis).into();
    let mismatch = reason(Rule::BatchCoversGrid, along, blocks, Owner::Batch, remedy);
    let mut violations = Violations::of_request(request);
    violations.push(Violation { axis: Some(axis), ..mismatch });
    violations
}

/// As [`explain`], with the reason why the launch cannot be changed into legal ones.
#[cold]
pub(crate) fn explain_with(
    request: &LaunchRequest,
    batch: Option<&BatchAxis>,
    limits: &LaunchLimits,
    reason: Violation,
) -> Violations {
    let mut violations = explain(request, batch, limits);
    violations.push(reason);
    violations
}

/// Why `request` cannot be launched by `strategy`, or not as one launch.
#[cold]
pub(crate) fn explain_strategy(
    request: &LaunchRequest,
    batch: Option<&BatchAxis>,
    limits: &LaunchLimits,
    strategy: Option<Strategy>,
) -> Violations {
    let mut violations = explain(request, batch, limits);
    if violations.contains(Rule::IndexWrap) {
        // No strategy changes the indices, except that chunks of a batch begin at 0.
        return violations;
    }
    let folded = batch.and_then(|batch| batch.fold(request, limits.kernel()));
    match (strategy, folded) {
        (Some(Strategy::Shifted), _) => {
            let owner = Owner::Kernel(limits.kernel().name.clone());
            violations.push(reason(Rule::ShiftUnavailable, 1, 0, owner, Remedy::LoadRewritten));
        }
        (Some(Strategy::Folded), None) => violations.push(fold_unavailable()),
        // The rules that only the folded launch breaks.
        (Some(Strategy::Folded), Some(folded)) => {
            for violation in validate(&folded, limits).err().unwrap_or_default() {
                if !violations.contains(violation.rule) {
                    violations.push(violation);
                }
            }
        }
        _ => {}
    }
    violations
}

pub(crate) fn fold_unavailable() -> Violation {
    reason(Rule::FoldUnavailable, 1, 0, Owner::Batch, Remedy::DeclareFold)
}

pub(crate) fn split_cooperative(launches: u64) -> Violation {
    let (owner, remedy) = (Owner::CooperativeLaunch, Remedy::ShrinkGrid);
    reason(Rule::SplitCooperative, launches.into(), 1, owner, remedy)
}

/// A violation without an axis.
pub(crate) fn reason(
    rule: Rule,
    requested: u128,
    limit: u64,
    owner: Owner,
    remedy: Remedy,
) -> Violation {
    Violation { rule, axis: None, requested, limit, owner, remedy }
}

/// Chunks of at most `cap` items, if one item fits.
fn split_items(batch: &BatchAxis, cap: u64) -> Option<Remedy> {
    let chunks =
        (cap > 0).then(|| Chunks::balanced(batch.items(), cap, batch.unit().unwrap_or(1)))?;
    Some(Remedy::SplitItems { launches: chunks.launches(), items: chunks.largest() })
}

#[cold]
fn push_item_violations(violations: &mut Violations, batch: &BatchAxis) {
    let items = batch.items();
    let mut report = |rule, requested: u128, limit, cap: u64, owner, not_one_item| {
        let remedy = split_items(batch, cap).unwrap_or(not_one_item);
        violations.push(reason(rule, requested, limit, owner, remedy));
    };
    let (index_cap, workspace_cap) = (batch.index_cap(), batch.workspace_cap());
    if items > index_cap {
        let (elements, owner) = (batch.elements(items), Owner::IndexBits(batch.index_bits));
        report(Rule::IndexWrap, elements, INDEX_32_ELEMENTS, index_cap, owner, Remedy::WiderIndex);
    }
    if items > workspace_cap {
        let (bytes, limit) = (batch.workspace_bytes(items), batch.memory_bytes());
        let (owner, remedy) = (Owner::Memory, Remedy::MoreMemory);
        report(Rule::WorkspaceMemory, bytes, limit, workspace_cap, owner, remedy);
    }
}
