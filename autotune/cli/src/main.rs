//! The command `gridguard`: GPU limits, launch checks, tuning, profiles, and CUDA failure diagnosis.
//!
//! Writes one document to standard output, as text for people or JSON for programs, and diagnostics to
//! standard error. Exit codes: 0 yes, 1 no, 2 invalid usage or input, 3 could not be determined,
//! 130 interrupted.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "both panic on a closed pipe")]

mod check;
mod device;
mod doctor;
#[cfg(target_os = "linux")]
mod elf;
mod error;
mod explain;
mod files;
mod follow;
mod interrupt;
mod limits;
mod measure;
mod output;
mod profile;
mod ptx;
mod report;
mod requests;
#[cfg(target_os = "linux")]
mod run;
mod shell;
mod tune;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use error::CommandError;

/// Validates CUDA launches, tunes how they are split, and explains CUDA failures
#[derive(Parser)]
#[command(name = "gridguard", version = env!("GRIDGUARD_VERSION"), propagate_version = true, after_help = EXIT_CODES)]
struct Command {
    #[command(subcommand)]
    subcommand: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Show the limits of a device, each with its source, or list all known devices
    Limits(limits::Limits),
    /// Check whether a launch is legal, and how to split it if it is not
    Check(Box<check::Check>),
    /// Measure which chunk is fastest, and store the choice in a profile
    Tune(Box<tune::Tune>),
    /// Show, merge, compare, re-measure, explain and prune profiles
    #[command(subcommand)]
    Profile(Box<profile::Profile>),
    #[command(hide = true)]
    Measure(measure::process::Measure),
    /// Rewrite PTX so that launches of any kernel can be split, and show which entries allow it
    ///
    /// Keeps each entry and adds a shifted and a folded form. Their blocks see the block index and grid size of
    /// the whole launch
    Ptx(ptx::Ptx),
    /// Explain a CUDA failure and how to fix it
    ///
    /// Checks launch sizes in the text against the GPUs of the catalogue, or against the compute capability in
    /// the text. Only --device queries a device of this machine
    Explain(explain::Explain),
    /// Run a program and explain each CUDA launch and allocation that the driver refuses
    ///
    /// Preloads a library into the unmodified program and its children, which forwards all calls to the driver.
    /// The exit code is the program's
    #[cfg(target_os = "linux")]
    Run(run::Run),
    /// Show the reports of `run --report`, with the kernels nearest to a limit first
    Report(report::Report),
    /// Check whether this machine can run CUDA, and how to fix it if it cannot
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    Examine(doctor::Examine),
    /// Write the completion script for a shell
    Completions(shell::Completions),
    /// Write the manual page, or with --output the pages of all subcommands
    Man(shell::ManPages),
}

const EXIT_CODES: &str = "\
Exit codes: 0 yes, 1 no, 2 invalid usage or input, 3 could not be determined, 130 interrupted";

fn main() -> ExitCode {
    let result = match Command::parse().subcommand {
        Subcommands::Limits(limits) => limits.run(),
        Subcommands::Check(check) => check.run(),
        Subcommands::Tune(tune) => tune.run(),
        Subcommands::Profile(profile) => profile.run(),
        Subcommands::Measure(measure) => measure.run(),
        Subcommands::Ptx(ptx) => ptx.run(),
        Subcommands::Explain(explain) => explain.run(),
        #[cfg(target_os = "linux")]
        Subcommands::Run(run) => run.run(),
        Subcommands::Report(report) => report.run(),
        Subcommands::Doctor(doctor) => doctor.run(),
        Subcommands::Examine(examine) => examine.run(),
        Subcommands::Completions(completions) => completions.run(Command::command()),
        Subcommands::Man(pages) => pages.run(Command::command()),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(CommandError::ClosedPipe) => ExitCode::SUCCESS,
        Err(error) => {
            output::note(format_args!("error: {error}"));
            error.exit().into()
        }
    }
}
