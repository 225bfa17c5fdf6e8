//! `gridguard explain`: explains CUDA error codes, messages and logs, and how to fix the failure.

use core::cell::RefCell;
use std::fs;
use std::io::{self, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::Args;
use gridguard::{Axis, DeviceLimits, Dim3, cuda};
use gridguard_diagnose::{
    CudaVersion, Evidence, FailureId, LogScanner, ViolatedRule, similar_failures,
};
use gridguard_index::{EntryIndex, Size, Sizes, Verdict, Wrap, index};
use gridguard_report::{ExplainedLog, FindWraps, KnownLimits, device_evidence};

use crate::check::size;
use crate::error::{CommandError, Exit};
use crate::files::open;
use crate::follow::follow;
use crate::limits::DeviceChoice;
use crate::output::{OutputArgs, count, note};
use crate::ptx::index::{place, set_parameters};
use crate::ptx::text_of;
use crate::rules;

#[derive(Args)]
pub(crate) struct Explain {
    /// Log file, error message, name or code, or id of a rule; `-` or nothing reads a log from standard input. If a file
    /// has this name, it is read
    #[arg(value_name = "TEXT", allow_negative_numbers = true)]
    text: Vec<String>,
    /// Watch a growing log in UTF-8, also if it is replaced, and explain each new failure, until Ctrl-C; with --format
    /// json, a line for each
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    follow: Option<PathBuf>,
    /// PTX of the kernels in the log, to find 32-bit indices that wrap: a cause of illegal accesses and wrong values
    #[arg(long, value_name = "FILE")]
    ptx: Option<PathBuf>,
    /// Value of a kernel's parameter by its name or number, for --ptx; NAME+8 is the value 8 bytes into it
    #[arg(long, hide_short_help = true, value_name = "NAME=VALUE", requires = "ptx")]
    param: Vec<String>,
    /// The failed kernel's name, instead of the one in the log
    #[arg(long, hide_short_help = true, value_name = "NAME")]
    kernel: Option<String>,
    /// Size of its grid in blocks, instead of the one in the log
    #[arg(long, hide_short_help = true, value_name = "X,Y,Z", value_parser = size)]
    grid: Option<Dim3>,
    /// Size of its blocks in threads, instead of the one in the log
    #[arg(long, hide_short_help = true, value_name = "X,Y,Z", value_parser = size)]
    block: Option<Dim3>,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    output: OutputArgs,
}

const NOTHING_GIVEN: &str =
    "nothing to explain: give a message, a name or a number, or pipe a log in";
/// A log that takes longer is large or does not end.
const LONG_READ: Duration = Duration::from_secs(5);
const STILL_READING: &str = "\
still reading standard input, which is explained at its end; to explain a log while it grows:
  gridguard explain --follow FILE";
const NOTHING_RECOGNIZED: &str = "\
no CUDA failure recognized; give one of these:
  700                                              an error code
  CUDA_ERROR_INVALID_VALUE, cudaErrorInvalidValue  a name, also of libraries, such as CUBLAS_STATUS_ALLOC_FAILED
  CUDA error: invalid configuration argument       a message
  gridguard explain training.log                   a log, also on standard input";

impl Explain {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let entries = self.ptx.as_ref().map(|file| Entries::read(file, &self.param)).transpose()?;
        let find_wraps = |it: &Evidence| entries.iter().flat_map(|all| all.wraps(it)).collect();
        let wraps: Option<&FindWraps<'_>> = Some(&find_wraps);
        if let Some(file) = &self.follow {
            let device = self.device.limits()?;
            let limits = KnownLimits { device: device.as_deref(), wraps };
            let machine = self.machine(device.as_deref());
            return follow(file, |log, known, lines| {
                let report = ExplainedLog::after(log, known, &machine, limits)?;
                report.findings.into_iter().try_for_each(|mut one| {
                    one.line = one.line.saturating_add(lines);
                    self.output.print(&one, one.in_a_log())
                })
            });
        }
        let text = self.text.join(" ");
        let text = text.trim();
        if text.is_empty() && (!self.text.is_empty() || io::stdin().is_terminal()) {
            return Err(CommandError::invalid(NOTHING_GIVEN));
        }
        let is_file = text != "-" && fs::metadata(text).is_ok_and(|it| !it.is_dir());
        let log = if is_file {
            scan_file(Path::new(text))?
        } else if let Some(printed) = rules::explain(text, self.output) {
            return printed;
        } else {
            scan(text)?
        };
        let device = self.device.limits()?;
        let machine = self.machine(device.as_deref());
        let limits = KnownLimits { device: device.as_deref(), wraps };
        let report = ExplainedLog::new(&log, &machine, limits)?;
        self.output.print(&report, &report)?;
        Ok(if report.findings.is_empty() { Exit::No } else { Exit::Yes })
    }

    /// The launch of the arguments, and the facts about the chosen device, with its driver if it is of this machine.
    fn machine(&self, device: Option<&DeviceLimits>) -> Evidence {
        let mut evidence = device.map(device_evidence).unwrap_or_default();
        evidence.kernel.clone_from(&self.kernel);
        let sizes = |size: Option<Dim3>| size.map(|it| [it.x, it.y, it.z]);
        evidence.launch_sizes.grid = sizes(self.grid);
        evidence.launch_sizes.block = sizes(self.block);
        if self.device.device.is_none() {
            return evidence;
        }
        let driver_cuda = cuda::driver_version().ok().map(CudaVersion);
        let visible_devices = cuda::device_count().ok();
        Evidence { driver_cuda, visible_devices, ..evidence }
    }
}

fn scan_file(file: &Path) -> Result<LogScanner, CommandError> {
    let mut log = LogScanner::new();
    let name = file.display().to_string();
    log.read(BufReader::new(open(file)?)).map_err(CommandError::io(&name))?;
    if log.count() == 0 {
        let lines = count(log.lines(), "line", "lines");
        note(format_args!("no CUDA failure recognized in {lines} of {name}"));
    }
    Ok(log)
}

/// Scans `text`, or else a log on standard input, and notes its assumption.
fn scan(text: &str) -> Result<LogScanner, CommandError> {
    let (log, assumed) = if ["", "-"].contains(&text) {
        let mut log = LogScanner::new();
        thread::spawn(|| {
            thread::sleep(LONG_READ);
            note(STILL_READING);
        });
        log.read(io::stdin().lock()).map_err(CommandError::io("standard input"))?;
        (log, None)
    } else {
        gridguard_report::scan(text)
    };
    match assumed {
        Some(one) => note(format_args!("assuming that {text:?} means {one}")),
        None if log.findings().is_empty() => {
            let similar = similar_failures(text);
            // Otherwise a misspelt path would be a log without a failure.
            if similar.is_empty() && is_path(text) {
                open(Path::new(text))?;
            }
            note(unrecognized(text, &similar));
        }
        None => {}
    }
    Ok(log)
}

/// Whether the text can only be meant as a file: `logs/1`, `training.log`, or the name of a folder.
fn is_path(text: &str) -> bool {
    !text.contains(char::is_whitespace) && (text.contains(['.', '/']) || Path::new(text).exists())
}

/// The note if no failure was recognized.
fn unrecognized(text: &str, similar: &[FailureId]) -> String {
    if ["0", "CUDA_SUCCESS", "cudaSuccess"].contains(&text) {
        return format!("{text} is success: nothing failed");
    }
    if similar.is_empty() {
        return NOTHING_RECOGNIZED.to_owned();
    }
    let names: Vec<String> = similar.iter().map(|failure| format!("\n  {failure}")).collect();
    format!("{text:?} may mean several failures; explain one of{}", names.concat())
}

/// The entries of a PTX file.
#[derive(Default)]
struct Entries(RefCell<Vec<Entry>>);

struct Entry {
    index: EntryIndex,
    /// The parameters that are given.
    sizes: Sizes,
    given: Vec<Size>,
    is_noted: bool,
}

impl Entries {
    /// The entries that have the parameters `given`, which at least one must have.
    fn read(file: &Path, given: &[String]) -> Result<Self, CommandError> {
        let all = index(&text_of(file)?);
        let all = all.map_err(CommandError::in_file(file))?;
        let (mut entries, mut refused) = (Vec::new(), None);
        for index in all {
            let mut sizes = Sizes::default();
            match set_parameters(&mut sizes, &index, given) {
                Ok(given) => entries.push(Entry { index, sizes, given, is_noted: false }),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if entries.is_empty() => Err(error),
            _ => Ok(Self(entries.into())),
        }
    }

    /// The worst index that wraps in the launch of `evidence`. Notes an index that only wraps for some parameters.
    fn wraps(&self, evidence: &Evidence) -> Vec<ViolatedRule> {
        let kernel = evidence.kernel.as_deref();
        let mut all = self.0.borrow_mut();
        let mut named = all.iter_mut().filter(|entry| is_called(&entry.index.name, kernel));
        let (Some(entry), None) = (named.next(), named.next()) else { return Vec::new() };
        let (mut sizes, mut known) = (entry.sizes.clone(), entry.given.clone());
        let launch = &evidence.launch_sizes;
        let mut set = |size: fn(usize) -> Size, dim: Option<[u64; 3]>| {
            for (axis, value) in dim.into_iter().flatten().enumerate() {
                sizes.set(size(axis), i64::try_from(value).unwrap_or(i64::MAX));
                known.push(size(axis));
            }
        };
        set(Size::Grid, launch.grid);
        set(Size::Block, launch.block);
        let Verdict::Wraps(wraps) = entry.index.verdict(&sizes) else { return Vec::new() };
        let is_whole = entry.index.sizes().iter().all(|(size, _)| known.contains(size));
        let is_certain =
            |wrap: &&Wrap| is_whole || wrap.first.iter().any(|first| known.contains(&first.size));
        let worst = |wrap: &&Wrap| (wrap.is_address, wrap.extreme.abs());
        if let Some(wrap) = wraps.iter().filter(is_certain).max_by_key(worst) {
            return vec![violated(wrap)];
        }
        if let Some(Wrap { expression, formula, .. }) = wraps.iter().max_by_key(worst)
            && !core::mem::replace(&mut entry.is_noted, true)
        {
            note(format_args!(
                "a 32-bit index of {} may wrap: {expression}, if {formula}; --grid, --block and --param decide it",
                entry.index.name
            ));
        }
        Vec::new()
    }
}

/// Whether a log means the kernel `name`, mangled or as in the source. A log may name none.
fn is_called(name: &str, stated: Option<&str>) -> bool {
    let Some(stated) = stated else { return true };
    let rest = stated.strip_prefix(name);
    let is_same = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('('));
    let source = stated.split(['(', '<']).next().and_then(|it| it.rsplit([' ', ':']).next());
    let mangled = source.map(|source| format!("{}{source}", source.len()));
    is_same || name.starts_with("_Z") && mangled.is_some_and(|mangled| name.contains(&mangled))
}

fn violated(wrap: &Wrap) -> ViolatedRule {
    let Wrap { expression, extreme, .. } = wrap;
    let mut remedy = "compile the kernel with 64-bit indices".to_owned();
    let on_grid = wrap.first.iter().find_map(|first| match first.size {
        Size::Grid(axis) if first.value > 1 => Some((Axis::ALL.get(axis)?, first.value - 1)),
        _ => None,
    });
    if let Some((axis, most)) = on_grid {
        remedy += &format!(
            ", or launch chunks of at most {most} blocks on {}, each with pointers to its own items",
            axis.letter()
        );
    }
    ViolatedRule {
        id: "index-wrap".to_owned(),
        what: format!("a 32-bit index wraps: {expression} reaches {extreme} ({})", place(wrap)),
        remedy,
        codes: &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_known_by_its_name_mangled_or_not() {
        for stated in
            ["rows", "rows(float*, int)", "void rows<float>(float*, int)", "own::rows(int)"]
        {
            assert!(is_called("_ZN3own4rowsIfEEvPfi", Some(stated)), "{stated}");
        }
        assert!(is_called("rows", Some("rows")) && is_called("rows", Some("rows(float*)")));
        assert!(is_called("anything", None));
        for other in ["row", "rows2", "2rows(int)", "", "(", "narrows"] {
            assert!(!is_called("_Z4rowsPfi", Some(other)), "{other}");
            assert!(!is_called("rows", Some(other)), "{other}");
        }
    }
}
