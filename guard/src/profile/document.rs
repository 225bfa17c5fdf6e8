//! A profile's file as data: a device, an environment, entries.

use core::fmt;

use super::bounds::{EntryFault, MAX_ALIASES, MAX_DEVICE_NAME_BYTES, MAX_ENTRIES, MAX_FILE_BYTES};
use super::entry::{Entry, Named};
use super::environment::Environment;
use super::error::{Fault, InsertError, ProfileError};
use super::identity::DeviceIdentity;
use super::key::Key;
use super::outline::{Layout, Outline, first_character, from_ron, locate};
use super::row::{EntryRow, HeaderRow};
use super::{reader, writer};

/// The schema that is written, and the latest that is read.
pub const SCHEMA: u64 = 1;

/// All that was tuned on one device: what a file holds.
///
/// Entries are sorted by key and shape, each is within bounds ([`Entry::check`]), and no two are
/// about the same.
///
/// ```
/// use gridguard::DeviceLimits;
/// use gridguard::profile::{DeviceIdentity, Document, Environment};
///
/// let device = DeviceIdentity::of(&DeviceLimits::any_device());
/// let document = Document::new(device, Environment::default());
/// let parsed = Document::parse(&document.to_ron())?;
/// assert_eq!(parsed.document, document);
/// assert!(parsed.faults.is_empty());
/// # Ok::<(), gridguard::profile::ProfileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub(super) device: DeviceIdentity,
    pub(super) aliases: Vec<String>,
    pub(super) environment: Environment,
    pub(super) entries: Vec<Entry>,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// What is good of it.
    pub document: Document,
    /// What is not, in the file's order.
    pub faults: Vec<Fault>,
}

impl Document {
    /// A document without entries.
    #[must_use]
    pub const fn new(device: DeviceIdentity, environment: Environment) -> Self {
        Self { device, aliases: Vec::new(), environment, entries: Vec::new() }
    }

    /// The same, declared to hold for other devices of these names too.
    #[must_use]
    pub fn with_aliases(mut self, names: impl IntoIterator<Item = String>) -> Self {
        let own = &self.device.name;
        self.aliases = names.into_iter().filter(|name| name != own).collect();
        self.aliases.sort();
        self.aliases.dedup();
        self
    }

    /// Reads a file's text.
    ///
    /// A bad entry is reported with its place and left out. Text after a bracket that is missing
    /// or one too many is read again from the next line that begins an entry.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Schema`] for a file of a version to come, [`ProfileError::Header`] for one
    /// whose device is not known, and what shows a hostile file: size, entries, broken brackets
    /// without end.
    pub fn parse(text: &str) -> Result<Parsed, ProfileError> {
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if bytes > MAX_FILE_BYTES {
            return Err(ProfileError::TooLarge { bytes });
        }
        // There is one schema so far. An older one will part ways here, to rows of its own.
        let outline = Outline::open(text, LAYOUT, |schema| schema == SCHEMA)?;
        let header = header(outline.header)?;
        let read = outline.elements(reader::entry, slow_entry)?;
        let (entries, mut bad) = sorted(read.good);
        bad.extend(read.bad);
        let HeaderRow { device, aliases, environment, .. } = header;
        let document = Self { entries, ..Self::new(device, environment).with_aliases(aliases) };
        Ok(Parsed { document, faults: locate(text, bad) })
    }

    /// The file's text: the same bytes for the same document.
    #[must_use]
    pub fn to_ron(&self) -> String {
        writer::Ron(self).to_string()
    }

    /// The device it was measured on.
    #[must_use]
    pub const fn device(&self) -> &DeviceIdentity {
        &self.device
    }

    /// Names of other devices it is declared to hold for.
    #[must_use]
    pub fn aliases(&self) -> &[String] {
        &self.aliases
    }

    /// What it was measured with.
    #[must_use]
    pub const fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The entries, sorted by key and shape.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The entries, as an owner.
    #[must_use]
    pub fn into_entries(self) -> Vec<Entry> {
        self.entries
    }

    /// Adds an entry; the answer is the one that it replaces.
    ///
    /// # Errors
    ///
    /// [`InsertError::Fault`] as [`Entry::check`]; [`InsertError::Full`].
    pub fn insert(&mut self, entry: Entry) -> Result<Option<Entry>, InsertError> {
        entry.check()?;
        match self.find(&entry.key, &entry.shape) {
            Ok(place) => Ok(self.entries.get_mut(place).map(|old| core::mem::replace(old, entry))),
            Err(_) if self.entries.len() >= MAX_ENTRIES => Err(InsertError::Full),
            Err(place) => {
                self.entries.insert(place, entry);
                Ok(None)
            }
        }
    }

    /// The entry of a key and a shape.
    #[must_use]
    pub fn get(&self, key: &Key, shape: &Named) -> Option<&Entry> {
        self.entries.get(self.find(key, shape).ok()?)
    }

    /// Keeps only the entries that `keep` wants.
    pub fn retain(&mut self, keep: impl FnMut(&Entry) -> bool) {
        self.entries.retain(keep);
    }

    fn find(&self, key: &Key, shape: &Named) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| (&entry.key, &entry.shape).cmp(&(key, shape)))
    }
}

impl fmt::Display for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writer::Ron(self).fmt(f)
    }
}

impl Entry {
    /// What tells entries of a document apart, and their order.
    pub(super) const fn subject(&self) -> (&Key, &Named) {
        (&self.key, &self.shape)
    }
}

/// The layout of a profile.
const LAYOUT: Layout = Layout { list: "entries", anchor: "(kernel:", max_elements: MAX_ENTRIES };

fn header(text: &str) -> Result<HeaderRow, ProfileError> {
    let closed = format!("{text})");
    let row: HeaderRow =
        ron::from_str(&closed).map_err(|error| ProfileError::Header(from_ron(&error)))?;
    let HeaderRow { device, aliases, environment, .. } = &row;
    let Environment { driver, compiler, tuner } = environment;
    let texts = [&device.name, driver, compiler, tuner].into_iter().chain(aliases);
    let processor = device.processor.iter().map(|processor| &processor.name);
    let long = texts.chain(processor).any(|text| text.len() > MAX_DEVICE_NAME_BYTES);
    if long || aliases.len() > MAX_ALIASES {
        let most =
            format!("at most {MAX_DEVICE_NAME_BYTES} bytes of a name and {MAX_ALIASES} aliases");
        return Err(ProfileError::Header(first_character(format!("{most} are taken"))));
    }
    Ok(row)
}

fn slow_entry(text: &str) -> Result<Entry, Fault> {
    ron::from_str::<EntryRow>(text).map(Entry::from).map_err(|error| from_ron(&error))
}

/// Checks and sorts entries; of two about the same the first of the file stays.
fn sorted(read: Vec<(usize, Entry)>) -> (Vec<Entry>, Vec<(usize, Fault)>) {
    let mut bad = Vec::new();
    let mut refuse =
        |start, fault: EntryFault| bad.push((start, first_character(fault.to_string())));
    let mut entries = read;
    entries.retain(|(start, entry)| {
        let checked = entry.check();
        let good = checked.is_ok();
        checked.unwrap_or_else(|fault| refuse(*start, fault));
        good
    });
    // Stable, and quick where a file is sorted already, as what is written here is.
    entries.sort_by(|(_, one), (_, other)| one.subject().cmp(&other.subject()));
    entries.dedup_by(|(start, later), (_, earlier)| {
        let twice = later.subject() == earlier.subject();
        if twice {
            refuse(*start, EntryFault::Duplicate);
        }
        twice
    });
    (entries.into_iter().map(|(_, entry)| entry).collect(), bad)
}
