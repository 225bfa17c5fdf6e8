//! `gridguard doctor`: whether this machine can run CUDA, and what to do where it cannot.
//!
//! Each group of checks gathers facts first; what they mean is decided by functions of these facts
//! alone. Whatever may hang or crash is another process, and all of them run at the same time.

mod child;
mod device;
mod driver;
mod examine;
mod finding;
mod library;
mod profiles;
mod python;
mod sight;
mod smi;
mod torch;
mod trip;
mod version;

use std::path::PathBuf;
use std::thread;

use clap::Args;
use cudarc::driver::sys::CUDA_VERSION;
use serde::Serialize;

pub(crate) use self::examine::Examine;
use self::finding::{Finding, Level};
use self::library::{Evidence, Files, Search};
use self::sight::{Present, Sight};
use self::smi::Smi;
use self::torch::Machine;
use self::version::Nvrtc;
use crate::error::{CommandError, Exit};
use crate::output::OutputArgs;

#[derive(Args)]
pub(crate) struct Doctor {
    /// Asks a Python, or that of a virtual environment, about its PyTorch as well
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    torch: Option<PathBuf>,
    /// How long driver, devices and Python may take
    #[arg(long, value_name = "TIME", default_value = "20s")]
    patience: humantime::Duration,
    /// A profile that goes before the user's own and those built in
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    good: usize,
    warnings: usize,
    /// What could not be found out.
    unknown: usize,
    bad: usize,
    findings: Vec<Finding>,
}

impl Doctor {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let report = Report::new(self.findings());
        self.output.print(&report, report.to_text())?;
        Ok(report.answer())
    }

    fn findings(&self) -> Vec<Finding> {
        let patience = *self.patience;
        let torch = self.torch.as_deref().map(python::of);
        let facts = thread::scope(|scope| {
            let told = scope.spawn(|| driver::ask(self.profile.as_deref(), patience));
            let smi = scope.spawn(|| smi::ask(patience));
            let asked =
                torch.as_deref().map(|path| scope.spawn(move || python::ask(path, patience)));
            let files = scope.spawn(library::files);
            let nvrtc = Nvrtc::gather();
            Some(Facts {
                nvrtc,
                told: told.join().ok()?,
                smi: smi.join().ok()?,
                files: files.join().ok()?,
                torch: asked.and_then(|asked| asked.join().ok()),
            })
        });
        let Some(facts) = facts else {
            let what = "a check ended before its time";
            return vec![Finding::unknown(
                "doctor",
                what,
                "look at what it says on standard error",
            )];
        };
        let mut findings = facts.findings();
        if let Some((told, python)) = facts.torch.as_ref().zip(torch) {
            let python = python.display().to_string();
            findings.extend(torch::findings(told, &python, &facts.machine()));
        }
        findings
    }
}

/// What was found out.
struct Facts {
    told: driver::Told,
    smi: Smi,
    files: Files,
    nvrtc: Nvrtc,
    torch: Option<python::Told>,
}

impl Facts {
    /// What all this means, but for PyTorch.
    fn findings(&self) -> Vec<Finding> {
        let Self { told, smi, files, nvrtc, .. } = self;
        let driver = told.driver().cloned().unwrap_or_default();
        let (version, shown) = (driver.version, driver.shown);
        let serves = shown.is_some();
        let present = Present::gather(smi);
        let has_module = present.is_some() || sight::has_kernel_module();
        let of_driver = match (&driver.fault, version) {
            (Some(fault), _) => version::of_fault(fault),
            (None, Some(version)) => Some(self.of_version(version)),
            (None, None) => told.silence(),
        };
        let search =
            Search { files: files.clone(), driver, evidence: Evidence::gather(has_module) };
        let mut findings = library::findings(&search);
        findings.extend(of_driver);
        findings.extend(smi::findings(smi, serves));
        findings.push(version::of_nvrtc(nvrtc, version));
        findings.extend(sight::findings(&Sight::gather(present, shown)));
        findings.extend(told.findings());
        findings
    }

    fn of_version(&self, version: i32) -> Finding {
        let release = match &self.smi {
            Smi::Told(gpus, _) => gpus.first().map(|gpu| gpu.driver.as_str()),
            _ => None,
        };
        let bindings = i32::try_from(CUDA_VERSION).unwrap_or(i32::MAX);
        version::of_driver(version, bindings, release)
    }

    fn machine(&self) -> Machine {
        let devices = self.told.devices().map(|it| (it.name, it.capability));
        let driver = self.told.driver().and_then(|driver| driver.version);
        Machine { driver, devices: devices.collect() }
    }
}

impl Report {
    fn new(findings: Vec<Finding>) -> Self {
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        let (good, warnings) = (count(Level::Good), count(Level::Warning));
        let (unknown, bad) = (count(Level::Unknown), count(Level::Bad));
        Self { good, warnings, unknown, bad, findings }
    }

    /// What is bad counts before what could not be found out.
    const fn answer(&self) -> Exit {
        match (self.bad, self.unknown) {
            (0, 0) => Exit::Yes,
            (0, _) => Exit::Unknown,
            _ => Exit::No,
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for Finding { subject, level, what, remedy } in &self.findings {
            text.push_str(&format!("{:<8} {subject}: {what}\n", level.word()));
            if let Some(remedy) = remedy {
                text.push_str(&format!("{:<8} -> {remedy}\n", ""));
            }
        }
        let Self { good, warnings, unknown, bad, .. } = self;
        let warnings = match warnings {
            1 => "1 warning".to_owned(),
            count => format!("{count} warnings"),
        };
        text + &format!("{good} good, {warnings}, {unknown} unknown, {bad} bad\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bad_goes_before_what_is_unknown_and_warnings_pass() {
        let good = Finding::good("a", "b");
        let [warning, unknown, bad] =
            [Finding::warning, Finding::unknown, Finding::bad].map(|make| make("a", "b", "c"));
        let answer = |findings: &[&Finding]| {
            Report::new(findings.iter().copied().cloned().collect()).answer()
        };
        assert_eq!(answer(&[&good, &warning]), Exit::Yes);
        assert_eq!(answer(&[&good, &unknown]), Exit::Unknown);
        assert_eq!(answer(&[&unknown, &bad]), Exit::No);
    }

    #[test]
    fn a_report_is_a_line_each_with_its_remedy_below() {
        let findings = vec![Finding::good("driver", "well"), Finding::bad("nvrtc", "ill", "rest")];
        assert_eq!(
            Report::new(findings).to_text(),
            "good     driver: well\nbad      nvrtc: ill\n         -> rest\n\
             1 good, 0 warnings, 0 unknown, 1 bad\n"
        );
    }
}
