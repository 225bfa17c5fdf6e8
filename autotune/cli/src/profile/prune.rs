//! `gridguard profile prune`: removes stale or old entries.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;
use gridguard::profile::{self, Document, Entry};
use gridguard_kernels::bench::current_sources;
use serde::Serialize;

use super::entry;
use crate::error::{CommandError, Exit};
use crate::files::note_published;
use crate::measure::args::KernelFilter;
use crate::output::OutputArgs;

#[derive(Args)]
pub(crate) struct Prune {
    /// Profile
    file: PathBuf,
    /// Remove entries whose kernel has changed, and entries of a --kernel that is not gridguard's [default unless
    /// --older-than is given]
    #[arg(long)]
    stale: bool,
    /// Remove entries from before a date, for example 2026-11-20, or older than a duration, for example 90d
    #[arg(long, value_name = "DATE|TIME", value_parser = moment)]
    older_than: Option<SystemTime>,
    #[command(flatten)]
    kernels: KernelFilter,
    /// Show the entries to remove, without changing the profile
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct PruneReport {
    file: String,
    removed: Vec<Removed>,
    kept: usize,
    dry_run: bool,
}

#[derive(Serialize)]
struct Removed {
    #[serde(flatten)]
    entry: Entry,
    reason: &'static str,
}

impl Prune {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let mut document = entry::read(&self.file)?.document;
        let mut removed = self.prune(&mut document);
        let mut kept = document.entries().len();
        if !removed.is_empty() && !self.dry_run {
            let update = |document: &mut Document| Ok(self.prune(document));
            let published = profile::update(&self.file, document, update)?;
            note_published(&self.file, &published);
            (removed, kept) = (published.outcome, published.entries);
        }
        let report = PruneReport {
            file: self.file.display().to_string(),
            removed,
            kept,
            dry_run: self.dry_run,
        };
        self.output.print(&report, &report)?;
        Ok(Exit::Yes)
    }

    /// Removes entries, and returns each with its reason.
    fn prune(&self, document: &mut Document) -> Vec<Removed> {
        let mut removed = Vec::new();
        document.retain(|entry| {
            let reason = self.reason(entry);
            removed.extend(reason.map(|reason| Removed { entry: entry.clone(), reason }));
            reason.is_none()
        });
        removed
    }

    fn reason(&self, entry: &Entry) -> Option<&'static str> {
        let kernel = &entry.key.kernel;
        if !self.kernels.matches(kernel) {
            return None;
        }
        if self.stale || self.older_than.is_none() {
            let sources = current_sources(kernel);
            if sources.is_empty() && !self.kernels.kernels.is_empty() {
                return Some("no kernel of gridguard");
            }
            // Changes of other kernels are unknown.
            if !sources.is_empty() && !sources.contains(&entry.key.source) {
                return Some("the kernel's source has changed");
            }
        }
        // An entry without a date is kept.
        let found = humantime::parse_rfc3339_weak(&entry.found.date).ok();
        self.older_than.zip(found).and_then(|(limit, found)| (found < limit).then_some("old"))
    }
}

impl fmt::Display for PruneReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.removed.is_empty() {
            let rows = self.removed.iter().map(|Removed { entry, reason }| {
                let choice = entry::full_choice(entry.choice, &entry.parameters);
                let (source, date) = (entry.key.source.clone(), entry.found.date.clone());
                (entry, [choice, source, date, (*reason).to_owned()])
            });
            write!(f, "{}", entry::table(["choice", "source", "date", "reason"], rows))?;
        }
        let verb = if self.dry_run { "would be removed" } else { "removed" };
        writeln!(f, "{} {verb}, {} kept", entry::entries(self.removed.len()), self.kept)
    }
}

/// A date with or without a time, or a duration before now.
fn moment(text: &str) -> Result<SystemTime, String> {
    let midnight = format!("{text} 00:00:00");
    let date =
        humantime::parse_rfc3339_weak(text).or_else(|_| humantime::parse_rfc3339_weak(&midnight));
    let ago = || SystemTime::now().checked_sub(humantime::parse_duration(text).ok()?);
    let expected = "expected a date such as 2026-11-20 or a duration such as 90d";
    date.ok().or_else(ago).ok_or_else(|| expected.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_date_or_a_duration_before_now() {
        let date = moment("2026-11-20").expect("a date");
        assert_eq!(humantime::format_rfc3339(date).to_string(), "2026-11-20T00:00:00Z");
        assert_eq!(moment("2026-11-20T00:00:00Z"), Ok(date));
        assert!(moment("1h").expect("a duration") < SystemTime::now());
        assert!(moment("yesterday").is_err() && moment("").is_err());
    }
}
