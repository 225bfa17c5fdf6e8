//! Equal devices and the profile that they share.

use std::path::{Path, PathBuf};

use gridguard::profile::{self, Document, Parsed, user_folder};
use gridguard_kernels::exercise::Problem;

use super::Measuring;
use super::target::Target;
use crate::failure::Failure;

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
    pub(crate) fn all(targets: Vec<Target>, profile: Option<&Path>) -> Result<Vec<Self>, Failure> {
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

    fn new(targets: Vec<Target>, profile: Option<&Path>, several: bool) -> Result<Self, Failure> {
        let name = targets.first().map(|target| target.identity.file_name()).unwrap_or_default();
        let file = match profile {
            Some(folder) if is_folder(folder) => folder.join(name),
            Some(file) if several => return Err(Failure::OneFile { path: file.to_owned() }),
            Some(file) => file.to_owned(),
            None => user_folder().ok_or(Failure::NoProfileFolder)?.join(name),
        };
        // Read before anything is measured: a file that cannot be used is told at once.
        let parsed = profile::load(&file).map_err(Failure::profile(&file))?;
        let known = match parsed {
            None => None,
            Some(Parsed { document, faults }) => {
                for fault in faults {
                    eprintln!("{}:{fault}", file.display());
                }
                Some(document)
            }
        };
        let group = Self { targets, file, known };
        group.check_device()?;
        Ok(group)
    }

    /// Whether the file that is there is these devices'.
    fn check_device(&self) -> Result<(), Failure> {
        if let (Some(known), Some(target)) = (&self.known, self.targets.first()) {
            known
                .device()
                .serves(known.aliases(), &target.identity)
                .map_err(|mismatch| Failure::OtherDevice { path: self.file.clone(), mismatch })?;
        }
        Ok(())
    }

    /// The problems that the file has no entry for, and how many it has.
    pub(crate) fn unknown(
        &self,
        problems: &[Problem],
        measuring: &Measuring,
        again: bool,
    ) -> (Vec<Problem>, usize) {
        let is_known = |problem: &Problem| {
            let key = self.targets.first().and_then(|target| {
                problem.key(&target.limits, measuring.policy, measuring.objective).ok()
            });
            let entry = self.known.as_ref().zip(key);
            entry.is_some_and(|(known, key)| known.get(&key, &problem.shape()).is_some())
        };
        let left = |problem: &&Problem| again || !is_known(problem);
        let unknown: Vec<Problem> = problems.iter().filter(left).copied().collect();
        let known = problems.len() - unknown.len();
        (unknown, known)
    }
}

/// Whether a path is a folder, or is written as one.
fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().to_string_lossy().ends_with(std::path::is_separator)
}
