//! Launches that are planned as the guard's profile says.
#![allow(unsafe_code, reason = "cudarc's launches are unsafe")]

use core::num::NonZeroU64;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::cuda::Kernel;
use gridguard::profile::{
    Document, Entry, Environment, Key, MatchKind, MissLog, Profile, StoredChoice,
};
use gridguard::{Axis, BatchAxis, Guard};
use gridguard_test_support::allocator::allocations_of;
use gridguard_test_support::fake_driver::{launches, with_fake};

use crate::kernels::{
    config, context, function, guard, iota, iota_launches, items_along, kernel, launch_iota,
    poisoned, read,
};

fn key() -> Key {
    Key { kernel: "iota".into(), dtypes: "u64".into(), ..Key::default() }
}

pub(crate) fn entry(items: u64, columns: u64, choice: StoredChoice) -> Entry {
    Entry {
        key: key(),
        shape: vec![("items".into(), items), ("columns".into(), columns)],
        choice,
        launches: 1,
        ..Entry::default()
    }
}

fn chunks_of(items: u64) -> StoredChoice {
    StoredChoice::Chunked { max_items: NonZeroU64::new(items).expect("not zero") }
}

/// A guard with a profile of `entries` and a miss log.
pub(crate) fn guard_with(entries: impl IntoIterator<Item = Entry>) -> Guard {
    let guard = guard();
    let (identity, environment) = (guard.identity(), Environment::default());
    let mut document = Document::new(identity.clone(), environment.clone());
    for entry in entries {
        document.insert(entry).expect("within bounds");
    }
    let (profile, _) = Profile::from_document(document, &identity, &environment);
    guard.with_profile(Arc::new(profile)).with_miss_log(Arc::new(MissLog::new(10)))
}

/// The kernel `fake_iota_y`, tuned for rows of `columns` columns.
fn tuned(guard: &Guard, columns: u64) -> Kernel {
    kernel(guard, "fake_iota_y").with_tuning(key(), "items", &[("columns", columns)])
}

/// Launches `kernel` over `items` items, and returns the number of launches.
fn launch(guard: &Guard, kernel: &Kernel, items: u64) -> u64 {
    let stream = context(guard).new_stream().expect("a stream");
    let (request, batch) = items_along(Axis::Y, items);
    iota_launches(guard, kernel, (&request, &batch), &stream, items)
}

#[test]
fn a_tuned_launch_builder_is_planned_by_the_profile() {
    with_fake(&[], || {
        let guard = guard_with([entry(1000, 64, chunks_of(250))]);
        let stream = context(&guard).new_stream().expect("a stream");
        let (function, key) = (function(context(&guard), "fake_iota_y"), key());
        for (columns, launches) in [(64, 4), (128, 1)] {
            let mut out = poisoned(&stream, 1000);
            let mut launch = guard.builder(&stream, &function);
            launch.tuned(&key, "items", &[("columns", columns)]);
            launch.batch(BatchAxis::new(Axis::Y, 1000));
            launch.write_items(&mut out, 1).offset().length();
            // SAFETY: the function takes these three.
            let launched = unsafe { launch.launch(config((1, 1000, 1), 128)) }.expect("legal");
            assert_eq!(launched, launches, "{columns} columns");
            assert_eq!(read(&stream, &out), iota(1000));
        }
        // The other shape is logged: the profile was asked at each launch.
        assert_eq!(guard.misses().expect("it has one").snapshot().len(), 1);
    });
}

#[test]
fn a_tuned_kernel_is_planned_by_the_profile_where_there_is_one() {
    with_fake(&[], || {
        let guard = guard_with([entry(1000, 64, chunks_of(250))]);
        assert_eq!(launch(&guard, &tuned(&guard, 64), 1000), 4);
        assert_eq!(launch(&guard, &kernel(&guard, "fake_iota_y"), 1000), 1);
        assert_eq!(launches().len(), 5);
        assert!(guard.misses().expect("it has one").snapshot().is_empty());
        let guard = crate::kernels::guard();
        assert_eq!(launch(&guard, &tuned(&guard, 64), 1000), 1, "no profile");
    });
}

#[test]
fn a_shape_that_was_not_tuned_is_planned_by_default_and_logged() {
    with_fake(&[], || {
        let guard = guard_with([entry(1000, 64, chunks_of(250))]);
        assert_eq!(launch(&guard, &tuned(&guard, 4096), 1000), 1);
        let missed = guard.misses().expect("it has one").snapshot();
        let [missed] = missed.as_slice() else { panic!("{missed:?}") };
        let shape = [("items".to_owned(), 1000), ("columns".to_owned(), 4096)];
        assert_eq!((missed.shape.as_slice(), missed.served), (&shape[..], MatchKind::Default));
    });
}

#[test]
fn a_stored_choice_that_is_not_legal_is_reported_and_the_planner_chooses() {
    with_fake(&[], || {
        // One launch of 70,000 blocks on y.
        let guard = guard_with([entry(70_000, 64, StoredChoice::Whole)]);
        let launch = || assert_eq!(launch(&guard, &tuned(&guard, 64), 70_000), 2);
        #[cfg(not(all(feature = "tracing", feature = "metrics")))]
        launch();
        #[cfg(all(feature = "tracing", feature = "metrics"))]
        {
            let (events, numbers) = crate::observed::observe(launch);
            let message = "the profile's choice is not legal here: the planner chooses";
            let told = events.iter().filter(|event| event["fields"]["message"] == message);
            assert_eq!(told.count(), 1, "{events:?}");
            assert_eq!(numbers.get("gridguard_profile_lookups_total exact"), Some(&1));
        }
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches, counts.rejections), (1, 2, Vec::new()));
    });
}

#[test]
fn a_tuned_launch_allocates_nothing() {
    with_fake(&[], || {
        let guard = guard_with([entry(1000, 64, chunks_of(250))]);
        let kernel = tuned(&guard, 64);
        let stream = context(&guard).default_stream();
        let mut out = poisoned(&stream, 1000);
        let mut launch = |stream: &CudaStream| {
            let (request, batch) = items_along(Axis::Y, 1000);
            launch_iota(&guard, &kernel, (&request, &batch), stream, &mut out)
        };
        launch(&stream).expect("legal");
        let (launched, allocations) = allocations_of(|| launch(&stream));
        assert_eq!((launched, allocations), (Ok(4), 0));
    });
}
