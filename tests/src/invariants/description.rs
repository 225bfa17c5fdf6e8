//! A described launch and the verdict on it.

use gridguard::check::{LaunchDescription, Outcome, PlanRecord};
use gridguard::{DeviceLimits, Strategy};
use gridguard_test_support::invariants::plans::what_is_planned_is_legal_and_what_is_refused_is_hopeless;
use gridguard_test_support::invariants::{Batch, Case, Preference};

/// The verdict is that of the plan, which keeps to all that plans keep to; or the description
/// contradicts itself.
pub(super) fn check(description: &LaunchDescription, device: &DeviceLimits) {
    let contradicts = description.batch.is_some_and(|batch| {
        batch.blocks_per_item == 0 || batch.align == 0 || ![32, 64].contains(&batch.index_bits)
    });
    let verdict = match description.check(device) {
        Ok(verdict) => verdict,
        Err(error) => return assert!(contradicts, "{error}"),
    };
    assert!(!contradicts, "{description:?}");
    assert_eq!(verdict.name, description.name);
    match (verdict.outcome, &verdict.plan) {
        (Outcome::Rejected, None) => assert!(!verdict.violations.is_empty()),
        (Outcome::Legal, Some(plan)) => {
            assert!(plan.len() <= 1);
            assert_eq!(plan.strategy == Strategy::Folded, !verdict.violations.is_empty());
        }
        (Outcome::Chunked, Some(plan)) => {
            assert_eq!(plan.strategy, Strategy::Chunked);
            assert!(!verdict.violations.is_empty(), "chunked without need");
        }
        other => panic!("{other:?}"),
    }
    if let Some(plan) = &verdict.plan {
        is_exact(plan, description.batch.map_or(1, |batch| batch.items));
    }
    let text = serde_json::to_string(&verdict).expect("data");
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(told["name"].as_str(), Some(&*description.name));
    what_is_planned_is_legal_and_what_is_refused_is_hopeless(&case(description, device));
}

fn is_exact(plan: &PlanRecord, items: u64) {
    let mut next = 0;
    for launch in &plan.launches {
        assert!(launch.start == next && launch.items > 0, "{launch:?}");
        next += launch.items;
    }
    assert_eq!(plan.omitted_launches == 0, next == items);
    assert_eq!(plan.is_empty(), items == 0);
}

/// The description as the oracle takes it. Without a batch it is a batch of one item on x.
fn case(description: &LaunchDescription, device: &DeviceLimits) -> Case {
    let (request, limits) = (description.request(), description.limits(device));
    let batch = description.batch.map(|batch| Batch {
        axis: batch.axis,
        items: batch.items,
        share: (batch.blocks_per_item, 1),
        align: batch.align,
        elements: (batch.index_bits == 32).then_some(batch.elements_per_item),
        workspace: (batch.workspace_bytes_per_item > 0).then(|| {
            (batch.workspace_bytes_per_item, batch.memory_bytes.unwrap_or(device.memory_bytes))
        }),
        foldable: false,
    });
    let batch = batch.unwrap_or(Batch {
        axis: gridguard::Axis::X,
        items: 1,
        share: (request.grid.x, 1),
        align: 1,
        elements: None,
        workspace: None,
        foldable: false,
    });
    let preference = Preference { most_items: None, strategy: None };
    Case { request, batch, preference, device: device.clone(), kernel: limits.kernel().clone() }
}
