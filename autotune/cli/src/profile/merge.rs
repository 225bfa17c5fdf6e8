//! `gridguard profile merge`: one profile of several, such as those of machines that shared the work.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use gridguard::profile::{
    self, Conflict, Contender, Document, Entry, MergeError, Named, StoredChoice,
};
use serde::Serialize;

use super::record::{FaultRecord, KeyRecord};
use super::{empty_like, read, words};
use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, note};

#[derive(Args)]
pub(crate) struct Merge {
    /// The profiles, all of one device
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where the merge goes. What is there is replaced, if the merge has all of its entries
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Replaces the output also where that loses entries
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    format: OutputArgs,
}

#[derive(Serialize)]
struct Record<'a> {
    output: String,
    files: usize,
    entries: usize,
    conflicts: Vec<ConflictRecord<'a>>,
    /// Entries of the same choice in several files, of which the later one stays.
    repeated: usize,
    faults: Vec<FaultRecord>,
}

#[derive(Serialize)]
struct ConflictRecord<'a> {
    #[serde(flatten)]
    key: KeyRecord<'a>,
    shape: &'a Named,
    kept: ContenderRecord<'a>,
    dropped: ContenderRecord<'a>,
}

#[derive(Serialize)]
struct ContenderRecord<'a> {
    choice: StoredChoice,
    parameters: &'a Named,
    median_ns: u64,
    date: &'a str,
}

/// What all files come to.
struct Merged {
    document: Document,
    conflicts: Vec<Conflict>,
    faults: Vec<FaultRecord>,
}

impl Merge {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let Merged { document, conflicts, faults } = merged(&self.files)?;
        let (conflicts, repeated): (Vec<_>, Vec<_>) =
            conflicts.into_iter().partition(chose_differently);
        for conflict in &conflicts {
            note(format_args!("conflict: {conflict}"));
        }
        self.put(&document)?;
        let record = Record {
            output: self.output.display().to_string(),
            files: self.files.len(),
            entries: document.entries().len(),
            conflicts: conflicts.iter().map(ConflictRecord::from).collect(),
            repeated: repeated.len(),
            faults,
        };
        self.format.write(&record, |out| {
            let entries = words::count(record.entries, "entry", "entries");
            let files = words::count(record.files, "file", "files");
            let clashes = words::count(conflicts.len(), "conflict", "conflicts");
            write!(out, "{entries} of {files}, {clashes}")?;
            if record.repeated > 0 {
                write!(out, ", {} measured more than once", record.repeated)?;
            }
            if !record.faults.is_empty() {
                write!(
                    out,
                    ", {} left out",
                    words::count(record.faults.len(), "bad one", "bad ones")
                )?;
            }
            writeln!(out, "\nprofile {}", record.output)
        })?;
        Ok(if record.faults.is_empty() { Exit::Yes } else { Exit::InvalidInput })
    }

    /// Puts the merge in its place, whole.
    fn put(&self, document: &Document) -> Result<(), CommandError> {
        let refused = |error| CommandError::invalid_file(&self.output, error);
        // Before the lock is taken: what is refused leaves the file untouched.
        let there = profile::load(&self.output).map_err(CommandError::profile(&self.output))?;
        if let Some(there) = there {
            self.may_replace(lost(&there.document, document).map_err(refused)?)?;
        }
        let published = profile::update(&self.output, empty_like(document), |there| {
            // Somebody may have published to it since.
            let lost = lost(there, document)?;
            if lost == 0 || self.force {
                *there = document.clone();
            }
            Ok(lost)
        })?;
        if let Some(backup) = published.backup {
            note(format_args!(
                "{} had bad entries and is kept as {}",
                self.output.display(),
                backup.display()
            ));
        }
        self.may_replace(published.outcome.map_err(refused)?)
    }

    fn may_replace(&self, entries: usize) -> Result<(), CommandError> {
        match entries {
            0 => Ok(()),
            _ if self.force => Ok(()),
            entries => Err(CommandError::Invalid(format!(
                "the merge would drop {entries} of the entries of {}: add it to the files to keep \
                 them, or use --force to drop them",
                self.output.display()
            ))),
        }
    }
}

fn merged(files: &[PathBuf]) -> Result<Merged, CommandError> {
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    let files: Vec<&PathBuf> = files.iter().filter(|path| seen.insert(path.as_path())).collect();
    let (mut documents, mut faults) = (Vec::new(), Vec::new());
    for path in &files {
        let parsed = read(path)?;
        faults.extend(FaultRecord::all(path, &parsed.faults));
        documents.push(parsed.document);
    }
    let Some((document, others)) = documents.split_first_mut() else {
        return Err(CommandError::Invalid("there is no file to merge: name one".into()));
    };
    let conflicts = document.merge_all(others).map_err(|error| {
        let guilty = match &error {
            MergeError::OtherDevice { document, .. } => files.get(*document).copied(),
            _ => files.last().copied(),
        };
        CommandError::invalid_file(guilty.map_or(Path::new(""), |path| path), error)
    })?;
    Ok(Merged { document: document.clone(), conflicts, faults })
}

/// How many entries of `there` would be missing, or be replaced by worse, if `merged` took its place.
fn lost(there: &Document, merged: &Document) -> Result<usize, MergeError> {
    let mut both = merged.clone();
    both.merge(there)?;
    let is_new = |entry: &&Entry| merged.get(&entry.key, &entry.shape) != Some(*entry);
    Ok(both.entries().iter().filter(is_new).count())
}

fn chose_differently(conflict: &Conflict) -> bool {
    let choice = |one: &Contender| (one.choice, one.parameters.clone());
    choice(&conflict.kept) != choice(&conflict.dropped)
}

impl<'a> From<&'a Conflict> for ConflictRecord<'a> {
    fn from(conflict: &'a Conflict) -> Self {
        let Conflict { key, shape, kept, dropped } = conflict;
        Self { key: key.into(), shape, kept: kept.into(), dropped: dropped.into() }
    }
}

impl<'a> From<&'a Contender> for ContenderRecord<'a> {
    fn from(contender: &'a Contender) -> Self {
        let Contender { choice, parameters, median_ns, date } = contender;
        Self { choice: *choice, parameters, median_ns: *median_ns, date }
    }
}
