//! Examines driver and devices in a child process, so that a driver that hangs or crashes cannot stop `doctor`.
//!
//! The child writes each result as a line at once.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::Command;
use std::thread;
use std::time::Duration;

use clap::Args;
use gridguard::ComputeCapability;
use gridguard::cuda;
use humantime::format_duration;
use serde::{Deserialize, Serialize};

use super::child::{self, ChildError, ChildOutput, MARK, marked};
use super::driver::{DRIVER, Driver};
use super::finding::{Finding, Subject};
use super::smoke_test;
use crate::error::{CommandError, Exit};
use crate::output::json;

/// Examines driver and devices; started by `doctor`
#[derive(Args)]
pub(crate) struct Examine;

/// One result. `Driver` is the first and `Done` the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Event {
    Driver(Driver),
    /// A device, before its smoke test.
    Device(usize, Device),
    Findings(usize, Vec<Finding>),
    Done,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) capability: ComputeCapability,
}

impl Examine {
    pub(crate) fn run() -> Result<Exit, CommandError> {
        let driver = Driver::query();
        let count = driver.devices.unwrap_or(0);
        send(&Event::Driver(driver))?;
        for ordinal in 0..count {
            // The smoke test reports a device that cannot be queried.
            if let Ok(limits) = cuda::device_limits(ordinal) {
                let (name, capability) = (limits.name.clone(), limits.compute_capability);
                send(&Event::Device(ordinal, Device { name, capability }))?;
            }
        }
        thread::scope(|scope| {
            for ordinal in 0..count {
                let check = move || Event::Findings(ordinal, smoke_test::check(ordinal));
                scope.spawn(move || send(&check()));
            }
        });
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

#[derive(Debug, Default)]
pub(super) struct Examination {
    /// `None` without a response.
    pub(super) driver: Option<Driver>,
    pub(super) devices: BTreeMap<usize, Device>,
    findings: BTreeMap<usize, Vec<Finding>>,
    /// Why there are no further results.
    failure: Option<ChildError>,
}

pub(super) fn examine(limit: Duration) -> Examination {
    // An unknown path fails to start.
    let mut command = Command::new(std::env::current_exe().unwrap_or_default());
    command.arg("examine");
    Examination::new(child::run(command, limit, |line| marked(line) == Some(Event::Done)))
}

impl Examination {
    fn new(output: ChildOutput) -> Self {
        let mut examination = Self { failure: output.end.err(), ..Self::default() };
        for event in output.out.lines().filter_map(marked) {
            match event {
                Event::Driver(driver) => examination.driver = Some(driver),
                Event::Device(ordinal, device) => examination.devices.extend([(ordinal, device)]),
                Event::Findings(of, findings) => examination.findings.extend([(of, findings)]),
                // The exit after the last result does not matter.
                Event::Done => examination.failure = None,
            }
        }
        examination
    }

    pub(super) fn check_response(&self) -> Option<Finding> {
        if self.driver.is_some() {
            return None;
        }
        Some(match &self.failure {
            Some(hangs @ ChildError::TimedOut(_)) => DRIVER.bad(hangs.to_string(), HANGS),
            Some(ChildError::Crashed(how)) => {
                DRIVER.bad(format!("querying it crashes the process: {how}"), CRASHES)
            }
            Some(ChildError::NotStarted(error)) => DRIVER.unknown(
                format!("cannot start a process to query it: {error}"),
                "check that gridguard can be started again from its own path",
            ),
            None | Some(ChildError::Unexpected(_)) => DRIVER.bad("no response", CRASHES),
        })
    }

    pub(super) fn check_devices(&self) -> Vec<Finding> {
        let count = self.driver.as_ref().and_then(|driver| driver.devices).unwrap_or(0);
        let untested = |ordinal| vec![self.check_untested(ordinal)];
        let found = |of| self.findings.get(&of).cloned().unwrap_or_else(|| untested(of));
        (0..count).flat_map(found).collect()
    }

    fn check_untested(&self, ordinal: usize) -> Finding {
        let name = self.devices.get(&ordinal).map_or("it", |device| device.name.as_str());
        let what = match &self.failure {
            Some(ChildError::TimedOut(limit)) => {
                let limit = format_duration(*limit);
                format!("{name} did not finish the smoke test within {limit}")
            }
            Some(ChildError::Crashed(how)) => format!("using {name} crashes the process: {how}"),
            _ => format!("{name} was not tested"),
        };
        Subject::numbered("device", ordinal).bad(what, HANGS)
    }
}

const HANGS: &str = "look for an Xid error (dmesg | grep -i xid) and check that nvidia-smi responds; \
                     end the processes that use the GPU, reset it (nvidia-smi --gpu-reset) or \
                     reboot; a slow machine may need a longer --patience";
const CRASHES: &str = "the library is not a driver, or does not match the kernel module: reinstall \
                       the driver, and remove other folders from LD_LIBRARY_PATH";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn examination(out: &str, end: ChildError) -> Examination {
        Examination::new(ChildOutput { out: out.into(), err: String::new(), end: Err(end) })
    }

    #[test]
    fn a_process_that_does_not_start_is_unknown_and_a_crash_after_the_last_result_is_none() {
        let unstarted = examination("", ChildError::NotStarted(io::ErrorKind::NotFound.into()));
        assert_eq!(unstarted.check_response().map(|finding| finding.level), Some(Level::Unknown));
        let done = format!("{MARK}{}\n", json(&Event::Done).expect("JSON"));
        assert!(examination(&done, ChildError::Crashed("signal: 6".into())).failure.is_none());
    }
}
