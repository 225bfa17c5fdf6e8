//! Plans as a profile says: the key of a pipeline, entries that are used, and those that are refused.

use std::num::NonZeroU64;
use std::sync::Arc;

use gridguard::profile::{
    DefaultReason, Document, Entry, Key, Match, MissLog, Named, Objective, Policy, Profile,
    StoredChoice,
};
use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, Guard, LaunchRequest};
use gridguard_pipeline::{
    Budget, Buffer, Error, ErrorKind, HostMemory, IN_FLIGHT, Pipeline, PipelineBuilder,
    PipelinePlan, PipelineRun, TunedPlan,
};
use gridguard_test_support::Random;

use crate::limits;

const ITEMS: u64 = 1000;
const BLOCK: &str = "widen.block";

/// 1,024 bytes of scratch an item, and a stage with a launch parameter.
fn declare(builder: &mut PipelineBuilder<'_>, block: u64) {
    let (x, y) = (builder.input::<f32>("x", 4), builder.output::<u8>("y", 2));
    let wide = builder.scratch::<f32>("wide", 256);
    builder.parameter(BLOCK, block);
    builder.source("8f2a");
    builder.outline("widen").read(x).write(wide);
    builder.outline("sum").read(wide).write(y);
}

fn pipeline(items: u64) -> Pipeline<'static> {
    let mut builder = Pipeline::builder(items);
    declare(&mut builder, 64);
    builder.build().expect("two stages")
}

fn key() -> Key {
    pipeline(ITEMS).key("widening", Policy::default(), Objective::Throughput)
}

fn chunked(items: u64) -> StoredChoice {
    StoredChoice::Chunked { max_items: NonZeroU64::new(items).expect("not zero") }
}

fn named(values: &[(&str, u64)]) -> Named {
    values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
}

fn entry(choice: StoredChoice, parameters: &[(&str, u64)]) -> Entry {
    Entry {
        key: key(),
        shape: pipeline(ITEMS).shape(),
        choice,
        parameters: named(parameters),
        launches: 1,
        ..Entry::default()
    }
}

/// A guard with a profile of one entry.
fn guard_with(entry: Entry) -> Guard {
    let guard = Guard::host(DeviceLimits::any_device());
    let (identity, environment) = (guard.identity(), guard.environment());
    let mut document = Document::new(identity.clone(), environment.clone());
    document.insert(entry).expect("within the limits of a file");
    let (profile, _) = Profile::from_document(document, &identity, &environment);
    guard.with_profile(Arc::new(profile)).with_miss_log(Arc::new(MissLog::new(10)))
}

fn plan(guard: &Guard, pipeline: &Pipeline<'_>, budget: Budget) -> TunedPlan {
    pipeline.plan_tuned(pipeline.tuned(guard, &key()), &budget).expect("the default is legal")
}

/// A budget for four chunks of up to 100 items.
fn budget() -> Budget {
    Budget::bytes(400 << 10).in_flight(4)
}

fn refusal(entry: Entry, budget: Budget) -> String {
    let (guard, pipeline) = (guard_with(entry), pipeline(ITEMS));
    let TunedPlan { plan: used, matched, refused } = plan(&guard, &pipeline, budget);
    assert_eq!(matched, Match::Exact);
    assert_eq!(used.to_string(), pipeline.plan(&budget).expect("legal").to_string());
    let refused = refused.expect("the entry is not used");
    assert_eq!(refused.kind(), ErrorKind::Entry);
    refused.to_string()
}

#[test]
fn an_entry_gives_the_chunk_and_the_chunks_in_flight() {
    let guard = guard_with(entry(chunked(50), &[(IN_FLIGHT, 2), (BLOCK, 64)]));
    let TunedPlan { plan, matched, refused } = plan(&guard, &pipeline(ITEMS), budget());
    assert_eq!((matched, refused), (Match::Exact, None));
    assert_eq!((plan.chunk_items(), plan.in_flight(), plan.bytes()), (50, 2, 100 << 10));
    assert!(guard.misses().expect("a log").snapshot().is_empty());
}

#[test]
fn an_entry_serves_other_numbers_of_items_by_the_rule_of_every_lookup() {
    let guard = guard_with(entry(chunked(50), &[(IN_FLIGHT, 2), (BLOCK, 64)]));
    let of = |items| plan(&guard, &pipeline(items), budget());
    let near = of(600);
    assert_eq!(
        (near.matched, near.plan.chunk_items(), near.plan.in_flight()),
        (Match::Bucket, 50, 2)
    );
    let far = of(5000);
    let outside =
        Match::Default(DefaultReason::OutOfRange { index: 0, size: 5000, bits: (10, 10) });
    assert_eq!((far.matched, far.refused, far.plan.in_flight()), (outside, None, 4));
    assert_eq!(of(0).matched, Match::Default(DefaultReason::ZeroSize));
    assert_eq!(guard.misses().expect("a log").snapshot().len(), 2);
}

#[test]
fn nothing_is_tuned_without_a_profile_or_for_another_pipeline() {
    let guard = Guard::host(DeviceLimits::any_device());
    let none = plan(&guard, &pipeline(ITEMS), budget());
    assert_eq!(none.matched, Match::Default(DefaultReason::NoProfile));
    let guard = guard_with(entry(chunked(50), &[(IN_FLIGHT, 2), (BLOCK, 64)]));
    let matched = |key: &Key| pipeline(ITEMS).tuned(&guard, key).matched;
    let wider = Key { variant: "0".repeat(16), ..key() };
    assert_eq!(matched(&wider), Match::Default(DefaultReason::NoEntries));
    let edited = Key { source: "0".repeat(16), ..key() };
    assert_eq!(matched(&edited), Match::Default(DefaultReason::OtherSource));
    assert_eq!(matched(&key()), Match::Exact);
}

#[test]
fn the_key_depends_on_stages_buffers_and_sources_and_on_nothing_else() {
    let of = |declare: &dyn Fn(&mut PipelineBuilder<'_>)| {
        let mut builder = Pipeline::builder(ITEMS);
        declare(&mut builder);
        let built = builder.build().expect("built");
        built.key("widening", Policy::default(), Objective::Throughput)
    };
    let same = of(&|builder| declare(builder, 128));
    assert_eq!((&same, same.dtypes.as_str(), same.kernel.as_str()), (&key(), "f32 u8", "widening"));
    let more_items = pipeline(7).key("widening", Policy::default(), Objective::Throughput);
    assert_eq!(more_items, same);
    // What other builds and other machines derive.
    assert_eq!((&*same.variant, &*same.source), ("f43452432fb77a2c", "9f43697f68fbb4ea"));

    let one_stage = |names: [&'static str; 2], width, role: fn(&mut PipelineBuilder<'_>)| {
        of(&move |builder| {
            let (x, y) = (builder.input::<f32>("x", width), builder.output::<f32>(names[0], 4));
            builder.outline(names[1]).read(x).write(y);
            role(builder);
        })
    };
    let nothing: fn(&mut PipelineBuilder<'_>) = |_| {};
    let variants = [
        one_stage(["y", "copy"], 4, nothing),
        one_stage(["y", "move"], 4, nothing),
        one_stage(["z", "copy"], 4, nothing),
        one_stage(["y", "copy"], 5, nothing),
        one_stage(["y", "copy"], 4, |builder| {
            builder.outline("more");
        }),
        one_stage(["y", "copy"], 4, |builder| {
            let on_host = builder.input::<f32>("h", 1);
            builder.in_host_memory(on_host);
            builder.outline("more").read(on_host);
        }),
        one_stage(["y", "copy"], 4, |builder| {
            let not_on_host = builder.input::<f32>("h", 1);
            builder.outline("more").read(not_on_host);
        }),
        one_stage(["y", "copy"], 4, |builder| {
            let other_type = builder.input::<u32>("h", 1);
            builder.outline("more").read(other_type);
        }),
        one_stage(["y", "copy"], 4, |builder| {
            let shared = builder.shared_input::<f32>("h", 1);
            builder.outline("more").read(shared);
        }),
        one_stage(["y", "copy"], 4, |builder| {
            let updated = builder.in_place::<f32>("h", 1);
            builder.outline("more").update(updated);
        }),
        one_stage(["y", "copy"], 4, |builder| {
            let written = builder.in_place::<f32>("h", 1);
            builder.outline("more").write(written);
        }),
    ];
    for (place, one) in variants.iter().enumerate() {
        assert!(variants.iter().take(place).all(|other| other.variant != one.variant), "{place}");
        assert_eq!(one.source, "", "{place}");
    }
    let sourced = |sources: &'static [&'static str]| {
        of(&move |builder| {
            builder.outline("one");
            sources.iter().for_each(|source| builder.source(*source));
        })
    };
    let sources = [&["ab", "c"][..], &["a", "bc"], &["ab"], &["ab", "c", ""]].map(sourced);
    for (place, one) in sources.iter().enumerate() {
        assert_eq!(one.variant, sources[0].variant);
        assert!(sources.iter().take(place).all(|other| other.source != one.source), "{place}");
    }
}

#[test]
fn entries_over_the_budget_are_refused_and_counted() {
    let over = |what: &str, needed: u64, allowed: u64| {
        format!("the entry takes {needed} {what}, the budget allows {allowed}")
    };
    let both = |in_flight| [(IN_FLIGHT, in_flight), (BLOCK, 64)];
    let bytes = refusal(entry(chunked(250), &both(2)), budget());
    assert_eq!(bytes, over("bytes of scratch", 500 << 10, 400 << 10));
    let whole = refusal(entry(StoredChoice::Whole, &both(1)), budget());
    assert_eq!(whole, over("bytes of scratch", 1000 << 10, 400 << 10));
    for huge in [5, u64::MAX] {
        let in_flight = refusal(entry(chunked(50), &both(huge)), budget());
        assert_eq!(in_flight, over("chunks in flight", huge, 4));
    }
    let items = refusal(entry(chunked(50), &both(2)), budget().at_most(40));
    assert_eq!(items, over("items of a chunk", 50, 40));
    let huge = refusal(entry(chunked(u64::MAX), &both(1)), budget());
    assert_eq!(huge, over("bytes of scratch", 1000 << 10, 400 << 10));
}

#[test]
fn entries_that_are_not_for_this_pipeline_are_refused_and_counted() {
    for parameters in [&[(BLOCK, 64)][..], &[(IN_FLIGHT, 0), (BLOCK, 64)]] {
        let missing = "parameter in_flight of the entry is missing or 0: re-tune";
        assert_eq!(refusal(entry(chunked(50), parameters), budget()), missing);
    }
    let choice = StoredChoice::Folded;
    let folded = refusal(entry(choice, &[(IN_FLIGHT, 1), (BLOCK, 64)]), budget());
    assert_eq!(folded, "the pipeline cannot run as the entry says: folded");
    let differs = |parameters: &[(&str, u64)]| refusal(entry(chunked(50), parameters), budget());
    let parameter = |name: &str, entry, pipeline| {
        format!(
            "parameter {name} is {entry} in the entry and {pipeline} in the pipeline: build the \
             pipeline with the parameters of the entry, or re-tune"
        )
    };
    let other = differs(&[(IN_FLIGHT, 1), (BLOCK, 128)]);
    assert_eq!(other, parameter(BLOCK, "128", "64"));
    assert_eq!(differs(&[(IN_FLIGHT, 1)]), parameter(BLOCK, "missing", "64"));
    let unknown = differs(&[(IN_FLIGHT, 1), (BLOCK, 64), ("unroll", 2)]);
    assert_eq!(unknown, parameter("unroll", "2", "missing"));
}

#[test]
fn a_single_chunk_and_one_that_no_stage_allows_are_refused_where_several_are_needed() {
    let build = |align: u64, at_most: u64| {
        let mut builder = Pipeline::builder(100_000);
        let y = builder.output::<u8>("y", 1);
        let batch = BatchAxis::new(Axis::Y, 100_000);
        let request = LaunchRequest::new(Dim3::new(1, 100_000, 1), Dim3::new(32, 1, 1));
        let stage = builder.outline("tall").launches(request, batch, &limits("tall"));
        stage.write(y).align(align).at_most(at_most);
        builder.build().expect("one stage")
    };
    let guard = |pipeline: &Pipeline<'_>, choice| {
        let key = pipeline.key("tall", Policy::default(), Objective::Throughput);
        let parameters = named(&[(IN_FLIGHT, 1)]);
        let shape = pipeline.shape();
        let entry = Entry { key: key.clone(), shape, parameters, ..entry(choice, &[]) };
        (guard_with(entry), key)
    };
    let refused = |pipeline: &Pipeline<'_>, choice| {
        let (guard, key) = guard(pipeline, choice);
        let tuned = pipeline.plan_tuned(pipeline.tuned(&guard, &key), &Budget::UNLIMITED);
        tuned.expect("the default is legal").refused.map(|refused| refused.to_string())
    };
    let whole = StoredChoice::Whole;
    // A grid has at most 65,535 blocks on y.
    let expected = Some("the pipeline cannot run as the entry says: whole".to_owned());
    assert_eq!(refused(&build(1, u64::MAX), whole), expected);
    assert_eq!(refused(&build(1, u64::MAX), StoredChoice::Automatic), None);
    let no_chunk = refused(&build(10, u64::MAX), chunked(9)).expect("10 items");
    assert!(no_chunk.starts_with("the budget allows chunks of at most 9 items"), "{no_chunk}");
    // A pipeline that cannot be planned at all is an error.
    let illegal = build(10, 9);
    let (guard, key) = guard(&illegal, chunked(10));
    let error = illegal.plan_tuned(illegal.tuned(&guard, &key), &Budget::UNLIMITED);
    assert_eq!(error.expect_err("no chunk").kind(), ErrorKind::Alignment);
}

#[test]
fn a_parameter_has_one_value_and_none_has_the_name_of_the_chunks_in_flight() {
    for name in [BLOCK, IN_FLIGHT] {
        let mut builder = Pipeline::builder(ITEMS);
        declare(&mut builder, 64);
        builder.parameter(name, 64);
        let error = builder.build().expect_err("twice");
        assert_eq!(error.to_string(), format!("two parameters have the name {name}"));
    }
}

#[test]
fn random_entries_never_exceed_the_budget() {
    let (mut used, mut random) = (0, Random::new(7));
    for _ in 0..2000 {
        let chunk = random.pick(&[1, 3, 25, 99, 100, 101, 999, 1000, 1001, u64::MAX]);
        let choices =
            [StoredChoice::Automatic, StoredChoice::Whole, StoredChoice::Folded, chunked(chunk)];
        let choice = random.pick(&choices);
        let in_flight = random.pick(&[0, 1, 1, 1, 2, 2, 4, 5, u64::MAX]);
        let block = random.pick(&[64, 64, 64, 0]);
        let bytes = random.pick(&[1 << 10, 100 << 10, 399 << 10, 1 << 20, u64::MAX]);
        let at_most = random.pick(&[1, 50, 1000, u64::MAX]);
        let budget = Budget::bytes(bytes).in_flight(1 + random.below(4)).at_most(at_most);
        let pipeline = pipeline(400 + random.below(700));
        let guard = guard_with(entry(choice, &[(IN_FLIGHT, in_flight), (BLOCK, block)]));
        let TunedPlan { plan, matched, refused } = plan(&guard, &pipeline, budget);
        assert!(plan.bytes() <= bytes && plan.chunk_items() <= at_most, "{plan} {budget:?}");
        assert!(plan.in_flight() <= budget.max_in_flight(), "{plan} {budget:?}");
        let is_used = refused.is_none() && !matches!(matched, Match::Default(_));
        if let (true, StoredChoice::Chunked { max_items }) = (is_used, choice) {
            let wanted = Budget::UNLIMITED.at_most(max_items.get());
            let wanted = pipeline.plan(&wanted).expect("legal").chunk_items();
            assert_eq!(plan.chunk_items(), wanted);
            used += 1;
        }
    }
    assert!(used > 50, "{used} entries were used");
}

/// y = 2x for 100 items; out of memory at an item.
struct Doubled {
    pipeline: Pipeline<'static>,
    x: Buffer<u64>,
    y: Buffer<u64>,
}

impl Doubled {
    fn new(fails_at: u64) -> Self {
        let mut builder = Pipeline::builder(100);
        let (x, y) = (builder.input::<u64>("x", 1), builder.output::<u64>("y", 1));
        let double = builder.stage("double", move |chunk, views| {
            if (chunk.start..chunk.end()).contains(&fails_at) {
                return Err(Error::out_of_memory("as asked").into());
            }
            views.write(y)?.iter_mut().zip(views.read(x)?).for_each(|(y, x)| *y = 2 * x);
            Ok(())
        });
        double.read(x).write(y);
        Self { pipeline: builder.build().expect("one stage"), x, y }
    }

    /// What the run did, and how many items it doubled, from the first on.
    fn run(&mut self, plan: &PipelinePlan) -> (Result<PipelineRun, Error>, u64) {
        let (from, mut to) = ((1..=100).collect::<Vec<u64>>(), vec![0; 100]);
        let memory = HostMemory::new().read(self.x, &from).write(self.y, &mut to);
        let ran = crate::run(&mut self.pipeline, plan, memory);
        let done = to.iter().take_while(|y| **y > 0).count();
        let is_right =
            |(place, y): (usize, &u64)| *y == if place < done { 2 * from[place] } else { 0 };
        assert!(to.iter().enumerate().all(is_right), "{to:?}");
        (ran, u64::try_from(done).expect("few"))
    }
}

#[test]
fn the_first_chunks_in_flight_run_alone() {
    let mut doubled = Doubled::new(u64::MAX);
    let plan = doubled.pipeline.plan(&Budget::UNLIMITED.at_most(30).in_flight(3)).expect("fits");
    let first = plan.first_in_flight();
    assert_eq!((plan.len(), first.len(), first.items(), first.chunk_items()), (4, 3, 75, 25));
    assert_eq!((first.bytes(), first.in_flight()), (plan.bytes(), 3));
    let (ran, done) = doubled.run(&first);
    assert_eq!((ran.expect("it runs").items_done, done), (75, 75));
    // All of them, where they are all in flight; and a plan of an outline is one of the pipeline.
    let all =
        doubled.pipeline.outline().plan(&Budget::UNLIMITED.at_most(60).in_flight(3)).expect("fits");
    assert_eq!((all.first_in_flight().items(), all.first_in_flight().len()), (100, 2));
    let (ran, done) = doubled.run(&all.first_in_flight());
    assert_eq!((ran.expect("it runs").items_done, done), (100, 100));
    let mut none = Pipeline::builder(0);
    none.outline("nothing");
    let none = none.build().expect("built").plan(&Budget::UNLIMITED.in_flight(2)).expect("fits");
    assert!(none.first_in_flight().is_empty());
}

#[test]
fn the_first_chunks_alone_do_not_go_on_in_smaller_ones() {
    let mut doubled = Doubled::new(20);
    let plan = doubled.pipeline.plan(&Budget::UNLIMITED.at_most(25)).expect("fits");
    let (ran, _) = doubled.run(&plan.first_in_flight());
    let error = ran.expect_err("out of memory");
    assert_eq!(error.done().expect("it was begun").tried, [25]);
    // Smaller chunks are tried for a whole plan, down to one item.
    let (ran, _) = doubled.run(&plan);
    assert_eq!(ran.expect_err("out of memory").done().expect("begun").tried, [25, 12, 6, 3, 1]);
}
