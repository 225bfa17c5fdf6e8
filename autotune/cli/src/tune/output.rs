//! Writes a table and a plot for each problem of `gridguard tune`, and a summary.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use console::Term;
use gridguard_autotune::{Chart, HeldOut, TuningOutcome, TuningReport};
use serde::Serialize;

use super::task::Task;
use crate::error::{CommandError, Exit};
use crate::files::write_file;
use crate::measure::progress::ProgressBars;
use crate::measure::target::Target;
use crate::output::{Format, columns, counted, note, print};

#[derive(Serialize)]
pub(crate) struct TuneSummary<'a> {
    pub(crate) profiles: Vec<String>,
    pub(crate) tuned: &'a [ProblemReport],
    /// Problems that were not started or not finished.
    pub(crate) left: usize,
    /// Problems with an earlier entry.
    pub(crate) known: usize,
    #[serde(skip)]
    pub(crate) are_left_out: bool,
    pub(crate) unended: Vec<u32>,
    pub(crate) interrupted: bool,
    pub(crate) wall_time_s: f64,
    /// For each profile of which several shapes were tuned.
    pub(crate) held_out: Vec<HeldOut>,
    #[serde(skip)]
    pub(crate) verified: bool,
}

#[derive(Serialize)]
pub(crate) struct ProblemReport {
    #[serde(flatten)]
    task: Task,
    device: String,
    /// Another process searches the same problem.
    #[serde(skip)]
    is_held: bool,
    #[serde(skip)]
    pub(crate) plot_failed: bool,
    /// Whether the output of the stored choice is right.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plot: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<TuningReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) struct Reporter<'a> {
    format: Format,
    all: bool,
    plot: Option<&'a Path>,
    several: bool,
    pub(crate) bars: ProgressBars,
    reports: Mutex<Vec<ProblemReport>>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(format: Format, all: bool, plot: Option<&'a Path>, problems: usize) -> Self {
        Self {
            format,
            all,
            plot,
            several: problems > 1,
            bars: ProgressBars::new("tuned", problems),
            reports: Mutex::default(),
        }
    }

    /// Reports that the stored choice is right, or why not.
    pub(crate) fn report_verified(
        &self,
        task: &Task,
        device: &Target,
        result: Result<(), CommandError>,
    ) {
        self.bars.tick();
        let error = result.err().map(|error| error.to_string());
        if let Some(error) = &error {
            self.bars.suspend(|| note(format_args!("{} on {device}: {error}", task.problem)));
        }
        let report = ProblemReport {
            task: task.clone(),
            device: device.to_string(),
            is_held: false,
            plot_failed: false,
            verified: Some(error.is_none()),
            plot: None,
            report: None,
            error,
        };
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
    }

    pub(crate) fn report(
        &self,
        task: &Task,
        device: &Target,
        result: Result<TuningOutcome, CommandError>,
    ) {
        self.bars.tick();
        let title = format!("{} on {device}", task.problem);
        let is_held = result.as_ref().is_err_and(|error| error.exit == Exit::No);
        let (mut plot, mut plot_failed) = (None, false);
        let (report, error) = match result {
            Ok(outcome) => {
                match self.draw(task, device, &outcome) {
                    Ok(written) => plot = written,
                    Err(error) => {
                        plot_failed = true;
                        self.bars.suspend(|| note(error));
                    }
                }
                let table = TuningReport::new(title, &outcome);
                if self.format == Format::Text {
                    let width = columns(&Term::stdout()).unwrap_or(80);
                    let text = match self.all {
                        true => format!("{table:#width$}\n"),
                        false => format!("{table:width$}\n"),
                    };
                    // Only a failure to print the summary decides the exit code.
                    self.bars.suspend(|| drop(print(text)));
                }
                (Some(table), None)
            }
            Err(error) => {
                self.bars.suspend(|| note(format_args!("{title}: {error}")));
                (None, Some(error.to_string()))
            }
        };
        let report = ProblemReport {
            task: task.clone(),
            device: device.to_string(),
            is_held,
            plot_failed,
            verified: None,
            plot,
            report,
            error,
        };
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
    }

    /// Draws the plot into its file, and returns the file's name.
    fn draw(
        &self,
        task: &Task,
        device: &Target,
        outcome: &TuningOutcome,
    ) -> Result<Option<String>, CommandError> {
        let Some(path) = self.plot else { return Ok(None) };
        let (date, version) = (SystemTime::now(), env!("CARGO_PKG_VERSION"));
        let date = humantime::format_rfc3339_seconds(date);
        let words: Vec<_> = env::args_os().skip(1).map(|word| word.display().to_string()).collect();
        let Task { problem, policy, objective } = task;
        let chart = Chart {
            title: problem.to_string(),
            subtitle: format!("{device}, {policy}, {objective}"),
            origin: format!("{date}, version {version}: gridguard {}", words.join(" ")),
        };
        let svg = chart.svg(outcome)?;
        let path = if self.several { plot_path(path, task) } else { path.to_owned() };
        write_file(&path, &svg)?;
        Ok(Some(path.display().to_string()))
    }

    /// Removes the progress bars. Returns the reports.
    pub(crate) fn finish(self) -> Vec<ProblemReport> {
        self.bars.clear();
        self.reports.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProblemReport {
    pub(crate) const fn has_failed(&self) -> bool {
        self.error.is_some() && !self.is_held
    }

    pub(crate) fn leaves_out(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.left_out() > 0)
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.verified == Some(true)
            || self.report.as_ref().is_some_and(|report| report.outcome.is_decided())
    }
}

impl fmt::Display for TuneSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count =
            |is: fn(&ProblemReport) -> bool| self.tuned.iter().filter(|one| is(one)).count();
        let (decided, failed) =
            (count(ProblemReport::is_decided), count(ProblemReport::has_failed));
        let others = counted(&[
            (self.known, "already in the profile"),
            (failed, "failed"),
            (self.left, "left for the next run"),
        ]);
        let verb = if self.verified { "verified" } else { "tuned" };
        writeln!(f, "{decided} {verb}{others}, in {:.1} s", self.wall_time_s)?;
        self.held_out.iter().try_for_each(|held_out| writeln!(f, "{held_out}"))?;
        if self.are_left_out {
            writeln!(f, "--all shows every candidate")?;
        }
        for id in &self.unended {
            writeln!(f, "process {id} was killed, has not ended, and may still use the device")?;
        }
        let mut plots = self.tuned.iter().filter_map(|one| one.plot.as_ref());
        plots.try_for_each(|plot| writeln!(f, "plot {plot}"))?;
        self.profiles.iter().try_for_each(|profile| writeln!(f, "profile {profile}"))
    }
}

/// `curve.svg` becomes `curve-rms_norm-f16-32768x4096-cold-eager-throughput.svg`.
fn plot_path(path: &Path, task: &Task) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let task = task.to_string().replace(", ", "-").replace([' ', '/'], "-");
    path.with_file_name(format!("{stem}-{task}.svg"))
}
