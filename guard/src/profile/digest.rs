//! The digest of a profile's choices, which ranks of a job and machines of a fleet compare.

use core::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::decision::DecisionList;
use super::document::Document;
use super::lookup::{Profile, order};
use super::matching::Layer;
use super::model::{Entry, Named};
use super::rows::Ron;

impl Document {
    /// A digest of the choices, as 64 hexadecimal digits.
    ///
    /// It covers the key, the shape, the choice and the parameters of each entry that a lookup can find, and decision lists. Times and
    /// provenance make no difference, so two measurements with equal choices have equal digests.
    ///
    /// ```
    /// use gridguard::DeviceLimits;
    /// use gridguard::profile::{DeviceIdentity, Document, Environment, Profile};
    ///
    /// let device = DeviceIdentity::new(&DeviceLimits::any_device());
    /// let document = Document::new(device.clone(), Environment::default());
    /// let digest = document.choices_digest();
    /// let (profile, _) = Profile::from_document(document, &device, &Environment::default());
    /// assert_eq!(profile.choices_digest(), digest);
    /// ```
    pub fn choices_digest(&self) -> String {
        let mut entries: Vec<_> = self.entries().iter().map(|one| (Layer::Explicit, one)).collect();
        entries.sort_by(order);
        digest(&entries, self.decisions())
    }
}

impl Profile {
    /// The [digest](Document::choices_digest) of the entries of all layers.
    pub fn choices_digest(&self) -> String {
        digest(&self.entries().collect::<Vec<_>>(), self.lists.iter().map(|(_, list)| list))
    }
}

/// `entries` are in the order of a profile. Leaves out the entries that no lookup finds: a higher layer hides them, or
/// their sizes have other names than the key's.
fn digest<'e>(
    entries: &[(Layer, &'e Entry)],
    lists: impl IntoIterator<Item = &'e DecisionList>,
) -> String {
    let mut hash = Sha256::new();
    hash.update(VERSION);
    let mut line = String::new();
    for of_key in entries.chunk_by(|(_, one), (_, other)| one.key == other.key) {
        // As in the index, the first entry of the highest layer determines the names.
        let Some((_, first)) = of_key.iter().min_by_key(|(layer, _)| *layer) else { continue };
        let names = |shape: &'e Named| shape.iter().map(|(name, _)| name);
        let mut last = None;
        for (_, Entry { key, shape, choice, parameters, .. }) in of_key {
            if !names(shape).eq(names(&first.shape)) || last.replace(shape) == Some(shape) {
                continue;
            }
            line.clear();
            // Writing to a string cannot fail. RON escapes line feeds, so that lines are unambiguous.
            let (key, shape, choice) = (Ron(key), Ron(shape), Ron(choice));
            let _ = writeln!(line, "{key} {shape} {choice} {}", Ron(parameters));
            hash.update(&line);
        }
    }
    lists.into_iter().for_each(|list| hash.update(list.to_string()));
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Changes if the text of an entry does.
const VERSION: &str = "gridguard choices 1\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::device::DeviceLimits;
    use crate::profile::{DeviceIdentity, Environment, Key, Layers, StoredChoice, publish};

    fn document(entries: &[(u64, u64)]) -> Document {
        let device = DeviceIdentity::new(&DeviceLimits::any_device());
        let mut document = Document::new(device, Environment::default());
        for (rows, warps) in entries {
            let entry = Entry {
                key: Key { kernel: "k".into(), dtypes: "f16".into(), ..Key::default() },
                shape: vec![("rows".into(), *rows)],
                choice: StoredChoice::Whole,
                parameters: vec![("warps".into(), *warps)],
                launches: 1,
                ..Entry::default()
            };
            document.insert(entry).expect("within the limits");
        }
        document
    }

    #[test]
    fn the_digest_depends_on_choices_and_not_on_times() {
        let one = document(&[(8, 1), (16, 2)]);
        let mut timed = one.clone();
        for entry in &mut timed.entries {
            (entry.chosen.median_ns, entry.found.date) = (5, "2026-11-20T12:00:00Z".into());
        }
        assert_eq!(one.choices_digest(), timed.choices_digest());
        assert_eq!(one.choices_digest(), document(&[(16, 2), (8, 1)]).choices_digest());
        for other in [&[(8, 1)][..], &[(8, 1), (16, 4)], &[(8, 1), (17, 2)]] {
            assert_ne!(one.choices_digest(), document(other).choices_digest());
        }
        let known = "760375c9eee38f78b74e21187f5b792c74e29b48ae7dec8037981631db199721";
        assert_eq!(one.choices_digest(), known, "other machines know this digest");
    }

    #[test]
    fn an_entry_that_a_higher_layer_hides_makes_no_difference() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, document: &Document| {
            let folder = folder.path().join(name);
            publish(&folder.join(document.device().file_name()), document).expect("written");
            folder
        };
        let high = write("high", &document(&[(8, 1)]));
        let low = write("low", &document(&[(8, 4), (16, 2)]));
        let both = document(&[(8, 1), (16, 2)]);
        let loaded = Layers::new().user_at(high).shipped(low);
        let loaded = loaded.load(both.device(), &Environment::default());
        assert_eq!(loaded.profile.choices_digest(), both.choices_digest());
    }

    #[test]
    fn an_entry_whose_sizes_have_other_names_makes_no_difference() {
        let one = document(&[(8, 1), (16, 2)]);
        let mut more = one.clone();
        let mut other = one.entries()[0].clone();
        other.shape = vec![("rows".into(), 8), ("columns".into(), 4)];
        more.insert(other.clone()).expect("within the limits");
        assert_eq!(more.choices_digest(), one.choices_digest());
        let device = more.device().clone();
        let (profile, notices) = Profile::from_document(more, &device, &Environment::default());
        assert_eq!((notices.len(), profile.choices_digest()), (1, one.choices_digest()));
        // Without the others it is found.
        other.shape.swap(0, 1);
        let mut alone = document(&[]);
        alone.insert(other).expect("within the limits");
        assert_ne!(alone.choices_digest(), document(&[]).choices_digest());
    }
}
