//! Distributes the faults of a run over child processes with time limits, and injects them there.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gridguard::profile::publish;
use gridguard_test_support::Random;

use crate::observed::Observed;
use crate::setup::{Setup, document, entry};
use crate::{KINDS, Kind, Share};

/// Environment variable: the only fault to inject.
const ONLY: &str = "GRIDGUARD_FAULT";
/// Environment variable: kind, seed and numbers of a process's faults.
const FAULTS: &str = "GRIDGUARD_FAULTS";
/// Starts the line with the number and the result of a fault.
const RESULT: &str = "result ";
/// A process without output for this long hangs; the slowest fault takes seconds.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time between two polls of a process.
const PATIENCE: Duration = Duration::from_millis(2);
/// The most processes at a time.
const MOST_WORKERS: usize = 8;

/// What came of a fault.
pub(crate) struct Verdict {
    /// The place in [`KINDS`].
    pub(crate) kind: usize,
    pub(crate) number: u64,
    pub(crate) observed: Observed,
    pub(crate) end: End,
}

/// How the process of a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Completed,
    Panicked,
    Hung,
    /// By this signal.
    Killed(i32),
    /// With this exit code, without a result.
    Exited(i32),
}

/// Faults of one kind that a process injects in turn.
struct Batch {
    kind: usize,
    numbers: Vec<u64>,
}

impl Batch {
    fn kind(&self) -> &'static Kind {
        &KINDS[self.kind]
    }
}

/// The numbers from which a fault is drawn, so that it can be repeated alone.
fn random(kind: usize, number: u64, seed: u64) -> Random {
    let kind = u64::try_from(kind).expect("few");
    Random::new(seed ^ (kind << 48) ^ (number << 24))
}

/// Injects all faults of the run with `seed`, or the single fault that the environment names.
pub(crate) fn run(setup: &Setup, seed: u64) -> Vec<Verdict> {
    let only = std::env::var(ONLY).ok();
    let mut batches = Vec::new();
    for (place, kind) in KINDS.iter().enumerate() {
        let named = |number: &u64| {
            only.as_ref().is_none_or(|only| *only == format!("{}:{number}", kind.name))
        };
        let numbers: Vec<u64> = (0..kind.faults).filter(named).collect();
        let chunks = numbers.chunks(kind.batch);
        batches.extend(chunks.map(|chunk| Batch { kind: place, numbers: chunk.to_vec() }));
    }
    assert!(!batches.is_empty(), "{only:?} is no fault");
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let at_once = if setup.is_fake { cores + 2 } else { cores.clamp(2, MOST_WORKERS) };
    let is = |share, batch: &Batch| !setup.is_fake && batch.kind().device == share;
    let (alone, others): (Vec<_>, Vec<_>) =
        batches.into_iter().partition(|batch| is(Share::Alone, batch));
    let (faulty, sound): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|batch| is(Share::OneByOne, batch));
    let mut verdicts = run_batches(setup, seed, alone, 1);
    std::thread::scope(|scope| {
        let one_by_one = scope.spawn(|| run_batches(setup, seed, faulty, 1));
        verdicts.extend(run_batches(setup, seed, sound, at_once));
        verdicts.extend(one_by_one.join().expect("no panic"));
    });
    verdicts.sort_by_key(|verdict| (verdict.kind, verdict.number));
    verdicts
}

fn run_batches(setup: &Setup, seed: u64, batches: Vec<Batch>, workers: usize) -> Vec<Verdict> {
    let (queue, verdicts) = (Mutex::new(VecDeque::from(batches)), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let batch = queue.lock().expect("no panic").pop_front();
            let Some(mut batch) = batch else { return };
            let reached = run_batch(setup, seed, &batch);
            // A process that ended early leaves its remaining faults.
            batch.numbers.drain(..reached.len());
            verdicts.lock().expect("no panic").extend(reached);
            if !batch.numbers.is_empty() {
                queue.lock().expect("no panic").push_front(batch);
            }
        }
    };
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    verdicts.into_inner().expect("no panic")
}

/// The verdicts on the faults that a process reached: all, or those up to the one that ended it.
fn run_batch(setup: &Setup, seed: u64, batch: &Batch) -> Vec<Verdict> {
    let own = setup.processes().join(format!("{}-{}", batch.kind().name, batch.numbers[0]));
    fs::create_dir(&own).expect("a folder for the process");
    let setup = setup.of_process(own);
    let (end, out, errors) = run_process(&setup, seed, batch);
    // Libraries are large.
    fs::remove_dir_all(&setup.own).expect("the folder goes");
    let result = |number: u64| -> Option<Observed> {
        let start = format!("{RESULT}{number} ");
        let text = out.lines().find_map(|line| line.strip_prefix(&start))?;
        Some(serde_json::from_str(text).expect("the child's own output"))
    };
    let kind = batch.kind;
    let mut verdicts = Vec::new();
    for &number in &batch.numbers {
        let Some(observed) = result(number) else { break };
        verdicts.push(Verdict { kind, number, observed, end: End::Completed });
    }
    let reached = verdicts.len();
    if reached < batch.numbers.len() || end != End::Completed {
        // A failure after the last result counts for the last fault.
        verdicts.truncate(batch.numbers.len() - 1);
        let end = if end == End::Completed { End::Exited(0) } else { end };
        let first: Vec<_> = errors.lines().filter(|line| !line.is_empty()).take(6).collect();
        let wrong = vec![format!("the process {end:?}: {}", first.join(" | "))];
        let observed = Observed { outcome: format!("{end:?}"), wrong, ..Observed::default() };
        verdicts.push(Verdict { kind, number: batch.numbers[verdicts.len()], observed, end });
    }
    verdicts
}

/// Runs a process to its end or its deadline; returns how it ended, stdout and stderr.
fn run_process(setup: &Setup, seed: u64, batch: &Batch) -> (End, String, String) {
    let (out, errors) = (setup.own.join("out"), setup.own.join("errors"));
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "runs_in_a_child_process", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_cuda = ["CUDA", "NVIDIA"].iter().any(|prefix| text.starts_with(prefix));
        if text.starts_with("GRIDGUARD") || (of_cuda && setup.is_fake) {
            command.env_remove(&name);
        }
    }
    let first = batch.numbers[0];
    let numbers: Vec<_> = batch.numbers.iter().map(u64::to_string).collect();
    command.env(FAULTS, format!("{}:{seed}:{}", batch.kind, numbers.join(",")));
    command.envs(setup.variables()).env("RUST_BACKTRACE", "0");
    command.envs((batch.kind().prepare)(setup, first, &mut random(batch.kind, first, seed)));
    command.stdin(Stdio::null());
    command.stdout(File::create(&out).expect("a file for the output"));
    command.stderr(File::create(&errors).expect("a file for the errors"));
    let mut child = command.spawn().expect("this program runs again");
    let (mut deadline, mut said) = (Instant::now() + DEADLINE, 0);
    let status = loop {
        let says = fs::metadata(&out).map_or(0, |file| file.len());
        if says > said {
            (deadline, said) = (Instant::now() + DEADLINE, says);
        }
        if let Some(status) = child.try_wait().expect("its own child") {
            break Some(status);
        }
        if Instant::now() > deadline {
            child.kill().expect("its own child");
            child.wait().expect("its own child");
            break None;
        }
        std::thread::sleep(PATIENCE);
    };
    let text = |path| String::from_utf8_lossy(&fs::read(path).expect("its output")).into_owned();
    let (out, errors) = (text(out), text(errors));
    let end = match status.map(|status| (status.signal(), status.code())) {
        _ if errors.contains("panicked at") => End::Panicked,
        None => End::Hung,
        Some((Some(signal), _)) => End::Killed(signal),
        Some((None, Some(0))) => End::Completed,
        Some((None, code)) => End::Exited(code.unwrap_or(-1)),
    };
    (end, out, errors)
}

/// In a child process: injects the faults that the environment names, and prints the result of each.
pub(crate) fn inject_requested() {
    let Ok(faults) = std::env::var(FAULTS) else { return };
    let [kind, seed, numbers] = faults.split(':').collect::<Vec<_>>()[..] else {
        panic!("{faults}: not KIND:SEED:NUMBERS");
    };
    let (place, seed) = (kind.parse().expect("a kind"), seed.parse().expect("a seed"));
    let (setup, kind): (_, &Kind) = (Setup::from_variables(), &KINDS[place]);
    for number in numbers.split(',').map(|number| number.parse().expect("a number")) {
        let mut observed = (kind.inject)(&setup, number, &mut random(place, number, seed));
        let written = publish(&setup.profile(kind.name), &document([entry(kind.name, number, 0)]));
        observed.require(written.is_ok(), || format!("no profile afterwards: {written:?}"));
        let text = serde_json::to_string(&observed).expect("plain data");
        // On a line of its own, whatever the driver or the test harness print.
        let mut out = std::io::stdout().lock();
        out.write_all(format!("\n{RESULT}{number} {text}\n").as_bytes()).expect("a listener");
        out.flush().expect("a listener");
    }
}
