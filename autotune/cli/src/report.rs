//! `gridguard report`: shows the kernels, refusals and memory that `gridguard run --report` recorded.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use gridguard::{Dim3, count};
use gridguard_report::{
    KernelUse, MAX_REPORT_BYTES, Nearness, PythonFrame, RefusedAllocation, RefusedLaunch,
    WatchReport,
};

use crate::error::{CommandError, Exit};
use crate::files::read_start;
use crate::output::{OutputArgs, Table, text};

#[derive(Args)]
pub(crate) struct Report {
    /// Reports of one or more processes
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,
    /// Show all kernels, not only the first 15
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl Report {
    /// Shows the reports. Refused launches exit with 1.
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let reports: Result<Vec<_>, _> = self.files.iter().map(|path| read(path)).collect();
        let reports = reports?;
        let most = if self.all { usize::MAX } else { SHOWN };
        self.output.print(
            &reports,
            text(|f| reports.iter().try_for_each(|report| show(f, report, most))),
        )?;
        let any_refused = reports.iter().any(|report| report.refused > 0);
        Ok(if any_refused { Exit::No } else { Exit::Yes })
    }
}

pub(crate) fn read(path: &Path) -> Result<WatchReport, CommandError> {
    let text = read_start(path, MAX_REPORT_BYTES + 1)?;
    WatchReport::parse(&text).map_err(CommandError::in_file(path))
}

fn show(f: &mut fmt::Formatter<'_>, report: &WatchReport, most: usize) -> fmt::Result {
    let WatchReport { program, process, kernels, .. } = report;
    writeln!(f, "{}, process {process}", printable(program))?;
    if report.pending && report.watched {
        return writeln!(
            f,
            "watched, and no process of the run has reported a launch: the program runs, or it ended before it could \
             report"
        );
    }
    if report.pending {
        return report.warnings().iter().try_for_each(|line| writeln!(f, "{line}"));
    }
    writeln!(f, "{}", report.totals())?;
    report.warnings().iter().try_for_each(|line| writeln!(f, "{line}"))?;
    report.index_lines().iter().try_for_each(|line| writeln!(f, "{}", printable(line)))?;
    report.memory.summary().iter().try_for_each(|line| writeln!(f, "{line}"))?;
    report.refusals.iter().try_for_each(|refusal| show_refusal(f, refusal))?;
    report.memory.refusals.iter().try_for_each(|refusal| show_allocation(f, refusal))?;
    if kernels.is_empty() {
        return Ok(());
    }
    writeln!(f)?;
    let header = ["kernel", ">launches", ">refused", ">fixed", ">largest grid", ">of grid limit"];
    let mut table = Table::new(header);
    let limit = report.grid_limit();
    let mut known = HashMap::new();
    for kernel in kernels {
        *known.entry(&kernel.name).or_insert(0) += 1;
    }
    for kernel in kernels.iter().take(most) {
        table.push(row(kernel, limit, known.get(&kernel.name) > Some(&1)));
    }
    write!(f, "{table}")?;
    match kernels.len().saturating_sub(most) {
        0 => {}
        more => writeln!(f, "and {more} more, which --all shows")?,
    }
    match report.unlisted_launches {
        0 => Ok(()),
        launches => {
            let launches = count(launches, "launch");
            writeln!(f, "and {launches} of kernels that the report does not list")
        }
    }
}

fn show_refusal(f: &mut fmt::Formatter<'_>, refusal: &RefusedLaunch) -> fmt::Result {
    let RefusedLaunch { kernel, request, violations, python, stack, .. } = refusal;
    writeln!(f, "\nrefused  {}", printable(kernel))?;
    let mut lines = vec![refusal.error.clone()];
    lines.push(format!("grid {}, block {}", request.grid, request.block));
    lines.extend_from_slice(violations);
    lines.extend(refusal.driver_log.as_ref().map(|log| format!("driver: {log}")));
    lines.extend(refusal.not_fixed.as_ref().map(|why| format!("not fixed: {why}")));
    lines.iter().try_for_each(|line| writeln!(f, "         {}", printable(line)))?;
    show_stacks(f, python, stack)
}

fn show_stacks(
    f: &mut fmt::Formatter<'_>,
    python: &[PythonFrame],
    stack: &[String],
) -> fmt::Result {
    let python = python.iter().map(ToString::to_string);
    let mut frames = python.chain(stack.iter().cloned());
    frames.try_for_each(|frame| writeln!(f, "         at {}", printable(&frame)))
}

fn show_allocation(f: &mut fmt::Formatter<'_>, refusal: &RefusedAllocation) -> fmt::Result {
    let RefusedAllocation { function, error, python, stack, .. } = refusal;
    writeln!(f, "\nout of memory: {} returned {}", printable(function), printable(error))?;
    for (title, content) in refusal.lines() {
        writeln!(f, "{title:<7}  {}", printable(&content))?;
    }
    show_stacks(f, python, stack)
}

/// The row of a kernel, with its image if the name is not unique.
fn row(kernel: &KernelUse, limit: Dim3, has_namesakes: bool) -> [String; 6] {
    let image = kernel.image.as_ref().filter(|_| has_namesakes);
    let image = image.map_or_else(String::new, |image| format!(" in image {image}"));
    let positive = |number: u64| if number > 0 { number.to_string() } else { String::new() };
    let near = kernel.nearest_limit(limit).filter(Nearness::is_near);
    [
        printable(&(kernel.demangled.clone() + &image)),
        kernel.launches.to_string(),
        positive(kernel.refused),
        positive(kernel.fixed),
        if kernel.launches == 0 { String::new() } else { kernel.max_grid.to_string() },
        near.map_or_else(String::new, |near| format!("{} % of {}", near.percent(), near.axis)),
    ]
}

/// Removes control characters, because names come from device code.
fn printable(text: &str) -> String {
    text.chars().filter(|one| !one.is_control()).collect()
}

/// Kernels that are shown without `--all`.
const SHOWN: usize = 15;
