//! Equal devices and the profile that they share.

use std::path::{Path, PathBuf};

use gridguard::profile::{self, Document, Parsed, user_folder};

use super::target::Target;
use super::task::Task;
use crate::error::CommandError;
use crate::output::note;

/// Devices of one model.
pub(crate) struct Group {
    pub(crate) targets: Vec<Target>,
    pub(crate) file: PathBuf,
    /// What the file has.
    known: Option<Document>,
}

impl Group {
    /// Groups devices by model, each with its file: `profile`, or one in that folder, or in the
    /// user's own.
    pub(crate) fn all(
        targets: Vec<Target>,
        profile: Option<&Path>,
    ) -> Result<Vec<Self>, CommandError> {
        let mut models: Vec<Vec<Target>> = Vec::new();
        for target in targets {
            match models.iter_mut().find(|model| target.is_like(model)) {
                Some(model) => model.push(target),
                None => models.push(vec![target]),
            }
        }
        let several = models.len() > 1;
        models.into_iter().map(|targets| Self::new(targets, profile, several)).collect()
    }

    fn new(
        targets: Vec<Target>,
        profile: Option<&Path>,
        several: bool,
    ) -> Result<Self, CommandError> {
        let name = targets.first().map(|target| target.identity.file_name()).unwrap_or_default();
        let file = match profile {
            Some(folder) if is_folder(folder) => folder.join(name),
            Some(file) if several => {
                return Err(CommandError::Invalid(format!(
                    "{} is one file, and the devices are of several models: name a folder, such as {0}/",
                    file.display()
                )));
            }
            Some(file) => file.to_owned(),
            None => user_folder()
                .ok_or(CommandError::Invalid(
                    "this user has no folder for profiles: name a file with --profile".into(),
                ))?
                .join(name),
        };
        // Read before anything is measured: a file that cannot be used is told at once.
        let parsed = profile::load(&file).map_err(CommandError::profile(&file))?;
        let known = match parsed {
            None => None,
            Some(Parsed { document, faults }) => {
                for fault in faults {
                    note(format_args!("{}:{fault}", file.display()));
                }
                Some(document)
            }
        };
        let group = Self { targets, file, known };
        group.check_device()?;
        check_writable(&group.file)?;
        Ok(group)
    }

    /// Whether the file that is there is these devices'.
    fn check_device(&self) -> Result<(), CommandError> {
        if let (Some(known), Some(target)) = (&self.known, self.targets.first()) {
            known
                .device()
                .serves(known.aliases(), &target.identity)
                .map_err(|mismatch| CommandError::invalid_file(&self.file, mismatch))?;
        }
        Ok(())
    }

    /// The tasks that the file has no entry for, and how many it has.
    pub(crate) fn unknown(&self, tasks: &[Task], again: bool) -> (Vec<Task>, usize) {
        let is_known = |task: &Task| {
            let key = self.targets.first().and_then(|target| task.key(&target.limits).ok());
            let entry = self.known.as_ref().zip(key);
            entry.is_some_and(|(known, key)| known.get(&key, &task.problem.shape()).is_some())
        };
        let left = |task: &&Task| again || !is_known(task);
        let unknown: Vec<Task> = tasks.iter().filter(left).copied().collect();
        let known = tasks.len() - unknown.len();
        (unknown, known)
    }
}

/// Whether a path is a folder, or is written as one.
fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().to_string_lossy().ends_with(std::path::is_separator)
}

/// Makes the file's folder and something in it: where that fails, nothing need be measured.
fn check_writable(file: &Path) -> Result<(), CommandError> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = || CommandError::io(file.display().to_string());
    std::fs::create_dir_all(folder).map_err(name())?;
    tempfile::tempfile_in(folder).map(drop).map_err(name())
}
