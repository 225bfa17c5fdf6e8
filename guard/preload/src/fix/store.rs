//! Keeps PTX, and programs that can be compiled to PTX, for machine code in memory, up to [`MOST_BYTES`].

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::fix::program::Program;
use crate::watch::handle_record::{Digest, Reason};
use crate::watch::slot_cache::SlotCache;

/// The most bytes that are kept.
const MOST_BYTES: usize = 32 << 20;
const MOST_TEXTS: usize = 16_384;
static BYTES: AtomicUsize = AtomicUsize::new(0);
static TEXTS: SlotCache<Kept, { 1 << 15 }, MOST_TEXTS> = SlotCache::new();

/// The source of a cubin, or why there is none.
struct Kept {
    cubin: Digest,
    text: Result<Text, Reason>,
}

/// A source.
pub(super) enum Text {
    Compressed(Vec<u8>),
    Program(Program),
}

impl Text {
    pub(super) fn compressed(ptx: &[u8]) -> Self {
        Self::Compressed(lz4_flex::compress_prepend_size(ptx))
    }
}

/// Keeps the source of a cubin that `make` returns, or why there is none.
pub(super) fn keep(cubin: &[u8], make: impl FnOnce() -> Result<Text, Reason>) {
    let cubin = Digest::of_cubin(cubin);
    let _ = TEXTS.get(cubin.hash, || {
        let text = make().and_then(|text| {
            let bytes = match &text {
                Text::Compressed(text) => text.len(),
                Text::Program(program) => program.bytes(),
            };
            if reserve(bytes) { Ok(text) } else { Err(NO_ROOM.into()) }
        });
        Kept { cubin, text }
    });
}

/// The PTX of a cubin; the error is why there is none.
pub(super) fn find(cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    let known = TEXTS.find(cubin.hash).filter(|known| known.cubin == cubin)?;
    Some(match &known.text {
        Ok(Text::Compressed(text)) => decompressed(text),
        Ok(Text::Program(program)) => program.ptx(),
        Err(reason) => Err(reason.clone()),
    })
}

/// A text that was kept compressed.
pub(super) fn decompressed(text: &[u8]) -> Result<Vec<u8>, Reason> {
    lz4_flex::decompress_size_prepended(text)
        .map_err(|_| "its PTX was kept, and cannot be read".into())
}

/// Reserves `bytes` of memory. Returns whether there was room.
pub(super) fn reserve(bytes: usize) -> bool {
    let known = BYTES.fetch_add(bytes, Ordering::Relaxed);
    let fits = known.checked_add(bytes).is_some_and(|all| all <= MOST_BYTES);
    if !fits {
        BYTES.fetch_sub(bytes, Ordering::Relaxed);
    }
    fits
}

pub(super) const NO_ROOM: &str = "the process had compiled or loaded 32 MiB of compressed PTX before, which is as much as is kept";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_is_found_by_the_whole_cubin_until_the_room_is_full() {
        let ptx = b".version 8.0\n".repeat(1000);
        let cubin = |number: u8| [&[number; 300 << 10][..], b"end"].concat();
        keep(&cubin(1), || Ok(Text::compressed(&ptx)));
        assert_eq!(find(Digest::of_cubin(&cubin(1))), Some(Ok(ptx)));
        let mut other = cubin(1);
        *other.last_mut().expect("a byte") = 0;
        assert_eq!(find(Digest::of_cubin(&other)), None);
        assert!(reserve(1 << 20) && !reserve(MOST_BYTES) && !reserve(usize::MAX));
        keep(&cubin(2), || Ok(Text::Compressed(vec![0; MOST_BYTES])));
        assert_eq!(find(Digest::of_cubin(&cubin(2))), Some(Err(NO_ROOM.into())));
    }
}
