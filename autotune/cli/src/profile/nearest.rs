//! The entries that come nearest to a shape and do not serve it, and why.

use gridguard::profile::{Entry, Key, Layer, MatchKind, Named, Profile, TunedChoice};
use serde::Serialize;

use super::record::EntryRecord;
use super::words;

/// An entry that was not taken.
#[derive(Serialize)]
pub(super) struct Passed<'a> {
    pub(super) layer: String,
    #[serde(flatten)]
    pub(super) record: EntryRecord<'a>,
    #[serde(skip)]
    pub(super) entry: &'a Entry,
    /// Octaves between the sizes, each with its name; infinite (`null` as JSON) where one of both is
    /// 0, empty where they are not the same sizes.
    pub(super) octaves: Vec<(&'a str, f64)>,
    pub(super) reason: String,
}

/// What is looked up.
pub(super) struct Wanted<'a> {
    pub(super) key: &'a Key,
    pub(super) shape: &'a Named,
    /// Why no entry serves, if none does.
    pub(super) reason: Option<&'a str>,
}

impl Wanted<'_> {
    /// The nearest entries of the kernel but the one that serves: those of the same key first, then by
    /// their distance.
    pub(super) fn passed<'a>(
        &self,
        profile: &'a Profile,
        answer: &TunedChoice<'a>,
    ) -> Vec<Passed<'a>> {
        let serves = |layer, entry: &Entry| {
            answer.layer == Some(layer) && answer.entry.is_some_and(|taken| taken == entry)
        };
        let of_kernel = profile
            .entries()
            .filter(|(layer, entry)| entry.key.kernel == self.key.kernel && !serves(*layer, entry));
        let mut passed: Vec<Passed<'a>> =
            of_kernel.map(|(layer, entry)| self.passed_one(layer, entry, answer)).collect();
        let distance = |one: &Passed<'_>| match one.octaves.is_empty() {
            true => f64::INFINITY,
            false => total(&one.octaves),
        };
        passed.sort_by(|one, other| {
            let other_key = |of: &Passed<'_>| of.entry.key != *self.key;
            let keys = other_key(one).cmp(&other_key(other));
            keys.then(distance(one).total_cmp(&distance(other)))
        });
        passed.truncate(MOST_PASSED);
        passed
    }

    fn passed_one<'a>(
        &self,
        layer: Layer,
        entry: &'a Entry,
        answer: &TunedChoice<'_>,
    ) -> Passed<'a> {
        let octaves = self.octaves(entry);
        let reason = other_key(&entry.key, self.key)
            .unwrap_or_else(|| self.why_farther(layer, &octaves, answer));
        let (layer, record) = (layer.to_string(), EntryRecord::from(entry));
        Passed { layer, record, entry, octaves, reason }
    }

    /// How far each size is from the one that is wanted.
    fn octaves<'a>(&self, entry: &'a Entry) -> Vec<(&'a str, f64)> {
        let names = |shape: &Named| shape.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        if names(&entry.shape) != names(self.shape) {
            return Vec::new();
        }
        let sizes = entry.shape.iter().zip(self.shape);
        let octaves = |one: u64, other: u64| match one == other {
            true => 0.0,
            false => (words::real(one) / words::real(other)).log2().abs(),
        };
        sizes.map(|((name, one), (_, other))| (name.as_str(), octaves(*one, *other))).collect()
    }

    /// Why an entry of the same key does not serve.
    fn why_farther(
        &self,
        layer: Layer,
        octaves: &[(&str, f64)],
        answer: &TunedChoice<'_>,
    ) -> String {
        if octaves.is_empty() {
            return "its sizes have other names".into();
        }
        if let Some(reason) = self.reason {
            return reason.to_owned();
        }
        if let Some((name, octaves)) = octaves.iter().find(|(_, octaves)| *octaves > 1.0) {
            if octaves.is_infinite() {
                return format!("{name} is 0 in one of both alone");
            }
            return format!("{name} is {octaves:.3} octaves away, more than one");
        }
        let taken = answer.entry.map(|entry| self.octaves(entry)).unwrap_or_default();
        match answer.matched.kind() {
            _ if answer.layer < Some(layer) && total(octaves) <= total(&taken) => {
                "a higher layer goes before".into()
            }
            MatchKind::Exact => "the one that serves is exact".into(),
            MatchKind::Bucket if total(octaves) < total(&taken) => {
                "nearer, but the one that serves has the same powers of two".into()
            }
            _ => format!("farther than the one that serves: {:.3} octaves", total(octaves)),
        }
    }
}

/// What of a key is not the one that is wanted.
fn other_key(key: &Key, wanted: &Key) -> Option<String> {
    let Key { kernel: _, source, variant, dtypes, policy, objective } = key;
    match () {
        () if *dtypes != wanted.dtypes => Some(format!("it is for {dtypes}")),
        () if *variant != wanted.variant => Some(match (&**variant, &*wanted.variant) {
            ("", wanted) => format!("it is for no variant, {wanted} would run"),
            (variant, "") => format!("it is for variant {variant}, there is one no more"),
            (variant, wanted) => format!("it is for variant {variant}, {wanted} would run"),
        }),
        () if *source != wanted.source => Some("the kernel was edited since".into()),
        () if *policy != wanted.policy => Some(format!("it was measured {policy}")),
        () if *objective != wanted.objective => Some(format!("it is good at {objective}")),
        () => None,
    }
}

pub(super) fn total(octaves: &[(&str, f64)]) -> f64 {
    octaves.iter().map(|(_, octaves)| octaves).sum()
}

/// Entries that are shown.
const MOST_PASSED: usize = 5;
