//! Injects each fault of a run in a child process with a time limit, and reports what came of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use gridguard::DeviceLimits;
use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, Key, StoredChoice, load, publish,
};
use gridguard_test_support::Random;
use gridguard_tests::figures::from_suite;
use serde::Serialize;

use crate::observed::Observed;
use crate::setup::Setup;
use crate::{KINDS, Kind, Share};

/// Environment variable: the only fault to inject.
const ONLY: &str = "GRIDGUARD_FAULT";
/// Environment variable: kind, seed and number of a process's fault, and its folder.
const FAULT: &str = "GRIDGUARD_FAULTS_ONE";
const RESULT: &str = "result.json";
/// Environment variable: the folder for results.
const RESULTS: &str = "GRIDGUARD_RESULTS";
/// The seed of a run, unless the environment names another.
const SEED: u64 = 20_250_611;
/// A process hangs after this time; the slowest fault takes seconds.
const DEADLINE: Duration = Duration::from_secs(120);
/// Time between two polls of a process.
const PAUSE: Duration = Duration::from_millis(2);
/// The most processes at a time.
const MOST_WORKERS: usize = 8;
/// The most wrong outcomes that a failure lists.
const MOST_LISTED: usize = 60;

/// The file `faults.json`.
#[derive(Serialize)]
struct Report {
    device: String,
    driver: String,
    commit: String,
    date: String,
    seed: u64,
    seconds: u64,
    injected: u64,
    different: usize,
    wrong: usize,
    lost_profiles: usize,
    /// How often each outcome of a kind occurred.
    kinds: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

/// The numbers from which a fault is drawn, so that it can be repeated alone.
fn random(kind: usize, number: u64, seed: u64) -> Random {
    let kind = u64::try_from(kind).expect("few");
    Random::new(seed ^ (kind << 48) ^ (number << 24))
}

/// What came of the faults of a run.
#[derive(Default)]
struct Outcomes {
    wrong: Vec<String>,
    drawn: BTreeSet<(usize, Option<String>)>,
    kinds: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

impl Outcomes {
    fn add(&mut self, seed: u64, (place, number): (usize, u64), observed: Observed) {
        let Observed { outcome, details, wrong } = observed;
        let name = KINDS[place].name;
        self.drawn.insert((place, details.last().cloned()));
        if !wrong.is_empty() {
            let lines = wrong.into_iter().chain(details).collect::<Vec<_>>().join("\n    ");
            let repeat = format!("PROPTEST_RNG_SEED={seed} {ONLY}={name}:{number}");
            self.wrong.push(format!("{outcome}\n    {lines}\n    {repeat}"));
        }
        *self.kinds.entry(name).or_default().entry(outcome).or_default() += 1;
    }
}

/// The numbers of a kind's faults in this run.
fn numbers(kind: &Kind) -> impl Iterator<Item = u64> + Send + use<> {
    let (only, name) = (std::env::var(ONLY).ok(), kind.name);
    let is_wanted = move |at: &u64| only.as_ref().is_none_or(|it| *it == format!("{name}:{at}"));
    (0..kind.faults).filter(is_wanted)
}

/// Injects all faults of a run, or the single fault that the environment names.
pub(crate) fn inject_all(is_fake: bool) {
    let seed = std::env::var("PROPTEST_RNG_SEED").ok();
    let seed = seed.and_then(|text| text.trim().parse().ok()).unwrap_or(SEED);
    let folder = tempfile::tempdir().expect("a folder for the run");
    let setup = Setup::create(is_fake, folder.path());
    let (begun, outcomes) = (Instant::now(), Mutex::<Outcomes>::default());
    let inject = |shares: &[Share], workers: usize| {
        let of_share = KINDS.iter().enumerate().filter(|(_, kind)| shares.contains(&kind.device));
        let all = of_share.flat_map(|(place, kind)| numbers(kind).map(move |at| (place, at)));
        let queue = Mutex::new(all);
        let work = || {
            while let Some(fault) = { queue.lock().expect("no panic").next() } {
                let observed = inject_in_process(&setup, seed, fault);
                outcomes.lock().expect("no panic").add(seed, fault, observed);
            }
        };
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    };
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    if is_fake {
        inject(&[Share::Alone, Share::OneByOne, Share::Shared], cores + 2);
    } else {
        inject(&[Share::Alone], 1);
        std::thread::scope(|scope| {
            scope.spawn(|| inject(&[Share::OneByOne], 1));
            inject(&[Share::Shared], cores.clamp(2, MOST_WORKERS));
        });
    }
    publish_and_check(&setup, seed, begun.elapsed(), outcomes.into_inner().expect("no panic"));
}

/// Writes the report to the folder for results, and fails if anything is wrong, with how to repeat it.
fn publish_and_check(setup: &Setup, seed: u64, took: Duration, outcomes: Outcomes) {
    let Outcomes { mut wrong, drawn, kinds } = outcomes;
    // Each fault is followed by an entry.
    let lost = KINDS.iter().map(|kind| {
        let profile = load(&setup.profile(kind.name)).ok().flatten();
        let entries = profile.iter().flat_map(|read| read.document.entries());
        let rows: BTreeSet<u64> = entries.map(|entry| entry.shape[0].1 - 1).collect();
        numbers(kind).filter(|at| !rows.contains(at)).count()
    });
    let report = Report {
        device: match setup.is_fake {
            true => "none, a fake driver".into(),
            false => gridguard::cuda::device_limits(0).expect("a CUDA device").name.clone(),
        },
        driver: from_suite("GRIDGUARD_DRIVER"),
        commit: from_suite("GRIDGUARD_COMMIT"),
        date: from_suite("GRIDGUARD_DATE"),
        seed,
        seconds: took.as_secs(),
        injected: kinds.values().flat_map(BTreeMap::values).sum(),
        different: drawn.len(),
        wrong: wrong.len(),
        lost_profiles: lost.sum(),
        kinds,
    };
    let text = serde_json::to_string_pretty(&report).expect("a report") + "\n";
    println!("{text}");
    if let Some(folder) = std::env::var_os(RESULTS) {
        let path = std::path::Path::new(&folder).join("faults.json");
        gridguard_files::publish(&path, text.as_bytes()).expect("the folder of results");
    }
    wrong.truncate(MOST_LISTED);
    assert!(wrong.is_empty(), "{} faults went wrong:\n{}", report.wrong, wrong.join("\n"));
    assert_eq!(report.lost_profiles, 0, "profiles were lost");
    let least = if std::env::var_os(ONLY).is_some() { 1 } else { 1000 };
    assert!(report.different >= least, "{} faults are different", report.different);
}

/// What came of a fault in a process of its own.
fn inject_in_process(setup: &Setup, seed: u64, (place, number): (usize, u64)) -> Observed {
    let kind = &KINDS[place];
    let own = setup.folder.join(format!("{}-{number}", kind.name));
    fs::create_dir(&own).expect("a folder for the process");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "runs_in_a_child_process", "--nocapture", "--test-threads=1"]);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_cuda = ["CUDA", "NVIDIA"].iter().any(|prefix| text.starts_with(prefix));
        if text.starts_with("GRIDGUARD") || (of_cuda && setup.is_fake) {
            command.env_remove(&name);
        }
    }
    command.env(FAULT, format!("{place}:{seed}:{number}:{}", own.display()));
    command.envs(setup.variables()).env("RUST_BACKTRACE", "0");
    command.envs((kind.prepare)(setup, &own, number, &mut random(place, number, seed)));
    let errors = own.join("errors");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command.stderr(File::create(&errors).expect("a file for the errors"));
    let status = wait(command);
    let errors = String::from_utf8_lossy(&fs::read(errors).expect("its errors")).into_owned();
    let result = fs::read(own.join(RESULT)).ok();
    // Libraries are large.
    fs::remove_dir_all(own).expect("the folder goes");
    let ended_well = status.is_some_and(|status| status.success());
    match result {
        Some(result) if ended_well => serde_json::from_slice(&result).expect("its own output"),
        _ => {
            let first: Vec<_> = errors.lines().filter(|line| !line.is_empty()).take(6).collect();
            let outcome = status.map_or("hung".into(), |status| status.to_string());
            Observed { outcome, wrong: vec![first.join(" | ")], ..Observed::default() }
        }
    }
}

/// How a process ended, if it did in time.
fn wait(mut command: Command) -> Option<ExitStatus> {
    let mut child = command.spawn().expect("this program runs again");
    let begun = Instant::now();
    while begun.elapsed() < DEADLINE {
        if let Some(status) = child.try_wait().expect("its own child") {
            return Some(status);
        }
        std::thread::sleep(PAUSE);
    }
    child.kill().expect("its own child");
    child.wait().expect("its own child");
    None
}

/// In a child process: injects the fault that the environment names, and writes what came of it.
pub(crate) fn inject_requested() {
    let Ok(fault) = std::env::var(FAULT) else { return };
    let [kind, seed, number, own] = fault.splitn(4, ':').collect::<Vec<_>>()[..] else {
        panic!("{fault}: not KIND:SEED:NUMBER:FOLDER");
    };
    let place: usize = kind.parse().expect("a kind");
    let (seed, number) = (seed.parse().expect("a seed"), number.parse().expect("a number"));
    let (setup, kind) = (Setup::from_variables(), &KINDS[place]);
    let mut observed = (kind.inject)(&setup, number, &mut random(place, number, seed));
    let written = publish(&setup.profile(kind.name), &document(number));
    observed.require(written.is_ok(), || format!("no profile afterwards: {written:?}"));
    let text = serde_json::to_vec(&observed).expect("plain data");
    fs::write(std::path::Path::new(own).join(RESULT), text).expect("a folder of its own");
}

/// A profile of no device in particular, with an entry for this many rows and one more, since sizes are not 0.
fn document(rows: u64) -> Document {
    let device = DeviceIdentity::new(&DeviceLimits::any_device());
    let mut document = Document::new(device, Environment::default());
    let entry = Entry {
        key: Key { kernel: "k".into(), dtypes: "f16".into(), ..Key::default() },
        shape: vec![("rows".into(), rows + 1)],
        choice: StoredChoice::Whole,
        launches: 1,
        ..Entry::default()
    };
    document.insert(entry).expect("within bounds");
    document
}
