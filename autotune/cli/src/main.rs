//! The command `gridguard`: GPU limits, launch checks, tuning, profiles, and CUDA failure diagnosis.
//!
//! Writes one document to standard output, as text for people or JSON for programs, and diagnostics to
//! standard error. Exit codes: 0 yes, 1 no, 2 invalid usage or input, 3 could not be determined,
//! 130 interrupted.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "both panic on a closed pipe")]

mod bug_report;
mod check;
mod doctor;
#[cfg(target_os = "linux")]
mod elf;
mod error;
mod explain;
mod files;
mod help;
mod interrupt;
mod limits;
mod measure;
mod output;
mod profile;
mod ptx;
mod report;
mod requests;
mod rules;
#[cfg(target_os = "linux")]
mod run;
mod shell;
mod tune;
mod words;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use error::{CommandError, Exit};

/// Validates CUDA launches, tunes how they are split, and explains CUDA failures
#[derive(Parser)]
#[command(name = "gridguard", version = env!("GRIDGUARD_VERSION"), propagate_version = true, after_help = EXIT_CODES)]
struct Command {
    #[command(subcommand)]
    subcommand: Option<Subcommands>,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Show the limits of GPUs, each with its source
    Limits(limits::Limits),
    /// Check whether a launch is legal, and how to split it if it is not
    Check(Box<check::Check>),
    /// Measure which chunk is fastest, and store the choice in a profile
    Tune(Box<tune::Tune>),
    /// Show, merge, explain and prune profiles
    #[command(subcommand)]
    Profile(Box<profile::Profile>),
    #[command(hide = true)]
    Measure(measure::process::Measure),
    /// Rewrite PTX so that launches of any kernel can be split
    ///
    /// Keeps each entry and adds a shifted and a folded form. Their blocks see the block index and grid size of
    /// the whole launch. --index shows which 32-bit indices wrap, and the first size that wraps
    Ptx(ptx::Ptx),
    /// Explain a CUDA failure and how to fix it
    ///
    /// Checks launch sizes in the text against the GPUs of the catalogue, or against the compute capability in
    /// the text. Only --device queries a device of this machine
    Explain(explain::Explain),
    /// Run a program and explain what the CUDA driver refuses
    ///
    /// Names each refused launch and allocation. Preloads a library into the unmodified program and its children, which
    /// forwards all calls to the driver.
    /// The exit code is the program's
    #[cfg(target_os = "linux")]
    Run(run::Run),
    /// Show the reports of `run --report`
    Report(report::Report),
    /// Check whether this machine can run CUDA, and how to fix it
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    Examine(doctor::Examine),
    /// Collect the facts for a bug report, without personal details
    BugReport(bug_report::BugReport),
    /// Write the completion script for a shell
    Completions(shell::Completions),
}

const EXIT_CODES: &str = "\
Exit codes: 0 yes, 1 no, 2 invalid usage or input, 3 could not be determined, 130 interrupted";

impl Subcommands {
    /// Runs it. `command` describes all of them.
    fn run(self, command: impl Fn() -> clap::Command) -> Result<Exit, CommandError> {
        match self {
            Self::Limits(limits) => limits.run(),
            Self::Check(check) => check.run(),
            Self::Tune(tune) => tune.run(),
            Self::Profile(profile) => profile.run(),
            Self::Measure(measure) => measure.run(),
            Self::Ptx(ptx) => ptx.run(),
            Self::Explain(explain) => explain.run(),
            #[cfg(target_os = "linux")]
            Self::Run(run) => run.run(),
            Self::Report(report) => report.run(),
            Self::Doctor(doctor) => doctor.run(),
            Self::Examine(_) => doctor::Examine::run(),
            Self::BugReport(report) => report.run(),
            Self::Completions(completions) => completions.run(command()),
        }
    }
}

fn main() -> ExitCode {
    interrupt::fail_at_file_limit();
    let command = || help::with_examples(Command::command());
    let matches = command().try_get_matches();
    let result = match matches.and_then(|matches| Command::from_arg_matches(&matches)) {
        Ok(Command { subcommand: Some(subcommand) }) => subcommand.run(command),
        Ok(Command { subcommand: None }) => help::print(&command().render_help()),
        Err(error) => help::answer(&error),
    };
    let exit = result.unwrap_or_else(|error| {
        if error.exit != Exit::Yes {
            output::note(format_args!("error: {error}"));
        }
        error.exit
    });
    exit.into()
}
