//! `gridguard profile merge`: merges profiles of one device, for example from several machines.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use gridguard::profile::{
    self, Document, Entry, Key, MergeConflict, MergeReason, Named, ProfileError,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::entry::{self, FaultJson};
use crate::error::{CommandError, Exit};
use crate::files::note_published;
use crate::output::{OutputArgs, count, note};

#[derive(Args)]
pub(crate) struct Merge {
    /// Profiles of the same device
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// File for the merged profile; replaces an existing file unless that would drop entries
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the output even if that drops entries
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    format: OutputArgs,
}

#[derive(Serialize)]
struct MergeReport<'a> {
    output: String,
    files: usize,
    entries: usize,
    conflicts: Vec<ConflictJson<'a>>,
    /// Entries with the same choice in several files; the most recent is kept.
    repeated: usize,
    faults: Vec<FaultJson>,
}

#[derive(Serialize)]
struct ConflictJson<'a> {
    #[serde(flatten)]
    key: &'a Key,
    shape: &'a Named,
    kept: Value,
    dropped: Value,
    reason: MergeReason,
}

impl<'a> ConflictJson<'a> {
    fn new(conflict: &'a MergeConflict) -> Self {
        let contender = |Entry { choice, parameters, chosen, found, .. }: &Entry| {
            let (median_ns, date) = (chosen.median_ns, &found.date);
            json!({ "choice": choice, "parameters": parameters, "median_ns": median_ns, "date": date })
        };
        let MergeConflict { kept: entry @ Entry { key, shape, .. }, dropped } = conflict;
        let (kept, dropped) = (contender(entry), contender(dropped));
        Self { key, shape, kept, dropped, reason: conflict.reason() }
    }
}

impl Merge {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let (document, conflicts, faults) = merge(&self.files)?;
        let (conflicts, repeated): (Vec<_>, Vec<_>) =
            conflicts.into_iter().partition(has_different_choices);
        for conflict in &conflicts {
            note(format_args!("conflict: {conflict}"));
        }
        self.publish(&document)?;
        let report = MergeReport {
            output: self.output.display().to_string(),
            files: self.files.len(),
            entries: document.entries().len(),
            conflicts: conflicts.iter().map(ConflictJson::new).collect(),
            repeated: repeated.len(),
            faults,
        };
        self.format.print(&report, &report)?;
        Ok(if report.faults.is_empty() { Exit::Yes } else { Exit::InvalidInput })
    }

    fn publish(&self, document: &Document) -> Result<(), CommandError> {
        // Checks before locking the file, so that a rejected merge changes nothing.
        let existing = profile::load(&self.output).map_err(CommandError::profile(&self.output))?;
        if let Some(existing) = existing {
            let dropped = dropped(&existing.document, document)
                .map_err(|error| CommandError::invalid_file(&self.output, error))?;
            self.check_dropped(dropped)?;
        }
        let published = profile::update(&self.output, document.clone(), |existing| {
            // Another process may have changed the file since.
            let dropped = dropped(existing, document)?;
            if dropped == 0 || self.force {
                *existing = document.clone();
            }
            Ok(dropped)
        })?;
        note_published(&self.output, &published);
        self.check_dropped(published.outcome)
    }

    fn check_dropped(&self, entries: usize) -> Result<(), CommandError> {
        if entries == 0 || self.force {
            return Ok(());
        }
        let (file, entries) = (self.output.display(), entry::entries(entries));
        Err(CommandError::Invalid(format!(
            "the merge would drop {entries} of {file}: add it to the files to keep them, or use \
             --force to drop them"
        )))
    }
}

impl fmt::Display for MergeReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entries, files) = (entry::entries(self.entries), count(self.files, "file", "files"));
        let conflicts = count(self.conflicts.len(), "conflict", "conflicts");
        write!(f, "{entries} from {files}, {conflicts}")?;
        if self.repeated > 0 {
            write!(f, ", {} measured more than once", self.repeated)?;
        }
        if !self.faults.is_empty() {
            write!(f, ", {} invalid skipped", self.faults.len())?;
        }
        writeln!(f, "\nprofile {}", self.output)
    }
}

fn merge(
    files: &[PathBuf],
) -> Result<(Document, Vec<MergeConflict>, Vec<FaultJson>), CommandError> {
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    let files: Vec<&PathBuf> = files.iter().filter(|path| seen.insert(path.as_path())).collect();
    let (mut documents, mut faults) = (Vec::new(), Vec::new());
    for path in &files {
        let parsed = entry::read(path)?;
        faults.extend(FaultJson::all(path, parsed.faults));
        documents.push(parsed.document);
    }
    let Some((document, others)) = documents.split_first_mut() else {
        return Err(CommandError::Invalid("no file to merge".into()));
    };
    let conflicts = document.merge_all(others).map_err(|error| {
        let culprit = match &error {
            ProfileError::OtherDevice { document, .. } => files.get(*document),
            _ => files.last(),
        };
        CommandError::invalid_file(culprit.map_or(Path::new(""), |path| path), error)
    })?;
    Ok((document.clone(), conflicts, faults))
}

/// The number of entries of `existing` that would be lost, or replaced by worse ones, if `merged` replaced it.
fn dropped(existing: &Document, merged: &Document) -> Result<usize, ProfileError> {
    let mut both = merged.clone();
    both.merge(existing)?;
    let is_new = |entry: &&Entry| merged.get(&entry.key, &entry.shape) != Some(*entry);
    Ok(both.entries().iter().filter(is_new).count())
}

fn has_different_choices(MergeConflict { kept, dropped }: &MergeConflict) -> bool {
    (kept.choice, &kept.parameters) != (dropped.choice, &dropped.parameters)
}
