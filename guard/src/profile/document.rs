//! The contents of a profile's file: a device, an environment, decision lists and entries.

use core::fmt;

use serde::Deserialize;

use super::decision::{DecisionList, ListRow};
use super::device::{DeviceIdentity, Environment};
use super::error::{DECIDED_SCHEMA, FileFault, MAX_ALIASES, MAX_ENTRIES, ProfileError, SCHEMA};
use super::model::{
    Attainable, Entry, Key, Named, Objective, Policy, Provenance, StoredChoice, Summary,
};
use super::rows::{
    FirstRow, Offset, ROW_BEGIN, Ron, Row, Rows, Schema, first_character, locate, read_rows,
};

/// The tuned entries of one device: the contents of a profile file. Its text is the file, and equal documents give the
/// same bytes.
///
/// Entries are sorted by key and shape, within the limits of [`Entry::check`], and unique. Decision lists are sorted by
/// key and contradict no entry.
///
/// ```
/// use gridguard::DeviceLimits;
/// use gridguard::profile::{DeviceIdentity, Document, Environment};
///
/// let device = DeviceIdentity::new(&DeviceLimits::any_device());
/// let document = Document::new(device, Environment::default());
/// let parsed = Document::parse(&document.to_string())?;
/// assert_eq!(parsed.document, document);
/// assert!(parsed.faults.is_empty());
/// # Ok::<(), gridguard::profile::ProfileError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub(super) device: DeviceIdentity,
    pub(super) aliases: Vec<String>,
    pub(super) environment: Environment,
    /// By cache and size.
    pub(super) attainable: Vec<Attainable>,
    /// By key.
    pub(super) decisions: Vec<DecisionList>,
    pub(super) entries: Vec<Entry>,
}

/// The result of reading a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedProfile {
    /// The valid entries.
    pub document: Document,
    /// The faults of the other entries, in the file's order.
    pub faults: Vec<FileFault>,
}

impl Document {
    /// A document without entries.
    pub const fn new(device: DeviceIdentity, environment: Environment) -> Self {
        Self {
            device,
            aliases: Vec::new(),
            environment,
            attainable: Vec::new(),
            decisions: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// The document, which then also applies to devices with these names.
    #[must_use]
    pub(crate) fn with_aliases(mut self, names: impl IntoIterator<Item = String>) -> Self {
        let own = &self.device.name;
        self.aliases = names.into_iter().filter(|name| name != own).collect();
        self.aliases.sort();
        self.aliases.dedup();
        self
    }

    /// Parses a file.
    ///
    /// An invalid entry, or decision list, is reported with its position and left out. After an unterminated bracket, string or
    /// comment, parsing resumes at the next line that begins an entry.
    ///
    /// # Errors
    ///
    /// [`ProfileError`] for another schema, an invalid device or environment, and
    /// a file above the limits.
    pub fn parse(text: &str) -> Result<ParsedProfile, ProfileError> {
        let Rows { header, good, mut bad } = read_rows::<File, EntryRow>(text)?;
        let entries = sorted(good, &mut bad);
        let (empty, lists) = header.document()?;
        let mut document = Self { entries, ..empty };
        let mut offset = text.find(DECISIONS).unwrap_or_default();
        for list in lists {
            offset +=
                text.get(offset + 1..).and_then(|rest| rest.find(ROW_BEGIN)).map_or(0, |at| at + 1);
            let is_repeated = document.decision(&list.key).is_some();
            let error = match is_repeated {
                true => Some(LIST_TWICE.to_owned()),
                false => document.decide(list).err().map(|error| error.to_string()),
            };
            bad.extend(error.map(|error| (offset, first_character(error))));
        }
        Ok(ParsedProfile { document, faults: locate(text, bad) })
    }

    /// The device of the measurements.
    pub const fn device(&self) -> &DeviceIdentity {
        &self.device
    }

    /// Names of other devices that the document also applies to.
    pub fn aliases(&self) -> &[String] {
        &self.aliases
    }

    /// The versions of the measurements.
    pub const fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The entries, sorted by key and shape.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What the device can move, by the state of the cache and the size of the data.
    pub fn attainable(&self) -> &[Attainable] {
        &self.attainable
    }

    /// Adds what the device can move. Of two bandwidths for the same size, the greater stays.
    ///
    /// # Errors
    ///
    /// [`ProfileErrorKind::Entry`](super::ProfileErrorKind::Entry) if the size is no power of two, or the bandwidth 0.
    pub fn add_attainable(&mut self, attainable: Attainable) -> Result<(), ProfileError> {
        attainable.check()?;
        self.attainable.push(attainable);
        self.attainable.sort_by(|one, other| other.cmp(one));
        self.attainable
            .dedup_by(|lesser, greater| (lesser.l2, lesser.bytes) == (greater.l2, greater.bytes));
        self.attainable.reverse();
        Ok(())
    }

    /// The decision lists, sorted by key.
    pub fn decisions(&self) -> &[DecisionList] {
        &self.decisions
    }

    /// The decision list of a key.
    pub fn decision(&self, key: &Key) -> Option<&DecisionList> {
        self.decisions.get(self.find_list(key).ok()?)
    }

    /// Sets the decision list of a key. An entry that contradicts it later removes it.
    ///
    /// # Errors
    ///
    /// [`ProfileErrorKind::Decision`](super::ProfileErrorKind::Decision) if a row contradicts an entry, or its choice is
    /// neither the default nor measured for an entry of the key, or a size is beyond 2^40. The list is then not set.
    pub fn decide(&mut self, list: DecisionList) -> Result<(), ProfileError> {
        list.check()?;
        list.check_entries(self.of_key(&list.key))?;
        match self.find_list(&list.key) {
            Ok(place) => self.decisions.splice(place..=place, [list]),
            Err(place) => self.decisions.splice(place..place, [list]),
        };
        Ok(())
    }

    /// The entries of a key.
    pub(super) fn of_key(&self, key: &Key) -> &[Entry] {
        let begin = self.entries.partition_point(|entry| entry.key < *key);
        let rest = self.entries.get(begin..).unwrap_or_default();
        rest.get(..rest.partition_point(|entry| entry.key == *key)).unwrap_or_default()
    }

    /// Removes the decision lists that the entries contradict.
    pub(super) fn check_decisions(&mut self) {
        let mut lists = core::mem::take(&mut self.decisions);
        lists.retain(|list| list.check_entries(self.of_key(&list.key)).is_ok());
        self.decisions = lists;
    }

    /// Adds an entry and returns the entry that it replaces. Removes the decision list of its key if the list does not
    /// agree with the entries any more.
    ///
    /// # Errors
    ///
    /// As [`Entry::check`], and if the profile has its most entries.
    pub fn insert(&mut self, entry: Entry) -> Result<Option<Entry>, ProfileError> {
        entry.check()?;
        let place = self.find_list(&entry.key).ok();
        let list = place.and_then(|place| self.decisions.get(place));
        let is_contradicted = list.is_some_and(|list| list.check_entry(&entry).is_err());
        let replaced = match self.find(&entry.key, &entry.shape) {
            Ok(place) => self.entries.get_mut(place).map(|old| core::mem::replace(old, entry)),
            Err(_) if self.entries.len() >= MAX_ENTRIES => {
                return Err(ProfileError::entry(format!(
                    "the profile has {MAX_ENTRIES} entries, the limit of a profile: split it by kernel"
                )));
            }
            Err(place) => {
                self.entries.insert(place, entry);
                None
            }
        };
        if let Some(place) = place
            && let Some(list) = self.decisions.get(place)
            // A row may have had its choice from the replaced entry.
            && (is_contradicted
                || replaced.is_some() && list.check_entries(self.of_key(&list.key)).is_err())
        {
            self.decisions.remove(place);
        }
        Ok(replaced)
    }

    /// The entry of a key and a shape.
    pub fn get(&self, key: &Key, shape: &Named) -> Option<&Entry> {
        self.entries.get(self.find(key, shape).ok()?)
    }

    /// Removes the entries that `keep` rejects, and the decision lists with a choice that no entry has then.
    pub fn retain(&mut self, keep: impl FnMut(&Entry) -> bool) {
        self.entries.retain(keep);
        self.check_decisions();
    }

    fn find_list(&self, key: &Key) -> Result<usize, usize> {
        self.decisions.binary_search_by(|list| list.key.cmp(key))
    }

    fn find(&self, key: &Key, shape: &Named) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| entry.subject().cmp(&(key, shape)))
    }
}

impl fmt::Display for Document {
    /// The file's text. Key, choice, times and provenance of an entry are on lines of their own, for readable
    /// diffs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, aliases, environment, attainable, decisions, entries } = self;
        let schema =
            if decisions.is_empty() && attainable.is_empty() { SCHEMA } else { DECIDED_SCHEMA };
        let (device, aliases, environment) = (Ron(device), Ron(aliases), Ron(environment));
        writeln!(f, "(\n    schema: {schema},\n    device: {device},\n    aliases: {aliases},")?;
        writeln!(f, "    environment: {environment},")?;
        if !attainable.is_empty() {
            writeln!(f, "    attainable: {},", Ron(attainable))?;
        }
        if !decisions.is_empty() {
            writeln!(f, "{DECISIONS}")?;
            decisions.iter().try_for_each(|list| write!(f, "{list}"))?;
            writeln!(f, "    ],")?;
        }
        writeln!(f, "    entries: [")?;
        for entry in entries {
            let Entry { key, shape, choice, parameters, launches, chosen, default, found } = entry;
            let key = Ron(key).to_string();
            // An entry has the fields of its key at the same level.
            let key = key.strip_suffix(')').unwrap_or(&key);
            let (shape, choice, parameters) = (Ron(shape), Ron(choice), Ron(parameters));
            if entry.is_confirmed() {
                let date = Ron(&found.date);
                writeln!(f, "        {key},\n         shape: {shape}, confirmed: {date}),")?;
                continue;
            }
            let (chosen, default, found) = (Ron(chosen), Ron(default), Ron(found));
            writeln!(
                f,
                "        {key},\n         shape: {shape}, choice: {choice}, \
                 parameters: {parameters}, launches: {launches},\n         \
                 chosen: {chosen}, default: {default},\n         found: {found}),"
            )?;
        }
        f.write_str("    ],\n)\n")
    }
}

/// A file without its rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Profile")]
struct File {
    schema: Schema<DECIDED_SCHEMA>,
    device: DeviceIdentity,
    #[serde(default)]
    aliases: Vec<String>,
    environment: Environment,
    #[serde(default)]
    attainable: Vec<Attainable>,
    #[serde(default)]
    decisions: Vec<ListRow>,
    #[serde(rename = "entries")]
    _entries: Vec<FirstRow>,
}

/// An entry as in a file, where its key is not nested. Fields that later versions add need a default.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename = "Entry")]
struct EntryRow {
    kernel: String,
    source: String,
    #[serde(default)]
    variant: String,
    dtypes: String,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    objective: Objective,
    shape: Named,
    /// The date of a confirmed entry, which has none of the fields below.
    #[serde(default, deserialize_with = "present")]
    confirmed: Option<String>,
    #[serde(default, deserialize_with = "present")]
    choice: Option<StoredChoice>,
    #[serde(default)]
    parameters: Named,
    #[serde(default, deserialize_with = "present")]
    launches: Option<u64>,
    #[serde(default, deserialize_with = "present")]
    chosen: Option<Summary>,
    #[serde(default, deserialize_with = "present")]
    default: Option<Summary>,
    #[serde(default, deserialize_with = "present")]
    found: Option<Provenance>,
}

/// Reads an optional field as RON writes it without `Some`.
fn present<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

impl Row for EntryRow {
    type Item = Entry;

    fn checked(self) -> Result<Entry, ProfileError> {
        let Self { kernel, source, variant, dtypes, policy, objective, .. } = self;
        let Self { shape, parameters, confirmed, choice, launches, chosen, default, found, .. } =
            self;
        let key = Key { kernel, source, variant, dtypes, policy, objective };
        let entry = match (confirmed, choice, launches, chosen, default, found) {
            (None, Some(choice), Some(launches), Some(chosen), Some(default), Some(found)) => {
                Entry { key, shape, choice, parameters, launches, chosen, default, found }
            }
            (Some(date), None, None, None, None, None) if parameters.is_empty() => {
                Entry::confirmed(key, shape, date)
            }
            _ => {
                return Err(ProfileError::entry(
                    "the entry has neither choice, launches, chosen, default and found, nor only \
                     confirmed: add or remove some",
                ));
            }
        };
        entry.check().map(|()| entry)
    }
}

impl File {
    /// The document without its rows, if its header is within the limits, and its unchecked decision lists.
    fn document(self) -> Result<(Document, impl Iterator<Item = DecisionList>), ProfileError> {
        let Self {
            schema: Schema(schema),
            device,
            aliases,
            environment,
            attainable,
            decisions,
            ..
        } = self;
        let Environment { driver, compiler, tuner } = &environment;
        let processor = device.processor.iter().map(|processor| &processor.name);
        let names = [&device.name, driver, compiler, tuner].into_iter().chain(&aliases);
        let is_long = names.chain(processor).any(|name| name.len() > MAX_DEVICE_NAME_BYTES);
        if is_long || aliases.len() > MAX_ALIASES {
            return Err(ProfileError::header(first_character(format_args!(
                "the limits are {MAX_DEVICE_NAME_BYTES} bytes for a name and {MAX_ALIASES} aliases"
            ))));
        }
        let is_new = !decisions.is_empty() || !attainable.is_empty();
        let is_large = decisions.len().max(attainable.len()) > MAX_LISTS;
        if schema < DECIDED_SCHEMA && is_new || is_large {
            return Err(ProfileError::header(first_character(format_args!(
                "decision lists need schema {DECIDED_SCHEMA}, and the limit is {MAX_LISTS}"
            ))));
        }
        let mut document = Document::new(device, environment).with_aliases(aliases);
        for one in attainable {
            let added = document.add_attainable(one);
            added.map_err(|error| ProfileError::header(first_character(error)))?;
        }
        Ok((document, decisions.into_iter().map(DecisionList::from)))
    }
}

/// Sorts entries, and keeps the first entry in the file of each key and shape.
fn sorted(mut entries: Vec<(usize, Entry)>, bad: &mut Vec<Offset>) -> Vec<Entry> {
    // The sort is stable, and fast for a file that is already sorted.
    entries.sort_by(|(_, one), (_, other)| one.subject().cmp(&other.subject()));
    entries.dedup_by(|(offset, later), (_, earlier)| {
        let is_duplicate = later.subject() == earlier.subject();
        if is_duplicate {
            bad.push((*offset, first_character(DUPLICATE)));
        }
        is_duplicate
    });
    entries.into_iter().map(|(_, entry)| entry).collect()
}

/// The fault of the second of two entries.
const DUPLICATE: &str = "an earlier entry has the same kernel and shape: remove one";
const LIST_TWICE: &str = "an earlier decision list has the same key: remove one";
/// The line before the decision lists.
const DECISIONS: &str = "    decisions: [";
/// The most decision lists of a file: ten times the keys of the largest shipped profile.
const MAX_LISTS: usize = 1024;
/// The most bytes of a device name: the buffer size for `cuDeviceGetName`.
const MAX_DEVICE_NAME_BYTES: usize = 256;
