//! Groups devices by model, with one profile file for each model.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use gridguard::profile::{
    Attainable, DeviceIdentity, Document, Entry, Key, Named, move_user_folder,
};
use gridguard_autotune::{HeldOut, Measurements};
use gridguard_files::{check_output, create_folder};

use super::task::Task;
use crate::error::CommandError;
use crate::files::load_profile;
use crate::measure::target::Target;

/// Devices of one model, at least one.
pub(crate) struct DeviceGroup {
    pub(crate) targets: Vec<Target>,
    pub(crate) file: PathBuf,
    /// The outcomes of this run.
    pub(crate) measured: Mutex<Measurements>,
    /// What the devices can move.
    pub(crate) attainable: Mutex<Vec<Attainable>>,
    stored: Option<Document>,
}

impl DeviceGroup {
    /// Groups devices by model. The file of a model is `profile`, or is in that folder or the user's folder.
    pub(crate) fn all(
        targets: Vec<Target>,
        profile: Option<&Path>,
    ) -> Result<Vec<Self>, CommandError> {
        let mut models: Vec<(DeviceIdentity, Vec<Target>)> = Vec::new();
        for target in targets {
            match models.iter_mut().find(|(identity, _)| *identity == target.identity) {
                Some((_, same)) => same.push(target),
                None => models.push((target.identity.clone(), vec![target])),
            }
        }
        let several = models.len() > 1;
        let group = |(identity, targets)| Self::new(&identity, targets, profile, several);
        models.into_iter().map(group).collect()
    }

    fn new(
        identity: &DeviceIdentity,
        targets: Vec<Target>,
        profile: Option<&Path>,
        several: bool,
    ) -> Result<Self, CommandError> {
        let name = identity.file_name();
        let no_folder = || {
            let message = "no folder for this user's profiles: name a file with --profile";
            CommandError::invalid(message)
        };
        let file = match profile {
            Some(folder) if is_folder(folder) => folder.join(name),
            Some(file) if several => {
                let message = "the devices are of several models: name a folder, such as";
                let message = format!("{message} {}/", file.display());
                return Err(CommandError::invalid_file(file, message));
            }
            Some(file) => file.to_owned(),
            None => move_user_folder().ok_or_else(no_folder)?.join(name),
        };
        // Reads and creates files before anything is measured, to report errors at once.
        let stored = load_profile(&file)?.map(|parsed| parsed.document);
        if let Some(stored) = &stored {
            let serves = stored.device().serves(stored.aliases(), identity);
            serves.map_err(CommandError::in_file(&file))?;
        }
        let place = match profile {
            Some(_) => file.display().to_string(),
            None => {
                format!("{}, in the user's folder (--profile names another file)", file.display())
            }
        };
        create_folder(&Path::new(".").join(file.parent().unwrap_or(&file)))
            .map_err(CommandError::io(&place))?;
        check_output(&file).map_err(|error| CommandError::io(&place)(error.into()))?;
        let known = stored.as_ref().map_or(&[][..], Document::attainable).to_vec();
        let (measured, attainable) = (Mutex::default(), Mutex::new(known));
        Ok(Self { targets, file, measured, attainable, stored })
    }

    pub(crate) fn stored(&self, key: &Key, shape: &Named) -> Option<&Entry> {
        self.stored.as_ref()?.get(key, shape)
    }

    pub(crate) fn held_out(&self) -> Option<HeldOut> {
        self.measured.lock().unwrap_or_else(PoisonError::into_inner).held_out()
    }

    /// The tasks without an entry in the file, or all tasks if `again`; the tasks with an entry if `verify`.
    pub(crate) fn wanted(&self, tasks: &[Task], again: bool, verify: bool) -> Vec<Task> {
        let is_stored = |task: &Task| {
            let key = self.targets.first().and_then(|target| task.key(&target.limits).ok());
            key.is_some_and(|key| self.stored(&key, &task.problem.shape()).is_some())
        };
        tasks.iter().filter(|task| again || is_stored(task) == verify).cloned().collect()
    }
}

/// Whether `path` is a folder, or ends with a separator.
fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().to_string_lossy().ends_with(std::path::is_separator)
}
