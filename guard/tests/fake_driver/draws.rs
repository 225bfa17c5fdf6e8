//! The generator of the comparison with a driver draws launches of every kind.

use std::collections::BTreeMap;

use gridguard::{
    Axis, Dim3, KernelLimits, LaunchLimits, LaunchRequest, OccupancyLimits, Rule, catalog,
    validate_co_resident,
};
use gridguard_test_support::Random;
use gridguard_test_support::conformance::compare::cause;
use gridguard_test_support::conformance::draw::{
    Generator, MOST_BLOCKS, MOST_BLOCKS_OF_FEW, attributes,
};

const DRAWN: usize = 40_000;
/// Blocks at once, as if each took a whole multiprocessor.
const RESIDENT: u64 = 132;

fn on_h200(change: impl FnOnce(&mut KernelLimits)) -> LaunchLimits {
    let mut kernel = KernelLimits::unknown("k");
    kernel.max_threads_per_block = Some(1024);
    change(&mut kernel);
    LaunchLimits::new(catalog::gpu("h200").expect("catalogued").limits.clone(), kernel)
}

fn kernels() -> [LaunchLimits; 6] {
    [
        on_h200(|_| {}),
        on_h200(|kernel| kernel.max_threads_per_block = Some(128)),
        on_h200(|kernel| {
            kernel.registers_per_thread = 210;
            kernel.max_threads_per_block = Some(256);
        }),
        on_h200(|kernel| kernel.local_bytes_per_thread = 512 << 10),
        on_h200(|kernel| kernel.required_cluster = Some(Dim3::new(2, 1, 1))),
        on_h200(|kernel| {
            kernel.non_portable_cluster_allowed = true;
            kernel.max_dynamic_shared_bytes = Some(232_448);
        }),
    ]
}

fn drawn(limits: &LaunchLimits, seed: u64) -> Vec<LaunchRequest> {
    let generator = Generator::new(limits, 8);
    let mut random = Random::new(seed);
    (0..DRAWN).map(|_| generator.draw(&mut random, |_| Some(RESIDENT))).collect()
}

fn broken(limits: &LaunchLimits, request: &LaunchRequest) -> Vec<Rule> {
    let occupancy = OccupancyLimits { blocks: Some(RESIDENT), cluster_blocks: None };
    let mut rules: Vec<Rule> = match validate_co_resident(request, limits, &occupancy) {
        Ok(_) => Vec::new(),
        Err(violations) => violations.iter().map(|violation| violation.rule).collect(),
    };
    rules.dedup();
    rules
}

#[test]
fn a_seed_draws_the_same_launches_again_and_another_seed_others() {
    let limits = on_h200(|_| {});
    assert_eq!(drawn(&limits, 7), drawn(&limits, 7));
    assert_ne!(drawn(&limits, 7), drawn(&limits, 8));
}

#[test]
fn legal_launches_and_each_broken_rule_alone_and_with_others_are_drawn_with_small_grids() {
    let mut alone: BTreeMap<Rule, u64> = BTreeMap::new();
    let mut with_others = alone.clone();
    let (mut legal, mut few) = (0, 0);
    for (seed, limits) in (0..).zip(&kernels()) {
        let most = limits.device().max_grid;
        for request in drawn(limits, seed) {
            let along = |axis: Axis| request.grid.along(axis).max(1);
            let can_run = |axis: &Axis| along(*axis) <= most.along(*axis);
            let blocks: u64 = Axis::ALL.into_iter().filter(can_run).map(along).product();
            assert!(blocks <= MOST_BLOCKS_OF_FEW, "{request:?}");
            few += usize::from(blocks > MOST_BLOCKS);
            let rules = broken(limits, &request);
            match cause(&rules) {
                _ if rules.is_empty() => legal += 1,
                Some(rule) => *alone.entry(rule).or_default() += 1,
                None => rules.iter().for_each(|r| *with_others.entry(*r).or_default() += 1),
            }
        }
    }
    assert!(few < DRAWN / 200, "{few} grids of more than {MOST_BLOCKS} blocks");
    assert!(legal > DRAWN, "{legal} of {} are legal", kernels().len() * DRAWN);
    let of_launches = Rule::ALL.iter().filter(|rule| rule.driver_code().is_some());
    for rule in of_launches.filter(|rule| **rule != Rule::ClusterResidency) {
        let count = alone.get(rule).copied().unwrap_or(0);
        assert!(count > 20, "{rule} alone {count} times");
        let count = with_others.get(rule).copied().unwrap_or(0);
        assert!(count > 20, "{rule} with others {count} times");
    }
}

#[test]
fn attributes_go_with_every_kind_of_launch() {
    let limits = on_h200(|_| {});
    let mut random = Random::new(5);
    let requests: Vec<LaunchRequest> = drawn(&limits, 5)
        .into_iter()
        .map(|request| attributes(request, &limits, &mut random))
        .collect();
    let times = |test: &dyn Fn(&LaunchRequest) -> bool| {
        requests.iter().filter(|request| test(request)).count()
    };
    assert!(times(&|r| r.dependent && r.priority.is_some()) > 50);
    assert!(times(&|r| r.dependent && r.cooperative && broken(&limits, r).is_empty()) > 50);
    assert!(times(&|r| r.dependent && r.cluster.is_some() && broken(&limits, r).is_empty()) > 50);
    assert!(times(&|r| !r.dependent && r.priority.is_none()) > DRAWN / 2);
    let before =
        LaunchLimits::new(gridguard::DeviceLimits::any_device(), KernelLimits::unknown("k"));
    let old = (0..1000).map(|_| attributes(requests[0], &before, &mut random));
    assert_eq!(old.filter(|request| request.dependent).count(), 0, "a device without");
}

#[test]
fn every_limit_is_met_and_passed_by_one() {
    let limits = on_h200(|_| {});
    let requests = drawn(&limits, 3);
    let times = |test: &dyn Fn(&LaunchRequest) -> bool| {
        requests.iter().filter(|request| test(request)).count()
    };
    for (axis, most) in [(Axis::Y, 65_535), (Axis::Z, 65_535)] {
        for blocks in [0, most - 1, most, most + 1] {
            assert!(times(&|r| r.grid.along(axis) == blocks) > 50, "grid.{axis} {blocks}");
        }
    }
    assert!(times(&|r| r.grid.x == 1 << 31) > 50);
    for (axis, most) in [(Axis::X, 1024), (Axis::Y, 1024), (Axis::Z, 64)] {
        for threads in [0, most - 1, most, most + 1] {
            assert!(times(&|r| r.block.along(axis) == threads) > 20, "block.{axis} {threads}");
        }
    }
    for threads in [1023, 1024, 1025] {
        assert!(times(&|r| r.block.volume() == threads) > 100, "{threads} threads");
    }
    for bytes in [49_151, 49_152, 49_153, 232_447, 232_448, 232_449] {
        assert!(times(&|r| r.dynamic_shared_bytes == bytes) > 50, "{bytes} bytes");
    }
    for blocks in [131, 132, 133] {
        let is = |r: &LaunchRequest| r.cooperative && r.grid.volume() == blocks;
        assert!(times(&is) > 50, "{blocks} cooperative blocks");
    }
    assert!(times(&|r| r.cluster.is_some_and(|cluster| cluster.volume() == 0)) > 50);
}
