//! The command `gridguard`: what devices allow, and whether launches are legal.
//!
//! Text for people, JSON for programs: one document on stdout, diagnostics on stderr. Exit 0: yes;
//! 1: the answer is no; 2: usage or malformed input; 3: could not find out.

mod check;
mod device;
mod failure;
mod limits;
mod requests;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps CUDA launches legal: limits of devices, verdicts on launches.
#[derive(Parser)]
#[command(name = "gridguard", version, propagate_version = true)]
struct Command {
    #[command(subcommand)]
    subcommand: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Shows what a device allows any launch, each number with its source
    Limits(limits::Limits),
    /// Says whether a launch is legal, what is wrong with it, and how to split it
    Check(Box<check::Check>),
}

fn main() -> ExitCode {
    let answer = match Command::parse().subcommand {
        Subcommands::Limits(limits) => limits.run(),
        Subcommands::Check(check) => check.run(),
    };
    match answer {
        Ok(answer) => answer.into(),
        Err(failure) => failure.report(),
    }
}
