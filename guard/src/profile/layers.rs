//! Where profiles come from: what is local goes before what was shipped.

use core::fmt;
use std::ffi::OsString;
use std::path::PathBuf;

use super::document::{Document, Parsed};
use super::environment::Environment;
use super::finding::{Finding, LayerFinding};
use super::identity::DeviceIdentity;
use super::lookup::Profile;
use super::store::load;

/// Where an entry comes from; the first of these goes before the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// A file that was named.
    Explicit,
    /// The user's own.
    User,
    /// A folder that came with the program.
    Shipped,
    /// A text within the program.
    Embedded,
}

/// The places to look for a device's profile.
///
/// Of two entries that match equally well the higher layer's serves; a better match of a lower
/// layer goes before.
///
/// ```
/// use gridguard::DeviceLimits;
/// use gridguard::profile::{DeviceIdentity, Environment, Layers};
///
/// let device = DeviceIdentity::of(&DeviceLimits::any_device());
/// let loaded = Layers::new().shipped("no/such/folder").load(&device, &Environment::default());
/// assert!(loaded.profile.is_empty());
/// assert!(loaded.findings.is_empty(), "a layer may be missing");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Layers {
    sources: Vec<(Layer, Source)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// A file, or a folder with a file for each device.
    Named(PathBuf),
    /// A folder with a file for each device.
    Folder(PathBuf),
    Text(&'static str),
}

/// A profile out of all layers.
#[derive(Debug)]
pub struct Loaded {
    /// What serves.
    pub profile: Profile,
    /// What is to be said of the files: what was left out, and what may be stale.
    pub findings: Vec<LayerFinding>,
}

impl Layers {
    /// No layer.
    pub const fn new() -> Self {
        Self { sources: Vec::new() }
    }

    /// A file, or a folder with a [file for each device](DeviceIdentity::file_name). That it is
    /// missing is a finding.
    pub fn explicit(self, path: impl Into<PathBuf>) -> Self {
        self.with(Layer::Explicit, Source::Named(path.into()))
    }

    /// The user's own folder, as [`user_folder`] finds it; none where it finds none.
    pub fn user(self) -> Self {
        match user_folder() {
            Some(folder) => self.user_at(folder),
            None => self,
        }
    }

    /// This folder in the place of the user's own.
    pub fn user_at(self, folder: impl Into<PathBuf>) -> Self {
        self.with(Layer::User, Source::Folder(folder.into()))
    }

    /// A folder that came with the program, with a file for each device.
    pub fn shipped(self, folder: impl Into<PathBuf>) -> Self {
        self.with(Layer::Shipped, Source::Folder(folder.into()))
    }

    /// A text within the program. That it is another device's is a finding: choose it by
    /// [`DeviceIdentity::file_name`].
    pub fn embedded(self, text: &'static str) -> Self {
        self.with(Layer::Embedded, Source::Text(text))
    }

    /// The profile that was shipped with this crate for `device`, where there is one.
    #[cfg(feature = "catalog")]
    pub fn built_in(self, device: &DeviceIdentity) -> Self {
        let name = device.file_name();
        match gridguard_data::PROFILES_RON.iter().find(|(file, _)| *file == name) {
            Some((_, text)) => self.embedded(text),
            None => self,
        }
    }

    /// Reads all layers for a device. What cannot be used is a finding; the others serve.
    #[must_use]
    pub fn load(&self, device: &DeviceIdentity, running: &Environment) -> Loaded {
        let mut profile = Profile::default();
        let mut findings = Vec::new();
        for (layer, source) in &self.sources {
            let path = source.path(device);
            let mut say = |finding| {
                findings.push(LayerFinding { layer: *layer, path: path.clone(), finding });
            };
            match source.read(path.clone()) {
                Err(finding) => say(finding),
                Ok(None) if *layer == Layer::Explicit => say(Finding::Missing),
                Ok(None) => {}
                Ok(Some(Parsed { document, faults })) => {
                    faults.into_iter().map(Finding::Entry).for_each(&mut say);
                    match profile.add(document, *layer, device, running) {
                        Ok(stale) => stale.into_iter().for_each(say),
                        Err(other) => say(other),
                    }
                }
            }
        }
        for (layer, finding) in profile.index() {
            findings.push(LayerFinding { layer, path: self.path_of(layer, device), finding });
        }
        Loaded { profile, findings }
    }

    fn with(mut self, layer: Layer, source: Source) -> Self {
        self.sources.push((layer, source));
        self
    }

    fn path_of(&self, wanted: Layer, device: &DeviceIdentity) -> Option<PathBuf> {
        let found = self.sources.iter().find(|(layer, _)| *layer == wanted);
        found.and_then(|(_, source)| source.path(device))
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

    fn read(&self, path: Option<PathBuf>) -> Result<Option<Parsed>, Finding> {
        match (self, path) {
            (Self::Text(text), _) => Ok(Some(Document::parse(text)?)),
            (_, Some(path)) => Ok(load(&path)?),
            (_, None) => Ok(None),
        }
    }
}

/// The folder of the user's own profiles: the one that `GRIDGUARD_PROFILES` names, else
/// `gridguard/profiles` in `XDG_CACHE_HOME`, else in `.cache` of `HOME`; of the latter two only an
/// absolute path counts. `None` where no variable says, or the first one is `off`.
#[must_use]
pub fn user_folder() -> Option<PathBuf> {
    folder_of(std::env::var_os)
}

fn folder_of(variable: impl Fn(&'static str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty());
    match set("GRIDGUARD_PROFILES") {
        Some(word) if word == "off" => return None,
        Some(folder) => return Some(folder.into()),
        None => {}
    }
    let absolute = |name| set(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_home = || absolute("HOME").map(|home| home.join(".cache"));
    let caches = absolute("XDG_CACHE_HOME").or_else(of_home)?;
    Some(caches.join("gridguard").join("profiles"))
}

impl fmt::Display for Layer {
    /// `explicit`, `user`, `shipped`, `embedded`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Explicit => "explicit",
            Self::User => "user",
            Self::Shipped => "shipped",
            Self::Embedded => "embedded",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(set: &[(&str, &str)]) -> Option<PathBuf> {
        folder_of(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn the_variable_goes_before_the_cache_and_this_before_home() {
        let (own, cache, home) =
            (("GRIDGUARD_PROFILES", "here"), ("XDG_CACHE_HOME", "/c"), ("HOME", "/h"));
        assert_eq!(folder(&[own, cache, home]), Some("here".into()));
        assert_eq!(folder(&[cache, home]), Some("/c/gridguard/profiles".into()));
        assert_eq!(folder(&[home]), Some("/h/.cache/gridguard/profiles".into()));
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn off_is_off_and_relative_caches_do_not_count() {
        assert_eq!(folder(&[("GRIDGUARD_PROFILES", "off"), ("HOME", "/h")]), None);
        assert_eq!(folder(&[("XDG_CACHE_HOME", "c"), ("HOME", "h")]), None);
    }
}
