//! The entries nearest to a lookup that it does not use, and why.

use std::cmp::Reverse;

use gridguard::profile::{Entry, Key, Layer, MatchKind, Named, Profile, TunedChoice};
use serde::Serialize;

use super::entry::{self, EntryJson};

/// An entry that a lookup does not use.
#[derive(Serialize)]
pub(super) struct PassedOver<'a> {
    pub(super) layer: String,
    #[serde(flatten)]
    pub(super) entry: EntryJson<'a>,
    /// The distance of each size in octaves: infinite (`null` in JSON) if only one of the two is 0.
    /// Empty if the shapes have different size names.
    pub(super) octaves: Vec<(&'a str, f64)>,
    pub(super) reason: String,
}

/// What is looked up.
pub(super) struct Query<'a> {
    pub(super) key: &'a Key,
    pub(super) shape: &'a Named,
    /// Why no entry matches; `None` if one does.
    pub(super) reason: Option<&'a str>,
}

impl Query<'_> {
    /// The nearest entries of the kernel except the one that matches: those of the same key first,
    /// then by distance.
    pub(super) fn passed_over<'a>(
        &self,
        profile: &'a Profile,
        found: &TunedChoice<'a>,
    ) -> Vec<PassedOver<'a>> {
        let is_used = |layer, entry: &Entry| {
            found.layer == Some(layer) && found.entry.is_some_and(|used| used == entry)
        };
        let mut entries: Vec<PassedOver<'a>> = profile
            .entries()
            .filter(|(layer, entry)| entry.key.kernel == self.key.kernel && !is_used(*layer, entry))
            .map(|(layer, entry)| {
                let octaves = self.octaves(entry);
                let reason = self
                    .other_key(&entry.key)
                    .unwrap_or_else(|| self.farther(layer, &octaves, found));
                PassedOver { layer: layer.to_string(), entry: EntryJson(entry), octaves, reason }
            })
            .collect();
        let distance = |one: &PassedOver<'_>| match one.octaves.is_empty() {
            true => f64::INFINITY,
            false => total(&one.octaves),
        };
        entries.sort_by(|one, other| distance(one).total_cmp(&distance(other)));
        entries.sort_by_key(|one| Reverse(one.entry.0.key == *self.key));
        entries.truncate(MOST_ENTRIES);
        entries
    }

    /// The distance of each size of an entry.
    fn octaves<'a>(&self, entry: &'a Entry) -> Vec<(&'a str, f64)> {
        let names = |shape: &Named| shape.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        if names(&entry.shape) != names(self.shape) {
            return Vec::new();
        }
        let sizes = entry.shape.iter().zip(self.shape);
        let octaves = |one: u64, other: u64| match one == other {
            true => 0.0,
            false => (entry::real(one) / entry::real(other)).log2().abs(),
        };
        sizes.map(|((name, one), (_, other))| (name.as_str(), octaves(*one, *other))).collect()
    }

    /// Why an entry of another key is not used; `None` if the keys are equal.
    fn other_key(&self, key: &Key) -> Option<String> {
        let Key { kernel: _, source, variant, dtypes, policy, objective } = key;
        let wanted = self.key;
        match () {
            () if *dtypes != wanted.dtypes => Some(format!("it is for {dtypes}")),
            () if *variant != wanted.variant => Some(match (&**variant, &*wanted.variant) {
                ("", wanted) => format!("it is for no variant, this launch runs {wanted}"),
                (variant, "") => format!("it is for variant {variant}, this launch has none"),
                (variant, wanted) => {
                    format!("it is for variant {variant}, this launch runs {wanted}")
                }
            }),
            () if *source != wanted.source => Some("the kernel's source has changed".into()),
            () if *policy != wanted.policy => Some(format!("it was measured {policy}")),
            () if *objective != wanted.objective => Some(format!("it was tuned for {objective}")),
            () => None,
        }
    }

    /// Why an entry of the same key is not used.
    fn farther(&self, layer: Layer, octaves: &[(&str, f64)], found: &TunedChoice<'_>) -> String {
        if octaves.is_empty() {
            return "its sizes have other names".into();
        }
        if let Some(reason) = self.reason {
            return reason.to_owned();
        }
        if let Some((name, octaves)) = octaves.iter().find(|(_, octaves)| *octaves > 1.0) {
            if octaves.is_infinite() {
                return format!("{name} is 0 in only one of the two shapes");
            }
            return format!("{name} is {octaves:.3} octaves away, more than one");
        }
        let used = found.entry.map(|entry| self.octaves(entry)).unwrap_or_default();
        match found.matched.kind() {
            _ if found.layer < Some(layer) && total(octaves) <= total(&used) => {
                "a layer of higher precedence has a match".into()
            }
            MatchKind::Exact => "another entry matches exactly".into(),
            MatchKind::Bucket if total(octaves) < total(&used) => {
                "nearer, but the match has the same powers of two".into()
            }
            _ => format!("farther than the match: {:.3} octaves", total(octaves)),
        }
    }
}

pub(super) fn total(octaves: &[(&str, f64)]) -> f64 {
    octaves.iter().map(|(_, octaves)| octaves).sum()
}

/// Entries that are shown.
const MOST_ENTRIES: usize = 5;
