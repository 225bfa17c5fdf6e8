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
use crate::output::{OutputArgs, text};

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
        let document = json!({
            "file": self.file.display().to_string(),
            "removed": removed,
            "kept": kept,
            "dry_run": self.dry_run,
        });
        self.output.print(&document, text(|f| self.write_text(f, &removed, kept)))?;
        Ok(Exit::Yes)
    }

    fn write_text(
        &self,
        f: &mut fmt::Formatter<'_>,
        removed: &[Remark<Entry>],
        kept: usize,
    ) -> fmt::Result {
        if !removed.is_empty() {
            let rows = removed.iter().map(|Remark { entry, reason }| {
                let choice = entry::full_choice(entry.choice, &entry.parameters);
                let (source, date) = (entry.key.source.clone(), entry.found.date.clone());
                (entry, [choice, source, date, reason.clone()])
            });
            write!(f, "{}", entry::table(["choice", "source", "date", "reason"], rows))?;
        }
        let verb = match (self.dry_run, self.defaults) {
            (true, true) => "would be removed or shortened",
            (true, false) => "would be removed",
            (false, true) => "removed or shortened",
            (false, false) => "removed",
        };
        writeln!(f, "{} {verb}, {kept} kept", entry::entries(removed.len()))
    }

    /// Removes entries, and returns each with its reason.
    fn prune(&self, document: &mut Document) -> Vec<Remark<Entry>> {
        let mut removed = Vec::new();
        let mut confirmed = Vec::new();
        // Such an entry would no longer say that it measured the choice of its row.
        let rows = document.decisions().to_vec();
        let is_of_row = |entry: &Entry| {
            let sizes: Vec<u64> = entry.shape.iter().map(|(_, size)| *size).collect();
            let mut lists = rows.iter().filter(|list| list.key == entry.key);
            lists.any(|list| list.row(&sizes).is_some_and(|row| !list.rows[row].is_default()))
        };
        document.retain(|entry| {
            let mut reason = self.reason(entry);
            if reason.is_none() && self.is_shortened(entry) && !is_of_row(entry) {
                let Entry { key, shape, found, .. } = entry.clone();
                confirmed.push(Entry::confirmed(key, shape, found.date));
                reason = Some("the default is as fast, and stays confirmed".into());
            }
            let is_kept = reason.is_none();
            removed.extend(reason.map(|reason| Remark { entry: entry.clone(), reason }));
            is_kept
        });
        for entry in confirmed {
            // It has the key and the shape of an entry that was there.
            let _ = document.insert(entry);
        }
        removed
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
