//! Keeps the images of modules and libraries while a launch is to be captured.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::borrow::Cow;

use crate::fix::beside::mapped;
use crate::fix::image::{FATBIN, Source, digest_of};
use crate::process::{self, elf};
use crate::watch::kept::Kept;
use crate::watch::known::Reason;

/// Bytes that are copied at most.
const MOST_BYTES: usize = 256 << 20;
const MOST_IMAGES: usize = 16_384;
static BYTES: AtomicUsize = AtomicUsize::new(0);
static IMAGES: Kept<Image, { 1 << 15 }, MOST_IMAGES> = Kept::new();

enum Image {
    Copied(Vec<u8>),
    /// A fat binary at this address in a loaded object.
    Mapped(usize),
    NoRoom,
}

/// Keeps an image if the options name a launch to capture.
///
/// # Safety
///
/// The driver has just loaded the image.
pub(super) unsafe fn keep(source: Source) {
    if process::options().capture.is_none() {
        return;
    }
    // SAFETY: by this function's contract.
    let Ok(bytes) = (unsafe { source.bytes(usize::MAX) }) else { return };
    let _ = IMAGES.get(digest_of(&bytes), || {
        let address = bytes.as_ptr();
        let is_mapped = matches!(source, Source::Memory(_))
            && bytes.starts_with(FATBIN)
            && elf::contains(address.addr(), bytes.len());
        if is_mapped {
            return Image::Mapped(address.expose_provenance());
        }
        let known = BYTES.fetch_add(bytes.len(), Ordering::Relaxed);
        match known.checked_add(bytes.len()).is_some_and(|all| all <= MOST_BYTES) {
            true => Image::Copied(bytes.to_vec()),
            false => Image::NoRoom,
        }
    });
}

/// The image with this digest.
pub(crate) fn find(digest: u64) -> Result<Cow<'static, [u8]>, Reason> {
    match IMAGES.find(digest) {
        Some(Image::Copied(bytes)) => Ok(bytes.into()),
        Some(Image::Mapped(address)) => mapped(*address, digest).map(Cow::from),
        Some(Image::NoRoom) => Err("the process had loaded 256 MiB of images before".into()),
        None => Err("its module was loaded by a function that is not watched".into()),
    }
}
