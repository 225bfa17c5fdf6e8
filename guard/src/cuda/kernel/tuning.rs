//! What a profile lookup needs of a kernel.

#[cfg(feature = "profile")]
use {crate::profile::model::Key, std::borrow::Cow};

/// Where the plan of a launch is looked up.
#[cfg(feature = "profile")]
pub(crate) type Tuning<'k> = Option<&'k KernelTuning<'k>>;
/// Nothing is looked up.
#[cfg(not(feature = "profile"))]
pub(crate) type Tuning<'k> = core::marker::PhantomData<&'k ()>;

/// The key of a kernel's choices in a profile, and the sizes of its shapes.
#[cfg(feature = "profile")]
#[derive(Debug)]
pub(crate) struct KernelTuning<'k> {
    pub(crate) key: Cow<'k, Key>,
    pub(crate) names: Vec<&'k str>,
    /// The first size is replaced by the items of each launch.
    pub(crate) sizes: Vec<u64>,
}

#[cfg(feature = "profile")]
impl<'k> KernelTuning<'k> {
    /// A shape of `sizes` beside the `items` of each launch.
    pub(crate) fn new(key: Cow<'k, Key>, items: &'k str, sizes: &[(&'k str, u64)]) -> Self {
        let (names, sizes) = [(items, 0)].iter().chain(sizes).copied().unzip();
        Self { key, names, sizes }
    }
}
