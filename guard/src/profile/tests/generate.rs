//! Strategies for arbitrary documents.

use core::num::NonZeroU64;
use std::time::{Duration, UNIX_EPOCH};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::super::*;
use super::{device, environment};

/// Mostly plain names, sometimes arbitrary strings.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![8 => "[a-z0-9_ .:-]{1,12}", 1 => "\\PC{1,8}", 1 => any::<[char; 3]>().prop_map(String::from_iter)]
}

/// The first size, which counts the items, is at least 1; the others may be 0.
fn shape() -> impl Strategy<Value = Named> {
    (named(prop_oneof![1 => Just(0), 8 => any::<u64>()]), 1..=u64::MAX).prop_map(
        |(mut shape, items)| {
            shape.iter_mut().take(1).for_each(|(_, size)| *size = items);
            shape
        },
    )
}

fn named(sizes: impl Strategy<Value = u64>) -> impl Strategy<Value = Named> {
    btree_map(name(), sizes, 1..4).prop_map(|named| named.into_iter().collect())
}

fn policy() -> impl Strategy<Value = Policy> {
    let l2 = prop_oneof![Just(L2::Cold), Just(L2::Hot)];
    let submission = prop_oneof![Just(Submission::Eager), Just(Submission::Graph)];
    (l2, submission).prop_map(|(l2, submission)| Policy { l2, submission })
}

fn objective() -> impl Strategy<Value = Objective> {
    prop_oneof![
        Just(Objective::Throughput),
        any::<u64>().prop_map(|max_launch_us| Objective::Latency { max_launch_us }),
        any::<(u64, u64)>()
            .prop_map(|(bytes_per_item, bytes)| Objective::Memory { bytes_per_item, bytes }),
    ]
}

fn choice() -> impl Strategy<Value = StoredChoice> {
    prop_oneof![
        Just(StoredChoice::Automatic),
        Just(StoredChoice::Whole),
        Just(StoredChoice::Folded),
        (1..=u64::MAX).prop_map(|items| StoredChoice::Chunked {
            max_items: NonZeroU64::new(items).expect("at least 1"),
        }),
    ]
}

fn summary() -> impl Strategy<Value = Summary> {
    any::<(u64, u64, u64, u64)>().prop_map(|(median_ns, low_ns, high_ns, samples)| Summary {
        median_ns,
        low_ns,
        high_ns,
        samples,
    })
}

fn provenance() -> impl Strategy<Value = Provenance> {
    let stopped = prop_oneof![
        Just(StopReason::Precise),
        Just(StopReason::Noise),
        Just(StopReason::Ceiling),
        Just(StopReason::Timeout),
    ];
    // Every second until 2026.
    let date = prop_oneof![Just(None), (0..1_767_225_600_u64).prop_map(Some)];
    (vec(name(), 4), date, any::<[u64; 3]>(), stopped).prop_map(
        |(texts, date, numbers, stopped)| {
            let [candidates, failed, samples] = numbers;
            let [driver, compiler, tuner, tolerance] =
                <[String; 4]>::try_from(texts).expect("four");
            let date = date.map_or(String::new(), |seconds| {
                let then = UNIX_EPOCH + Duration::from_secs(seconds);
                humantime::format_rfc3339_seconds(then).to_string()
            });
            Provenance {
                date,
                driver,
                compiler,
                tuner,
                candidates,
                failed,
                samples,
                stopped,
                tolerance,
                attained_percent: samples % 101,
            }
        },
    )
}

prop_compose! {
    pub(super) fn keys()(
        kernel in name(),
        source in "[0-9a-f]{0,64}",
        variant in name(),
        dtypes in name(),
        policy in policy(),
        objective in objective(),
    ) -> Key {
        Key { kernel, source, variant, dtypes, policy, objective }
    }
}

prop_compose! {
    pub(super) fn entries()(
        key in keys(),
        shape in shape(),
        choice in choice(),
        parameters in prop_oneof![Just(Named::new()), named(any::<u64>())],
        launches in any::<u64>(),
        chosen in summary(),
        default in summary(),
        found in provenance(),
        is_confirmed in prop::bool::weighted(0.25),
    ) -> Entry {
        if is_confirmed {
            return Entry::confirmed(key, shape, found.date);
        }
        Entry { key, shape, choice, parameters, launches, chosen, default, found }
    }
}

pub(super) fn documents() -> impl Strategy<Value = Document> {
    let processor = (name(), any::<u64>()).prop_map(|(name, threads)| Processor { name, threads });
    let processor = prop_oneof![Just(None), processor.prop_map(Some)];
    (vec(entries(), 0..6), vec(name(), 0..3), processor).prop_map(
        |(entries, aliases, processor)| {
            let device = DeviceIdentity { processor, ..device() };
            let mut document = Document::new(device, environment()).with_aliases(aliases);
            for entry in entries {
                document.insert(entry).expect("within the limits");
            }
            document
        },
    )
}

/// Documents that often have entries of the same key and shape.
pub(super) fn overlapping() -> impl Strategy<Value = Document> {
    let entry =
        (0..3_u64, 0..2_u64, 0..3_u64, summary()).prop_map(|(rows, kernel, date, chosen)| {
            let kernel = if kernel == 0 { "copy" } else { "sum" };
            let mut entry = super::entry(kernel, rows + 1, 1);
            entry.found.date = format!("2026-11-2{date}T12:00:00Z");
            entry.chosen = Summary { samples: chosen.samples % 3, ..chosen };
            match chosen.high_ns % 4 {
                0 => Entry::confirmed(entry.key, entry.shape, entry.found.date),
                _ => entry,
            }
        });
    let environment = prop_oneof![Just("12.9"), Just("13.0")];
    (vec(entry, 0..6), environment, vec(name(), 0..2)).prop_map(|(entries, driver, aliases)| {
        let environment = Environment { driver: driver.into(), ..super::environment() };
        let mut document = Document::new(device(), environment).with_aliases(aliases);
        for entry in entries {
            document.insert(entry).expect("within the limits");
        }
        document
    })
}
