//! The command `gridguard`: what devices allow, whether launches are legal, which chunk is fastest,
//! what failures mean, and what a machine lacks.
//!
//! Text for people, JSON for programs: one document on stdout, diagnostics on stderr. Exit 0: yes;
//! 1: the answer is no; 2: usage or malformed input; 3: could not find out; 130: interrupted.

#![deny(clippy::print_stdout, clippy::print_stderr, reason = "both panic on a closed pipe")]

mod check;
mod device;
mod doctor;
mod error;
mod evaluate;
mod explain;
mod interrupt;
mod limits;
mod measure;
mod output;
mod profile;
mod requests;
mod tune;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps CUDA launches legal and fast: limits, verdicts, tuned chunks, failures by their true name.
#[derive(Parser)]
#[command(name = "gridguard", version, propagate_version = true)]
struct Command {
    #[command(subcommand)]
    subcommand: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Shows what a device allows, each number with its source; without a device lists all that
    /// are known
    Limits(limits::Limits),
    /// Says whether a launch is legal, what is wrong with it, and how to split it
    Check(Box<check::Check>),
    /// Measures which chunk is fastest, and keeps it in a profile
    Tune(Box<tune::Tune>),
    /// Says how good the tuner is on a device, against measuring everything
    Evaluate(evaluate::Evaluate),
    /// Shows, merges, compares, re-measures, explains and prunes profiles
    #[command(subcommand)]
    Profile(Box<profile::Profile>),
    #[command(hide = true)]
    Measure(measure::process::Measure),
    /// Says what a CUDA failure means, where it comes from, and what to do
    Explain(explain::Explain),
    /// Says whether this machine can run CUDA, and what to do where it cannot
    Doctor(doctor::Doctor),
    #[command(hide = true)]
    Examine(doctor::Examine),
}

fn main() -> ExitCode {
    let result = match Command::parse().subcommand {
        Subcommands::Limits(limits) => limits.run(),
        Subcommands::Check(check) => check.run(),
        Subcommands::Tune(tune) => tune.run(),
        Subcommands::Evaluate(evaluate) => evaluate.run(),
        Subcommands::Profile(profile) => profile.run(),
        Subcommands::Measure(measure) => measure.run(),
        Subcommands::Explain(explain) => explain.run(),
        Subcommands::Doctor(doctor) => doctor.run(),
        Subcommands::Examine(examine) => examine.run(),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(error) => error.report(),
    }
}
