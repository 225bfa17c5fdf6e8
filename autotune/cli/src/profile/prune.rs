//! `gridguard profile prune`: removes stale entries, and shortens entries that do not beat the default.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use gridguard::profile::{self, Document, Entry};
use gridguard_problems::current_sources;
use serde_json::json;

use super::entry::{self, Remark};
use crate::error::{CommandError, Exit};
use crate::files::note_published;
use crate::measure::args::KernelFilter;
use crate::output::{OutputArgs, counted, text};

#[derive(Args)]
pub(crate) struct Prune {
    /// Profile
    file: PathBuf,
    /// Also keep only the confirmation of entries that do not beat the default by 2 %, to ship the profile
    #[arg(long)]
    defaults: bool,
    #[command(flatten)]
    kernels: KernelFilter,
    /// Show the entries to remove, without changing the profile
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Default)]
struct Changes {
    removed: Vec<Remark<Entry>>,
    shortened: Vec<Remark<Entry>>,
}

impl Changes {
    const fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.shortened.is_empty()
    }
}

impl Prune {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let mut document = entry::read(&self.file)?.document;
        let mut changes = self.prune(&mut document);
        let mut left = document.entries().len();
        if !changes.is_empty() && !self.dry_run {
            let update = |document: &mut Document| Ok(self.prune(document));
            let published = profile::update(&self.file, document, update)?;
            note_published(&self.file, &published);
            (changes, left) = (published.outcome, published.entries);
        }
        let Changes { removed, shortened } = &changes;
        let unchanged = left - shortened.len();
        let document = json!({
            "file": self.file.display().to_string(),
            "removed": removed,
            "shortened": shortened,
            "unchanged": unchanged,
            "dry_run": self.dry_run,
        });
        self.output.print(&document, text(|f| self.write_text(f, &changes, unchanged)))?;
        Ok(Exit::Yes)
    }

    fn write_text(
        &self,
        f: &mut fmt::Formatter<'_>,
        changes: &Changes,
        unchanged: usize,
    ) -> fmt::Result {
        let Changes { removed, shortened } = changes;
        if !changes.is_empty() {
            let rows = removed.iter().chain(shortened).map(|Remark { entry, reason }| {
                let choice = entry::full_choice(entry.choice, &entry.parameters);
                let (source, date) = (entry.key.source.clone(), entry.found.date.clone());
                (entry, [choice, source, date, reason.clone()])
            });
            write!(f, "{}", entry::table(["choice", "source", "date", "reason"], rows))?;
        }
        let others = counted(&[(removed.len(), "removed"), (shortened.len(), "shortened")]);
        let note = if self.dry_run { ", if run without --dry-run" } else { "" };
        writeln!(f, "{unchanged} unchanged{others}{note}")
    }

    /// Removes and shortens entries, and returns them as they were, each with the reason.
    fn prune(&self, document: &mut Document) -> Changes {
        let mut changes = Changes::default();
        // Such an entry would no longer say that it measured the choice of its row.
        let rows = document.decisions().to_vec();
        let is_of_row = |entry: &Entry| {
            let mut lists = rows.iter().filter(|list| list.key == entry.key);
            lists.any(|list| {
                list.row_of(&entry.shape).is_some_and(|row| !list.rows[row].is_default())
            })
        };
        document.retain(|entry| {
            let remark = |reason| Remark { entry: entry.clone(), reason };
            let reason = self.reason(entry);
            if reason.is_none() && self.is_shortened(entry) && !is_of_row(entry) {
                let reason = "the default is as fast, and stays confirmed".into();
                changes.shortened.push(remark(reason));
                return false;
            }
            let is_kept = reason.is_none();
            changes.removed.extend(reason.map(remark));
            is_kept
        });
        for Remark { entry: Entry { key, shape, found, .. }, .. } in
            changes.shortened.iter().cloned()
        {
            // It has the key and the shape of an entry that was there.
            let _ = document.insert(Entry::confirmed(key, shape, found.date));
        }
        changes
    }

    fn is_shortened(&self, entry: &Entry) -> bool {
        self.defaults && self.kernels.matches(&entry.key.kernel) && entry.gains_nothing()
    }

    fn reason(&self, entry: &Entry) -> Option<String> {
        let kernel = &entry.key.kernel;
        if !self.kernels.matches(kernel) {
            return None;
        }
        let sources = current_sources(kernel);
        if sources.is_empty() && !self.kernels.kernels.is_empty() {
            return Some("no kernel of gridguard".into());
        }
        // Changes of other kernels are unknown.
        let is_stale = !sources.is_empty() && !sources.contains(&entry.key.source);
        is_stale.then(|| "the kernel's source has changed".into())
    }
}
