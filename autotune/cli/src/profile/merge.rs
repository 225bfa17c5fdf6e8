//! `gridguard profile merge`: merges profiles of one device, for example from several machines.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use gridguard::count;
use gridguard::profile::{self, Document, Entry, MergeConflict, ProfileError, ProfileErrorKind};
use serde_json::json;

use super::entry::{self, FaultJson};
use crate::error::{CommandError, Exit};
use crate::files::{note_published, profiles};
use crate::output::{Format, OutputArgs, counted, note, text, write};

#[derive(Args)]
pub(crate) struct Merge {
    /// Profiles of the same device, or folders of them
    #[arg(required = true, value_name = "FILE|FOLDER")]
    files: Vec<PathBuf>,
    /// File for the merged profile, or - for standard output; replaces an existing file unless that would drop entries
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replace the output even if that drops entries
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    format: OutputArgs,
}

impl Merge {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let is_printed = self.output == Path::new("-");
        if is_printed && self.format.format == Format::Json {
            return Err(CommandError::invalid("--output - prints a profile: omit --format json"));
        }
        let mut seen: BTreeSet<&Path> = BTreeSet::new();
        let all = profiles(&self.files)?;
        let files: Vec<&PathBuf> = all.iter().filter(|path| seen.insert(path.as_path())).collect();
        let (document, conflicts, faults) = merge(&files)?;
        let (conflicts, repeated): (Vec<_>, Vec<_>) =
            conflicts.into_iter().partition(|MergeConflict { kept, dropped }| {
                (kept.choice, &kept.parameters) != (dropped.choice, &dropped.parameters)
            });
        for conflict in &conflicts {
            note(format_args!("conflict: {conflict}"));
        }
        let exit = if faults.is_empty() { Exit::Yes } else { Exit::InvalidInput };
        if is_printed {
            return write(&document.to_string()).map(|()| exit);
        }
        self.publish(&document)?;
        let (files, entries) = (files.len(), document.entries().len());
        // Entries with the same choice in several files; the most recent is kept.
        let repeated = repeated.len();
        let document = json!({
            "output": self.output.display().to_string(),
            "files": files,
            "entries": entries,
            "conflicts": conflicts.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "repeated": repeated,
            "faults": faults,
        });
        let shown = text(|f| {
            let (entries, files) = (count(entries, "entry"), count(files, "file"));
            let conflicts = count(conflicts.len(), "conflict");
            let others = counted(&[
                (repeated, "measured more than once"),
                (faults.len(), "invalid skipped"),
            ]);
            writeln!(f, "{entries} from {files}, {conflicts}{others}")?;
            writeln!(f, "profile {}", self.output.display())
        });
        self.format.print(&document, shown)?;
        Ok(exit)
    }

    fn publish(&self, document: &Document) -> Result<(), CommandError> {
        // Checks before locking the file, so that a rejected merge changes nothing.
        let existing = profile::load(&self.output).map_err(CommandError::profile(&self.output))?;
        if let Some(existing) = existing {
            let dropped = dropped(&existing.document, document)
                .map_err(CommandError::in_file(&self.output))?;
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
        let (file, entries) = (self.output.display(), count(entries, "entry"));
        Err(CommandError::invalid(format_args!(
            "the merge would drop {entries} of {file}: add it to the files to keep them, or use \
             --force to drop them"
        )))
    }
}

fn merge(
    files: &[&PathBuf],
) -> Result<(Document, Vec<MergeConflict>, Vec<FaultJson>), CommandError> {
    let (mut documents, mut faults) = (Vec::new(), Vec::new());
    for path in files {
        let parsed = entry::read(path)?;
        faults.extend(FaultJson::all(path, &parsed.faults));
        documents.push(parsed.document);
    }
    let Some((document, others)) = documents.split_first_mut() else {
        return Err(CommandError::invalid("no file to merge"));
    };
    let conflicts = document.merge_all(others).map_err(|error| {
        let culprit = match error.kind() {
            ProfileErrorKind::OtherDevice { document, .. } => files.get(*document),
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
