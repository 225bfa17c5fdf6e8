//! The choices of another GPU of the same architecture, as the only candidates of a search.

use gridguard::catalog;
use gridguard::profile::{DeviceIdentity, Entry, Environment, Key, Layers, Named, Profile};
use gridguard_autotune::{Candidate, Space};

use crate::error::CommandError;
use crate::measure::target::Target;

/// The profiles of a GPU of the catalogue: the user's and the built-in one.
pub(crate) struct OtherGpu {
    name: String,
    profile: Profile,
}

impl OtherGpu {
    /// Loads the profiles of the GPU `name` for searches on `targets`.
    ///
    /// # Errors
    ///
    /// [`CommandError`] if the catalogue has no such GPU, or a target has another architecture.
    pub(crate) fn load(name: &str, targets: &[Target]) -> Result<Self, CommandError> {
        let limits = catalog::limits(name)?;
        let device = DeviceIdentity::new(&limits);
        let other =
            |target: &&Target| target.identity.compute_capability != device.compute_capability;
        if let Some(target) = targets.iter().find(other) {
            let (from, to) = (device.compute_capability, target.identity.compute_capability);
            return Err(CommandError::invalid(format_args!(
                "--from {name}: it has compute capability {from}, but {target} has {to}: name a GPU of the same \
                 architecture"
            )));
        }
        let layers = Layers::new().user().built_in(&device);
        let profile = layers.load(&device, &Environment::default()).profile;
        Ok(Self { name: name.to_owned(), profile })
    }

    /// Its choices, for the subject of a journal.
    pub(crate) fn digest(&self) -> String {
        self.profile.choices_digest()
    }

    /// Keeps the default and its choices for the same shape, or else for all shapes of the kernel. Without any it
    /// keeps all candidates, and returns a note.
    pub(crate) fn restrict(&self, space: &mut Space, key: &Key, shape: &Named) -> Option<String> {
        let of_kernel = |entry: &&Entry| {
            let of = |key: &Key| (key.kernel.clone(), key.variant.clone(), key.dtypes.clone());
            of(&entry.key) == of(key)
        };
        let entries = || self.profile.entries().map(|(_, entry)| entry).filter(of_kernel);
        let has_shape = entries().any(|entry| entry.shape == *shape);
        let wanted = entries().filter(|entry| !has_shape || entry.shape == *shape);
        let mut candidates: Vec<Candidate> = Vec::new();
        for Entry { parameters, choice, .. } in wanted {
            let is_it = |one: &&Candidate| one.parameters == *parameters && one.choice == *choice;
            let listed = space.candidates().iter().find(is_it).cloned();
            candidates.extend(listed.or_else(|| space.add(parameters, *choice)));
        }
        if candidates.is_empty() {
            let (name, kernel) = (&self.name, &key.kernel);
            return Some(format!(
                "the profile of {name} has no choice for {kernel} that is legal here"
            ));
        }
        space.keep(&candidates);
        None
    }
}
