use std::collections::BTreeMap;

use gridguard::profile::Objective;
use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest};
use gridguard_pipeline::{Budget, IN_FLIGHT, Pipeline};
use proptest::prelude::*;

use super::plot::assert_legible;
use super::simulation::{Nature, Simulated};
use crate::candidate::chunked;
use crate::{Budget as Limits, Candidate, Chart, Space, TuningOutcome, TuningReport, tune};

/// `width` bytes of scratch an item, and one launch parameter.
fn pipeline(items: u64, width: u64, align: u64, block: u64) -> Pipeline<'static> {
    let mut builder = Pipeline::builder(items);
    let (t, y) = (builder.scratch::<u8>("t", width), builder.output::<u8>("y", 1));
    builder.parameter("sum.block", block);
    builder.outline("widen").write(t).align(align);
    builder.outline("sum").read(t).write(y);
    builder.build().expect("two stages")
}

fn in_flight(candidate: &Candidate) -> u64 {
    let (name, chunks) = &candidate.parameters[0];
    assert_eq!(name, IN_FLIGHT);
    *chunks
}

/// Candidates that are not in `times_ns` take 10 ns an item and 3 us a chunk.
fn nature(times_ns: BTreeMap<Candidate, f64>) -> Nature {
    let (noise, outliers, drift, first) = (0.003, 0.0, 0.0, 0.2);
    Nature { noise, outliers, drift, first, times_ns, failing: BTreeMap::new() }
}

fn search(space: &mut Space, nature: &Nature, objective: Objective) -> TuningOutcome {
    let mut measurer = Simulated::new(nature.clone(), 5);
    tune(&mut measurer, space, objective, &Limits::default(), &mut ()).expect("the default runs")
}

fn memory(bytes: u64) -> Objective {
    Objective::Memory { bytes_per_item: 0, bytes }
}

proptest! {
    #[test]
    fn every_candidate_of_a_pipeline_is_a_plan_within_budget_and_objective(
        items in 0..5000_u64,
        width in 1..600_u64,
        align in 1..40_u64,
        bytes in prop_oneof![0..600_000_u64, Just(u64::MAX)],
        bound in prop_oneof![0..600_000_u64, Just(u64::MAX)],
        chunks in 1..9_u64,
        at_most in prop_oneof![1..5000_u64, Just(u64::MAX)],
    ) {
        let budget = Budget::bytes(bytes).in_flight(chunks).at_most(at_most);
        let pipelines = [64, 128].map(|block| pipeline(items, width, align, block));
        let default = pipelines[0].plan(&budget).ok();
        let mut space = Space::pipelines(pipelines.into(), &budget);
        let all = space.candidates().to_vec();
        let plan = |one: &Candidate| (one.largest_chunk, in_flight(one), one.scratch_bytes);
        let expected = default.map(|plan| (plan.chunk_items(), plan.in_flight(), plan.bytes()));
        prop_assert_eq!(space.default().map(plan), expected);
        for (place, one) in all.iter().enumerate() {
            prop_assert!(one.scratch_bytes <= bytes && one.largest_chunk <= at_most);
            prop_assert!((1..=chunks).contains(&in_flight(one)));
            prop_assert!(!all.iter().take(place).any(|before| before.is_same_plan(one)));
        }
        space.restrict(memory(bound));
        let least = bytes.min(bound);
        prop_assert!(space.candidates().iter().all(|one| one.scratch_bytes <= least));
        prop_assert_eq!(space.candidates().is_empty(), all.is_empty()
            || all.iter().map(|one| one.scratch_bytes).min().is_some_and(|bytes| {
                bytes > bound && pipeline(items, width, align, 64).plan(&Budget::bytes(bound)).is_err()
            }));
        space.restrict(Objective::Throughput);
        prop_assert_eq!(space.candidates(), all);
    }
}

#[test]
fn chunks_in_flight_and_launch_parameters_vary() {
    let pipelines = [64, 128].map(|block| pipeline(1000, 256, 1, block));
    let space = Space::pipelines(pipelines.into(), &Budget::bytes(128_000).in_flight(3));
    // 128,000 bytes are 500 items, or 166 with three chunks in flight.
    let default = space.default().expect("it fits");
    assert_eq!(
        default.to_string(),
        "chunked, 7 launches of 143 items, in_flight 3, sum.block 64, 109824 bytes of scratch"
    );
    for block in [64, 128] {
        let of = |chunks: u64| -> Vec<u64> {
            let set = [(IN_FLIGHT.to_owned(), chunks), ("sum.block".to_owned(), block)];
            let own = space.candidates().iter().filter(|one| one.parameters == set);
            own.map(|one| one.largest_chunk).collect()
        };
        assert_eq!(of(1), [500, 250, 125, 63, 32, 16, 8, 4, 2, 1], "{block}");
        assert_eq!(of(3).first(), Some(&143));
        assert_eq!(of(2).first(), Some(&250));
    }
}

#[test]
fn the_fastest_within_the_memory_limit_is_found_and_nothing_larger_is_measured() {
    let budget = Budget::UNLIMITED.in_flight(2);
    let mut space = Space::pipelines(vec![pipeline(1 << 16, 256, 1, 64)], &budget);
    // Two chunks in flight take three quarters of the time, larger chunks a little less.
    let time = |one: &Candidate| {
        let each = if in_flight(one) == 2 { 7.5 } else { 10.0 };
        65_536.0 * each + 3000.0 * crate::stats::real(one.launches)
    };
    let times = space.candidates().iter().map(|one| (one.clone(), time(one)));
    let nature = nature(times.collect());
    let whole = search(&mut space, &nature, Objective::Throughput);
    // Two and four launches tie.
    assert!(in_flight(&whole.winner) == 2 && whole.winner.launches <= 4, "{}", whole.winner);
    let bounded = search(&mut space, &nature, memory(4 << 20));
    assert_eq!((in_flight(&bounded.winner), bounded.winner.scratch_bytes), (2, 4 << 20));
    assert!(bounded.candidates.iter().all(|one| one.candidate.scratch_bytes <= 4 << 20));
    assert_eq!(bounded.objective, memory(4 << 20));
    let error =
        tune(&mut Simulated::new(nature, 5), &mut space, memory(255), &Limits::default(), &mut ());
    assert_eq!(error.expect_err("no chunk fits"), crate::Error::no_candidate());
}

#[test]
fn the_largest_chunk_within_the_limit_is_found_between_the_planned_sizes() {
    let mut space = Space::pipelines(vec![pipeline(45_000, 16, 1, 64)], &Budget::UNLIMITED);
    let planned = space.candidates().len();
    let objective = Objective::Latency { max_launch_us: 105 };
    let outcome = search(&mut space, &nature(BTreeMap::new()), objective);
    // 10,200 items would take 105 us; in equal chunks that is five of 9,000.
    assert!(outcome.latency.is_some_and(|latency| latency.met));
    assert_eq!((outcome.winner.largest_chunk, outcome.winner.launches), (9000, 5));
    assert!(space.candidates().len() > planned);
}

#[test]
fn adding_a_chunk_plans_it_within_the_budget() {
    let budget = Budget::bytes(100_000).in_flight(2);
    let mut space = Space::pipelines(vec![pipeline(1000, 256, 1, 64)], &budget);
    let parameters = space.default().expect("it fits").parameters.clone();
    let added = space.add(&parameters, chunked(77)).expect("legal");
    assert_eq!((added.largest_chunk, added.scratch_bytes, in_flight(&added)), (77, 39_424, 2));
    let capped = space.add(&parameters, chunked(1000)).expect("legal");
    assert_eq!(Some(&capped), space.default());
    assert_eq!(space.add(&Vec::new(), chunked(7)), None);
}

#[test]
fn the_chart_of_a_pipeline_has_its_scratch_on_a_second_axis() {
    for (width, chunks, bytes) in [(256, 3, u64::MAX), (40_000, 1, 1 << 30), (1, 2, 5000)] {
        let budget = Budget::bytes(bytes).in_flight(chunks);
        let mut space = Space::pipelines(vec![pipeline(15_360, width, 1, 64)], &budget);
        let outcome = search(&mut space, &nature(BTreeMap::new()), Objective::Throughput);
        let chart = Chart {
            title: "temporal block 15,360 x 16 frames x 320, f16".into(),
            subtitle: "NVIDIA H200, cold-eager, throughput".into(),
            ..Chart::default()
        };
        let svg = chart.svg(&outcome).expect("has points");
        assert_legible(&svg);
        let shows = |text: &str| svg.lines().any(|line| line.trim().starts_with(text));
        assert!(shows("scratch of chunks in flight") && shows("dashed: scratch"), "{svg}");
        assert!(svg.contains("iB\n"), "no label in bytes: {svg}");
        let report = TuningReport::new("temporal block", &outcome).to_string();
        assert!(report.contains("in_flight") && report.contains("scratch"), "{report}");
    }
}

#[test]
fn a_kernel_stage_that_is_too_large_whole_is_tuned_in_legal_chunks() {
    let items = 100_000;
    let mut builder = Pipeline::builder(items);
    let y = builder.output::<u8>("y", 1);
    let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("tall"));
    let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::new(32, 1, 1));
    let batch = BatchAxis::new(Axis::Y, items);
    builder.outline("tall").launches(request, batch, &limits).write(y);
    let mut space = Space::pipelines(vec![builder.build().expect("one")], &Budget::UNLIMITED);
    let outcome = search(&mut space, &nature(BTreeMap::new()), Objective::Throughput);
    assert_eq!((outcome.winner.largest_chunk, outcome.winner.scratch_bytes), (50_000, 0));
}
