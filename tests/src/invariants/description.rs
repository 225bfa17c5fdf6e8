//! Launch checks: the verdict agrees with the plan, and the plan with the oracle.

use gridguard::check::{CheckRequest, Legality};
use gridguard::{Axis, BatchAxis, DeviceLimits, Plan, Strategy};
use gridguard_test_support::invariants::plans::what_is_planned_is_legal_and_what_is_refused_is_hopeless;
use gridguard_test_support::invariants::{Batch, Case, Preference};

/// The verdict agrees with the plan, which has the invariants of all plans.
pub(super) fn check(launch: &CheckRequest, device: &DeviceLimits) {
    let verdict = launch.check(device);
    assert_eq!(verdict.name, launch.name);
    match (verdict.legality, &verdict.plan) {
        (Legality::Rejected, None) => assert!(!verdict.violations.is_empty()),
        (Legality::Legal, Some(plan)) => {
            assert!(plan.len() <= 1);
            assert_eq!(plan.strategy() == Strategy::Folded, !verdict.violations.is_empty());
        }
        (Legality::Chunked, Some(plan)) => {
            assert_eq!(plan.strategy(), Strategy::Chunked);
            assert!(!verdict.violations.is_empty(), "chunked without need");
        }
        other => panic!("{other:?}"),
    }
    let text = serde_json::to_string(&verdict).expect("data");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["name"].as_str(), Some(&*launch.name));
    if let Some(plan) = &verdict.plan {
        is_listed(plan, &json["plan"]);
    }
    what_is_planned_is_legal_and_what_is_refused_is_hopeless(&case(launch, device));
}

/// The first launches are listed in order, and the rest is counted.
fn is_listed(plan: &Plan, json: &serde_json::Value) {
    let launches = json["launches"].as_array().expect("launches");
    let mut next = 0;
    for launch in launches {
        let number = |field: &str| launch[field].as_u64().expect("a number");
        assert!(number("start") == next && number("items") > 0, "{launch}");
        next += number("items");
    }
    let listed = u64::try_from(launches.len()).expect("few");
    assert_eq!(listed + json["omitted_launches"].as_u64().unwrap_or(0), plan.len());
    assert_eq!(listed == plan.len(), next == plan.items());
}

/// The launch as the oracle takes it. Without a batch it is a batch of one item on x.
fn case(launch: &CheckRequest, device: &DeviceLimits) -> Case {
    let request = launch.request;
    let whole = BatchAxis::new(Axis::X, 1).blocks_per_item(request.grid.x);
    let batch = launch.batch(device).unwrap_or(whole);
    let fields = serde_json::to_value(batch).expect("JSON");
    let number = |field: &str| fields[field].as_u64();
    let known = |field: &str| number(field).expect(field);
    let batch = Batch {
        axis: batch.axis(),
        items: batch.items(),
        share: (known("blocks_per_item"), known("items_per_block")),
        align: known("align"),
        elements: (known("index_bits") == 32).then(|| known("elements_per_item")),
        workspace: number("memory_bytes").map(|bytes| (known("workspace_bytes_per_item"), bytes)),
        foldable: fields["foldable"].as_bool().expect("known"),
    };
    let preference = Preference { most_items: None, strategy: None };
    let kernel = launch.limits(device).kernel().clone();
    Case { request, batch, preference, device: device.clone(), kernel }
}
