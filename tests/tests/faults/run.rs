//! Distributes the faults of a run over child processes, with time limits, and checks the results.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::child::{BEGINS, DOES, FAULTS, OWN_FOLDER, RESULT, requested};
use crate::environment::RunEnvironment;
use crate::expected::Observed;
use crate::fault::{Fault, Kind};

/// Environment variable: the only fault to inject.
const ONLY: &str = "GRIDGUARD_FAULT";
/// A process without output for this long hangs; the slowest fault takes seconds.
const DEADLINE: Duration = Duration::from_secs(60);
/// Time between two polls of a process.
const PATIENCE: Duration = Duration::from_millis(2);
/// The most processes at a time.
const MOST_WORKERS: usize = 8;

/// The result of a fault, and whether it is correct.
#[derive(Debug)]
pub(crate) struct Verdict {
    pub(crate) fault: Fault,
    pub(crate) case: &'static str,
    /// The drawn fault.
    pub(crate) drawn: String,
    pub(crate) outcome: String,
    /// The message.
    pub(crate) text: String,
    /// Everything that is wrong.
    pub(crate) wrong: Vec<String>,
    pub(crate) lost_profiles: u64,
    /// Whether its entry was acknowledged, and must be in the profile of its kind.
    pub(crate) published: bool,
    pub(crate) end: End,
}

/// How the process ended.
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

/// Injects all faults of the run with `seed`, or the single fault in the environment.
pub(crate) fn run(environment: &RunEnvironment, seed: u64) -> Vec<Verdict> {
    let only = std::env::var(ONLY).ok().map(|text| {
        let (kind, number) = text.split_once(':').expect("KIND:NUMBER");
        let kind = Kind::of_name(kind).expect("a kind of fault");
        Fault { kind, number: number.parse().expect("a number"), seed }
    });
    let all = Kind::ALL.into_iter().flat_map(|kind| {
        let numbers = 0..kind.count(environment.platform);
        numbers.map(move |number| Fault { kind, number, seed })
    });
    let faults: Vec<Fault> = all.filter(|fault| only.is_none_or(|only| only == *fault)).collect();
    let (alone, others): (Vec<_>, Vec<_>) =
        faults.into_iter().partition(|fault| fault.kind.needs_the_device_alone());
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let at_once = if environment.is_fake() { cores + 2 } else { cores.clamp(2, MOST_WORKERS) };
    let workers = if environment.is_fake() { at_once } else { 1 };
    let mut verdicts = run_batches(environment, batches(&alone), workers);
    // A device recovers from one fault at a time: with eight at once, about one in a thousand surfaced
    // late or never (H200, 580.159.04).
    let (faulty, sound): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|fault| !environment.is_fake() && fault.kind.stops_the_device());
    let others_at_once = if faulty.is_empty() { at_once } else { at_once - 1 };
    std::thread::scope(|scope| {
        let one_by_one = scope.spawn(|| run_batches(environment, batches(&faulty), 1));
        verdicts.extend(run_batches(environment, batches(&sound), others_at_once));
        verdicts.extend(one_by_one.join().expect("no panic"));
    });
    verdicts.sort_by_key(|verdict| (verdict.fault.kind, verdict.fault.number));
    verdicts
}

/// Faults that one process injects in turn.
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

fn run_batches(
    environment: &RunEnvironment,
    batches: VecDeque<Batch>,
    workers: usize,
) -> Vec<Verdict> {
    let (queue, verdicts) = (Mutex::new(batches), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let batch = queue.lock().expect("no panic").pop_front();
                    let Some(batch) = batch else { return };
                    let (described, rest) = run_batch(environment, &batch);
                    verdicts.lock().expect("no panic").extend(described);
                    // A process that ended early leaves its remaining faults.
                    if !rest.is_empty() {
                        queue.lock().expect("no panic").push_front(rest);
                    }
                }
            });
        }
    });
    verdicts.into_inner().expect("no panic")
}

/// The verdicts on the faults that a process reached, and the faults that it did not reach.
fn run_batch(environment: &RunEnvironment, batch: &[Fault]) -> (Vec<Verdict>, Batch) {
    static PROCESSES: AtomicU64 = AtomicU64::new(0);
    let process = PROCESSES.fetch_add(1, Ordering::Relaxed).to_string();
    let folder = environment.folder.join("processes").join(process);
    fs::create_dir(&folder).expect("a folder for the process");
    let (end, out, errors) = run_process(environment, batch, &folder);
    // Libraries are large.
    fs::remove_dir_all(&folder).expect("the folder goes");
    let observed_of = |fault: &Fault| -> Option<Observed> {
        let start = format!("{RESULT}{} ", fault.number);
        let text = out.lines().find_map(|line| line.strip_prefix(&start))?;
        Some(serde_json::from_str(text).expect("the child's own output"))
    };
    let begun = |fault: &Fault| {
        let line = format!("{BEGINS}{}", fault.number);
        out.lines().any(|one| one == line)
    };
    let errors = match out.lines().rev().find_map(|line| line.strip_prefix(DOES)) {
        Some(last) if end == End::Hung => format!("its last action: {last}\n{errors}"),
        _ => errors,
    };
    let mut verdicts = Vec::new();
    for (place, fault) in batch.iter().enumerate() {
        let rest = &batch[place + 1..];
        match observed_of(fault) {
            // A failure after the last result counts for that fault.
            Some(observed) if end != End::Completed && !rest.iter().any(begun) => {
                verdicts.push(verdict(environment, fault, observed, end, &errors));
                return (verdicts, rest.to_vec());
            }
            Some(observed) => {
                verdicts.push(verdict(environment, fault, observed, End::Completed, ""));
            }
            None => {
                let end = if end == End::Completed { End::Exited(0) } else { end };
                verdicts.push(verdict(environment, fault, Observed::default(), end, &errors));
                return (verdicts, rest.to_vec());
            }
        }
    }
    (verdicts, Vec::new())
}

/// Runs a process to its end or its deadline; returns how it ended, stdout and stderr.
fn run_process(
    environment: &RunEnvironment,
    batch: &[Fault],
    folder: &Path,
) -> (End, String, String) {
    let (out, errors) = (folder.join("out"), folder.join("errors"));
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "runs_in_a_child_process", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_cuda = ["CUDA", "NVIDIA"].iter().any(|prefix| text.starts_with(prefix));
        if text.starts_with("GRIDGUARD") || (of_cuda && environment.is_fake()) {
            command.env_remove(&name);
        }
    }
    command.envs(environment.environment());
    // The message is enough.
    command.env("RUST_BACKTRACE", "0");
    command.env(FAULTS, requested(batch)).env(OWN_FOLDER, folder);
    // The faults of a batch are prepared alike.
    let case = batch.first().expect("a fault").case();
    command.envs(case.prepare(environment, folder));
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
            (Some(signal), _) => End::Killed(signal),
            (None, Some(0)) => End::Completed,
            (None, code) => End::Exited(code.unwrap_or(-1)),
        },
    }
}

fn verdict(
    environment: &RunEnvironment,
    fault: &Fault,
    observed: Observed,
    end: End,
    errors: &str,
) -> Verdict {
    let case = fault.case();
    let came = observed.error.outcome.clone();
    let wrong = match end {
        End::Completed => observed.differences(&case.expected(environment)),
        _ => {
            let first: Vec<_> = errors.lines().filter(|line| !line.is_empty()).take(6).collect();
            vec![format!("after {came:?} the process {end:?}: {}", first.join(" | "))]
        }
    };
    Verdict {
        fault: *fault,
        case: case.name(),
        drawn: format!("{case:?}"),
        outcome: if end == End::Completed { came } else { format!("{end:?}") },
        text: observed.error.text,
        wrong,
        lost_profiles: observed.lost_profiles,
        published: observed.published,
        end,
    }
}
