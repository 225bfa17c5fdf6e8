//! The measurer in a child process, with real processes: this test program again, in another role.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gridguard::profile::{L2, Policy, StoredChoice, Submission};
use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest};
use gridguard_autotune::{
    Candidate, ErrorKind, FailureKind, HostClock, InProcess, LaunchConfig, MeasureFailure,
    Measurer, Portion, Remote, Timeouts, Workload, serve, unended_processes,
};
use tempfile::TempDir;

/// The environment variable with the role of a process; unset for the tests themselves.
const ROLE: &str = "GRIDGUARD_TEST_ROLE";
/// The environment variable with a folder for what processes tell a test.
const FOLDER: &str = "GRIDGUARD_TEST_FOLDER";

/// The faults that a candidate's parameter `fault` selects.
const FINE: u64 = 0;
const ABORTS: u64 = 1;
const HANGS: u64 = 2;
const EXITS: u64 = 3;
const PRINTS: u64 = 4;
const PANICS: u64 = 5;
const IS_WRONG: u64 = 6;
const FORGES: u64 = 7;
const READS_INPUT: u64 = 8;
const FLOODS: u64 = 9;
const STARTS_A_PROCESS: u64 = 10;
const CANNOT_END: u64 = 11;

/// How long a test waits for what must happen, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(600);

struct Faulty;

impl Faulty {
    fn run(candidate: &Candidate) -> Result<(), MeasureFailure> {
        let (_, fault) = candidate.parameters.first().expect("a fault");
        match *fault {
            ABORTS => process::abort(),
            HANGS => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            EXITS => {
                eprintln!("leaving early");
                process::exit(3);
            }
            PRINTS => io::stdout().write_all(b"frobnicate\n").expect("prints"),
            PANICS => panic!("the candidate panics"),
            IS_WRONG => return Err(MeasureFailure::new(FailureKind::Mismatch, "wrong at 7")),
            FORGES => {
                let forged = "\n\"checked\"\n{\"id\":2,\"message\":\"checked\"}\n";
                io::stdout().write_all(forged.as_bytes()).expect("prints");
                return Err(MeasureFailure::new(FailureKind::Mismatch, "wrong at 8"));
            }
            READS_INPUT => {
                let read = io::stdin().read_to_end(&mut Vec::new()).expect("reads");
                assert_eq!(read, 0, "standard input is empty");
            }
            FLOODS => (0..64).for_each(|_| {
                io::stdout().write_all(&[b'x'; 1 << 20]).expect("prints");
            }),
            STARTS_A_PROCESS => {
                let mut process = Command::new("sleep").arg("3600").spawn().expect("sleeps");
                publish("started", process.id());
                process.wait().expect("sleeps on");
            }
            CANNOT_END => {
                let mut tracer = this_program("traces");
                tracer.env("TRACED", process::id().to_string());
                // Outside the group that is killed.
                std::os::unix::process::CommandExt::process_group(&mut tracer, 0);
                tracer.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
                tracer.spawn().expect("a tracer").wait().expect("traces on");
            }
            _ if env::var_os(FOLDER).is_some() && shared("broken").exists() => process::abort(),
            _ => thread::sleep(Duration::from_micros(200)),
        }
        Ok(())
    }
}

/// Traces the process `TRACED`, which no one else can then reap, until its file `traced` is deleted.
#[allow(unsafe_code, reason = "there is no safe interface")]
fn trace() {
    let traced: i32 = env::var("TRACED").expect("an id").parse().expect("a number");
    // SAFETY: without an address and data, the call only changes the state of that process.
    let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, traced, 0, 0) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    publish("traced", 0);
    while shared("traced").exists() {
        thread::sleep(Duration::from_millis(10));
    }
}

fn shared(name: &str) -> PathBuf {
    Path::new(&env::var(FOLDER).expect("a folder")).join(name)
}

/// Writes a whole file into the shared folder.
fn publish(name: &str, number: u32) {
    fs::write(shared("new"), number.to_string()).expect("written");
    fs::rename(shared("new"), shared(name)).expect("renamed");
}

impl Workload for Faulty {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("faulty"));
        let configuration = |fault| LaunchConfig {
            parameters: vec![("fault".into(), fault)],
            request: LaunchRequest::new(Dim3::new(1, 70_000, 1), Dim3::new(32, 1, 1)),
            batch: Some(BatchAxis::new(Axis::Y, 70_000)),
            limits: limits.clone(),
        };
        Ok((FINE..=CANNOT_END).map(configuration).collect())
    }

    fn prepare(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
        Ok(())
    }

    fn launch(&mut self, candidate: &Candidate, _: Portion) -> Result<(), MeasureFailure> {
        Self::run(candidate)
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        Self::run(candidate)
    }
}

/// The program of the child processes. Does nothing without a role.
#[test]
fn plays_its_role() {
    match env::var(ROLE).as_deref() {
        Ok("measures") => serve(|problem| match problem {
            "faulty" => {
                let policy = Policy { l2: L2::Hot, submission: Submission::Eager };
                Ok(Box::new(InProcess::new(Faulty, HostClock::new(policy))))
            }
            "fatal" => process::exit(4),
            other => Err(MeasureFailure::new(FailureKind::Launch, format!("no problem {other}"))),
        })
        .expect("serves"),
        // Holds a measurer until it is killed, and prints the id of the measuring process.
        Ok("tunes") => {
            let mut remote = remote();
            let id = remote.process_id().expect("a process");
            writeln!(io::stdout(), "\nmeasures in {id}").expect("prints");
            let _ = remote.check(&candidate(STARTS_A_PROCESS));
        }
        Ok("traces") => trace(),
        _ => {}
    }
}

fn this_program(role: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("this program"));
    // The harness with one thread writes the test's name before its output.
    command.args(["--exact", "plays_its_role", "--nocapture", "--test-threads", "2"]);
    command.env(ROLE, role);
    command
}

fn timeouts() -> Timeouts {
    Timeouts { open: LIMIT, request: LIMIT, close: LIMIT, kill: LIMIT }
}

fn remote() -> Remote {
    Remote::spawn(|| this_program("measures"), "faulty", timeouts()).expect("a measurer")
}

fn candidate(fault: u64) -> Candidate {
    Candidate {
        parameters: vec![("fault".into(), fault)],
        choice: StoredChoice::Automatic,
        strategy: gridguard::Strategy::Chunked,
        launches: 2,
        largest_chunk: 35_000,
        block_threads: 32,
        scratch_bytes: 0,
    }
}

/// Whether the process exists and is not a zombie.
fn is_running(id: u32) -> bool {
    let process = Path::new("/proc").join(id.to_string());
    let status = fs::read_to_string(process.join("stat"));
    let threads = fs::read_dir(process.join("task")).map_or(0, Iterator::count);
    status.is_ok_and(|status| threads > 1 || !status.contains(") Z "))
}

fn ends(id: u32) -> bool {
    let since = Instant::now();
    while is_running(id) {
        if since.elapsed() > LIMIT {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Checks a candidate that must end its process, between others that run on.
fn fatal(fault: u64) -> MeasureFailure {
    let mut remote = remote();
    remote.check(&candidate(FINE)).expect("fine");
    let id = remote.process_id().expect("a process");
    let failure = remote.check(&candidate(fault)).expect_err("fatal");
    assert_eq!(remote.process_id(), None);
    assert!(!is_running(id), "its process still runs");
    remote.sample(&candidate(FINE), Portion::Sequence).expect("in another process");
    assert!(remote.lost().is_none());
    failure
}

/// Calls `test` with ever longer time limits for a request, until the machine is fast enough for one.
fn with_time(test: impl Fn(Duration) -> Option<()>) {
    let limits = [2, 10, 60, 600].into_iter().map(Duration::from_secs);
    limits.into_iter().find_map(test).expect("a machine that is fast enough");
}

#[test]
fn configurations_are_transferred_completely() {
    let mut remote = remote();
    let configurations = remote.configurations().expect("known");
    let [first, ..] = &configurations[..] else {
        panic!("no configuration");
    };
    assert_eq!(configurations.len(), 12);
    assert_eq!(first.parameters, [("fault".to_owned(), FINE)]);
    assert_eq!((first.request.grid.y, first.batch.map(|one| one.items())), (70_000, Some(70_000)));
    assert_eq!(first.limits.device(), &DeviceLimits::any_device());
    assert_eq!(first.limits.kernel(), &KernelLimits::unknown("faulty"));
}

#[test]
fn another_problem_opens_in_the_same_process_or_in_a_new_one_after_a_crash() {
    let mut remote = remote();
    let id = remote.process_id();
    remote.reopen("faulty").expect("opens");
    assert_eq!(remote.process_id(), id);
    remote.check(&candidate(ABORTS)).expect_err("gone");
    remote.reopen("faulty").expect("opens");
    remote.check(&candidate(FINE)).expect("fine");
    let error = remote.reopen("none").expect_err("no such problem");
    assert!(error.to_string().contains("no problem none"), "{error}");
    remote.reopen("faulty").expect("opens after a failure");
}

#[test]
fn candidates_are_measured_in_one_process() {
    let mut remote = remote();
    let id = remote.process_id();
    remote.check(&candidate(FINE)).expect("fine");
    for portion in [Portion::Sequence, Portion::LargestLaunch] {
        let sample = remote.sample(&candidate(FINE), portion).expect("a sample");
        assert!(sample.time_ns > 2e5, "{sample:?}");
    }
    let failure = remote.check(&candidate(IS_WRONG)).expect_err("wrong");
    assert_eq!(failure, MeasureFailure::new(FailureKind::Mismatch, "wrong at 7"));
    assert_eq!(remote.process_id(), id, "a candidate that is wrong takes no process");
    drop(remote);
    assert!(!is_running(id.expect("a process")), "it still runs");
}

#[test]
fn a_candidate_that_ends_its_process_is_a_crash_with_the_reason() {
    let crash = |fault| {
        let failure = fatal(fault);
        assert_eq!(failure.kind, FailureKind::Crash);
        failure.message
    };
    assert!(crash(ABORTS).contains("SIGABRT"));
    assert!(crash(PANICS).contains("the candidate panics"));
    assert_eq!(crash(EXITS), "the measuring process died (exit status: 3): leaving early");
}

#[test]
fn the_output_of_a_candidate_is_reported_and_never_read_as_a_response() {
    let mut remote = remote();
    remote.check(&candidate(PRINTS)).expect("fine");
    let failure = remote.check(&candidate(FORGES)).expect_err("wrong");
    assert_eq!(failure, MeasureFailure::new(FailureKind::Mismatch, "wrong at 8"));
    remote.check(&candidate(READS_INPUT)).expect("fine");
    let id = remote.process_id();
    assert!(remote.take_printed().is_some_and(|printed| printed.contains("frobnicate")));
    drop(remote.check(&candidate(FLOODS)));
    assert_eq!(remote.process_id(), id, "64 MiB of output are read, and not kept");
    let start = Instant::now();
    let mut printed = String::new();
    while !printed.contains("xxx") {
        printed += &remote.take_printed().unwrap_or_default();
        assert!(printed.len() < 100_000, "{}", printed.len());
        assert!(start.elapsed() < LIMIT, "{printed}");
    }
}

/// In a folder that the processes share.
fn in_folder(timeouts: Timeouts) -> (Remote, TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_owned();
    let command = move || {
        let mut command = this_program("measures");
        command.env(FOLDER, &path);
        command
    };
    (Remote::spawn(command, "faulty", timeouts).expect("a measurer"), folder)
}

#[test]
fn a_candidate_that_hangs_times_out_and_its_children_end_with_it() {
    with_time(|request| {
        let (mut remote, folder) = in_folder(Timeouts { request, ..timeouts() });
        let failure = remote.check(&candidate(STARTS_A_PROCESS)).expect_err("hangs");
        let expected = format!("the measuring process did not respond within {request:?}");
        assert_eq!((failure.kind, failure.message), (FailureKind::Timeout, expected));
        let started = fs::read_to_string(folder.path().join("started")).ok()?;
        assert!(ends(started.parse().expect("a number")));
        Some(())
    });
}

#[test]
fn a_request_ends_at_once_when_measuring_is_to_stop() {
    static STOPPED: AtomicBool = AtomicBool::new(false);
    let stop = || STOPPED.load(Ordering::Relaxed);
    let start = || this_program("measures");
    let opened = Remote::spawn_until(stop, start, "faulty", timeouts());
    let mut remote = opened.expect("a measurer");
    remote.check(&candidate(FINE)).expect("fine");
    let id = remote.process_id().expect("a process");
    let stopper = thread::spawn(|| {
        thread::sleep(Duration::from_millis(100));
        STOPPED.store(true, Ordering::Relaxed);
    });
    // The time limit of the request is ten minutes.
    let begun = Instant::now();
    let failure = remote.check(&candidate(HANGS)).expect_err("stopped");
    assert!(begun.elapsed() < LIMIT);
    assert_eq!(
        (failure.kind, &*failure.message),
        (FailureKind::Ended, "measuring was interrupted")
    );
    assert!(!is_running(id), "its process still runs");
    // No other process starts.
    assert_eq!(remote.check(&candidate(FINE)).expect_err("stopped").kind, FailureKind::Ended);
    assert_eq!(remote.process_id(), None);
    stopper.join().expect("no panic");
    assert!(Remote::spawn_until(stop, start, "faulty", timeouts()).is_err());
}

#[test]
fn a_process_that_cannot_be_ended_is_reported_and_measuring_continues() {
    with_time(|request| {
        let kill = Duration::from_millis(200);
        let (mut remote, folder) = in_folder(Timeouts { request, kill, ..timeouts() });
        let id = remote.process_id().expect("a process");
        let failure = remote.check(&candidate(CANNOT_END)).expect_err("hangs");
        fs::exists(folder.path().join("traced")).expect("a folder").then_some(())?;
        assert_eq!(failure.kind, FailureKind::Unended, "{failure}");
        let expected = format!(
            "the measuring process did not respond within {request:?}; \
             process {id} did not end within 200ms of being killed and may still use the device"
        );
        assert_eq!(failure.message, expected);
        let in_another_process = remote.check(&candidate(FINE));
        assert!(unended_processes().contains(&id));
        drop(remote);

        fs::remove_file(folder.path().join("traced")).expect("removed");
        let start = Instant::now();
        while unended_processes().contains(&id) {
            assert!(start.elapsed() < LIMIT, "it is still there");
            thread::sleep(Duration::from_millis(10));
        }
        assert!(!Path::new("/proc").join(id.to_string()).exists(), "it is a zombie");
        in_another_process.ok().map(drop)
    });
}

#[test]
fn a_process_killed_between_requests_fails_no_candidate() {
    let mut remote = remote();
    let id = remote.process_id().expect("a process");
    let killed = Command::new("kill").args(["-9", &id.to_string()]).status().expect("kill");
    assert!(killed.success() && ends(id));
    remote.check(&candidate(FINE)).expect("in another process");
    assert_ne!(remote.process_id(), Some(id));
}

#[test]
fn three_crashes_of_the_default_end_measuring() {
    let (mut remote, folder) = in_folder(timeouts());
    // The default: the first configuration with the automatic choice.
    let default = candidate(FINE);
    for _ in 0..3 {
        remote.check(&candidate(EXITS)).expect_err("fatal, but not the default");
    }
    assert!(remote.lost().is_none());
    remote.check(&default).expect("fine");
    fs::write(folder.path().join("broken"), "").expect("written");
    for _ in 0..3 {
        assert!(remote.lost().is_none());
        let failure = remote.check(&default).expect_err("broken");
        assert_eq!(failure.kind, FailureKind::Crash);
    }
    let lost = remote.lost().expect("lost").to_string();
    assert!(lost.starts_with("the default was fatal 3 times in a row: "), "{lost}");
    let failure = remote.check(&candidate(IS_WRONG)).expect_err("the end");
    assert_eq!((failure.kind, remote.process_id()), (FailureKind::Ended, None));
}

#[test]
fn problems_that_do_not_open_and_commands_that_do_not_start_are_errors() {
    let open = |problem| Remote::spawn(|| this_program("measures"), problem, timeouts());
    let error = open("other").expect_err("no such problem");
    assert_eq!(error.to_string(), "cannot open the problem: no problem other");
    let error = open("fatal").expect_err("dies");
    assert_eq!(
        error.to_string(),
        "cannot open the problem: the measuring process died (exit status: 4)"
    );
    let error = Remote::spawn(|| Command::new("/frobnicate"), "faulty", timeouts());
    let kind = error.err().map(|error| error.kind().clone());
    assert_eq!(kind, Some(ErrorKind::Process));
    let error = Remote::spawn(|| Command::new("true"), "faulty", timeouts());
    let kind = error.err().map(|error| error.kind().clone());
    assert!(matches!(kind, Some(ErrorKind::Open(_))), "{kind:?}");
}

#[test]
fn the_measuring_process_ends_when_its_tuner_is_killed_even_if_a_candidate_hangs() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut tuner = this_program("tunes");
    tuner.env(FOLDER, folder.path()).stdout(Stdio::piped());
    let mut tuner = tuner.spawn().expect("a tuner");
    let output = BufReader::new(tuner.stdout.take().expect("its output"));
    let find_id = |line: io::Result<String>| {
        line.expect("text").strip_prefix("measures in ").map(str::to_owned)
    };
    let id = output.lines().find_map(find_id).expect("an id").parse().expect("a number");
    let started = folder.path().join("started");
    while !started.exists() {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(is_running(id), "the candidate hangs");
    tuner.kill().expect("kills");
    tuner.wait().expect("killed");
    assert!(ends(id), "it still runs");
    let started = fs::read_to_string(started).expect("an id").parse().expect("a number");
    assert!(ends(started), "its process still runs");
}
