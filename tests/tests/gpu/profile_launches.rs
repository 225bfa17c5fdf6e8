//! Launches from a profile, and by default if it has no entry or one that is not legal.

use core::num::NonZeroU64;
use std::sync::Arc;

use gridguard::profile::{
    Document, Entry, Key, Match, MissLog, Named, Objective, Policy, Profile, Provenance,
    StoredChoice, Summary,
};
use gridguard::{Guard, Strategy};
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::temporal_attention::{Layout, Shape, TemporalAttention};
use gridguard_kernels::{ElementType, Kernels, Operation};

const ROWS: u64 = 100_000;

fn norm(rows: u64) -> RmsNorm {
    RmsNorm::new(rows, 64, ElementType::F32).expect("legal")
}

fn entry(key: Key, shape: Named, choice: StoredChoice, parameters: Named) -> Entry {
    let times = Summary { median_ns: 10, low_ns: 9, high_ns: 11, samples: 10 };
    let found = Provenance::default();
    Entry { key, shape, choice, parameters, launches: 1, chosen: times, default: times, found }
}

fn shape(operation: &impl Operation) -> Named {
    operation.sizes().into_iter().map(|(name, size)| (name.to_owned(), size)).collect()
}

/// Kernels on a guard whose profile has this entry, with its log of misses.
fn kernels(entries: impl FnOnce(&Guard) -> Vec<Entry>) -> (Kernels, Arc<MissLog>) {
    let guard = Guard::cuda(0).expect("a device");
    let (identity, environment) = (guard.identity(), guard.environment());
    let mut document = Document::new(identity.clone(), environment.clone());
    for entry in entries(&guard) {
        document.insert(entry).expect("within bounds");
    }
    let (profile, findings) = Profile::from_document(document, &identity, &environment);
    assert!(findings.is_empty(), "{findings:?}");
    let misses = Arc::new(MissLog::new(10));
    let guard = guard.with_profile(Arc::new(profile)).with_miss_log(Arc::clone(&misses));
    (Kernels::new(guard), misses)
}

fn key(operation: &impl Operation, guard: &Guard) -> Key {
    operation.key(guard.limits(), Policy::default(), Objective::default()).expect("supported")
}

fn chunks_of(items: u64) -> StoredChoice {
    StoredChoice::Chunked { max_items: NonZeroU64::new(items).expect("some") }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn an_entry_plans_launches_of_its_own_shape_and_its_neighbours_and_for_no_other() {
    let (kernels, misses) = kernels(|guard| {
        let norm = norm(ROWS);
        vec![entry(key(&norm, guard), shape(&norm), chunks_of(20_000), Named::new())]
    });
    let prepare = |rows| {
        kernels.prepare_tuned(norm(rows), Policy::default(), Objective::default()).expect("a plan")
    };
    let exact = prepare(ROWS);
    assert_eq!((exact.matched, exact.prepared.plan().len()), (Match::Exact, 5));
    let bucket = prepare(ROWS + 1);
    assert_eq!((bucket.matched, bucket.prepared.plan().len()), (Match::Bucket, 6));
    let far = prepare(10 * ROWS);
    assert!(matches!(far.matched, Match::Default(_)));
    assert_ne!(far.prepared.plan().strategy(), Strategy::Chunked);
    assert_eq!(misses.snapshot().len(), 2);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn an_entry_that_is_not_legal_here_is_a_miss_and_the_default_serves() {
    let attention = |guard: &Guard| {
        let shape = Shape::new(70_000, 1, 16, 64).expect("legal");
        let attention = TemporalAttention::new(shape, ElementType::F16, guard.limits());
        attention.expect("supported").with_layout(Layout::FoldedY)
    };
    let (kernels, _) = kernels(|guard| {
        let (attention, norm) = (attention(guard), norm(ROWS));
        vec![
            // More blocks than y has.
            entry(key(&attention, guard), shape(&attention), StoredChoice::Whole, Named::new()),
            // No such parameter.
            entry(key(&norm, guard), shape(&norm), chunks_of(7), vec![("warps".into(), 3)]),
        ]
    });
    let (policy, objective) = (Policy::default(), Objective::default());
    let attention = attention(kernels.guard());
    let tuned = kernels.prepare_tuned(attention, policy, objective).expect("the default");
    let refused = tuned.rejected.expect("whole is not legal").to_string();
    assert!(refused.contains("grid.y is 70000 blocks"), "{refused}");
    assert_eq!((tuned.matched, tuned.prepared.plan().len()), (Match::Exact, 2));
    let tuned = kernels.prepare_tuned(norm(ROWS), policy, objective).expect("the default");
    assert!(tuned.rejected.expect("no such parameter").to_string().contains("warps"));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn without_a_profile_the_default_serves_and_says_so() {
    let kernels = Kernels::new(Guard::cuda(0).expect("a device"));
    let tuned = kernels.prepare_tuned(norm(ROWS), Policy::default(), Objective::default());
    let tuned = tuned.expect("the default");
    assert_eq!(tuned.matched.to_string(), "default, because no profile is loaded: load one");
    assert!(tuned.rejected.is_none());
}
