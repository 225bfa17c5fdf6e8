//! `gridguard doctor`: whether this machine can run CUDA, and what to do where it cannot.
//!
//! Each group of checks gathers facts first; what they mean is decided by functions of these facts
//! alone.

mod child;
mod device;
mod finding;
mod library;
mod profiles;
mod python;
mod sight;
mod smi;
mod torch;
mod trip;
mod version;

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;

use clap::Args;
use cudarc::driver::sys::CUDA_VERSION;
use gridguard::cuda::{self, CudaError, DriverUnavailable};
use serde::Serialize;

use self::finding::{Finding, Level};
use self::library::Search;
use self::sight::{Present, Sight};
use self::smi::Smi;
use self::torch::Machine;
use self::trip::Examined;
use self::version::Nvrtc;
use crate::failure::{Answer, Failure};
use crate::format::Format;

#[derive(Args)]
pub(crate) struct Doctor {
    /// Asks a Python about its PyTorch as well
    #[arg(long, value_name = "PYTHON", num_args = 0..=1, default_missing_value = "python3")]
    torch: Option<PathBuf>,
    /// How long Python may take
    #[arg(long, value_name = "TIME", default_value = "20s")]
    patience: humantime::Duration,
    /// A profile that goes before the user's own and those built in
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
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
    pub(crate) fn run(&self) -> Result<Answer, Failure> {
        let report = Report::new(self.findings());
        self.format.write(&report, |out| report.write_text(out))?;
        Ok(report.answer())
    }

    fn findings(&self) -> Vec<Finding> {
        let patience = *self.patience;
        // Other programs take their time meanwhile.
        let smi = thread::spawn(smi::ask);
        let torch = self.torch.clone().map(|python| {
            let asked = python.clone();
            (python, thread::spawn(move || python::ask(&asked, patience)))
        });
        let driver = Driver::ask();
        let smi = smi.join().unwrap_or(Smi::Absent);
        let mut findings = driver.findings(&smi);
        let examined = trip::examine(driver.count());
        findings.extend(examined.iter().enumerate().flat_map(of_examined));
        let profiles = profiles::gather(driver.count(), self.profile.as_deref());
        findings.extend(profiles.iter().flat_map(profiles::findings));
        if let Some((python, asked)) = torch
            && let Ok(told) = asked.join()
        {
            let machine = machine(&driver, &examined);
            findings.extend(torch::findings(&told, &python.display().to_string(), &machine));
        }
        findings
    }
}

/// What the driver answers before it is asked of devices.
struct Driver {
    version: Result<i32, CudaError>,
    /// Devices that it shows, where it serves.
    shown: Option<usize>,
}

impl Driver {
    fn ask() -> Self {
        let version = cuda::driver_version();
        let no_device =
            matches!(version, Err(CudaError::Unavailable(DriverUnavailable::NoDevice { .. })));
        let shown = if no_device { Some(0) } else { cuda::device_count().ok() };
        Self { version, shown }
    }

    fn count(&self) -> usize {
        self.shown.unwrap_or(0)
    }

    fn findings(&self, smi: &Smi) -> Vec<Finding> {
        let unavailable = match &self.version {
            Err(CudaError::Unavailable(why)) => Some(why),
            _ => None,
        };
        let present = Present::gather(smi);
        let has_module = present.is_some() || sight::has_kernel_module();
        let mut findings = library::findings(&Search::gather(unavailable, has_module));
        match (&self.version, unavailable) {
            (Ok(version), _) => {
                let release = match smi {
                    Smi::Told(gpus) => gpus.first().map(|gpu| gpu.driver.as_str()),
                    _ => None,
                };
                let bindings = i32::try_from(CUDA_VERSION).unwrap_or(i32::MAX);
                findings.push(version::of_driver(*version, bindings, release));
            }
            (Err(_), Some(why)) => findings.extend(version::of_failure(why)),
            (Err(error), None) => findings.push(unanswered("driver", error)),
        }
        findings.extend(smi::findings(smi, self.version.is_ok()));
        findings.push(version::of_nvrtc(&Nvrtc::gather(), self.version.as_ref().ok().copied()));
        let variable = env::var_os("CUDA_VISIBLE_DEVICES");
        let variable = variable.map(|value| value.to_string_lossy().into_owned());
        findings.extend(sight::findings(&Sight { variable, present, shown: self.shown }));
        findings
    }
}

fn of_examined((ordinal, examined): (usize, &Examined)) -> Vec<Finding> {
    match examined {
        Ok((device, trip)) => {
            let mut findings = device::findings(device);
            // Who may not be used need not be said to refuse as well.
            if !findings.iter().any(|finding| finding.level == Level::Bad) {
                findings.push(trip::finding(ordinal, trip));
            }
            findings
        }
        Err(error) => vec![unanswered(&device::subject(ordinal), error)],
    }
}

fn unanswered(subject: &str, error: &CudaError) -> Finding {
    Finding::unknown(subject, error.to_string(), version::remedy(error.diagnosis()))
}

fn machine(driver: &Driver, examined: &[Examined]) -> Machine {
    let devices = examined.iter().filter_map(|one| one.as_ref().ok());
    Machine {
        driver: driver.version.as_ref().ok().copied(),
        devices: devices.map(|(device, _)| (device.name.clone(), device.capability)).collect(),
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
    const fn answer(&self) -> Answer {
        match (self.bad, self.unknown) {
            (0, 0) => Answer::Yes,
            (0, _) => Answer::Unknown,
            _ => Answer::No,
        }
    }

    fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        for Finding { subject, level, what, remedy } in &self.findings {
            writeln!(out, "{:<8} {subject}: {what}", level.word())?;
            if let Some(remedy) = remedy {
                writeln!(out, "{:<8} -> {remedy}", "")?;
            }
        }
        let Self { good, warnings, unknown, bad, .. } = self;
        let warnings = match warnings {
            1 => "1 warning".to_owned(),
            count => format!("{count} warnings"),
        };
        writeln!(out, "{good} good, {warnings}, {unknown} unknown, {bad} bad")
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
        assert_eq!(answer(&[&good, &warning]), Answer::Yes);
        assert_eq!(answer(&[&good, &unknown]), Answer::Unknown);
        assert_eq!(answer(&[&unknown, &bad]), Answer::No);
    }

    #[test]
    fn a_report_is_a_line_each_with_its_remedy_below() {
        let findings = vec![Finding::good("driver", "well"), Finding::bad("nvrtc", "ill", "rest")];
        let mut text = Vec::new();
        Report::new(findings).write_text(&mut text).expect("written");
        assert_eq!(
            String::from_utf8(text).expect("UTF-8"),
            "good     driver: well\nbad      nvrtc: ill\n         -> rest\n\
             1 good, 0 warnings, 0 unknown, 1 bad\n"
        );
    }
}
