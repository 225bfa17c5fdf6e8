//! Explains why a lookup does not use the nearest other entries.

use std::cmp::Reverse;

use gridguard::profile::{Entry, Key, Layer, MatchKind, Named, Profile, TunedChoice};
use gridguard_autotune::real;
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct PassedOver<'a> {
    pub(super) layer: Layer,
    #[serde(flatten)]
    pub(super) entry: &'a Entry,
    /// The distance of each size in octaves; infinite (`null` in JSON) if only one of the two is 0. Empty if the
    /// sizes have other names.
    pub(super) octaves: Vec<(&'a str, f64)>,
    pub(super) reason: String,
}

pub(super) struct Query<'a> {
    pub(super) key: &'a Key,
    pub(super) shape: &'a Named,
    pub(super) found: TunedChoice<'a>,
    pub(super) reason: Option<&'a str>,
}

impl<'a> Query<'a> {
    /// The nearest other entries of the kernel: first the same key, then by distance.
    pub(super) fn passed_over(&self, profile: &'a Profile) -> Vec<PassedOver<'a>> {
        let used = self.found.layer.zip(self.found.entry);
        let mut entries: Vec<PassedOver<'a>> = profile
            .entries()
            .filter(|other| other.1.key.kernel == self.key.kernel && used != Some(*other))
            .map(|(layer, entry)| {
                let octaves = self.octaves(entry);
                let reason = self.other_key(&entry.key);
                let reason = reason.unwrap_or_else(|| self.farther(layer, &octaves));
                PassedOver { layer, entry, octaves, reason }
            })
            .collect();
        let distance = |PassedOver { octaves, .. }: &PassedOver<'_>| {
            if octaves.is_empty() { f64::INFINITY } else { total(octaves) }
        };
        entries.sort_by(|one, other| distance(one).total_cmp(&distance(other)));
        entries.sort_by_key(|one| Reverse(one.entry.key == *self.key));
        entries.truncate(MOST_ENTRIES);
        entries
    }

    /// The distance of each size of an entry; empty if the sizes have other names.
    fn octaves(&self, entry: &'a Entry) -> Vec<(&'a str, f64)> {
        let names = |shape: &'a Named| shape.iter().map(|(name, _)| name.as_str());
        if !names(&entry.shape).eq(names(self.shape)) {
            return Vec::new();
        }
        let sizes = entry.shape.iter().zip(self.shape);
        let octaves = |one: u64, other: u64| match one == other {
            true => 0.0,
            false => (real(one) / real(other)).log2().abs(),
        };
        sizes.map(|((name, one), (_, other))| (name.as_str(), octaves(*one, *other))).collect()
    }

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

    /// Why an entry with the same key is not used.
    fn farther(&self, layer: Layer, octaves: &[(&str, f64)]) -> String {
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
        let distance = total(octaves);
        let used = self.found.entry.map_or(0.0, |entry| total(&self.octaves(entry)));
        match self.found.matched.kind() {
            _ if self.found.layer < Some(layer) && distance <= used => {
                "a layer of higher precedence has a match".into()
            }
            MatchKind::Exact => "another entry matches exactly".into(),
            MatchKind::Bucket if distance < used => {
                "nearer, but the match has the same powers of two".into()
            }
            _ => format!("farther than the match: {distance:.3} octaves"),
        }
    }
}

pub(super) fn total(octaves: &[(&str, f64)]) -> f64 {
    octaves.iter().map(|(_, octaves)| octaves).sum()
}

const MOST_ENTRIES: usize = 5;
