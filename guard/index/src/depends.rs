//! The sizes on which the indices of an entry depend.

use std::collections::{BTreeSet, HashSet};

use super::poly::Poly;
use super::sizes::Size;
use super::values::{Kind, Values};
use super::verdict::EntryIndex;

impl EntryIndex {
    /// The sizes on which its indices and their conditions depend, each with the number of bytes that are read of it.
    /// Launches that agree in these sizes have the same verdict.
    pub fn sizes(&self) -> Vec<(Size, u64)> {
        let checks = self.checks.iter().map(|check| (&check.value, check.context));
        self.values.sizes_of(checks).into_iter().collect()
    }
}

impl Values {
    /// The sizes on which values and the conditions of their contexts depend.
    pub(super) fn sizes_of<'v>(
        &'v self,
        checks: impl IntoIterator<Item = (&'v Poly, u32)>,
    ) -> BTreeSet<(Size, u64)> {
        let mut open = Open { values: self, polys: Vec::new(), contexts: HashSet::new() };
        for (value, context) in checks {
            open.polys.push(value);
            open.context(context);
        }
        let (mut seen, mut found) = (HashSet::new(), BTreeSet::new());
        while let Some(poly) = open.polys.pop() {
            for atom in poly.atoms().filter(|atom| seen.insert(*atom)) {
                let kind = &self.get(atom).kind;
                open.polys.extend(self.parts(kind));
                match kind {
                    Kind::Size(size, bytes) => found.extend([(*size, *bytes)]),
                    Kind::BlockIndex(axis) => found.extend([(Size::Grid(*axis), WORD)]),
                    Kind::ThreadIndex(axis) => found.extend([(Size::Block(*axis), WORD)]),
                    Kind::Join(number) => {
                        let incoming =
                            self.joins.get(*number).into_iter().flat_map(|join| &join.incoming);
                        incoming.for_each(|incoming| open.context(incoming.context));
                    }
                    _ => {}
                }
            }
        }
        found
    }
}

/// The polynomials still to visit, and the contexts already visited.
struct Open<'v> {
    values: &'v Values,
    polys: Vec<&'v Poly>,
    contexts: HashSet<u32>,
}

impl Open<'_> {
    /// Adds the facts of a context and of its parents.
    fn context(&mut self, context: u32) {
        let mut next = Some(context);
        while let Some(id) = next.filter(|id| self.contexts.insert(*id)) {
            let Some(context) = self.values.at(id) else { return };
            self.polys.extend(context.facts.iter().chain(&context.unequal));
            next = context.parent;
        }
    }
}

/// Bytes of a block index, and of a thread index.
const WORD: u64 = 4;
