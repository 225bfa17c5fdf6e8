//! Examines driver and devices in a child process, so that a driver that hangs or crashes cannot
//! stop `doctor`.
//!
//! The child writes each result on a line of its own as soon as it is known.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use clap::Args;
use gridguard::ComputeCapability;
use gridguard::cuda;
use serde::{Deserialize, Serialize};

use super::child::{self, ChildEnd, ChildOutput};
use super::driver::{DRIVER, Driver};
use super::result::CheckResult;
use super::{profiles, smoke_test};
use crate::error::{CommandError, Exit};
use crate::output::json;

/// Starts each line, since libraries may print to standard output as well.
const MARK: &str = "gridguard-doctor ";

/// Examines driver and devices; started by `doctor`
#[derive(Args)]
pub(crate) struct Examine {
    #[arg(long)]
    profile: Option<PathBuf>,
}

/// One result. `Driver` is the first and `Done` the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Event {
    Driver(Driver),
    /// A device, before its smoke test.
    Device {
        ordinal: usize,
        name: String,
        capability: ComputeCapability,
    },
    Tested {
        ordinal: usize,
        results: Vec<CheckResult>,
    },
    Profiles(Vec<CheckResult>),
    Done,
}

impl Examine {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let driver = Driver::query();
        let count = driver.devices.unwrap_or(0);
        send(&Event::Driver(driver))?;
        for ordinal in 0..count {
            // The smoke test reports a device that cannot be queried.
            if let Ok(limits) = cuda::device_limits(ordinal) {
                let (name, capability) = (limits.name.clone(), limits.compute_capability);
                send(&Event::Device { ordinal, name, capability })?;
            }
        }
        let tests = smoke_test::test_devices(count);
        let explicit = self.profile.clone();
        let profiles = thread::spawn(move || profiles::check_profiles(count, explicit.as_deref()));
        for (ordinal, results) in tests {
            send(&Event::Tested { ordinal, results })?;
        }
        send(&Event::Profiles(profiles.join().unwrap_or_default()))?;
        send(&Event::Done)?;
        Ok(Exit::Yes)
    }
}

fn send(event: &Event) -> Result<(), CommandError> {
    let line = json(event)?;
    let mut out = io::stdout().lock();
    let written = writeln!(out, "\n{MARK}{line}").and_then(|()| out.flush());
    written.map_err(CommandError::io("sending a result"))
}

fn event(line: &str) -> Option<Event> {
    serde_json::from_str(line.strip_prefix(MARK)?).ok()
}

/// The results of the child process, and how it ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Examination {
    events: Vec<Event>,
    end: ExaminationEnd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ExaminationEnd {
    Complete,
    TimedOut(Duration),
    /// Its exit status and last error message.
    Crashed(String),
    NotStarted(String),
}

/// Runs the examination within a time limit.
pub(super) fn examine(profile: Option<&Path>, limit: Duration) -> Examination {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            let end = ExaminationEnd::NotStarted(error.to_string());
            return Examination { events: Vec::new(), end };
        }
    };
    let mut command = Command::new(program);
    command.arg("examine");
    if let Some(path) = profile {
        command.arg("--profile").arg(path);
    }
    Examination::new(child::run(command, limit, |line| event(line) == Some(Event::Done)), limit)
}

impl Examination {
    fn new(output: ChildOutput, limit: Duration) -> Self {
        let events: Vec<Event> = output.out.lines().filter_map(event).collect();
        let end = match output.end {
            // It does not matter how the process exits after the last result.
            _ if events.contains(&Event::Done) => ExaminationEnd::Complete,
            ChildEnd::TimedOut => ExaminationEnd::TimedOut(limit),
            ChildEnd::NotStarted(error) => ExaminationEnd::NotStarted(error.to_string()),
            ChildEnd::Exited(status) => {
                ExaminationEnd::Crashed(match child::last_line(&output.err) {
                    Some(line) => format!("{status}, {line}"),
                    None => status.to_string(),
                })
            }
        };
        Self { events, end }
    }

    /// `None` if the driver did not respond.
    pub(super) fn driver(&self) -> Option<&Driver> {
        self.events.iter().find_map(|event| match event {
            Event::Driver(driver) => Some(driver),
            _ => None,
        })
    }

    /// The ordinal, name and compute capability of each device.
    pub(super) fn devices(&self) -> impl Iterator<Item = (usize, &str, ComputeCapability)> {
        self.events.iter().filter_map(|event| match event {
            Event::Device { ordinal, name, capability } => {
                Some((*ordinal, name.as_str(), *capability))
            }
            _ => None,
        })
    }

    /// Why the driver did not respond; `None` if it did.
    pub(super) fn check_response(&self) -> Option<CheckResult> {
        if self.driver().is_some() {
            return None;
        }
        let (what, remedy) = match &self.end {
            ExaminationEnd::TimedOut(limit) => {
                (format!("no response within {}", humantime::format_duration(*limit)), HANGS)
            }
            ExaminationEnd::Crashed(how) => {
                (format!("querying it crashes the process: {how}"), CRASHES)
            }
            ExaminationEnd::NotStarted(error) => {
                let what = format!("cannot start a process to query it: {error}");
                let remedy = "check that gridguard can be started again from its own path";
                return Some(CheckResult::unknown(DRIVER, what, remedy));
            }
            ExaminationEnd::Complete => ("no response".to_owned(), CRASHES),
        };
        Some(CheckResult::bad(DRIVER, what, remedy))
    }

    /// The results of each device in their order, then those of the profiles.
    pub(super) fn check_devices(&self) -> Vec<CheckResult> {
        let count = self.driver().and_then(|driver| driver.devices).unwrap_or(0);
        let devices = (0..count).flat_map(|ordinal| self.check_device(ordinal));
        let profiles = self.events.iter().filter_map(|event| match event {
            Event::Profiles(results) => Some(results.clone()),
            _ => None,
        });
        devices.chain(profiles.flatten()).collect()
    }

    fn check_device(&self, wanted: usize) -> Vec<CheckResult> {
        let tested = self.events.iter().find_map(|event| match event {
            Event::Tested { ordinal, results } if *ordinal == wanted => Some(results.clone()),
            _ => None,
        });
        tested.unwrap_or_else(|| {
            let device = self.devices().find(|(ordinal, ..)| *ordinal == wanted);
            let name = device.map_or("it", |(_, name, _)| name);
            let what = match &self.end {
                ExaminationEnd::TimedOut(limit) => {
                    let limit = humantime::format_duration(*limit);
                    format!("{name} did not finish the smoke test within {limit}")
                }
                ExaminationEnd::Crashed(how) => format!("using {name} crashes the process: {how}"),
                _ => format!("{name} was not tested"),
            };
            vec![CheckResult::bad(smoke_test::subject(wanted), what, HANGS)]
        })
    }
}

const HANGS: &str = "look for an Xid error (dmesg | grep -i xid) and check that nvidia-smi responds; \
                     end the processes that use the GPU, reset it (nvidia-smi --gpu-reset) or \
                     reboot; a slow machine may need a longer --patience";
const CRASHES: &str = "the library is not a driver, or does not match the kernel module: reinstall \
                       the driver, and remove other folders from LD_LIBRARY_PATH";

#[cfg(test)]
mod tests {
    use super::super::result::Level;
    use super::*;

    fn examination(events: Vec<Event>, end: ExaminationEnd) -> Examination {
        Examination { events, end }
    }

    fn two_devices() -> Vec<Event> {
        let capability = ComputeCapability::new(9, 0);
        let device = |ordinal| Event::Device { ordinal, name: "NVIDIA H200".into(), capability };
        let driver = Driver { devices: Some(2), version: Some(13_000), ..Driver::default() };
        let results = vec![CheckResult::good("device 1", "works")];
        let tested = Event::Tested { ordinal: 1, results };
        vec![Event::Driver(driver), device(0), device(1), tested]
    }

    #[test]
    fn a_driver_that_hangs_or_crashes_is_bad() {
        let check = |end| examination(Vec::new(), end).check_response().expect("no response");
        let hangs = check(ExaminationEnd::TimedOut(Duration::from_secs(20)));
        assert_eq!((hangs.level, hangs.what.as_str()), (Level::Bad, "no response within 20s"));
        let crashes = check(ExaminationEnd::Crashed("signal: 11 (SIGSEGV)".into()));
        assert_eq!(crashes.what, "querying it crashes the process: signal: 11 (SIGSEGV)");
        assert_eq!(check(ExaminationEnd::NotStarted("no".into())).level, Level::Unknown);
        let complete = examination(two_devices(), ExaminationEnd::Complete);
        assert_eq!(complete.check_response(), None);
    }

    #[test]
    fn results_before_a_device_hangs_are_kept() {
        let end = ExaminationEnd::TimedOut(Duration::from_secs(2));
        let results = examination(two_devices(), end).check_devices();
        let whats: Vec<&str> = results.iter().map(|result| result.what.as_str()).collect();
        assert_eq!(whats, ["NVIDIA H200 did not finish the smoke test within 2s", "works"]);
        let end = ExaminationEnd::Crashed("signal: 6".into());
        let crashes = examination(two_devices(), end).check_devices().remove(0);
        assert_eq!(crashes.what, "using NVIDIA H200 crashes the process: signal: 6");
    }

    #[test]
    fn events_are_read_as_they_are_sent() {
        for sent in two_devices() {
            let line = serde_json::to_string(&sent).expect("JSON");
            assert_eq!(event(&format!("{MARK}{line}\n")), Some(sent));
        }
    }
}
