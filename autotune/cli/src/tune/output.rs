//! What `tune` says: a table for each problem, or one document.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use gridguard_autotune::{Chart, TuningReport};
use serde::Serialize;

use super::progress::{Progress, Screen};
use super::session::{Found, Tuned};
use super::task::Task;
use crate::error::CommandError;
use crate::output::{Format, OutputArgs, note};

/// One document of all that was tuned.
#[derive(Serialize)]
pub(crate) struct Summary<'a> {
    pub(crate) profiles: Vec<String>,
    pub(crate) tuned: &'a [Tuning],
    /// Problems that were not begun, or not ended.
    pub(crate) left: usize,
    /// Problems that the profiles had.
    pub(crate) known: usize,
    pub(crate) interrupted: bool,
    pub(crate) wall_time_s: f64,
}

/// One problem.
#[derive(Serialize)]
pub(crate) struct Tuning {
    problem: String,
    device: String,
    policy: String,
    objective: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<TuningReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

pub(crate) struct Output<'a> {
    format: OutputArgs,
    plot: Option<&'a Path>,
    /// Whether each problem has a picture of its own.
    several: bool,
    screen: Screen,
    told: Mutex<Vec<Tuning>>,
    /// Whether a picture is missing.
    undrawn: AtomicBool,
}

impl<'a> Output<'a> {
    pub(crate) fn new(format: OutputArgs, plot: Option<&'a Path>, problems: usize) -> Self {
        let (several, screen, told) =
            (problems > 1, Screen::new("tuned", problems), Mutex::default());
        Self { format, plot, several, screen, told, undrawn: AtomicBool::new(false) }
    }

    pub(crate) fn progress(&self, device: String) -> Progress {
        self.screen.progress(device)
    }

    /// Tells of one problem, and draws it.
    pub(crate) fn tell(&self, tuned: Tuned) {
        let Tuned { task, device, result } = tuned;
        self.screen.tick();
        let name = task.problem.to_string();
        let (policy, objective) = (task.policy.to_string(), task.objective.to_string());
        let tuning = match result {
            Ok(found) => {
                if let Err(error) = self.draw(&task, &device, &found) {
                    self.undrawn.store(true, Ordering::Relaxed);
                    self.screen.above(|| note(format_args!("{error}")));
                }
                let report = Some(TuningReport::new(format!("{name} on {device}"), &found.outcome));
                Tuning { problem: name, device, policy, objective, report, error: None }
            }
            Err(failure) => {
                let error = Some(failure.to_string());
                Tuning { problem: name, device, policy, objective, report: None, error }
            }
        };
        self.print(&tuning);
        self.told.lock().unwrap_or_else(PoisonError::into_inner).push(tuning);
    }

    fn print(&self, tuning: &Tuning) {
        self.screen.above(|| {
            if let Some(error) = &tuning.error {
                note(format_args!("{} on {}: {error}", tuning.problem, tuning.device));
            }
            if let (Format::Text, Some(report)) = (self.format.format, &tuning.report) {
                // Whoever reads may have read enough.
                let _ = writeln!(io::stdout(), "{report}");
            }
        });
    }

    fn draw(&self, task: &Task, device: &str, found: &Found) -> Result<(), CommandError> {
        let Some(path) = self.plot else { return Ok(()) };
        let Task { problem, policy, objective } = task;
        let chart = Chart {
            title: problem.to_string(),
            subtitle: format!("{device}, {policy}, {objective}"),
            largest_legal_chunk: found.largest_legal_chunk,
        };
        let path = if self.several { beside(path, task) } else { path.to_owned() };
        let svg = chart.svg(&found.outcome)?;
        fs::write(&path, svg).map_err(CommandError::io(path.display().to_string()))
    }

    /// Whether a picture that was asked for is missing.
    pub(crate) fn is_undrawn(&self) -> bool {
        self.undrawn.load(Ordering::Relaxed)
    }

    /// Ends the output and gives what was told.
    pub(crate) fn finish(self) -> Vec<Tuning> {
        self.screen.clear();
        self.told.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tuning {
    pub(crate) const fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// Whether the search came to its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.complete)
    }
}

impl Summary<'_> {
    pub(crate) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let complete = self.tuned.iter().filter(|tuning| tuning.is_complete()).count();
        let failed = self.tuned.iter().filter(|tuning| tuning.has_failed()).count();
        write!(out, "{complete} tuned")?;
        for (count, what) in [
            (self.known, "in the profile before"),
            (failed, "failed"),
            (self.left, "left for another run"),
        ] {
            if count > 0 {
                write!(out, ", {count} {what}")?;
            }
        }
        writeln!(out, ", in {:.1} s", self.wall_time_s)?;
        for profile in &self.profiles {
            writeln!(out, "profile {profile}")?;
        }
        Ok(())
    }
}

/// `curve.svg` becomes `curve-rms_norm-f16-32768x4096-cold-eager-throughput.svg`.
fn beside(path: &Path, task: &Task) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = format!("{stem}-{}.svg", task.to_string().replace(", ", "-").replace(' ', "-"));
    path.with_file_name(name)
}
