//! Releases through a simulated registry, folders and real servers: roll-outs, hostile answers, ten thousand nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod folders;
mod hostile;
mod registry;
mod releases;
mod servers;
mod simulation;
mod support;
