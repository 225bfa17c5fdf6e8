//! The command as its users run it: output, exit codes, malformed input, made-up machines.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod check;
mod check_image;
mod command;
#[cfg(target_os = "linux")]
mod doctor;
mod door;
mod explain;
mod explain_logs;
mod hostile;
mod profile;
mod program;
mod ptx;
#[cfg(target_os = "linux")]
mod run;
#[cfg(target_os = "linux")]
mod run_files;
mod shell;
mod terminal;
mod tune;
