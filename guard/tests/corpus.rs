//! The catalogue's data: launches from issue reports get the expected verdicts, and the limits of every
//! GPU are plausible.

use std::collections::BTreeSet;

use gridguard::catalog::{gpu, gpus};
use gridguard::check::Legality;
use gridguard::{ComputeCapability, DeviceLimits, Dim3, explain};
use gridguard_test_support::corpus;

#[test]
fn every_reported_launch_gets_its_expected_verdict_under_h200_limits() {
    let h200 = &gpu("h200").expect("in the catalogue").limits;
    let mut wrong = Vec::new();
    for row in corpus() {
        let verdict = row.request.check(h200);
        let limits = row.request.limits(h200);
        let batch = row.request.batch(h200);
        let whole = explain(&row.request.request, batch.as_ref(), &limits);
        let rules: BTreeSet<&str> = whole.iter().map(|violation| violation.rule.id()).collect();
        let launches = verdict.plan.map_or(0, |plan| plan.len());
        let got = (verdict.legality, rules.into_iter().map(str::to_owned).collect(), launches);
        let expected = &row.expect;
        let wanted = (expected.verdict, expected.rules.clone(), expected.launches);
        if got != wanted {
            wrong.push(format!("{}: got {got:?}, expected {wanted:?}", row.request.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_corpus_has_every_verdict_and_names_each_launch_once() {
    let rows = corpus();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.request.name.as_str()).collect();
    assert_eq!(names.len(), rows.len(), "two launches of one name");
    assert!(!names.contains(""), "a launch without a name");
    for legality in [Legality::Legal, Legality::Chunked, Legality::Rejected] {
        let rows = rows.iter().filter(|row| row.expect.verdict == legality).count();
        assert!(rows >= 3, "{rows} launches are {legality:?}");
    }
    for row in rows {
        assert!(row.report.contains('#'), "{}: {}", row.request.name, row.report);
        assert!(row.expect.rules.is_sorted(), "{}", row.request.name);
    }
}

#[test]
fn the_plan_of_each_chunked_launch_covers_its_batch() {
    let h200 = &gpu("h200").expect("in the catalogue").limits;
    let rows = corpus();
    for row in rows.iter().filter(|row| row.expect.verdict == Legality::Chunked) {
        let name = &row.request.name;
        let items = row.request.batch.expect("it has a batch").items();
        let plan = row.request.check(h200).plan.expect("it is planned");
        let mut next = 0;
        for chunk in plan.chunks() {
            assert_eq!(chunk.start, next, "{name}");
            next += chunk.items;
        }
        assert_eq!(next, items, "{name}");
    }
}

#[test]
fn the_limits_of_every_gpu_are_plausible() {
    for gpu in gpus().expect("the catalogue parses") {
        let limits = &gpu.limits;
        let name = &limits.name;
        assert_eq!(limits.max_grid, Dim3::new(2_147_483_647, 65_535, 65_535), "{name}");
        assert_eq!(limits.max_block, Dim3::new(1024, 1024, 64), "{name}");
        assert_eq!((limits.max_threads_per_block, limits.warp_size), (1024, 32), "{name}");
        registers_are_plausible(limits);
        shared_memory_is_plausible(limits);
        features_are_plausible(limits);
        let threads = limits.max_threads_per_multiprocessor;
        assert!([1024, 1536, 2048].contains(&threads), "{name}: {threads}");
        let blocks = limits.max_blocks_per_multiprocessor;
        assert!((16..=32).contains(&blocks), "{name}: {blocks}");
        let processors = limits.multiprocessors;
        assert!((1..=256).contains(&processors), "{name}: {processors}");
        let gib = limits.memory_bytes >> 30;
        assert!((1..=400).contains(&gib), "{name}: {gib} GiB");
        let known_l2 = limits.l2_bytes > 0;
        assert!(!known_l2 || (1 << 19..=1 << 28).contains(&limits.l2_bytes), "{name}");
        let gb_per_second = gpu.memory_bytes_per_second / 1_000_000_000;
        assert!((50..=30_000).contains(&gb_per_second), "{name}: {gb_per_second} GB/s");
    }
}

fn registers_are_plausible(limits: &DeviceLimits) {
    let name = &limits.name;
    assert_eq!(limits.register_allocation_unit, 256, "{name}");
    // 6.0 has two partitions in a multiprocessor, the others four.
    let partitions = if limits.compute_capability == ComputeCapability::new(6, 0) { 2 } else { 4 };
    assert_eq!(limits.warp_allocation_granularity, partitions, "{name}");
    assert!(limits.max_registers_per_block <= limits.registers_per_multiprocessor, "{name}");
    // 32 registers for each thread of the largest block.
    assert!(limits.max_registers_per_block >= 32 * 1024, "{name}");
}

fn shared_memory_is_plausible(limits: &DeviceLimits) {
    let name = &limits.name;
    assert_eq!(limits.max_shared_bytes_per_block, 49_152, "{name}");
    let opt_in = limits.max_shared_bytes_per_block_opt_in;
    assert!(opt_in >= limits.max_shared_bytes_per_block, "{name}");
    let with_reserve = opt_in + limits.reserved_shared_bytes_per_block;
    assert!(with_reserve <= limits.shared_bytes_per_multiprocessor, "{name}");
    // From 8.0 on the system reserves 1 KiB of each block.
    let reserved = if limits.compute_capability >= ComputeCapability::new(8, 0) { 1024 } else { 0 };
    assert_eq!(limits.reserved_shared_bytes_per_block, reserved, "{name}");
}

fn features_are_plausible(limits: &DeviceLimits) {
    let name = &limits.name;
    let from = |major| limits.compute_capability >= ComputeCapability::new(major, 0);
    assert_eq!(limits.cooperative_launch, from(6), "{name}");
    assert_eq!(limits.cluster_launch, from(9), "{name}");
    assert_eq!(limits.max_portable_cluster_blocks, if from(9) { 8 } else { 0 }, "{name}");
    assert_eq!(limits.max_parameter_bytes, if from(7) { 32_764 } else { 4096 }, "{name}");
}

#[test]
fn no_gpu_has_lower_limits_than_the_generic_device() {
    let fields = |limits: &DeviceLimits| match serde_json::to_value(limits) {
        Ok(serde_json::Value::Object(fields)) => fields,
        other => panic!("{other:?}"),
    };
    let least = DeviceLimits::any_device();
    let of_least = fields(&least);
    for gpu in gpus().expect("the catalogue parses") {
        let (name, limits) = (&gpu.limits.name, fields(&gpu.limits));
        assert!(gpu.limits.compute_capability >= least.compute_capability, "{name}");
        for axis in gridguard::Axis::ALL {
            assert!(gpu.limits.max_grid.along(axis) >= least.max_grid.along(axis), "{name}");
            assert!(gpu.limits.max_block.along(axis) >= least.max_block.along(axis), "{name}");
        }
        // The fewer partitions a multiprocessor has, the fewer warps a block is rounded up to.
        for (field, least) in &of_least {
            let is_less = limits[field].as_u64() < least.as_u64();
            assert!(!is_less || field == "warp_allocation_granularity", "{name}: {field}");
        }
    }
}
