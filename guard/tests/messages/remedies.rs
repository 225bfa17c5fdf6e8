//! Every remedy and every owner of a limit has a snapshot.

use std::collections::BTreeSet;

use gridguard::{Owner, Remedy};

use crate::snapshots;

const REMEDIES: [&str; 28] = [
    "AtLeastOne",
    "ChunkUnit",
    "DeclareFold",
    "FewerBlocksPerItem",
    "FewerRegisters",
    "LessLocalMemory",
    "LessSharedMemory",
    "LighterCluster",
    "LoadRewritten",
    "MatchBatch",
    "MoreMemory",
    "MoveThreads",
    "NoCluster",
    "NotCooperative",
    "NotDependent",
    "OptIn",
    "PadGrid",
    "PassByPointer",
    "RebasePointers",
    "ShrinkGrid",
    "SkipLaunch",
    "SmallerBlocks",
    "SmallerCluster",
    "SplitAxis",
    "SplitItems",
    "UseBlock",
    "UseCluster",
    "WiderIndex",
];

const OWNERS: [&str; 8] =
    ["Batch", "Cluster", "CooperativeLaunch", "Cuda", "Device", "IndexBits", "Kernel", "Memory"];

#[test]
fn every_remedy_has_a_snapshot() {
    let seen: BTreeSet<String> = snapshots()
        .into_iter()
        .flat_map(|(violations, _)| violations)
        .map(|violation| variant(&violation.remedy))
        .collect();
    assert!(seen.iter().eq(REMEDIES), "{seen:?}");
}

#[test]
fn every_owner_has_a_snapshot() {
    let seen: BTreeSet<String> = snapshots()
        .into_iter()
        .flat_map(|(violations, _)| violations)
        .map(|violation| variant(&violation.owner))
        .collect();
    assert!(seen.iter().eq(OWNERS), "{seen:?}");
}

#[test]
fn a_remedy_with_a_choice_has_a_snapshot_of_each() {
    let remedies: Vec<Remedy> = snapshots()
        .into_iter()
        .flat_map(|(violations, _)| violations)
        .map(|violation| violation.remedy)
        .collect();
    for fold in [true, false] {
        let is =
            |remedy: &Remedy| matches!(remedy, Remedy::SplitAxis { fold: f, .. } if *f == fold);
        assert!(remedies.iter().any(is), "split with fold {fold}");
    }
    for non_portable in [true, false] {
        assert!(remedies.contains(&Remedy::SmallerCluster { non_portable }));
    }
    let none = |remedy: &Remedy| match remedy {
        Remedy::FewerRegisters { threads } => *threads == 0,
        _ => false,
    };
    assert!(remedies.iter().any(none), "no threads fit");
    let none =
        |remedy: &Remedy| matches!(remedy, Remedy::LessSharedMemory { dynamic_bytes: 0, .. });
    assert!(remedies.iter().any(none), "no dynamic bytes fit");
    assert!(remedies.contains(&Remedy::LessLocalMemory { resident_threads: None }));
    assert!(remedies.contains(&Remedy::UseCluster { cluster: None }));
}

#[test]
fn owners_have_the_text_of_messages() {
    assert_eq!(Owner::Device("NVIDIA H200".into()).to_string(), "NVIDIA H200");
    assert_eq!(Owner::Kernel("attention".into()).to_string(), "kernel attention");
}

/// The name of an enum's variant.
fn variant(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    let end = text.find(|c: char| !c.is_ascii_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}
