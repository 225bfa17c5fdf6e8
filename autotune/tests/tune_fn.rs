//! Functions are tuned on the host: what may win, what is refused, and what the journal saves.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gridguard::profile::{
    Attainable, Document, Key, L2, Layers, Match, Objective, Policy, Profile,
};
use gridguard::{Axis, BatchAxis, Choice, DeviceLimits, Dim3, Guard, KernelLimits, LaunchRequest};
use gridguard_autotune::{
    Candidate, CandidateVerdict, Error, ErrorKind, FailureKind, FnSpace, LaunchConfig,
    MeasureFailure, Measurer, Portion, Roofline, Sample, TunedFn, tune_fn,
};

fn key() -> Key {
    let policy = Policy { l2: L2::Hot, ..Policy::default() };
    Key { kernel: "work".into(), dtypes: "f32".into(), policy, ..Key::default() }
}

/// Its output is wrong for blocks in `wrong`. Collects the blocks that ran.
fn work(space: FnSpace<'_>, wrong: &[u64], ran: &RefCell<BTreeSet<u64>>) -> Result<TunedFn, Error> {
    tune_fn(&key(), space, |trial| {
        let block = trial.get("block")?;
        ran.borrow_mut().insert(block);
        let output = if wrong.contains(&block) { 2.5 } else { 2.0 };
        trial.output(|| Ok(vec![1.0_f32, output]))
    })
}

/// Takes `block` microseconds, is wrong for block 7, and collects the blocks that it measures.
#[derive(Default)]
struct Scripted(BTreeSet<u64>);

impl Measurer for Scripted {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        let block = candidate.parameters[0].1;
        self.0.insert(block);
        let wrong = || Err(MeasureFailure::new(FailureKind::Mismatch, "wrong"));
        if block == 7 { wrong() } else { Ok(()) }
    }

    fn sample(&mut self, candidate: &Candidate, _: Portion) -> Result<Sample, MeasureFailure> {
        let block = u32::try_from(candidate.parameters[0].1).expect("small");
        Ok(Sample { time_ns: 1e3 * f64::from(block), clock_mhz: None, disturbed: false })
    }
}

fn blocks(values: &[u64]) -> FnSpace<'static> {
    FnSpace::new([("items", 10)]).parameter("block", values.iter().copied())
}

fn failures(tuned: &TunedFn) -> Vec<(u64, FailureKind)> {
    let failed = tuned.outcome.failures();
    failed.map(|(one, failure)| (one.parameters[0].1, failure.kind)).collect()
}

#[test]
fn the_fastest_block_wins_and_is_found_in_the_profile() {
    let tuned = blocks(&[8, 2, 5]).measure(&key(), &mut Scripted::default()).expect("tuned");
    assert_eq!((tuned.parameter("block"), tuned.choice), (Some(2), Choice::AUTOMATIC));
    let entry = tuned.entry.as_ref().expect("complete");
    assert_eq!((entry.found.candidates, &*entry.found.tolerance), (3, "0"));

    let (folder, guard) = (tempfile::tempdir().unwrap(), Guard::host(DeviceLimits::any_device()));
    let file = tuned.publish(&guard, folder.path()).expect("published");
    let loaded = Layers::new().explicit(&file).load(&guard.identity(), &guard.environment());
    let found = loaded.profile.lookup(&key(), &[10]);
    assert_eq!((found.matched, found.parameter("block")), (Match::Exact, Some(2)));
    let written = Document::parse(&fs::read_to_string(file).unwrap()).expect("a profile").document;
    assert_eq!(written.entries().first(), Some(entry));
}

#[test]
fn a_stated_traffic_is_judged_by_what_the_device_moves_and_is_kept_with_the_profile() {
    let guard = Guard::host(DeviceLimits::any_device());
    let (identity, environment) = (guard.identity(), guard.environment());
    let attainable = Attainable { l2: L2::Hot, bytes: 1 << 20, bytes_per_second: 1 << 33 };
    let mut document = Document::new(identity.clone(), environment.clone());
    document.add_attainable(attainable).expect("valid");
    let (profile, _) = Profile::from_document(document, &identity, &environment);
    let guard = Arc::new(guard.with_profile(Arc::new(profile)));
    let space = blocks(&[800, 200]).bytes(1 << 20).flops(400_000).on_device(&guard);
    let tuned = space.measure(&key(), &mut Scripted::default()).expect("tuned");
    assert_eq!(tuned.roofline, Some(Roofline { bytes: 1 << 20, attainable }));
    // It takes 122 us at that bandwidth, and 200 us with the best block.
    assert_eq!(tuned.entry.as_ref().expect("complete").found.attained_percent, 61);
    assert_eq!((tuned.parameter("block"), tuned.flops_per_second()), (Some(200), Some(2e9)));
    let folder = tempfile::tempdir().unwrap();
    let file = tuned.publish(&guard, folder.path()).expect("published");
    let written = Document::parse(&fs::read_to_string(file).unwrap()).expect("a profile").document;
    assert_eq!(written.attainable(), [attainable]);
    for (space, what) in
        [(blocks(&[8]).bytes(0), "bytes is 0"), (blocks(&[8]).flops(0), "flops is 0")]
    {
        let error = space.measure(&key(), &mut Scripted::default()).expect_err("nothing to do");
        assert_eq!(*error.kind(), ErrorKind::Input);
        assert!(error.to_string().starts_with(what), "{error}");
    }
}

#[test]
fn a_candidate_with_another_output_never_wins() {
    let tuned = work(blocks(&[8, 1, 5]), &[1], &RefCell::default()).expect("tuned");
    assert_ne!(tuned.parameter("block"), Some(1));
    assert_eq!(failures(&tuned), [(1, FailureKind::Mismatch)]);
    // Within the tolerance it may win, and the entry says so.
    let space = blocks(&[8, 1, 5]).tolerance(0.25);
    let tuned = work(space, &[1], &RefCell::default()).expect("tuned");
    assert_eq!(failures(&tuned), []);
    // One candidate is decided on a busy machine too.
    let tuned = work(blocks(&[8]).tolerance(0.25), &[], &RefCell::default()).expect("tuned");
    assert_eq!(tuned.entry.expect("complete").found.tolerance, "2.5e-1");
}

#[test]
fn a_given_reference_also_judges_the_default() {
    let space = blocks(&[8, 1]).reference([1.0_f32, 2.5]);
    let error = work(space, &[1], &RefCell::default()).expect_err("the default is wrong");
    let ErrorKind::Default(failure) = error.kind() else { panic!("{error}") };
    assert_eq!(
        failure.message,
        "the output differs from the reference: element 1 is 2, not 2.5; the tolerance is 0, allow a \
         tolerance if it may differ"
    );
}

#[test]
fn outputs_without_an_order_are_no_outputs() {
    for (output, expected) in [
        (vec![f64::NAN], "gave another output than its first"),
        (vec![], "the function passed on no output"),
    ] {
        let error = tune_fn(&key(), blocks(&[1, 2]), |trial| trial.output(|| Ok(output.clone())));
        let message = error.expect_err("no output").to_string();
        assert!(message.contains(expected), "{message}");
    }
    // Infinities are equal to themselves.
    let equal = tune_fn(&key(), blocks(&[1]), |trial| trial.output(|| Ok(vec![f64::INFINITY])));
    assert!(equal.is_ok());
}

#[test]
fn a_function_that_changes_its_own_input_is_refused_unless_it_is_restored() {
    let mut x = 1.0_f64;
    let error = tune_fn(&key(), blocks(&[1, 2]), |trial| {
        x *= 2.0;
        trial.output(|| Ok(vec![x]))
    });
    let message = error.expect_err("in place").to_string();
    assert!(message.contains("restore what it changes before each check"), "{message}");
    let mut x = 1.0_f64;
    let tuned = tune_fn(&key(), blocks(&[1, 2]), |trial| {
        trial.before(|| {
            x = 1.0;
            Ok(())
        })?;
        x *= 2.0;
        trial.output(|| Ok(vec![x]))
    });
    assert_eq!(failures(&tuned.expect("restored")), []);
}

#[test]
fn illegal_points_are_dropped_before_anything_runs() {
    let ran = RefCell::default();
    let space = blocks(&[9, 3, 4, 6]).constraint(|values| Ok(values.get("block")? % 3 == 0));
    let tuned = work(space, &[], &ran).expect("tuned");
    assert_eq!(ran.into_inner(), BTreeSet::from([3, 6, 9]));
    assert_eq!(tuned.outcome.candidates.len(), 3);

    let ran = RefCell::default();
    let space = blocks(&[1]).constraint(|values| Ok(values.get("blok")? > 0));
    let error = work(space, &[], &ran).expect_err("a wrong name");
    assert_eq!(
        error.to_string(),
        r#"no parameter is named "blok": add it to the space; did you mean block?"#
    );
    let error = work(blocks(&[1]).constraint(|_| Ok(false)), &[], &ran).expect_err("none left");
    assert_eq!(*error.kind(), ErrorKind::NoCandidate, "{error}");
    assert!(ran.into_inner().is_empty());
}

#[test]
fn wrong_spaces_and_keys_are_errors() {
    let none = RefCell::default();
    let error = |space| work(space, &[], &none).expect_err("a wrong space").to_string();
    assert!(error(FnSpace::new([("items", 0)])).starts_with("there are no items"));
    assert!(error(blocks(&[])).starts_with("the values of block are not at least one"));
    assert_eq!(
        error(blocks(&[1]).tolerance(f64::NAN)),
        "the tolerance is NaN: give a finite number of at least 0"
    );
    assert!(error(FnSpace::new([("x".repeat(65), 1)])).contains("has 65 bytes, the limit is 64"));
    let key = Key { objective: Objective::Latency { max_launch_us: 5 }, ..key() };
    let refused = tune_fn(&key, blocks(&[1]), |_| Ok(()));
    let refused = refused.expect_err("a latency");
    assert!(refused.to_string().contains("the objective cannot be a latency"), "{refused}");
}

/// One block per row on y, where a grid has at most 65,535 blocks.
fn configuration(guard: &Guard, block: u64) -> Result<LaunchConfig, MeasureFailure> {
    let request = LaunchRequest::new(Dim3::new(1, 70_000, 1), Dim3::new(block, 1, 1));
    let limits = guard.limits_for(KernelLimits::unknown("rows"));
    Ok(LaunchConfig::new(request, Some(BatchAxis::new(Axis::Y, 70_000)), limits))
}

fn guarded(space: FnSpace<'_>) -> TunedFn {
    let guard = Guard::host(DeviceLimits::any_device());
    let space = space.guarded(|values| configuration(&guard, values.get("block")?));
    let mut rows = vec![0_u32; 70_000];
    let tuned = tune_fn(&key(), space, |trial| {
        trial.before(|| {
            rows.fill(0);
            Ok(())
        })?;
        guard.launch_on_host(trial.plan()?, &mut rows, 1, |row, out| {
            out[0] = u32::try_from(row).unwrap_or(0);
        })?;
        trial.output(|| Ok(rows.clone()))
    });
    tuned.expect("tuned")
}

#[test]
fn the_planner_drops_illegal_launches_and_chunks_the_others() {
    let space = || {
        let space = FnSpace::new([("rows", 70_000)]).parameter("block", [64, 2048, 128]);
        space.time_limit(Duration::from_millis(500))
    };
    let of = |tuned: &TunedFn| -> BTreeSet<(u64, u64)> {
        let all = tuned.outcome.candidates.iter().map(|one| &one.candidate);
        all.map(|one| (one.parameters[0].1, one.largest_chunk)).collect()
    };
    // A block of 2,048 threads is illegal, and so is a launch of all rows on y.
    assert_eq!(of(&guarded(space())), BTreeSet::from([(64, 35_000), (128, 35_000)]));
    // Four chunks of at most 20,000 rows are balanced.
    let listed = of(&guarded(space().chunk([20_000, 70_000])));
    let expected = [64, 128].map(|block| [(block, 35_000), (block, 17_500)]);
    assert_eq!(listed, expected.into_iter().flatten().collect());
    assert!(of(&guarded(space().chunk_auto())).len() > 4);
}

fn journaled(path: &Path, values: &[u64]) -> (TunedFn, BTreeSet<u64>) {
    let mut measurer = Scripted::default();
    let tuned = blocks(values).journal(path).measure(&key(), &mut measurer).expect("tuned");
    (tuned, measurer.0)
}

#[test]
fn a_changed_list_measures_only_what_is_new() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.jsonl");
    let (first, ran) = journaled(&path, &[6, 8, 7, 3]);
    assert_eq!((first.parameter("block"), first.known, ran.len()), (Some(3), 0, 4));
    // The same list: everything is in the journal.
    let (same, ran) = journaled(&path, &[6, 8, 7, 3]);
    assert_eq!((same.outcome.winner, ran.len()), (first.outcome.winner, 0));
    // One more: only it, the default and the best of before run. 8 is slower, and 7 is wrong.
    let (more, ran) = journaled(&path, &[6, 8, 7, 3, 4]);
    assert_eq!((more.parameter("block"), more.known), (Some(3), 2));
    assert_eq!(ran, BTreeSet::from([6, 3, 4]));
    // What the first search found is still known to the third.
    let (third, ran) = journaled(&path, &[6, 8, 7, 1]);
    assert_eq!((third.parameter("block"), third.known), (Some(1), 2));
    assert_eq!(ran, BTreeSet::from([6, 1]));
    assert_eq!(third.outcome.winner().unwrap().verdict, CandidateVerdict::Winner);
    // With another default, earlier comparisons say nothing.
    let (other, ran) = journaled(&path, &[8, 6, 3]);
    assert_eq!((other.known, ran), (0, BTreeSet::from([3, 6, 8])));
}

#[test]
fn the_journal_of_the_largest_space_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.jsonl");
    let tuned = |measurer: &mut Scripted| {
        let space = FnSpace::new([("items", 10)]).journal(&path);
        // 4096 candidates.
        let space = (0..12).fold(space, |space, number| {
            space.parameter(format!("the_length_of_dimension_{number}"), [1, 2])
        });
        space.measure(&key(), measurer).expect("tuned")
    };
    let mut measurer = Scripted::default();
    let first = tuned(&mut measurer);
    assert_eq!((first.outcome.candidates.len(), measurer.0.is_empty()), (4096, false));
    let mut again = Scripted::default();
    assert_eq!(tuned(&mut again).outcome.winner, first.outcome.winner);
    assert!(again.0.is_empty(), "nothing ran again");
}

#[test]
fn a_file_that_is_no_journal_of_the_function_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.jsonl");
    let other = "{\"format\":2,\"subject\":{\"driver\":\"13.0\"}}\n";
    for text in ["", "hello\n", other, "{\"format\":9,\"subject\":{}}\n"] {
        fs::write(&path, text).unwrap();
        let error = work(blocks(&[1, 2]).journal(&path), &[], &RefCell::default());
        let error = error.expect_err("another file");
        assert_eq!(*error.kind(), ErrorKind::Journal, "{error}");
        assert!(error.to_string().ends_with(": give another path, or remove it"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
    }
}

/// As [`Scripted`], but block 6 runs only as often as this number says.
struct Failing(Scripted, u64);

impl Measurer for Failing {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.0.check(candidate)
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<Sample, MeasureFailure> {
        if candidate.parameters[0].1 == 6 {
            let failure = || MeasureFailure::new(FailureKind::Launch, "no memory is left");
            self.1 = self.1.checked_sub(1).ok_or_else(failure)?;
        }
        self.0.sample(candidate, portion)
    }
}

#[test]
fn the_failure_of_the_default_ends_a_search_but_not_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("work.jsonl");
    let space = || blocks(&[6, 7, 3]).journal(&path);
    let mut samples = 0;
    for left in [0, 1, 4] {
        let error = space().measure(&key(), &mut Failing(Scripted::default(), left));
        let error = error.expect_err("the default failed");
        assert!(matches!(error.kind(), ErrorKind::Default(_)), "{error}");
        let lines = fs::read_to_string(&path).unwrap();
        assert!(lines.matches("sample").count() >= samples, "what was measured is kept");
        samples = lines.matches("sample").count();
    }
    assert!(samples > 0);
    let (tuned, ran) = journaled(&path, &[6, 7, 3]);
    assert_eq!(
        (tuned.parameter("block"), failures(&tuned)),
        (Some(3), vec![(7, FailureKind::Mismatch)])
    );
    assert!(!ran.contains(&7), "its check is in the journal");
}

#[test]
fn another_search_of_the_same_function_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let space = || blocks(&[1, 2]).journal(folder.path().join("work.jsonl"));
    let mut kinds = Vec::new();
    let tuned = tune_fn(&key(), space(), |trial| {
        let other = space().measure(&key(), &mut Scripted::default());
        kinds.extend(other.err().map(|error| error.kind().clone()));
        trial.output(|| Ok(vec![1.0_f32]))
    });
    assert!(tuned.expect("tuned").outcome.complete);
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == ErrorKind::Busy), "{kinds:?}");
}
