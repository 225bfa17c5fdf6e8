//! `gridguard profile prune`: removes entries that are stale or old.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;
use gridguard::profile::{self, Document, Entry};
use gridguard_kernels::bench::current_sources;
use serde::Serialize;

use super::record::EntryRecord;
use super::table::{Side, Table};
use super::{empty_like, is_wanted, read, words};
use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, note};

#[derive(Args)]
pub(crate) struct Prune {
    /// The profile
    file: PathBuf,
    /// Entries of kernels that were edited since, or that there are no more; this is what goes
    /// where nothing else is said
    #[arg(long)]
    stale: bool,
    /// Entries found before a date such as 2026-11-20, or longer ago than a time such as 90d
    #[arg(long, value_name = "DATE|TIME", value_parser = moment)]
    older_than: Option<SystemTime>,
    /// Only entries of this kernel, or of several
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// Says what would go and changes nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Record<'a> {
    file: String,
    removed: Vec<RemovedRecord<'a>>,
    kept: usize,
    dry_run: bool,
}

#[derive(Serialize)]
struct RemovedRecord<'a> {
    #[serde(flatten)]
    entry: EntryRecord<'a>,
    reason: &'static str,
}

/// An entry that goes, and why.
type Removed = (Entry, &'static str);

impl Prune {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let mut document = read(&self.file)?.document;
        let mut removed = self.remove_from(&mut document);
        let mut kept = document.entries().len();
        if !removed.is_empty() && !self.dry_run {
            let published = profile::update(&self.file, empty_like(&document), |document| {
                self.remove_from(document)
            })?;
            if let Some(backup) = &published.backup {
                let file = self.file.display();
                note(format_args!("{file} had bad entries and is kept as {}", backup.display()));
            }
            (removed, kept) = (published.outcome, published.entries);
        }
        self.tell(&removed, kept)?;
        Ok(Exit::Yes)
    }

    fn remove_from(&self, document: &mut Document) -> Vec<Removed> {
        let mut removed = Vec::new();
        document.retain(|entry| match self.reason(entry) {
            Some(reason) => {
                removed.push((entry.clone(), reason));
                false
            }
            None => true,
        });
        removed
    }

    /// Why an entry goes, if it does.
    fn reason(&self, entry: &Entry) -> Option<&'static str> {
        let kernel = &entry.key.kernel;
        if !is_wanted(&self.kernels, kernel) {
            return None;
        }
        let asks_for_stale = self.stale || self.older_than.is_none();
        let sources = if asks_for_stale { current_sources(kernel) } else { Vec::new() };
        if asks_for_stale && sources.is_empty() {
            return Some("there is no such kernel");
        }
        if asks_for_stale && !sources.contains(&entry.key.source) {
            return Some("the kernel was edited since");
        }
        // An entry without a date is not known to be old.
        let found = humantime::parse_rfc3339_weak(&entry.found.date).ok();
        self.older_than.zip(found).and_then(|(end, found)| (found < end).then_some("old"))
    }

    fn tell(&self, removed: &[Removed], kept: usize) -> Result<(), CommandError> {
        let record = Record {
            file: self.file.display().to_string(),
            removed: removed
                .iter()
                .map(|(entry, reason)| RemovedRecord { entry: entry.into(), reason })
                .collect(),
            kept,
            dry_run: self.dry_run,
        };
        self.output.write(&record, |out| {
            let table = table(removed);
            if !table.is_empty() {
                write!(out, "{table}")?;
            }
            let verb = if self.dry_run { "would go" } else { "removed" };
            let gone = words::count(removed.len(), "entry", "entries");
            writeln!(out, "{gone} {verb}, {kept} kept")
        })
    }
}

fn table(removed: &[Removed]) -> Table {
    let mut table = Table::of_entries([
        ("choice", Side::Left),
        ("source", Side::Left),
        ("date", Side::Left),
        ("why", Side::Left),
    ]);
    for (entry, reason) in removed {
        table.push_entry(
            entry,
            [
                words::chosen(entry.choice, &entry.parameters),
                entry.key.source.clone(),
                entry.found.date.clone(),
                (*reason).to_owned(),
            ],
        );
    }
    table
}

/// A date, with or without a time, or how long ago.
fn moment(text: &str) -> Result<SystemTime, String> {
    let midnight = format!("{text} 00:00:00");
    let date =
        humantime::parse_rfc3339_weak(text).or_else(|_| humantime::parse_rfc3339_weak(&midnight));
    let ago = || {
        let time = humantime::parse_duration(text).ok()?;
        SystemTime::now().checked_sub(time)
    };
    let expected = "expected is a date such as 2026-11-20 or a time such as 90d";
    date.ok().or_else(ago).ok_or_else(|| expected.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_date_or_so_long_ago() {
        let date = moment("2026-11-20").expect("a date");
        assert_eq!(humantime::format_rfc3339(date).to_string(), "2026-11-20T00:00:00Z");
        assert_eq!(moment("2026-11-20T00:00:00Z"), Ok(date));
        assert!(moment("1h").expect("a time") < SystemTime::now());
        assert!(moment("yesterday").is_err() && moment("").is_err());
    }
}
