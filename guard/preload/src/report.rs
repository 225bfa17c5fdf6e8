//! The summary on standard error and the report in a file.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gridguard::Dim3;
use gridguard::watched::{FORMAT, KernelUse, RefusedLaunch, WatchReport};

use crate::abi::Status;
use crate::explained::Explained;
use crate::functions::UNWATCHED;
use crate::names::demangled;
use crate::refusal::Refusal;
use crate::request::Launch;
use crate::table::{Counted, Largest};
use crate::{driver, memory, process, record, table};

/// Refusals that are explained; later ones are only counted.
pub(crate) const MAX_EXPLAINED: usize = 50;
/// Kernels of the summary.
const SHOWN: usize = 10;

static EXPLAINED: Explained<RefusedLaunch, MAX_EXPLAINED> = Explained::new();
/// Refused launches so far.
static REFUSED: AtomicU64 = AtomicU64::new(0);
/// Launches that had been accepted when the first one was refused.
static BEFORE_FIRST: AtomicU64 = AtomicU64::new(0);

/// Counts a refused launch.
pub(crate) fn count_refusal() {
    if REFUSED.fetch_add(1, Ordering::Relaxed) == 0 {
        BEFORE_FIRST.store(table::launches(), Ordering::Relaxed);
    }
}

/// Claims one of the explanations; `None` once there are enough.
pub(crate) fn claim_explanation() -> Option<usize> {
    EXPLAINED.claim()
}

/// Keeps the explanation of a refused launch for the report.
pub(crate) fn keep(place: usize, launch: &Launch, status: Status, name: &str, refusal: &Refusal) {
    let kept = RefusedLaunch {
        kernel: name.to_owned(),
        code: status,
        error: refusal.error.clone(),
        request: launch.request(),
        violations: refusal.violations.iter().map(ToString::to_string).collect(),
        stack: refusal.stack.iter().map(ToString::to_string).collect(),
    };
    EXPLAINED.keep(place, kept);
}

/// Forgets everything, in a child process.
pub(crate) fn reset() {
    EXPLAINED.reset();
    REFUSED.store(0, Ordering::Relaxed);
}

/// Prints the summary and writes the report, as far as the options ask for them.
pub(crate) fn write() {
    let options = process::options();
    let report = collect();
    let any_launch = report.launches + report.refused + report.fixed > 0;
    if !any_launch && report.memory.refused == 0 {
        return;
    }
    if !options.quiet {
        process::say(&summary(&report));
    }
    if let Some(path) = &options.report
        && let Err(error) = publish(path, &report)
    {
        process::say(&format!("gridguard: cannot write {}: {error}\n", path.display()));
    }
}

fn collect() -> WatchReport {
    let kernels: Vec<_> = table::counted().into_iter().map(kernel_use).collect();
    let in_table: u64 = kernels.iter().map(|kernel| kernel.launches).sum();
    let launches = in_table + table::other_launches();
    let refused = REFUSED.load(Ordering::Relaxed);
    let before = BEFORE_FIRST.load(Ordering::Relaxed);
    let mut report = WatchReport {
        format: FORMAT,
        program: process::program(),
        process: std::process::id(),
        devices: driver::known_devices().cloned().collect(),
        launches,
        refused,
        fixed: kernels.iter().map(|kernel| kernel.fixed).sum(),
        launches_after_refusal: if refused > 0 { launches.saturating_sub(before) } else { 0 },
        unlisted_launches: table::other_launches(),
        unwatched_functions: UNWATCHED.load(Ordering::Relaxed),
        kernels,
        refusals: EXPLAINED.all().cloned().collect(),
        memory: memory::collect(),
    };
    report.sort();
    report
}

fn kernel_use(Counted { name, launches, refused, fixed, largest }: Counted) -> KernelUse {
    let Largest { grid: [x, y, z], threads, shared_bytes } = largest;
    KernelUse {
        demangled: demangled(&name),
        name,
        launches,
        refused,
        fixed,
        max_grid: Dim3::new(x.into(), y.into(), z.into()),
        max_threads_per_block: threads.into(),
        max_dynamic_shared_bytes: shared_bytes.into(),
    }
}

fn summary(report: &WatchReport) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_summary(&mut text, report);
    text
}

fn write_summary(out: &mut dyn fmt::Write, report: &WatchReport) -> fmt::Result {
    let WatchReport { launches, refused, launches_after_refusal, kernels, .. } = report;
    let fixed = match report.fixed {
        0 => String::new(),
        fixed => format!(", {fixed} fixed"),
    };
    writeln!(
        out,
        "gridguard: {} of {} accepted, {refused} refused{fixed}",
        count(*launches, "launch", "launches"),
        count(kernels.len(), "kernel", "kernels"),
    )?;
    if *refused > 0 && *launches_after_refusal > 0 {
        writeln!(
            out,
            "  warning: the program went on with {} after the first refused one: unless it handled \
             the error, its results are stale",
            count(*launches_after_refusal, "launch", "launches")
        )?;
    }
    report.memory.summary().iter().try_for_each(|line| writeln!(out, "  {line}"))?;
    let limits = report.grid_limit();
    for kernel in kernels.iter().take(SHOWN) {
        let Dim3 { x, y, z } = kernel.max_grid;
        let room = kernel.headroom(limits).map_or_else(String::new, |(axis, factor)| {
            format!(", exceeds grid.{axis} at {factor:.2} times its largest size")
        });
        let launches = count(kernel.launches, "launch", "launches");
        write!(out, "  {}: {launches}", kernel.demangled)?;
        for (launches, what) in [(kernel.refused, "refused"), (kernel.fixed, "fixed")] {
            if launches > 0 {
                write!(out, ", {launches} {what}")?;
            }
        }
        if kernel.launches > 0 {
            write!(out, ", grids up to {x} x {y} x {z}{room}")?;
        }
        writeln!(out)?;
    }
    if let Some(more) = kernels.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        writeln!(out, "  and {more} more kernels, which the report of --report lists")?;
    }
    match record::left_out() {
        0 => {}
        kinds => writeln!(out, "  {kinds} kinds of launches could not be recorded")?,
    }
    if report.unwatched_functions > 0 {
        writeln!(out, "  launches by a further or newer driver library were not watched")?;
    }
    Ok(())
}

/// `1 launch`, `2 launches`.
fn count<N: fmt::Display + PartialEq + From<u8>>(number: N, one: &str, several: &str) -> String {
    let noun = if number == N::from(1) { one } else { several };
    format!("{number} {noun}")
}

/// Writes the report under `path`; if another process of this run did so before, with the number of this
/// process in the name.
fn publish(path: &Path, report: &WatchReport) -> io::Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    let fresh = numbered(path, &format!("{}.new", report.process));
    fs::write(&fresh, text)?;
    let published = match fs::hard_link(&fresh, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_own(path, report) => {
            return fs::rename(&fresh, numbered(path, &report.process.to_string()));
        }
        // An earlier report of this process, or a file system without links.
        Err(_) => return fs::rename(&fresh, path),
        linked => linked,
    };
    fs::remove_file(&fresh)?;
    published
}

/// Whether the report at `path` is an earlier one of this process.
fn is_own(path: &Path, report: &WatchReport) -> bool {
    let text = fs::read_to_string(path).unwrap_or_default();
    let known: Option<WatchReport> = serde_json::from_str(&text).ok();
    known.is_some_and(|known| known.process == report.process)
}

/// `report.json` as `report.NUMBER.json`.
fn numbered(path: &Path, number: &str) -> PathBuf {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => path.with_extension(format!("{number}.{extension}")),
        None => path.with_extension(number),
    }
}
