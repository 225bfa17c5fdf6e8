//! `gridguard profile`: shows, merges, compares, re-measures, explains and prunes profiles.

mod diff;
mod explain;
mod explanation;
mod merge;
mod nearest;
mod prune;
mod record;
mod show;
mod table;
mod verify;
mod verifying;
mod words;

use std::path::Path;

use clap::Subcommand;
use gridguard::profile::{self, Document, Parsed};

use crate::error::{CommandError, Exit};
use crate::output::note;

#[derive(Subcommand)]
pub(crate) enum Profile {
    /// Shows what a profile holds
    Show(show::Show),
    /// Makes one profile of several
    Merge(merge::Merge),
    /// Says what tells two profiles apart
    Diff(diff::Diff),
    /// Measures again whether the choices of a profile are still the fastest
    Verify(verify::Verify),
    /// Says which entry would serve a launch, and why
    Explain(explain::Explain),
    /// Removes entries that are stale or old
    Prune(prune::Prune),
}

impl Profile {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        match self {
            Self::Show(show) => show.run(),
            Self::Merge(merge) => merge.run(),
            Self::Diff(diff) => diff.run(),
            Self::Verify(verify) => verify.run(),
            Self::Explain(explain) => explain.run(),
            Self::Prune(prune) => prune.run(),
        }
    }
}

/// Reads a profile that has to be there, and tells of its bad entries.
fn read(path: &Path) -> Result<Parsed, CommandError> {
    let parsed = profile::load(path).map_err(CommandError::profile(path))?;
    let parsed = parsed.ok_or_else(|| CommandError::missing_file(path))?;
    for fault in &parsed.faults {
        note(format_args!("{}:{fault}", path.display()));
    }
    Ok(parsed)
}

/// A profile of the same device without entries.
fn empty_like(document: &Document) -> Document {
    Document::new(document.device().clone(), document.environment().clone())
}

/// Whether a kernel is among those wanted; without any all are.
fn is_wanted(wanted: &[String], kernel: &str) -> bool {
    wanted.is_empty() || wanted.iter().any(|one| one == kernel)
}
