//! Kernels and their counters, by name and image. One kernel may have several handles, one after another.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::watch::counters::Counters;
use crate::watch::slot_cache::{SlotCache, hash_of};

/// Kernels that have counters of their own. Launches of further kernels are counted together.
pub(crate) const MAX_KERNELS: usize = 16_384;
/// Bytes of all names that are kept whole; later ones are cut.
const NAME_BYTES: usize = 8 << 20;
/// The longest name that is kept whole.
const LONG_NAME: usize = 4096;
/// The stored bytes of a name that is cut.
const SHORT_NAME: usize = 48;
/// Marks a cut name.
const CUT: &[u8] = b"...";

/// A kernel of a name and an image.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The hash of the whole name.
    name_hash: u64,
    name: &'static [u8],
    /// The digest of the image; 0 if it is not known.
    pub(crate) image: u64,
    /// Launches through handles that are gone or have no place in the table.
    pub(crate) counters: Counters,
    /// The last refusal that was printed.
    printed: AtomicU64,
}

static KERNELS: SlotCache<Kernel, { 1 << 15 }, MAX_KERNELS> = SlotCache::new();
static NAMED_BYTES: AtomicUsize = AtomicUsize::new(0);
/// All kernels beyond [`MAX_KERNELS`].
pub(crate) static OTHERS: Kernel = Kernel::new(0, b"<other kernels>", 0);
/// A kernel without a name.
pub(crate) static UNNAMED: Kernel = Kernel::new(0, b"<unnamed>", 0);

/// The kernel with this name, as the driver has it, in this image.
pub(crate) fn of(name: &[u8], image: u64) -> &'static Kernel {
    let name_hash = hash_of(name);
    let make = || Kernel::new(name_hash, Box::leak(kept(name)), image);
    let found = KERNELS.get(hash_of(&(name_hash, image)), make);
    found.unwrap_or(&OTHERS)
}

/// All kernels that have a row of their own.
pub(crate) fn all() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.all().chain([&UNNAMED])
}

impl Kernel {
    const fn new(name_hash: u64, name: &'static [u8], image: u64) -> Self {
        Self { name_hash, name, image, counters: Counters::new(), printed: AtomicU64::new(0) }
    }

    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(self.name).into_owned()
    }

    /// Whether both have one name.
    pub(crate) const fn is_named_as(&self, other: &Self) -> bool {
        self.name_hash == other.name_hash
    }

    /// Whether a refusal of this kind differs from the last one.
    pub(crate) fn is_new(&self, kind: u64) -> bool {
        self.printed.swap(kind, Ordering::Relaxed) != kind
    }

    /// Resets all counters to zero.
    pub(crate) fn reset(&self) {
        self.counters.take();
        self.printed.store(0, Ordering::Relaxed);
    }
}

/// The stored part of a name.
fn kept(name: &[u8]) -> Box<[u8]> {
    let spent = NAMED_BYTES.fetch_add(name.len().min(LONG_NAME), Ordering::Relaxed);
    let most = if spent < NAME_BYTES { LONG_NAME } else { SHORT_NAME };
    match name.get(..most) {
        Some(start) => [start, CUT].concat().into(),
        None => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_one_of_its_name_and_image() {
        let kernel = of(b"a kernel", 7);
        assert!(core::ptr::eq(kernel, of(b"a kernel", 7)));
        assert!(!core::ptr::eq(kernel, of(b"a kernel", 8)));
        assert!(!core::ptr::eq(kernel, of(b"another kernel", 7)));
        assert!(kernel.is_named_as(of(b"a kernel", 8)));
    }

    #[test]
    fn a_name_of_64_kib_is_cut_and_stays_itself() {
        let (long, longer) = ([b'n'; 64 << 10], [b'n'; (64 << 10) + 1]);
        let kernel = of(&long, 0);
        assert_eq!(kernel.name().len(), LONG_NAME + CUT.len());
        assert!(core::ptr::eq(kernel, of(&long, 0)) && !core::ptr::eq(kernel, of(&longer, 0)));
    }

    #[test]
    fn a_refusal_of_another_kind_is_another_one() {
        let kernel = of(b"refused", 0);
        assert_eq!([1, 1, 2, 2].map(|kind| kernel.is_new(kind)), [true, false, true, false]);
    }
}
