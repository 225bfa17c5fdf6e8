//! `gridguard profile`: shows, merges, explains and prunes profiles.

mod entry;
mod explain;
#[cfg(feature = "fleet")]
mod fleet;
mod foreign;
mod merge;
mod prune;
mod show;

#[cfg(not(feature = "fleet"))]
use std::ffi::OsString;

use clap::Subcommand;

use crate::error::{CommandError, Exit};

#[derive(Subcommand)]
pub(crate) enum Profile {
    /// Show the entries of a profile
    Show(show::Show),
    /// Merge profiles of the same device into one
    Merge(merge::Merge),
    /// Explain which entry a launch would use, and why
    Explain(explain::Explain),
    /// Remove stale entries, and shorten entries that do not beat the default
    Prune(prune::Prune),
    /// Sign profiles, and push them to a registry or an object store
    #[cfg(feature = "fleet")]
    Push(fleet::Push),
    /// Pull signed profiles into a folder, which keeps the last good ones
    #[cfg(feature = "fleet")]
    Pull(fleet::Pull),
    /// Check the signature of a release and its profiles
    #[cfg(feature = "fleet")]
    Verify(fleet::Verify),
    /// List the tags of a repository
    #[cfg(feature = "fleet")]
    List(fleet::List),
    /// Push the shapes that had no exact entry on this machine
    #[cfg(feature = "fleet")]
    PushMisses(fleet::PushMisses),
    /// Pull the shapes that had no exact entry on any machine
    #[cfg(feature = "fleet")]
    PullMisses(fleet::PullMisses),
    #[cfg(not(feature = "fleet"))]
    #[command(name = "push", aliases = ["pull", "verify", "list", "push-misses", "pull-misses"], hide = true)]
    Absent {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<OsString>,
    },
}

impl Profile {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        match self {
            Self::Show(show) => show.run(),
            Self::Merge(merge) => merge.run(),
            Self::Explain(explain) => explain.run(),
            Self::Prune(prune) => prune.run(),
            #[cfg(feature = "fleet")]
            Self::Push(push) => push.run(),
            #[cfg(feature = "fleet")]
            Self::Pull(pull) => pull.run(),
            #[cfg(feature = "fleet")]
            Self::Verify(verify) => verify.run(),
            #[cfg(feature = "fleet")]
            Self::List(list) => list.run(),
            #[cfg(feature = "fleet")]
            Self::PushMisses(push) => push.run(),
            #[cfg(feature = "fleet")]
            Self::PullMisses(pull) => pull.run(),
            #[cfg(not(feature = "fleet"))]
            Self::Absent { .. } => Err(CommandError::invalid(WITHOUT_FLEET)),
        }
    }
}

#[cfg(not(feature = "fleet"))]
const WITHOUT_FLEET: &str = "\
this command was built without push and pull: add `--features fleet` to `cargo install --path autotune/cli`";
