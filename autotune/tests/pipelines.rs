//! Tunes pipelines on the host. No assertion depends on times.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gridguard::profile::{
    Document, Key, L2, Layers, Match, Objective, Policy, Provenance, Submission, publish,
};
use gridguard::{DeviceLimits, Guard};
use gridguard_autotune::{
    Budget as Limits, Candidate, CandidateVerdict, FailureKind, HostClock, InProcess,
    MeasureFailure, PipelineProblem, PipelineWorkload, Portion, Space, TuningOutcome, Workload,
    tune,
};
use gridguard_pipeline::{
    Budget, Buffer, Error, HostMemory, IN_FLIGHT, Pipeline, PipelinePlan, PipelineRun,
};
use rayon::prelude::*;

const ITEMS: u64 = 2000;
/// Scratch for 1,560 items, or twice 780.
const BYTES: u64 = 100_000;
const BLOCKS: [u64; 2] = [64, 8];
const BLOCK: &str = "scale.block";
const HOT: Policy = Policy { l2: L2::Hot, submission: Submission::Eager };

/// A fault of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// No memory for chunks of this many items.
    OutOfMemory(u64),
    /// Wrong results in chunks of this many items.
    Wrong(u64),
}

/// y = 3x + 1, through 64 bytes of scratch per item.
struct Affine {
    /// For each block: the pipeline, its input and its output.
    built: Vec<(Pipeline<'static>, Buffer<u32>, Buffer<u32>)>,
    from: Vec<u32>,
    to: Vec<u32>,
}

fn build(items: u64, block: u64, fault: Fault) -> (Pipeline<'static>, Buffer<u32>, Buffer<u32>) {
    let mut builder = Pipeline::builder(items);
    let (x, t) = (builder.input::<u32>("x", 1), builder.scratch::<u32>("t", 16));
    let y = builder.output::<u32>("y", 1);
    builder.parameter(BLOCK, block);
    builder.source("first version");
    let rows = usize::try_from(block).expect("small");
    let scale = builder.stage("scale", move |chunk, views| {
        if fault == Fault::OutOfMemory(chunk.items) {
            return Err(Error::out_of_memory("as asked").into());
        }
        let rows = views.write(t)?.par_chunks_mut(16 * rows).zip(views.read(x)?.par_chunks(rows));
        rows.for_each(|(t, x)| {
            t.chunks_mut(16).zip(x).for_each(|(t, x)| t.fill(3 * x));
        });
        Ok(())
    });
    scale.read(x).write(t);
    let shift = builder.stage("shift", move |chunk, views| {
        let one = if fault == Fault::Wrong(chunk.items) { 2 } else { 1 };
        let rows = views.read(t)?.chunks(16);
        views.write(y)?.iter_mut().zip(rows).for_each(|(y, t)| *y = t[15] + one);
        Ok(())
    });
    shift.read(t).write(y);
    (builder.build().expect("two stages"), x, y)
}

fn affine(items: u64, fault: Fault) -> Affine {
    let from: Vec<u32> = (0..u32::try_from(items).expect("few")).collect();
    let built = BLOCKS.iter().map(|block| build(items, *block, fault)).collect();
    Affine { built, to: vec![0; from.len()], from }
}

impl PipelineProblem for Affine {
    fn pipelines(&self) -> Vec<Pipeline<'static>> {
        self.built.iter().map(|(pipeline, ..)| pipeline.outline()).collect()
    }

    fn run(&mut self, index: usize, plan: &PipelinePlan) -> Result<PipelineRun, Error> {
        let (pipeline, x, y) = &mut self.built[index];
        let memory = HostMemory::new().read(*x, &self.from).write(*y, &mut self.to);
        pipeline.run(&Guard::host(DeviceLimits::any_device()), plan, memory)
    }

    fn poison(&mut self) -> Result<(), MeasureFailure> {
        self.to.fill(u32::MAX);
        Ok(())
    }

    fn compare(&mut self) -> Result<(), MeasureFailure> {
        match self.to.iter().zip(&self.from).position(|(y, x)| *y != 3 * x + 1) {
            None => Ok(()),
            Some(at) => Err(MeasureFailure::new(FailureKind::Mismatch, format!("wrong at {at}"))),
        }
    }
}

const BUDGET: Budget = Budget::bytes(BYTES).in_flight(2);

fn measurer(fault: Fault) -> (Space, InProcess<PipelineWorkload<Affine>, HostClock>) {
    let workload = PipelineWorkload::new(affine(ITEMS, fault), BUDGET);
    (workload.space(), InProcess::new(workload, HostClock::new(HOT)))
}

fn search(fault: Fault, objective: Objective) -> TuningOutcome {
    let (mut space, mut measurer) = measurer(fault);
    let outcome = tune(&mut measurer, &mut space, objective, &Limits::default(), &mut ());
    outcome.expect("the default runs")
}

/// Tuned once for all tests.
fn tuned() -> &'static TuningOutcome {
    static TUNED: OnceLock<TuningOutcome> = OnceLock::new();
    TUNED.get_or_init(|| search(Fault::Nothing, Objective::Throughput))
}

fn key() -> Key {
    build(ITEMS, BLOCKS[0], Fault::Nothing).0.key("affine", HOT, Objective::Throughput)
}

/// A guard with the tuned profile.
fn guard(folder: &std::path::Path) -> Guard {
    let guard = Guard::host(DeviceLimits::any_device());
    let (identity, environment) = (guard.identity(), guard.environment());
    let shape = build(ITEMS, BLOCKS[0], Fault::Nothing).0.shape();
    let mut document = Document::new(identity.clone(), environment.clone());
    let entry = tuned().entry(key(), shape, Provenance::default());
    document.insert(entry).expect("within the limits of a file");
    let file = folder.join(identity.file_name());
    publish(&file, &document).expect("written");
    let loaded = Layers::new().explicit(&file).load(&identity, &environment);
    assert!(loaded.notices.is_empty(), "{:?}", loaded.notices);
    guard.with_profile(Arc::new(loaded.profile))
}

#[test]
fn a_pipeline_is_tuned_and_the_entry_is_used() {
    let outcome = tuned();
    assert!(outcome.complete && outcome.failures().next().is_none());
    let sets = |name: &str| {
        let values = outcome.candidates.iter().flat_map(|one| &one.candidate.parameters);
        let mut values: Vec<u64> =
            values.filter(|(other, _)| other == name).map(|(_, value)| *value).collect();
        values.sort_unstable();
        values.dedup();
        values
    };
    assert_eq!((sets(IN_FLIGHT), sets(BLOCK)), (vec![1, 2], vec![8, 64]));
    for one in &outcome.candidates {
        assert!((256..=BYTES).contains(&one.candidate.scratch_bytes), "{}", one.candidate);
        let is_timed = one.summary.samples > 0 && one.summary.median_ns > 0;
        assert!(is_timed || one.verdict == CandidateVerdict::Unmeasured, "{}", one.candidate);
    }

    let folder = tempfile::tempdir().expect("a folder");
    let guard = guard(folder.path());
    let (untuned, ..) = build(ITEMS, BLOCKS[0], Fault::Nothing);
    let entry = untuned.tuned(&guard, &key());
    assert_eq!(entry.matched, Match::Exact);
    let block = entry.parameter(BLOCK).expect("it is in the entry");
    let other = BLOCKS.into_iter().find(|other| *other != block).expect("two");
    let (refusing, ..) = build(ITEMS, other, Fault::Nothing);
    let refused = refusing.plan_tuned(entry, &BUDGET).expect("the default").refused;
    let refused = refused.expect("another block").to_string();
    let expected = format!("parameter {BLOCK} is {block} in the entry and {other} in the pipeline");
    assert!(refused.starts_with(&expected), "{refused}");

    let (pipeline, x, y) = build(ITEMS, block, Fault::Nothing);
    let planned = pipeline.plan_tuned(entry, &BUDGET).expect("legal");
    assert_eq!((planned.matched, planned.refused), (Match::Exact, None));
    let Candidate { largest_chunk, launches, scratch_bytes, .. } = outcome.winner;
    let plan = planned.plan;
    assert_eq!(
        (plan.chunk_items(), plan.len(), plan.bytes()),
        (largest_chunk, launches, scratch_bytes)
    );
    let mut affine = affine(ITEMS, Fault::Nothing);
    affine.built = vec![(pipeline, x, y)];
    affine.run(0, &plan).expect("it runs");
    affine.compare().expect("the right result");
}

#[test]
fn a_chunk_that_runs_out_of_memory_or_is_wrong_fails_alone() {
    let (space, _) = measurer(Fault::Nothing);
    let default = space.default().expect("it fits").largest_chunk;
    let other = space.candidates().iter().map(|one| one.largest_chunk).find(|one| *one < default);
    let chunk = other.expect("several");
    for fault in [Fault::OutOfMemory(chunk), Fault::Wrong(chunk)] {
        let outcome = search(fault, Objective::Throughput);
        let failed: Vec<_> = outcome.failures().collect();
        assert!(!failed.is_empty() && outcome.winner.largest_chunk != chunk);
        for (candidate, failure) in failed {
            assert_eq!(candidate.largest_chunk, chunk);
            let expected = match fault {
                Fault::OutOfMemory(_) => (FailureKind::Launch, "memory for chunks of"),
                _ => (FailureKind::Mismatch, "wrong at 0"),
            };
            assert_eq!(failure.kind, expected.0);
            assert!(failure.message.starts_with(expected.1), "{failure}");
        }
    }
}

/// Counts the items that its pipeline was run for.
struct Counting {
    affine: Affine,
    items: Arc<AtomicU64>,
}

impl PipelineProblem for Counting {
    fn pipelines(&self) -> Vec<Pipeline<'static>> {
        self.affine.pipelines()
    }

    fn run(&mut self, index: usize, plan: &PipelinePlan) -> Result<PipelineRun, Error> {
        let run = self.affine.run(index, plan)?;
        self.items.fetch_add(run.items_done, Ordering::Relaxed);
        Ok(run)
    }

    fn poison(&mut self) -> Result<(), MeasureFailure> {
        self.affine.poison()
    }

    fn compare(&mut self) -> Result<(), MeasureFailure> {
        self.affine.compare()
    }
}

#[test]
fn the_largest_launch_is_the_first_chunks_in_flight_and_a_candidate_over_the_budget_never_runs() {
    let items = Arc::new(AtomicU64::new(0));
    let problem = Counting { affine: affine(ITEMS, Fault::Nothing), items: Arc::clone(&items) };
    let mut workload = PipelineWorkload::new(problem, BUDGET);
    let space = workload.space();
    let default = space.default().expect("it fits").clone();
    assert_eq!((default.parameters[0].1, default.largest_chunk), (2, 667));
    assert!(workload.launch(&default, Portion::Sequence).is_err(), "it was not prepared");
    workload.prepare(&default).expect("legal");
    for (portion, expected) in [(Portion::LargestLaunch, 1334), (Portion::Sequence, ITEMS)] {
        items.store(0, Ordering::Relaxed);
        workload.launch(&default, portion).expect("it runs");
        assert_eq!(items.load(Ordering::Relaxed), expected);
    }

    items.store(0, Ordering::Relaxed);
    let larger = Space::pipelines(affine(ITEMS, Fault::Nothing).pipelines(), &Budget::UNLIMITED);
    let whole = larger.default().expect("it fits").clone();
    let changes: [fn(&mut Candidate); 7] = [
        |one| one.scratch_bytes += 256,
        |one| one.scratch_bytes = 0,
        |one| one.largest_chunk = 0,
        |one| one.largest_chunk = u64::MAX,
        |one| one.parameters[0].1 = 3,
        |one| one.parameters[1].1 = 7,
        |one| one.parameters.clear(),
    ];
    let changed = changes.map(|change| {
        let mut other = default.clone();
        change(&mut other);
        other
    });
    for foreign in [whole].into_iter().chain(changed) {
        let failure = workload.prepare(&foreign).expect_err("over the budget, or none of its own");
        assert_eq!(failure.kind, FailureKind::Illegal, "{foreign}");
        workload.launch(&foreign, Portion::Sequence).expect_err("it was not prepared");
    }
    assert_eq!(items.load(Ordering::Relaxed), 0);
}
