//! `gridguard run`: runs a program with `libgridguard_preload.so`, which explains refused launches and allocations.

#[cfg(feature = "embedded-library")]
mod embedded;
mod library;
mod loader;
mod output;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, ValueEnum};
use gridguard_report::WatchReport;

use self::library::find_library;
use self::loader::LIBRARY;
use self::output::{Kind, Output};
use crate::elf;
use crate::error::{CommandError, Exit};
use crate::files::read_start;
use crate::output::json;
use crate::words::from_1;

#[derive(Args)]
pub(crate) struct Run {
    /// File for a report for `gridguard report`; further processes of the program add their number to the name.
    /// Replaces only an earlier report, or writes to a pipe or device
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// File for each kind of launch, as requests for `gridguard check --requests`. Replaces only an earlier record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Wait for each launch, so that late errors name one launch
    #[arg(long)]
    sync: bool,
    /// What to do about a refused launch after explaining it; several, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        value_name = "POLICY",
        default_value = "report"
    )]
    on_refused: Vec<OnRefused>,
    /// Short for --on-refused fix
    #[arg(long)]
    fix: bool,
    /// Find launches whose 32-bit indices wrap, which the driver does not check. The summary also names the kernels that
    /// wrap next
    #[arg(long)]
    index: bool,
    /// Short for --on-refused abort
    #[arg(long)]
    abort: bool,
    /// Format of the messages: text, lines of JSON as in OpenTelemetry's logs, or annotations of GitHub's workflows
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Batch size of the program: the summary then names the batch that exceeds a limit
    #[arg(long, value_name = "N", value_parser = from_1)]
    batch: Option<u64>,
    /// A libgridguard_preload.so to preload instead of this command's own
    ///
    /// By default the first of these is preloaded: the file that GRIDGUARD_PRELOAD names; the library in this command,
    /// unless it was built without; the library beside this command, then in ../libexec/gridguard, ../lib/gridguard and
    /// ../lib. Its version must be that of the command
    #[arg(long, value_name = "FILE.so")]
    library: Option<PathBuf>,
    /// Print no summary at the end
    #[arg(long)]
    quiet: bool,
    /// The program and its arguments. Options of `gridguard run` stand before it
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM ARGS")]
    program: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Github,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnRefused {
    /// Rewrite the PTX that the program loads, and split launches whose grid is too large
    Fix,
    /// End the program: stale output is worse than none
    Abort,
    /// Return the launch's error again from the thread's next wait, for programs that check only there
    Raise,
    /// Go on
    Report,
}

impl Run {
    /// Replaces this process by the program. Returns only on failure.
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let Some((program, arguments)) = self.program.split_first() else {
            return Err(CommandError::invalid("no program is given"));
        };
        let path = find_program(program)?;
        check_program(&path)?;
        let library = find_library(self.library.as_deref())?;
        let mut command = Command::new(&path);
        command.arg0(program).args(arguments).env(PRELOAD, preloads(&library));
        let wants = |policy| self.on_refused.contains(&policy);
        let wants_fix = self.fix || wants(OnRefused::Fix);
        let report = self.report.as_deref().map(|path| Output::new(Kind::Report, path));
        let record = self.record.as_deref().map(|path| Output::new(Kind::Record, path));
        let (report, record) = (report.transpose()?, record.transpose()?);
        if let (Some(report), Some(record)) = (&report, &record)
            && report.path() == record.path()
        {
            return Err(CommandError::invalid("report and record are one file"));
        }
        let process = std::process::id();
        let flag = |is_set: bool| is_set.then(|| OsString::from("1"));
        let path_of = |output: &Option<Output>| Some(output.as_ref()?.path().into());
        let ptx = wants_fix.then(|| ptx_folder(process)).and_then(Result::ok);
        let format = self.format.to_possible_value();
        let variables = [
            ("ABORT", flag(self.abort || wants(OnRefused::Abort))),
            ("FIX", flag(wants_fix)),
            ("INDEX", flag(self.index)),
            ("RAISE", flag(wants(OnRefused::Raise))),
            ("SYNC", flag(self.sync)),
            ("QUIET", flag(self.quiet)),
            ("FORMAT", format.map(|format| format.get_name().into())),
            ("BATCH", self.batch.map(|batch| batch.to_string().into())),
            ("REPORT", path_of(&report)),
            ("RECORD", path_of(&record)),
            // Without the folder, kernels of `ptxas` stay refused, with a reason.
            ("PTX", ptx.map(Into::into)),
            ("PROCESS", Some(process.to_string().into())),
        ];
        for (name, value) in variables {
            let name = format!("GRIDGUARD_RUN_{name}");
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // The program may end without a report.
        let pending = WatchReport::pending(path.display().to_string(), process);
        let pending = json(&pending)? + "\n";
        report.map_or(Ok(()), |report| report.begin(pending.as_bytes()))?;
        record.map_or(Ok(()), |record| record.begin(b""))?;
        let error = command.exec();
        Err(CommandError::io(format!("cannot run {}", path.display()))(error))
    }
}

/// The folder where each `ptxas` that the program starts keeps the PTX that it reads. The first `ptxas` creates it, and
/// the library deletes it when the program, which gets the number of this process, ends.
fn ptx_folder(process: u32) -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    std::path::absolute(env::temp_dir().join(format!("gridguard-ptx-{process}-{now:x}")))
}

/// Finds the file of the program like a shell.
fn find_program(name: &OsStr) -> Result<PathBuf, CommandError> {
    let is_program = |path: &PathBuf| {
        fs::metadata(path)
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let found = if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        if path.exists() && !is_program(&path) {
            return Err(CommandError::invalid_file(&path, "is not an executable file"));
        }
        Some(path).filter(is_program)
    } else {
        let path = env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        env::split_paths(&path).map(|folder| folder.join(name)).find(is_program)
    };
    found.ok_or_else(|| CommandError::invalid(format_args!("{}: no such program", name.display())))
}

/// Refuses a program that ignores the library, or cannot run with it.
fn check_program(path: &Path) -> Result<(), CommandError> {
    if path.file_name().is_some_and(|name| name == "compute-sanitizer") {
        return Err(CommandError::invalid(
            "compute-sanitizer replaces the driver's functions itself: run it without `gridguard run`"
                .to_owned(),
        ));
    }
    // Checks the interpreter of a script.
    let path = interpreter(path)?.unwrap_or_else(|| path.to_owned());
    let io = || CommandError::io(path.display());
    let refused = |why: &str| Err(CommandError::invalid_file(&path, why));
    let file = fs::metadata(&path).map_err(io())?;
    let own = fs::metadata("/proc/self").map_err(CommandError::io("/proc/self"))?;
    let mode = file.permissions().mode();
    if mode & SETUID != 0 && file.uid() != own.uid() {
        return refused("is a setuid program: the loader ignores preloaded libraries");
    }
    if mode & SETGID != 0 && file.gid() != own.gid() {
        return refused("is a setgid program: the loader ignores preloaded libraries");
    }
    if rustix::fs::getxattr(&path, "security.capability", &mut [0_u8; 64]).is_ok() {
        return refused("has file capabilities (setcap): the loader ignores preloaded libraries");
    }
    let refusal = File::open(&path).and_then(elf::refusal).map_err(io())?;
    refusal.map_or(Ok(()), refused)
}

/// The interpreter of the script at `path`; `None` for other files.
fn interpreter(path: &Path) -> Result<Option<PathBuf>, CommandError> {
    let start = read_start(path, FIRST_LINE)?;
    let text = String::from_utf8_lossy(&start);
    let Some(line) = text.strip_prefix("#!").and_then(|line| line.lines().next()) else {
        return Ok(None);
    };
    let mut words = line.split_whitespace();
    let first = words.next().unwrap_or_default();
    // `#!/usr/bin/env NAME`, with options of `env` before the name.
    if first.ends_with("/env")
        && let Some(name) = words.find(|word| !word.starts_with('-') && !word.contains('='))
    {
        return find_program(OsStr::new(name)).map(Some);
    }
    Ok(Some(PathBuf::from(first)))
}

/// The value of `LD_PRELOAD`: sanitizers first, then this library, then the others.
fn preloads(library: &Path) -> OsString {
    let before = env::var_os(PRELOAD).unwrap_or_default();
    let before = before.to_string_lossy();
    let others: Vec<&str> =
        before.split([' ', ':']).filter(|one| !one.is_empty() && !one.ends_with(LIBRARY)).collect();
    let is_sanitizer = |one: &&str| {
        let name = one.rsplit('/').next().unwrap_or(one);
        SANITIZERS.iter().any(|sanitizer| name.starts_with(sanitizer))
    };
    let (first, last): (Vec<&str>, Vec<&str>) = others.into_iter().partition(is_sanitizer);
    let own = library.to_string_lossy();
    let all: Vec<&str> = first.into_iter().chain([&*own]).chain(last).collect();
    all.join(":").into()
}

const PRELOAD: &str = "LD_PRELOAD";
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
/// Bytes of a script's first line that the kernel reads.
const FIRST_LINE: u64 = 256;
/// Libraries that check that they are the first.
const SANITIZERS: [&str; 6] =
    ["libasan.so", "libtsan.so", "libubsan.so", "liblsan.so", "libhwasan.so", "libclang_rt."];
