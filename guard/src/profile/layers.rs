//! Loads a device's profile from several places. Local files precede shipped files.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use gridguard_files::{create_folder, folder_of, user_cache_folder, user_data_folder};

use super::device::{DeviceIdentity, Environment};
use super::document::{Document, ParsedProfile};
use super::lookup::Profile;
use super::matching::Layer;
use super::notice::{LayerNotice, ProfileNotice};
use super::store::load;
#[cfg(feature = "catalog")]
use crate::guard::Guard;

/// The places where a device's profile is looked for.
///
/// The best match of all layers is used. If several match equally well, the highest layer is used.
///
/// ```
/// use gridguard::DeviceLimits;
/// use gridguard::profile::{DeviceIdentity, Environment, Layers};
///
/// let device = DeviceIdentity::new(&DeviceLimits::any_device());
/// let loaded = Layers::new().shipped("no/such/folder").load(&device, &Environment::default());
/// assert!(loaded.profile.is_empty());
/// assert!(loaded.notices.is_empty(), "a shipped profile is optional");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Layers {
    sources: Vec<(Layer, Source)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// A file, or a folder with a file per device.
    Named(PathBuf),
    /// A folder with a file per device.
    Folder(PathBuf),
    Text(&'static str),
}

/// A profile loaded from all layers.
#[derive(Debug)]
pub struct LoadedProfile {
    /// The profile.
    pub profile: Profile,
    /// Notices about ignored entries, and about entries that may be stale.
    pub notices: Vec<LayerNotice>,
}

/// The state of the files of all layers, see [`Layers::stamp`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayersStamp(Vec<Option<(SystemTime, u64)>>);

impl Layers {
    /// No layers.
    pub const fn new() -> Self {
        Self { sources: Vec::new() }
    }

    /// Adds a file, or a folder with a [file per device](DeviceIdentity::file_name). If the file is missing, a
    /// notice says so.
    pub fn explicit(self, path: impl Into<PathBuf>) -> Self {
        self.with(Layer::Explicit, Source::Named(path.into()))
    }

    /// Adds the [user's folder](user_folder), if there is one.
    pub fn user(self) -> Self {
        match user_folder() {
            Some(folder) => self.user_at(folder),
            None => self,
        }
    }

    /// Adds this folder as the user's folder.
    pub fn user_at(self, folder: impl Into<PathBuf>) -> Self {
        self.with(Layer::User, Source::Folder(folder.into()))
    }

    /// Adds a folder that is shipped with the program and has a file per device.
    pub fn shipped(self, folder: impl Into<PathBuf>) -> Self {
        self.with(Layer::Shipped, Source::Folder(folder.into()))
    }

    /// Adds the text of a profile. Choose it by [`DeviceIdentity::file_name`]: the text of another device only
    /// gives a notice.
    pub fn embedded(self, text: &'static str) -> Self {
        self.with(Layer::Embedded, Source::Text(text))
    }

    /// Adds the profile that this crate ships for `device`, if there is one.
    #[cfg(feature = "catalog")]
    pub fn built_in(self, device: &DeviceIdentity) -> Self {
        match built_in_profile(device) {
            Some(text) => self.embedded(text),
            None => self,
        }
    }

    /// Loads all layers for a device. An unusable layer gives a notice, and the other layers are used.
    #[must_use]
    pub fn load(&self, device: &DeviceIdentity, running: &Environment) -> LoadedProfile {
        let mut profile = Profile::default();
        let mut notices = Vec::new();
        for (layer, source) in &self.sources {
            let path = source.path(device);
            let parsed = source.read(path.clone());
            let mut add = |notice| {
                notices.push(LayerNotice { layer: *layer, path: path.clone(), notice });
            };
            match parsed {
                Err(notice) => add(notice),
                Ok(None) if *layer == Layer::Explicit => add(ProfileNotice::Missing),
                Ok(None) => {}
                Ok(Some(ParsedProfile { document, faults })) => {
                    faults.into_iter().map(ProfileNotice::InvalidEntry).for_each(&mut add);
                    match profile.add(document, *layer, device, running) {
                        Ok(versions) => versions.into_iter().for_each(add),
                        Err(other_device) => add(other_device),
                    }
                }
            }
        }
        for (layer, notice) in profile.build_index() {
            notices.push(LayerNotice { layer, path: self.path(layer, device), notice });
        }
        LoadedProfile { profile, notices }
    }

    /// Modification time and size of the file of each layer. While the stamp stays equal, [`load`](Self::load) would
    /// return the same profile. Take the stamp before loading.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let folder = folder.path();
    /// use gridguard::DeviceLimits;
    /// use gridguard::profile::{DeviceIdentity, Layers};
    ///
    /// let device = DeviceIdentity::new(&DeviceLimits::any_device());
    /// let layers = Layers::new().user_at(folder);
    /// let stamp = layers.stamp(&device);
    /// assert_eq!(layers.stamp(&device), stamp);
    /// std::fs::write(folder.join(device.file_name()), "(schema: 1, ..")?;
    /// assert_ne!(layers.stamp(&device), stamp);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn stamp(&self, device: &DeviceIdentity) -> LayersStamp {
        let state = |source: &Source| {
            let found = fs::metadata(source.path(device)?).ok()?;
            Some((found.modified().ok()?, found.len()))
        };
        LayersStamp(self.sources.iter().map(|(_, source)| state(source)).collect())
    }

    /// The file of a layer for a device. `None` if there is no such layer, or it is a text.
    pub fn path(&self, layer: Layer, device: &DeviceIdentity) -> Option<PathBuf> {
        let (_, source) = self.sources.iter().find(|(other, _)| *other == layer)?;
        source.path(device)
    }

    fn with(mut self, layer: Layer, source: Source) -> Self {
        self.sources.push((layer, source));
        self
    }
}

/// The text of the profile that this crate ships for `device`.
#[cfg(feature = "catalog")]
pub fn built_in_profile(device: &DeviceIdentity) -> Option<&'static str> {
    let name = device.file_name();
    let found = gridguard_data::PROFILES_RON.iter().find(|(file, _)| *file == name);
    found.map(|(_, text)| *text)
}

#[cfg(feature = "catalog")]
impl Guard {
    /// The guard with the profile of its device, loaded from the user's folder and the built-in profiles, and the
    /// notices about it.
    ///
    /// ```
    /// use gridguard::{DeviceLimits, Guard};
    ///
    /// let (guard, notices) = Guard::host(DeviceLimits::any_device()).with_device_profile();
    /// notices.iter().for_each(|notice| eprintln!("{notice}"));
    /// assert!(guard.profile().is_some());
    /// ```
    #[must_use]
    pub fn with_device_profile(self) -> (Self, Vec<LayerNotice>) {
        let identity = self.identity();
        let layers = Layers::new().user().built_in(&identity);
        let LoadedProfile { profile, notices } = layers.load(&identity, &self.environment());
        (self.with_profile(profile.into()), notices)
    }
}

impl Source {
    fn path(&self, device: &DeviceIdentity) -> Option<PathBuf> {
        match self {
            Self::Named(path) if !path.is_dir() => Some(path.clone()),
            Self::Named(folder) | Self::Folder(folder) => Some(folder.join(device.file_name())),
            Self::Text(_) => None,
        }
    }

    fn read(&self, path: Option<PathBuf>) -> Result<Option<ParsedProfile>, ProfileNotice> {
        match (self, path) {
            (Self::Text(text), _) => Ok(Some(Document::parse(text)?)),
            (_, Some(path)) => Ok(load(&path)?),
            (_, None) => Ok(None),
        }
    }
}

/// The folder of the user's profiles: `GRIDGUARD_PROFILES` if it is set, else `gridguard/profiles` in the user's data
/// folder (`$XDG_DATA_HOME`). `None` if the variable is `off` or there is no such folder.
///
/// Earlier versions used the cache folder. Their profiles are read there until [`move_user_folder`] moves them.
pub fn user_folder() -> Option<PathBuf> {
    let folder = user_data_folder(VARIABLE, PROFILES)?;
    let old = user_cache_folder(VARIABLE, PROFILES).filter(|old| !folder.exists() && old.is_dir());
    Some(old.unwrap_or(folder))
}

/// As [`user_folder`], for a program that writes profiles: moves the profiles of an earlier version out of the cache
/// folder, which may be emptied at any time. They stay there if they cannot be moved.
#[must_use]
pub fn move_user_folder() -> Option<PathBuf> {
    let (used, folder) = (user_folder()?, user_data_folder(VARIABLE, PROFILES)?);
    let moved = used == folder
        || create_folder(folder_of(&folder)).and_then(|()| fs::rename(&used, &folder)).is_ok();
    // Another process may just have moved it.
    Some(if moved || folder.exists() { folder } else { used })
}

const VARIABLE: &str = "GRIDGUARD_PROFILES";
const PROFILES: &str = "gridguard/profiles";
