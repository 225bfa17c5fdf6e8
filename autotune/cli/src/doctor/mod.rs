//! `gridguard doctor`: checks whether this machine can run CUDA, and how to fix it.
//!
//! Each group of checks gathers facts and then evaluates them. Queries that may hang or crash run concurrently, in
//! other processes.

pub(crate) mod child;
mod driver;
mod examine;
mod finding;
mod libraries;
pub(crate) mod smi;
mod smoke_test;
mod torch;
mod visible_devices;

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use cudarc::driver::sys::CUDA_VERSION;
use gridguard::count;
use serde::Serialize;

pub(crate) use self::examine::Examine;
use self::finding::{Finding, Level, Subject};
use self::libraries::Platform;
use self::smi::Smi;
use self::torch::Machine;
use self::visible_devices::{InstalledGpus, VisibleDevices};
use crate::error::{CommandError, Exit};
use crate::output::{Format, OutputArgs};

#[derive(Args)]
pub(crate) struct Doctor {
    /// Also check the PyTorch of this Python or virtual environment [default without a value: python3]
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = torch::DEFAULT_PYTHON)]
    torch: Option<PathBuf>,
    /// Time limit for the driver, the devices and Python, for example 20s
    #[arg(long, value_name = "TIME", default_value = "20s")]
    patience: humantime::Duration,
    #[command(flatten)]
    output: OutputArgs,
}

const DOCTOR: Subject = Subject::new("doctor");
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Serialize)]
struct DoctorReport {
    good: usize,
    warnings: usize,
    unknown: usize,
    bad: usize,
    findings: Vec<Finding>,
}

/// The report of `gridguard doctor`, and what is known about the PyTorch of the default Python, if it has one.
pub(crate) fn of_machine() -> (impl Serialize, impl Serialize) {
    let (torch, output) = (torch::DEFAULT_PYTHON.into(), OutputArgs { format: Format::Json });
    let report = Doctor { torch: Some(torch), patience: PATIENCE.into(), output }.report();
    let (torch, others): (Vec<_>, Vec<_>) =
        report.findings.into_iter().partition(|finding| torch::TORCH.is_of(finding));
    let known = torch.into_iter().filter(|finding| finding.level != Level::Unknown);
    (DoctorReport::new(others), known.collect::<Vec<_>>())
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let report = self.report();
        self.output.print(&report, &report)?;
        Ok(report.exit())
    }

    fn report(&self) -> DoctorReport {
        let panicked = || DOCTOR.unknown("a check panicked", "see the message on standard error");
        DoctorReport::new(self.check().unwrap_or_else(|| vec![panicked()]))
    }

    /// `None` if a check panicked.
    fn check(&self) -> Option<Vec<Finding>> {
        let limit = *self.patience;
        let python = self.torch.as_deref().map(torch::find_python);
        let python = python.as_deref();
        let (examination, smi, probe, files, nvrtc) = thread::scope(|scope| {
            let examination = scope.spawn(|| examine::examine(limit));
            let smi = scope.spawn(|| smi::query(limit));
            let probe = scope.spawn(|| python.map(|python| torch::probe(python, limit)));
            let files = scope.spawn(libraries::find_libcuda);
            let nvrtc = libraries::find_nvrtc();
            let (examination, smi) = (examination.join().ok()?, smi.join().ok()?);
            Some((examination, smi, probe.join().ok()?, files.join().ok()?, nvrtc))
        })?;
        let driver = examination.driver.clone().unwrap_or_default();
        let installed = InstalledGpus::find(&smi);
        let has_module = installed.is_some() || Path::new("/proc/driver/nvidia/version").exists();
        let release = match &smi {
            Smi::Gpus(gpus, _) => gpus.first().map(|gpu| gpu.driver.as_str()),
            _ => None,
        };
        let bindings = i32::try_from(CUDA_VERSION).unwrap_or(i32::MAX);

        let mut findings = Vec::new();
        findings.extend(libraries::check_libcuda(&files, &driver, Platform::detect(has_module)));
        findings.extend(driver.check(bindings, release).or_else(|| examination.check_response()));
        findings.extend(smi::check(&smi, driver.devices.is_some()));
        findings.push(libraries::check_nvrtc(&nvrtc, driver.version));
        findings.extend(VisibleDevices::new(installed, driver.devices).check());
        findings.extend(examination.check_devices());
        if let Some((python, probe)) = python.zip(probe) {
            let devices = examination.devices.into_values().collect();
            let machine = Machine { driver: driver.version, devices };
            findings.extend(torch::check(&probe, &python.display().to_string(), &machine));
            findings.extend(torch::check_folder());
        }
        Some(findings)
    }
}

impl DoctorReport {
    fn new(findings: Vec<Finding>) -> Self {
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        Self {
            good: count(Level::Good),
            warnings: count(Level::Warning),
            unknown: count(Level::Unknown),
            bad: count(Level::Bad),
            findings,
        }
    }

    const fn exit(&self) -> Exit {
        match (self.bad, self.unknown) {
            (0, 0) => Exit::Yes,
            (0, _) => Exit::Unknown,
            _ => Exit::No,
        }
    }
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { good, warnings, unknown, bad, findings } = self;
        for Finding { subject, level, what, remedy } in findings {
            writeln!(f, "{level:<8} {subject}: {what}")?;
            if let Some(remedy) = remedy {
                writeln!(f, "{:<8} -> {remedy}", "")?;
            }
        }
        let warnings = count(*warnings, "warning");
        writeln!(f, "{good} good, {warnings}, {unknown} unknown, {bad} bad")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_findings_decide_over_unknown_ones_and_warnings_pass() {
        let [warning, unknown, bad] = [Subject::warning, Subject::unknown, Subject::bad]
            .map(|finding| finding(&DOCTOR, "b", "c"));
        let exit = |findings: &[&Finding]| {
            DoctorReport::new(findings.iter().copied().cloned().collect()).exit()
        };
        assert_eq!(exit(&[&DOCTOR.good("b"), &warning]), Exit::Yes);
        assert_eq!(exit(&[&DOCTOR.good("b"), &unknown]), Exit::Unknown);
        assert_eq!(exit(&[&unknown, &bad]), Exit::No);
    }
}
