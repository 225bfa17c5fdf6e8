//! What a profile lookup needs of a kernel.

use std::borrow::Cow;

use crate::profile::model::Key;

/// The key of a kernel's choices in a profile, and the sizes of its shapes.
#[derive(Debug)]
pub(crate) struct KernelTuning<'k> {
    key: Cow<'k, Key>,
    names: Vec<&'k str>,
    sizes: Vec<u64>,
}

impl<'k> KernelTuning<'k> {
    /// A shape of `sizes` beside the `items` of each launch.
    pub(crate) fn new(key: Cow<'k, Key>, items: &'k str, sizes: &[(&'k str, u64)]) -> Self {
        let (names, sizes) = [(items, 0)].iter().chain(sizes).copied().unzip();
        Self { key, names, sizes }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn names(&self) -> &[&'k str] {
        &self.names
    }

    /// The first one is replaced by the items of each launch.
    pub(crate) fn sizes(&self) -> &[u64] {
        &self.sizes
    }
}
