//! `gridguard profile`: show, merge, diff, prune, explain and verify.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../command/mod.rs"]
mod command;
mod entries;
mod explain;
mod files;
mod verify;
