//! Which entry serves a launch.

use std::collections::HashMap;

use super::document::Document;
use super::entry::{Entry, Named};
use super::environment::Environment;
use super::finding::{Finding, is_degraded, staleness};
use super::hash::FoldedBuilder;
use super::identity::DeviceIdentity;
use super::key::{Key, Objective, Policy};
use super::layers::Layer;
use super::matching::{Match, Reason};
use super::record::{Counters, LookupCounts};
use super::table::{Row, Table};
use crate::plan::choice::Choice;

/// The entries that serve one device, ready for lookup from any number of threads.
///
/// A lookup takes no lock and allocates nothing.
#[derive(Debug, Default)]
pub struct Profile {
    served: Vec<Served>,
    tables: HashMap<Key, Table, FoldedBuilder>,
    /// The keys without their source, sorted: to tell edited code from code never tuned.
    purposes: Vec<Purpose>,
    counters: Counters,
}

/// An entry and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Served {
    entry: Entry,
    layer: Layer,
    degraded: bool,
}

/// Kernel, variant, types, policy and objective.
type Purpose = (String, String, String, Policy, Objective);

/// The entries of one key: for servers that resolve a kernel once.
#[derive(Clone, Copy, Debug)]
pub struct Tuned<'a> {
    profile: &'a Profile,
    table: &'a Table,
}

/// What a profile says of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct TunedChoice<'a> {
    /// How the entry matches, or why there is none.
    pub matched: Match,
    /// The entry that serves.
    pub entry: Option<&'a Entry>,
    /// The layer that it comes from.
    pub layer: Option<Layer>,
    /// It was measured under another major version of the driver: it may not be the fastest.
    pub degraded: bool,
}

impl Profile {
    /// A profile of one document, with what is to be said of it. Another device's serves nothing.
    #[must_use]
    pub fn from_document(
        document: Document,
        device: &DeviceIdentity,
        running: &Environment,
    ) -> (Self, Vec<Finding>) {
        let mut findings = Vec::new();
        let mut profile = Self::default();
        match profile.add(document, Layer::Explicit, device, running) {
            Ok(said) => findings.extend(said),
            Err(other) => findings.push(other),
        }
        findings.extend(profile.index().into_iter().map(|(_, finding)| finding));
        (profile, findings)
    }

    /// Takes the entries of a document in, or says why not. Afterwards the index is to be made.
    pub(super) fn add(
        &mut self,
        document: Document,
        layer: Layer,
        device: &DeviceIdentity,
        running: &Environment,
    ) -> Result<Vec<Finding>, Finding> {
        document.device().serves(document.aliases(), device)?;
        let file = document.environment().clone();
        let said = staleness(document.entries(), &file, running);
        self.served.extend(document.into_entries().into_iter().map(|entry| Served {
            degraded: is_degraded(&entry, &file, running),
            entry,
            layer,
        }));
        Ok(said)
    }

    /// Makes the index; the answer is what it leaves out.
    pub(super) fn index(&mut self) -> Vec<(Layer, Finding)> {
        // By key, then layer: the sizes of the highest layer's first entry name those of the key.
        let order = |one: &Served, other: &Served| {
            let (key, shape) = one.entry.subject();
            let (other_key, other_shape) = other.entry.subject();
            key.cmp(other_key).then_with(|| {
                sizes(shape).cmp(sizes(other_shape)).then(one.layer.cmp(&other.layer))
            })
        };
        self.served.sort_by(order);
        let mut left_out = Vec::new();
        let Self { served, tables, purposes, .. } = self;
        let mut before = 0;
        for of_key in served.chunk_by(|one, other| one.entry.key == other.entry.key) {
            let Some(first) = of_key.iter().min_by_key(|served| served.layer) else {
                continue;
            };
            let key = &first.entry.key;
            tables.insert(key.clone(), table(of_key, first, before, &mut left_out));
            purposes.push(purpose(key));
            before += of_key.len();
        }
        self.purposes.sort();
        self.purposes.dedup();
        left_out
    }

    /// The entry that serves `sizes`, in the order of the kernel's shape, and how it matches.
    ///
    /// The same sizes go before the same powers of two, and these before the nearest sizes within
    /// an octave each. Beyond the powers of two that were tuned nothing serves. A size of 0, such as
    /// no pad, is served by entries that have 0 there and by no others; without items, which the
    /// first size counts, there is nothing to serve.
    pub fn lookup(&self, key: &Key, sizes: &[u64]) -> TunedChoice<'_> {
        match self.tables.get(key) {
            Some(table) => self.answer(table, sizes),
            None => self.counted(TunedChoice::default_for(self.why_unknown(key))),
        }
    }

    /// The entries of a key, where there are any.
    #[must_use]
    pub fn tuned(&self, key: &Key) -> Option<Tuned<'_>> {
        self.tables.get(key).map(|table| Tuned { profile: self, table })
    }

    /// Counts an answer whose entry was refused when it was validated: it is a miss after all.
    pub fn refused(&self) {
        self.counters.refused();
    }

    /// What was answered so far.
    #[must_use]
    pub fn counts(&self) -> LookupCounts {
        self.counters.snapshot()
    }

    /// The entries of all layers, by key, sizes and layer; the lower of two about the same too.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (Layer, &Entry)> {
        self.served.iter().map(|served| (served.layer, &served.entry))
    }

    /// Whether nothing was tuned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.served.is_empty()
    }

    #[inline]
    fn answer<'a>(&'a self, table: &'a Table, sizes: &[u64]) -> TunedChoice<'a> {
        let (matched, row) = table.find(sizes);
        self.counted(TunedChoice {
            matched,
            entry: row.and_then(|row| self.served.get(row.entry)).map(|served| &served.entry),
            layer: row.map(|row| row.layer),
            degraded: row.is_some_and(|row| row.degraded),
        })
    }

    #[inline]
    fn counted<'a>(&self, answer: TunedChoice<'a>) -> TunedChoice<'a> {
        self.counters.answered(answer.matched.kind(), answer.degraded);
        answer
    }

    fn why_unknown(&self, key: &Key) -> Reason {
        let Key { kernel, source: _, variant, dtypes, policy, objective } = key;
        let wanted = (kernel, variant, dtypes, policy, objective);
        let found =
            self.purposes.binary_search_by(|(kernel, variant, dtypes, policy, objective)| {
                (kernel, variant, dtypes, policy, objective).cmp(&wanted)
            });
        found.map_or(Reason::NoEntries, |_| Reason::OtherSource)
    }
}

impl<'a> Tuned<'a> {
    /// As [`Profile::lookup`].
    pub fn lookup(&self, sizes: &[u64]) -> TunedChoice<'a> {
        self.profile.answer(self.table, sizes)
    }

    /// The names of the sizes, in their order.
    #[must_use]
    pub fn names(&self) -> &'a [String] {
        self.table.names()
    }
}

impl<'a> TunedChoice<'a> {
    /// The answer that nothing serves.
    pub(crate) const fn default_for(reason: Reason) -> Self {
        Self { matched: Match::Default(reason), entry: None, layer: None, degraded: false }
    }

    /// How to plan the launch: the planner's own way where no entry serves.
    pub fn choice(&self) -> Choice {
        self.entry.map_or(Choice::AUTOMATIC, |entry| entry.choice.into())
    }

    /// Launch parameters of the kernel; none where no entry serves.
    #[must_use]
    pub fn parameters(&self) -> &'a [(String, u64)] {
        self.entry.map_or(&[], |entry| &entry.parameters)
    }
}

fn table(
    of_key: &[Served],
    first: &Served,
    before: usize,
    left_out: &mut Vec<(Layer, Finding)>,
) -> Table {
    let mut table = Table::new(&first.entry.shape);
    for (place, served) in of_key.iter().enumerate() {
        let shape = &served.entry.shape;
        if table.takes(shape) {
            let Served { layer, degraded, .. } = *served;
            table.push(shape, Row { layer, degraded, entry: before + place });
            continue;
        }
        let given: Vec<String> = shape.iter().map(|(name, _)| name.clone()).collect();
        match left_out.last_mut() {
            Some((layer, Finding::OtherSizes { key, given: same, entries, .. }))
                if *layer == served.layer
                    && *key == served.entry.key.to_string()
                    && *same == given =>
            {
                *entries += 1;
            }
            _ => left_out.push((
                served.layer,
                Finding::OtherSizes {
                    key: served.entry.key.to_string(),
                    given,
                    expected: table.names().to_vec(),
                    entries: 1,
                },
            )),
        }
    }
    table.index();
    table
}

fn sizes(shape: &Named) -> impl Iterator<Item = u64> {
    shape.iter().map(|(_, size)| *size)
}

fn purpose(key: &Key) -> Purpose {
    let Key { kernel, source: _, variant, dtypes, policy, objective } = key.clone();
    (kernel, variant, dtypes, policy, objective)
}
