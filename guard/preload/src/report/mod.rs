//! The summary on standard error and the report in a file.

use core::sync::atomic::Ordering;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gridguard::Dim3;
use gridguard_files::publish_if;
use gridguard_report::{
    FORMAT, KernelUse, MAX_REPORT_BYTES, MemoryKind, MemoryUse, ReportHead, WatchReport,
};

use crate::driver::known_devices;
use crate::fix::{index, opt_in};
use crate::process::demangle::demangled;
use crate::process::output::{Output, without_signals};
use crate::process::{self, reserve};
use crate::refuse;
use crate::watch::counters::Counts;
use crate::watch::kernel::{self, Kernel};
use crate::watch::memory::sums;
use crate::watch::table;

pub(crate) mod record;
pub(crate) mod unwatched;

/// The most further reports of all runs with the same file.
const MAX_PROCESSES: usize = 1000;

/// The report of more kernels is not made of memory in reserve.
const MANY: usize = 1024;
const MANY_BYTES: usize = 64 << 20;

/// Prints the summary and writes the report, as far as the options ask for them.
pub(crate) fn write() {
    let options = process::options();
    if kernel::all().nth(MANY).is_some() && !reserve::has_room(MANY_BYTES) {
        return process::complain("gridguard: there is no memory for the summary and the report\n");
    }
    let report = collect();
    let any_launch = report.launches + report.refused + report.fixed > 0;
    let is_any = any_launch || report.memory.refused > 0;
    let is_shown = !options.quiet && (is_any || process::is_first());
    if is_shown {
        process::say(&if is_any { summary(&report) } else { nothing_launched(&report) });
    }
    if (is_any || process::is_first())
        && let Some(output) = &options.report
        && let Err(error) = publish(output, &report, is_any)
    {
        process::complain(&format!("gridguard: cannot write {output}: {error}\n"));
    }
}

/// States in the report of `gridguard run` that the library is loaded, before the program begins.
pub(crate) fn begin() {
    if let Some(output @ Output::Path(_)) = &process::options().report
        && !output.is_stream()
    {
        let report = WatchReport::pending(process::program(), std::process::id());
        // The end of the process tells of an error.
        let _ = publish(
            output,
            &WatchReport { watched: true, not_watched: Vec::new(), ..report },
            false,
        );
    }
}

fn nothing_launched(WatchReport { program, process, .. }: &WatchReport) -> String {
    let did = if unwatched::has_driver() { "launched nothing" } else { "made no CUDA call" };
    format!("gridguard: {program} (process {process}) was watched, and {did}\n")
}

fn collect() -> WatchReport {
    let (kernels, others) = table::counted();
    let kernels: Vec<_> = kernels.into_iter().map(|one| kernel_use(one.0, one.1)).collect();
    let sum = |of: fn(&KernelUse) -> u64| kernels.iter().map(of).sum::<u64>();
    let launches = sum(|kernel| kernel.launches) + others.launches;
    let (refused, before) = refuse::launch::refused();
    let not_watched = unwatched::reasons();
    let mut report = WatchReport {
        format: FORMAT,
        program: process::program(),
        process: std::process::id(),
        devices: known_devices().cloned().collect(),
        launches,
        refused,
        fixed: sum(|kernel| kernel.fixed) + others.fixed,
        launches_after_refusal: if refused > 0 { launches.saturating_sub(before) } else { 0 },
        unlisted_kernels: others.is_any().into(),
        unlisted_launches: others.launches,
        watched: not_watched.is_empty(),
        not_watched,
        kernels,
        refusals: refuse::launch::EXPLAINED.all(),
        missing_calls: opt_in::missing_calls(),
        indices: index::found(),
        index_coverage: process::options().index.then(index::coverage),
        memory: memory_use(),
        batch: process::options().batch,
        ..WatchReport::default()
    };
    report.truncate();
    for kernel in &mut report.kernels {
        kernel.demangled = demangled(&kernel.name);
    }
    report
}

fn memory_use() -> MemoryUse {
    let (refused, retried) = sums::refused();
    MemoryUse {
        devices: sums::devices(),
        managed: sums::of(MemoryKind::Managed, 0).held(),
        pinned: sums::of(MemoryKind::Pinned, 0).held(),
        untracked: sums::UNTRACKED.load(Ordering::Relaxed),
        refused,
        retried,
        refusals: refuse::memory::EXPLAINED.all(),
    }
}

/// The row of a kernel, without the demangled name, because demangling takes time.
fn kernel_use(kernel: &Kernel, counts: Counts) -> KernelUse {
    let Counts { launches, refused, fixed, largest: [x, y, z, threads, shared_bytes] } = counts;
    KernelUse {
        name: kernel.name(),
        demangled: String::new(),
        image: (kernel.image > 0).then(|| format!("{:016x}", kernel.image)),
        launches,
        refused,
        fixed,
        max_grid: Dim3::new(x.into(), y.into(), z.into()),
        max_threads_per_block: threads.into(),
        max_dynamic_shared_bytes: shared_bytes.into(),
    }
}

/// The summary, with the kinds of launches that were not recorded.
fn summary(report: &WatchReport) -> String {
    match record::left_out() {
        0 => report.summary(),
        1 => report.summary() + "  1 kind of launches could not be recorded\n",
        kinds => format!("{}  {kinds} kinds of launches could not be recorded\n", report.summary()),
    }
}

/// Writes the report. If another process of this run has written the file before, the name gets the number of this
/// process, or nothing is written if the process did nothing that is `worth_a_file`.
fn publish(output: &Output, report: &WatchReport, worth_a_file: bool) -> io::Result<()> {
    let text = serde_json::to_string_pretty(report)? + "\n";
    let path = match output {
        Output::Path(path) if !output.is_stream() => path,
        _ => return output.append(text.as_bytes()),
    };
    let is_own = |old: &[u8]| {
        let head = serde_json::from_slice::<ReportHead>(old);
        head.is_ok_and(|head| head.pending || head.process == report.process)
    };
    let replace = |path: &Path| {
        without_signals(|| publish_if(path, text.as_bytes(), MAX_REPORT_BYTES, is_own))
    };
    match replace(path) {
        Ok(written) if written || !worth_a_file => return Ok(()),
        // Other processes of the run keep the file locked.
        Err(error) if error.error.kind() != io::ErrorKind::TimedOut => return Err(error.into()),
        _ => {}
    }
    let own = numbered(path, report.process);
    if !own.exists() && count_beside(path) >= MAX_PROCESSES {
        return Err(io::Error::other(format!(
            "{MAX_PROCESSES} reports of other processes are beside it; delete those of earlier runs"
        )));
    }
    match replace(&own)? {
        true => Ok(()),
        false => Err(io::Error::other(format!("{} is no report of this process", own.display()))),
    }
}

/// `report.json` as `report.NUMBER.json`.
fn numbered(path: &Path, number: u32) -> PathBuf {
    match path.extension().and_then(OsStr::to_str) {
        Some(extension) => path.with_extension(format!("{number}.{extension}")),
        None => path.with_extension(number.to_string()),
    }
}

/// The number of files beside `path` with a process number in their name, up to [`MAX_PROCESSES`].
fn count_beside(path: &Path) -> usize {
    let is_numbered = |file: &fs::DirEntry| {
        let name = file.file_name();
        let name = name.to_string_lossy();
        let mut numbers = name.split('.').filter_map(|part| part.parse().ok());
        numbers.any(|number| numbered(path, number) == file.path())
    };
    let files = fs::read_dir(path.parent().unwrap_or(path)).into_iter().flatten().flatten();
    files.filter(is_numbered).take(MAX_PROCESSES).count()
}
