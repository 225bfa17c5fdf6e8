//! `gridguard profile verify`: whether the choices of a profile are still the fastest.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use gridguard::profile::{Backend, Document, Entry, Parsed};
use gridguard_autotune::Samples;
use gridguard_kernels::bench::{Problem, current_sources};
use serde::Serialize;

use super::record::EntryRecord;
use super::table::{Side, Table};
use super::verifying::{Bench, Verified};
use super::{is_wanted, read, words};
use crate::error::{CommandError, Exit};
use crate::interrupt;
use crate::output::{OutputArgs, note};
use crate::tune::progress::Screen;
use crate::tune::target::{Target, gpu_of_no_host};
use crate::tune::values::{self, DeviceSelection};

#[derive(Args)]
pub(crate) struct Verify {
    /// The profile
    file: PathBuf,
    /// The device to measure on, by ordinal, or the host; without it the first one, or the host for
    /// a profile of the host
    #[arg(long, value_name = "N|host", value_parser = values::device)]
    device: Option<DeviceSelection>,
    /// The GPU of the catalogue whose limits the host takes on; without it the profile's
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Only entries of this kernel, or of several
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// How much slower than the fastest a choice may be
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = values::percent)]
    tolerance: f64,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Record<'a> {
    file: String,
    device: String,
    tolerance: f64,
    verified: Vec<RowRecord<'a>>,
    passed_over: Vec<PassedRecord<'a>>,
    /// Of those that were measured; absent where none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    median_regret: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worst_regret: Option<f64>,
    above_tolerance: usize,
    failed: usize,
    /// Entries that were not measured to the end.
    left: usize,
    interrupted: bool,
}

#[derive(Serialize)]
struct RowRecord<'a> {
    #[serde(flatten)]
    entry: EntryRecord<'a>,
    #[serde(flatten)]
    verified: Option<&'a Verified>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct PassedRecord<'a> {
    #[serde(flatten)]
    entry: EntryRecord<'a>,
    reason: String,
}

/// An entry and what came of it.
type Row<'a> = (&'a Entry, Result<Verified, CommandError>);

impl Verify {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let Parsed { document, .. } = read(&self.file)?;
        let gpu = self.gpu.as_deref().unwrap_or(&document.device().name);
        let target = self.target(&document, gpu)?;
        let (wanted, passed_over) = self.wanted(&document, &target);
        if wanted.is_empty() {
            return Err(CommandError::Failed(format!(
                "{} has no entry to measure",
                self.file.display()
            )));
        }
        let interrupt = interrupt::flag()?;
        let rows = measure(&target, gpu, &wanted, interrupt);
        let interrupted = interrupt.load(Ordering::Relaxed);
        let mut record = self.record(&target, &rows, passed_over);
        (record.left, record.interrupted) = (wanted.len() - rows.len(), interrupted);
        self.output.write(&record, |out| {
            write!(out, "{}", table(&rows))?;
            writeln!(out, "{}", record.summary())
        })?;
        Ok(match () {
            () if interrupted => Exit::Interrupted,
            () if record.above_tolerance > 0 || record.failed > 0 => Exit::No,
            () => Exit::Yes,
        })
    }

    /// The device that measures, which has to be the profile's.
    fn target(&self, document: &Document, gpu: &str) -> Result<Target, CommandError> {
        let target = match (self.device, document.device().backend) {
            (Some(DeviceSelection::All), _) => {
                return Err(CommandError::Invalid("one device measures: name one, or host".into()));
            }
            (Some(DeviceSelection::Host), _) | (None, Backend::Host) => Target::host(gpu)?,
            _ if self.gpu.is_some() => return Err(gpu_of_no_host()),
            (Some(DeviceSelection::One(ordinal)), _) => Target::device(ordinal)?,
            (None, Backend::Cuda) => Target::device(0)?,
        };
        let serves = document.device().serves(document.aliases(), &target.identity);
        serves.map_err(|mismatch| CommandError::invalid_file(&self.file, mismatch))?;
        Ok(target)
    }

    /// The entries that can be measured, and those that cannot.
    fn wanted<'a>(
        &self,
        document: &'a Document,
        target: &Target,
    ) -> (Vec<(Problem, &'a Entry)>, Vec<PassedRecord<'a>>) {
        let (mut wanted, mut passed_over) = (Vec::new(), Vec::new());
        for entry in document.entries() {
            if !is_wanted(&self.kernels, &entry.key.kernel) {
                continue;
            }
            match problem_of(entry, target) {
                Ok(problem) => wanted.push((problem, entry)),
                Err(reason) => {
                    note(format_args!("passed over: {}: {reason}", words::subject(entry)));
                    passed_over.push(PassedRecord { entry: entry.into(), reason });
                }
            }
        }
        (wanted, passed_over)
    }

    fn record<'a>(
        &self,
        target: &Target,
        rows: &'a [Row<'a>],
        passed_over: Vec<PassedRecord<'a>>,
    ) -> Record<'a> {
        let measured = rows.iter().filter_map(|(_, result)| result.as_ref().ok());
        let regrets: Vec<f64> = measured.map(|verified| verified.regret).collect();
        let above = regrets.iter().filter(|regret| **regret > self.tolerance).count();
        let failed = rows.len() - regrets.len();
        let regrets = Samples::new(regrets);
        Record {
            file: self.file.display().to_string(),
            device: target.to_string(),
            tolerance: self.tolerance,
            verified: rows.iter().map(RowRecord::from).collect(),
            passed_over,
            median_regret: regrets.as_ref().map(Samples::median),
            worst_regret: regrets.as_ref().map(Samples::greatest),
            above_tolerance: above,
            failed,
            left: 0,
            interrupted: false,
        }
    }
}

/// Measures entry after entry until all are through or somebody interrupts.
fn measure<'a>(
    target: &Target,
    gpu: &str,
    wanted: &[(Problem, &'a Entry)],
    interrupt: &'static AtomicBool,
) -> Vec<Row<'a>> {
    let screen = Screen::new("verified", wanted.len());
    let mut bench = Bench::new(target, gpu, interrupt, screen.progress(target.to_string()));
    let mut rows = Vec::new();
    for (problem, entry) in wanted {
        let Some(result) = bench.verify(problem, entry).transpose() else { break };
        if let Err(failure) = &result {
            screen.above(|| note(format_args!("{problem}: {failure}")));
        }
        rows.push((*entry, result));
        screen.tick();
    }
    screen.clear();
    rows
}

/// The problem of an entry, where this program has its kernel as it was tuned.
fn problem_of(entry: &Entry, target: &Target) -> Result<Problem, String> {
    let key = &entry.key;
    let problem = Problem::new(&key.kernel, &key.dtypes, &words::shape(&entry.shape))
        .map_err(|error| error.to_string())?;
    let now = problem
        .key(&target.limits, key.policy, key.objective)
        .map_err(|error| error.to_string())?;
    if !current_sources(&key.kernel).contains(&key.source) {
        return Err("the kernel was edited since: tune it anew".into());
    }
    if now != *key || problem.shape() != entry.shape {
        return Err(format!("it is of another variant, {:?} is what runs", now.variant));
    }
    Ok(problem)
}

impl<'a> From<&'a Row<'a>> for RowRecord<'a> {
    fn from((entry, result): &'a Row<'a>) -> Self {
        let error = result.as_ref().err().map(ToString::to_string);
        Self { entry: (*entry).into(), verified: result.as_ref().ok(), error }
    }
}

impl Record<'_> {
    fn summary(&self) -> String {
        let mut words = vec![words::count(self.verified.len(), "entry", "entries") + " verified"];
        if let Some((median, worst)) = self.median_regret.zip(self.worst_regret) {
            let regret = [median, worst].map(words::percent);
            words.push(format!("regret {} in the median, {} at worst", regret[0], regret[1]));
        }
        words.push(format!("{} above {:.1} %", self.above_tolerance, self.tolerance * 100.0));
        for (count, what) in
            [(self.failed, "failed"), (self.passed_over.len(), "passed over"), (self.left, "left")]
        {
            if count > 0 {
                words.push(format!("{count} {what}"));
            }
        }
        words.join(", ")
    }
}

fn table(rows: &[Row<'_>]) -> Table {
    let mut table = Table::of_entries([
        ("stored choice", Side::Left),
        ("fresh choice", Side::Left),
        ("regret", Side::Right),
        ("stored median", Side::Right),
        ("now", Side::Right),
    ]);
    for (entry, result) in rows {
        let cells = match result {
            Ok(Verified { fresh, regret, median_ns, .. }) => [
                words::chosen(fresh.choice, &fresh.parameters),
                words::percent(*regret),
                words::time(*median_ns),
            ],
            Err(_) => ["failed".to_owned(), String::new(), String::new()],
        };
        let [fresh, regret, now] = cells;
        table.push_entry(
            entry,
            [
                words::chosen(entry.choice, &entry.parameters),
                fresh,
                regret,
                words::time(entry.chosen.median_ns),
                now,
            ],
        );
    }
    table
}
