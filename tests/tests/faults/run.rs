//! Gives the faults of a run to child processes, and bounds, watches and judges these.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::child::{BEGINS, DOES, FAULTS, OWN_FOLDER, TOLD, asked_for};
use crate::fault::{Fault, Kind};
use crate::ground::Ground;
use crate::judge::Observed;

/// Names one fault of a run that is to be injected alone.
const ONLY: &str = "GRIDGUARD_FAULT";
/// After so long without a word a process hangs: seconds are what the slowest fault takes.
const DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks at a process.
const PATIENCE: Duration = Duration::from_millis(2);
/// Processes at a time, where there are cores for them.
const MOST_WORKERS: usize = 8;

/// What came of a fault, and whether that is right.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) fault: Fault,
    pub(crate) case: &'static str,
    /// All of what was drawn.
    pub(crate) drawn: String,
    pub(crate) outcome: String,
    /// What a person would have read.
    pub(crate) text: String,
    /// What is wrong with it; nothing where all is well.
    pub(crate) wrong: Vec<String>,
    pub(crate) lost_profiles: u64,
    /// Whether its entry was acknowledged, and must be in the file of its kind.
    pub(crate) published: bool,
    pub(crate) end: End,
}

/// How the process went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Told,
    Panicked,
    Hung,
    /// It died of this signal.
    Died(i32),
    /// It ended with this code, and said nothing.
    Left(i32),
}

/// Injects all faults of the run with `seed`, or the one that the environment names.
pub(crate) fn run(ground: &Ground, seed: u64) -> Vec<Verdict> {
    let only = std::env::var(ONLY).ok().map(|text| {
        let (kind, number) = text.split_once(':').expect("KIND:NUMBER");
        let kind = Kind::of_name(kind).expect("a kind of fault");
        Fault { kind, number: number.parse().expect("a number"), seed }
    });
    let all = Kind::ALL.into_iter().flat_map(|kind| {
        let numbers = 0..kind.count(ground.platform);
        numbers.map(move |number| Fault { kind, number, seed })
    });
    let faults: Vec<Fault> = all.filter(|fault| only.is_none_or(|only| only == *fault)).collect();
    let (alone, others): (Vec<_>, Vec<_>) =
        faults.into_iter().partition(|fault| fault.kind.needs_the_device_alone());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let at_once = if ground.is_fake() { cores + 2 } else { cores.clamp(2, MOST_WORKERS) };
    let workers = if ground.is_fake() { at_once } else { 1 };
    let mut verdicts = run_batches(ground, batches(&alone), workers);
    // A device recovers from one fault at a time: with eight at once about one in a thousand was told
    // late, or never (H200, 580.159.04).
    let (faulty, sound): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|fault| !ground.is_fake() && fault.kind.stops_the_device());
    let others_at_once = if faulty.is_empty() { at_once } else { at_once - 1 };
    std::thread::scope(|scope| {
        let one_by_one = scope.spawn(|| run_batches(ground, batches(&faulty), 1));
        verdicts.extend(run_batches(ground, batches(&sound), others_at_once));
        verdicts.extend(one_by_one.join().expect("no panic"));
    });
    verdicts.sort_by_key(|verdict| (verdict.fault.kind, verdict.fault.number));
    verdicts
}

/// Faults that one process injects after another.
type Batch = Vec<Fault>;

fn batches(faults: &[Fault]) -> VecDeque<Batch> {
    let mut batches = VecDeque::new();
    for kind in Kind::ALL {
        let of_kind = faults.iter().copied().filter(|fault| fault.kind == kind);
        let (own, together): (Vec<_>, Vec<_>) =
            of_kind.partition(|fault| fault.case().needs_a_process());
        batches.extend(own.into_iter().map(|fault| vec![fault]));
        batches.extend(together.chunks(kind.batch()).map(<[Fault]>::to_vec));
    }
    batches
}

fn run_batches(ground: &Ground, batches: VecDeque<Batch>, workers: usize) -> Vec<Verdict> {
    let (queue, verdicts) = (Mutex::new(batches), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let batch = queue.lock().expect("no panic").pop_front();
                    let Some(batch) = batch else { return };
                    let (told, rest) = run_batch(ground, &batch);
                    verdicts.lock().expect("no panic").extend(told);
                    // A process that ended early leaves the faults after the one at hand.
                    if !rest.is_empty() {
                        queue.lock().expect("no panic").push_front(rest);
                    }
                }
            });
        }
    });
    verdicts.into_inner().expect("no panic")
}

/// Verdicts on the faults that a process came to, and those that it did not come to.
fn run_batch(ground: &Ground, batch: &[Fault]) -> (Vec<Verdict>, Batch) {
    static PROCESSES: AtomicU64 = AtomicU64::new(0);
    let process = PROCESSES.fetch_add(1, Ordering::Relaxed).to_string();
    let folder = ground.folder.join("processes").join(process);
    fs::create_dir(&folder).expect("a folder for the process");
    let (end, out, errors) = run_process(ground, batch, &folder);
    // Libraries are large.
    fs::remove_dir_all(&folder).expect("the folder goes");
    let told = |fault: &Fault| -> Option<Observed> {
        let start = format!("{TOLD}{} ", fault.number);
        let text = out.lines().find_map(|line| line.strip_prefix(&start))?;
        Some(serde_json::from_str(text).expect("the child's own words"))
    };
    let begun = |fault: &Fault| {
        let line = format!("{BEGINS}{}", fault.number);
        out.lines().any(|one| one == line)
    };
    let errors = match out.lines().rev().find_map(|line| line.strip_prefix(DOES)) {
        Some(last) if end == End::Hung => format!("it was to {last}\n{errors}"),
        _ => errors,
    };
    let mut verdicts = Vec::new();
    for (place, fault) in batch.iter().enumerate() {
        let rest = &batch[place + 1..];
        match told(fault) {
            // What happens after the last one is counted as its own.
            Some(observed) if end != End::Told && !rest.iter().any(begun) => {
                verdicts.push(verdict(ground, fault, observed, end, &errors));
                return (verdicts, rest.to_vec());
            }
            Some(observed) => verdicts.push(verdict(ground, fault, observed, End::Told, "")),
            None => {
                let end = if end == End::Told { End::Left(0) } else { end };
                verdicts.push(verdict(ground, fault, Observed::default(), end, &errors));
                return (verdicts, rest.to_vec());
            }
        }
    }
    (verdicts, Vec::new())
}

/// Runs a process to its end or its deadline: how it ended, its output and its errors.
fn run_process(ground: &Ground, batch: &[Fault], folder: &Path) -> (End, String, String) {
    let (out, errors) = (folder.join("out"), folder.join("errors"));
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "plays_its_role", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_cuda = ["CUDA", "NVIDIA"].iter().any(|prefix| text.starts_with(prefix));
        if text.starts_with("GRIDGUARD") || (of_cuda && ground.is_fake()) {
            command.env_remove(&name);
        }
    }
    command.envs(ground.environment());
    // A message is enough.
    command.env("RUST_BACKTRACE", "0");
    command.env(FAULTS, asked_for(batch)).env(OWN_FOLDER, folder);
    // Those of a batch are prepared alike.
    let case = batch.first().expect("a fault").case();
    command.envs(case.prepare(ground, folder));
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
    (end_of(status, &errors), out, errors)
}

fn end_of(status: Option<ExitStatus>, errors: &str) -> End {
    match status {
        _ if errors.contains("panicked at") => End::Panicked,
        None => End::Hung,
        Some(status) => match (status.signal(), status.code()) {
            (Some(signal), _) => End::Died(signal),
            (None, Some(0)) => End::Told,
            (None, code) => End::Left(code.unwrap_or(-1)),
        },
    }
}

fn verdict(ground: &Ground, fault: &Fault, observed: Observed, end: End, errors: &str) -> Verdict {
    let case = fault.case();
    let came = observed.told.outcome.clone();
    let wrong = match end {
        End::Told => observed.judge(&case.expected(ground)),
        _ => {
            let first: Vec<_> = errors.lines().filter(|line| !line.is_empty()).take(6).collect();
            vec![format!("after {came:?} the process {end:?}: {}", first.join(" | "))]
        }
    };
    Verdict {
        fault: *fault,
        case: case.name(),
        drawn: format!("{case:?}"),
        outcome: if end == End::Told { came } else { format!("{end:?}") },
        text: observed.told.text,
        wrong,
        lost_profiles: observed.lost_profiles,
        published: observed.published,
        end,
    }
}
