//! Tuned choices: what a profile stores, and which entry serves a launch.

mod entry;
mod key;

pub use entry::{Entry, Named, Provenance, Stopped, StoredChoice, Summary};
pub use key::{Key, L2, Objective, Policy, Submission};
