//! `gridguard profile`: shows, merges, compares, digests, re-measures, explains and prunes profiles.

mod diff;
mod digest;
mod drift;
mod entry;
mod explain;
mod foreign;
mod merge;
mod passed_over;
mod prune;
mod show;
mod verify;

use clap::Subcommand;

use crate::error::{CommandError, Exit};

#[derive(Subcommand)]
pub(crate) enum Profile {
    /// Show the entries of a profile
    Show(show::Show),
    /// Merge profiles of the same device into one
    Merge(merge::Merge),
    /// Compare two profiles
    Diff(diff::Diff),
    /// Print the digest of a profile's choices; exit with 1 if profiles choose otherwise
    Digest(digest::Digest),
    /// Re-measure a profile, and report choices that are no longer the fastest
    Verify(verify::Verify),
    /// Explain which entry a launch would use, and why
    Explain(explain::Explain),
    /// Remove stale or old entries
    Prune(prune::Prune),
}

impl Profile {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        match self {
            Self::Show(show) => show.run(),
            Self::Merge(merge) => merge.run(),
            Self::Diff(diff) => diff.run(),
            Self::Digest(digest) => digest.run(),
            Self::Verify(verify) => verify.run(),
            Self::Explain(explain) => explain.run(),
            Self::Prune(prune) => prune.run(),
        }
    }
}
