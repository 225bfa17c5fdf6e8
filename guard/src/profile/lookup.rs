//! Looks up the choice for a launch.

use core::cmp::Ordering;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;

use foldhash::fast::RandomState;

use super::decision::DecisionList;
use super::device::{DeviceIdentity, Environment};
use super::document::{Document, ParsedProfile};
use super::error::ProfileError;
use super::index::{Decided, ShapeIndex};
use super::matching::{DefaultReason, Layer, Match};
use super::model::{Attainable, Entry, Key, L2, Named, value_of};
use super::notice::{ProfileNotice, is_degraded, version_notices};
use super::store;
use crate::observe;
use crate::plan::choice::Choice;

/// The entries for one device, indexed for lookup from any number of threads.
///
/// A lookup neither locks nor allocates.
#[derive(Debug, Default)]
pub struct Profile {
    /// By key, sizes and layer.
    entries: Vec<LayeredEntry>,
    kernels: HashMap<Key, ShapeIndex, RandomState>,
    attainable: Vec<Attainable>,
    /// By key and layer.
    pub(super) lists: Vec<(Layer, DecisionList)>,
    /// The keys in the order of [`Key::purpose`], to distinguish edited code from code that was never tuned.
    purposes: Vec<Key>,
}

/// An entry and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LayeredEntry {
    entry: Entry,
    layer: Layer,
    degraded: bool,
    is_confirmed: bool,
}

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct TunedChoice<'a> {
    /// How the entry matches, or why none does.
    pub matched: Match,
    /// The entry; none for the default.
    pub entry: Option<&'a Entry>,
    /// The layer that the entry, or the confirmation of the default, comes from.
    pub layer: Option<Layer>,
    /// Whether the entry was measured with another major version of the driver, so that it may not be the
    /// fastest.
    pub degraded: bool,
}

impl Profile {
    /// As [`Self::load`], for a device with its versions.
    pub(crate) fn read(
        path: &Path,
        identity: &DeviceIdentity,
        environment: &Environment,
    ) -> Result<(Self, Vec<ProfileNotice>), ProfileError> {
        let Some(ParsedProfile { document, faults }) = store::load(path)? else {
            return Err(ProfileError::read(path, ErrorKind::NotFound, "there is no such file"));
        };
        let (profile, notices) = Self::from_document(document, identity, environment);
        let faults = faults.into_iter().map(ProfileNotice::InvalidEntry);
        Ok((profile, faults.chain(notices).collect()))
    }

    /// A profile of one document, with notices about it. It is empty if the document is for another device.
    pub fn from_document(
        document: Document,
        device: &DeviceIdentity,
        running: &Environment,
    ) -> (Self, Vec<ProfileNotice>) {
        let mut profile = Self::default();
        let added = profile.add(document, Layer::Explicit, device, running);
        let mut notices = added.unwrap_or_else(|other_device| vec![other_device]);
        notices.extend(profile.build_index().into_iter().map(|(_, notice)| notice));
        (profile, notices)
    }

    /// Adds the entries of a document, or returns why they do not apply. Call [`Self::build_index`] afterwards.
    pub(super) fn add(
        &mut self,
        document: Document,
        layer: Layer,
        device: &DeviceIdentity,
        running: &Environment,
    ) -> Result<Vec<ProfileNotice>, ProfileNotice> {
        let Document { device: measured_on, aliases, environment, attainable, decisions, entries } =
            document;
        measured_on.serves(&aliases, device)?;
        let notices = version_notices(&entries, &environment, running);
        self.attainable.extend(attainable);
        self.lists.extend(decisions.into_iter().map(|list| (layer, list)));
        self.entries.extend(entries.into_iter().map(|entry| LayeredEntry {
            degraded: is_degraded(&entry, &environment, running),
            is_confirmed: entry.is_confirmed(),
            entry,
            layer,
        }));
        Ok(notices)
    }

    /// Builds the index, and returns notices about the entries that it ignores.
    pub(super) fn build_index(&mut self) -> Vec<(Layer, ProfileNotice)> {
        self.lists.sort_by(|one, other| (&one.1.key, one.0).cmp(&(&other.1.key, other.0)));
        self.entries
            .sort_by(|one, other| order(&(one.layer, &one.entry), &(other.layer, &other.entry)));
        let mut notices = Vec::new();
        let mut before = 0;
        for of_key in self.entries.chunk_by(|one, other| one.entry.key == other.entry.key) {
            // The first entry of the highest layer determines the size names.
            let Some(first) = of_key.iter().min_by_key(|entry| entry.layer) else { continue };
            let key = &first.entry.key;
            let mut index = ShapeIndex::new(&first.entry.shape);
            for (place, layered) in of_key.iter().enumerate() {
                let LayeredEntry { entry, layer, .. } = layered;
                if index.accepts(&entry.shape) {
                    index.push(&entry.shape, before + place, *layer);
                } else {
                    note_other_sizes(&mut notices, *layer, entry, index.names());
                }
            }
            let begin = self.lists.partition_point(|(_, list)| list.key < *key);
            let lists = self.lists.iter().skip(begin);
            for (layer, list) in lists.take_while(|(_, list)| list.key == *key) {
                index.push_list(list, |row| {
                    let is_source =
                        |one: &LayeredEntry| one.layer == *layer && row.is_choice_of(&one.entry);
                    let place = of_key.iter().position(is_source).filter(|_| !row.is_default());
                    place.map_or(Decided::Default(*layer), |place| Decided::Entry(before + place))
                });
            }
            self.kernels.insert(key.clone(), index);
            self.purposes.push(key.clone());
            before += of_key.len();
        }
        self.purposes.sort_by(|one, other| one.purpose().cmp(&other.purpose()));
        notices
    }

    /// Looks up the entry for `sizes`, given in the order of the kernel's shape.
    ///
    /// It prefers an entry with the same sizes, then the row of a [`DecisionList`], then an entry between the same powers of two, then the nearest
    /// entry within an octave of each size. Sizes outside the tuned powers of two match nothing. A size of 0
    /// only matches 0. The first size counts the items, so nothing matches if it is 0. If the entry is
    /// [confirmed](Entry::confirmed), the result is the default for this reason.
    pub fn lookup(&self, key: &Key, sizes: &[u64]) -> TunedChoice<'_> {
        if let Some(index) = self.kernels.get(key) {
            return self.find(index, sizes);
        }
        let purpose = |other: &Key| other.purpose().cmp(&key.purpose());
        let is_tuned = self.purposes.binary_search_by(purpose).is_ok();
        let reason = if is_tuned { DefaultReason::OtherSource } else { DefaultReason::NoEntries };
        TunedChoice::default_for(reason)
    }

    /// The names of the sizes of a key's entries, in order. `None` if it has no entries.
    pub fn size_names(&self, key: &Key) -> Option<&[String]> {
        self.kernels.get(key).map(ShapeIndex::names)
    }

    /// The entries of all layers by key, sizes and layer, including entries that a higher layer hides.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (Layer, &Entry)> {
        self.entries.iter().map(|layered| (layered.layer, &layered.entry))
    }

    /// The decision list with a row for these sizes, the index of the row, and the layer of the list.
    pub fn decision(&self, key: &Key, sizes: &[u64]) -> Option<(Layer, &DecisionList, usize)> {
        let of_key = self.lists.iter().filter(|(_, list)| list.key == *key);
        of_key.filter_map(|(layer, list)| Some((*layer, list, list.row(sizes)?))).next()
    }

    /// What the device can move with data of this traffic, the greatest of all layers.
    pub fn attainable(&self, l2: L2, traffic: u64) -> Option<Attainable> {
        let size = Attainable::size_of(traffic);
        let of_size = self.attainable.iter().filter(|one| (one.l2, one.bytes) == (l2, size));
        of_size.max().copied()
    }

    /// Whether the profile has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    fn find<'a>(&'a self, index: &'a ShapeIndex, sizes: &[u64]) -> TunedChoice<'a> {
        let (matched, decided) = index.find(sizes);
        let confirmed = DefaultReason::Confirmed { kind: matched.kind() };
        let found = match decided {
            Some(Decided::Entry(place)) => self.entries.get(place),
            Some(Decided::Default(layer)) => {
                let layer = Some(layer);
                return TunedChoice { layer, ..TunedChoice::default_for(confirmed) };
            }
            None => None,
        };
        if let Some(found) = found.filter(|found| found.is_confirmed) {
            let layer = Some(found.layer);
            return TunedChoice { layer, ..TunedChoice::default_for(confirmed) };
        }
        TunedChoice {
            matched,
            entry: found.map(|found| &found.entry),
            layer: found.map(|found| found.layer),
            degraded: found.is_some_and(|found| found.degraded),
        }
    }
}

impl<'a> TunedChoice<'a> {
    /// The result when no entry matches.
    pub(crate) const fn default_for(reason: DefaultReason) -> Self {
        Self { matched: Match::Default(reason), entry: None, layer: None, degraded: false }
    }

    /// The choice for the planner: its default if no entry matches.
    pub fn choice(&self) -> Choice {
        self.entry.map_or(Choice::AUTOMATIC, |entry| entry.choice.into())
    }

    /// Launch parameters of the kernel; none if no entry matches.
    pub fn parameters(&self) -> &'a [(String, u64)] {
        self.entry.map_or(&[], |entry| &entry.parameters)
    }

    /// The launch parameter `name` of the entry. The entry may be for another shape and from an untrusted file, so
    /// check the value like any input.
    pub fn parameter(&self, name: &str) -> Option<u64> {
        value_of(self.parameters(), name)
    }

    /// Reports that the launch is planned without the entry, because its choice is not legal.
    pub fn refused(&self) {
        observe::choice_refused();
    }
}

/// The order of the entries of a profile: by key, sizes and layer.
pub(super) fn order(one: &(Layer, &Entry), other: &(Layer, &Entry)) -> Ordering {
    let sizes = || sizes(&one.1.shape).cmp(sizes(&other.1.shape));
    one.1.key.cmp(&other.1.key).then_with(sizes).then(one.0.cmp(&other.0))
}

fn sizes(shape: &Named) -> impl Iterator<Item = u64> {
    shape.iter().map(|(_, size)| *size)
}

/// Counts an entry with other size names: in the last notice, if that is about the same names.
fn note_other_sizes(
    notices: &mut Vec<(Layer, ProfileNotice)>,
    layer: Layer,
    entry: &Entry,
    expected: &[String],
) {
    let key = entry.key.to_string();
    let given: Vec<String> = entry.shape.iter().map(|(name, _)| name.clone()).collect();
    if let Some((last, ProfileNotice::OtherSizes { key: same_key, given: same, entries, .. })) =
        notices.last_mut()
        && (*last, &*same_key, &*same) == (layer, &key, &given)
    {
        *entries += 1;
        return;
    }
    let expected = expected.to_vec();
    notices.push((layer, ProfileNotice::OtherSizes { key, given, expected, entries: 1 }));
}
