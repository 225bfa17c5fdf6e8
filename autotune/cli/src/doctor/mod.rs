//! `gridguard doctor`: whether this machine can run CUDA, and what to do if it cannot.
//!
//! Each group of checks first gathers facts and then evaluates them. Whatever may hang or crash runs
//! in another process, all of them concurrently.

mod child;
mod driver;
mod examine;
mod libraries;
mod profiles;
mod result;
mod smi;
mod smoke_test;
mod torch;
mod visible_devices;

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;

use clap::Args;
use cudarc::driver::sys::CUDA_VERSION;
use serde::Serialize;

use self::examine::Examination;
pub(crate) use self::examine::Examine;
use self::libraries::{LibcudaFacts, LibraryFiles, Nvrtc, Platform};
use self::result::{CheckResult, Level};
use self::smi::Smi;
use self::torch::{Machine, Probe};
use self::visible_devices::{InstalledGpus, VisibleDevices};
use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, count};

#[derive(Args)]
pub(crate) struct Doctor {
    /// Also check the PyTorch of this Python or virtual environment
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    torch: Option<PathBuf>,
    /// Time limit for the driver, the devices and Python
    #[arg(long, value_name = "TIME", default_value = "20s")]
    patience: humantime::Duration,
    /// Profile with precedence over the user's and the built-in ones
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct DoctorReport {
    good: usize,
    warnings: usize,
    /// Checks without a result.
    unknown: usize,
    bad: usize,
    findings: Vec<CheckResult>,
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let report = DoctorReport::new(self.check());
        self.output.print(&report, &report)?;
        Ok(report.exit())
    }

    fn check(&self) -> Vec<CheckResult> {
        let limit = *self.patience;
        let python = self.torch.as_deref().map(torch::find_python);
        let facts = thread::scope(|scope| {
            let examination = scope.spawn(|| examine::examine(self.profile.as_deref(), limit));
            let smi = scope.spawn(|| smi::query(limit));
            let probe =
                python.as_deref().map(|python| scope.spawn(move || torch::probe(python, limit)));
            let files = scope.spawn(libraries::find_libcuda);
            let nvrtc = Nvrtc::find();
            Some(Facts {
                nvrtc,
                examination: examination.join().ok()?,
                smi: smi.join().ok()?,
                files: files.join().ok()?,
                torch: python.as_deref().zip(probe.and_then(|probe| probe.join().ok())),
            })
        });
        facts.map(Facts::check).unwrap_or_else(|| {
            let remedy = "see the message on standard error";
            vec![CheckResult::unknown("doctor", "a check panicked", remedy)]
        })
    }
}

struct Facts<'a> {
    examination: Examination,
    smi: Smi,
    files: LibraryFiles,
    nvrtc: Nvrtc,
    /// The Python and the result of its probe.
    torch: Option<(&'a Path, Probe)>,
}

impl Facts<'_> {
    fn check(self) -> Vec<CheckResult> {
        let Self { examination, smi, files, nvrtc, torch } = self;
        let driver = examination.driver().cloned().unwrap_or_default();
        let installed = InstalledGpus::find(&smi);
        let has_module = installed.is_some() || Path::new("/proc/driver/nvidia/version").exists();
        let release = match &smi {
            Smi::Gpus(gpus, _) => gpus.first().map(|gpu| gpu.driver.as_str()),
            _ => None,
        };
        let bindings = i32::try_from(CUDA_VERSION).unwrap_or(i32::MAX);
        let libcuda =
            LibcudaFacts { files, driver: driver.clone(), platform: Platform::detect(has_module) };

        let mut results: Vec<CheckResult> =
            libraries::check_libcuda(&libcuda).into_iter().collect();
        results.extend(driver.check(bindings, release).or_else(|| examination.check_response()));
        results.extend(smi::check(&smi, driver.devices.is_some()));
        results.push(nvrtc.check(driver.version));
        results.extend(VisibleDevices::new(installed, driver.devices).check());
        results.extend(examination.check_devices());
        if let Some((python, probe)) = torch {
            let devices = examination.devices().map(|(_, name, it)| (name.to_owned(), it));
            let machine = Machine { driver: driver.version, devices: devices.collect() };
            results.extend(torch::check(&probe, &python.display().to_string(), &machine));
        }
        results
    }
}

impl DoctorReport {
    fn new(findings: Vec<CheckResult>) -> Self {
        let count = |level| findings.iter().filter(|result| result.level == level).count();
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
        for CheckResult { subject, level, what, remedy } in findings {
            writeln!(f, "{:<8} {subject}: {what}", level.name())?;
            if let Some(remedy) = remedy {
                writeln!(f, "{:<8} -> {remedy}", "")?;
            }
        }
        let warnings = count(*warnings, "warning", "warnings");
        writeln!(f, "{good} good, {warnings}, {unknown} unknown, {bad} bad")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_results_decide_over_unknown_ones_and_warnings_pass() {
        let good = CheckResult::good("a", "b");
        let [warning, unknown, bad] =
            [CheckResult::warning, CheckResult::unknown, CheckResult::bad]
                .map(|result| result("a", "b", "c"));
        let exit = |results: &[&CheckResult]| {
            DoctorReport::new(results.iter().copied().cloned().collect()).exit()
        };
        assert_eq!(exit(&[&good, &warning]), Exit::Yes);
        assert_eq!(exit(&[&good, &unknown]), Exit::Unknown);
        assert_eq!(exit(&[&unknown, &bad]), Exit::No);
    }

    #[test]
    fn each_result_is_a_line_with_its_remedy_below() {
        let results =
            vec![CheckResult::good("driver", "works"), CheckResult::bad("nvrtc", "broken", "mend")];
        assert_eq!(
            DoctorReport::new(results).to_string(),
            "good     driver: works\nbad      nvrtc: broken\n         -> mend\n\
             1 good, 0 warnings, 0 unknown, 1 bad\n"
        );
    }
}
