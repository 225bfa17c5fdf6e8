//! Keeps PTX, and programs that can be compiled to PTX, for machine code in memory, up to [`MOST_BYTES`].

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::fix::program::Program;
use crate::watch::handle_record::{Digest, Reason};
use crate::watch::slot_cache::SlotCache;

/// The most bytes that are kept.
const MOST_BYTES: usize = 12 << 20;
const MOST_TEXTS: usize = 16_384;
static BYTES: AtomicUsize = AtomicUsize::new(0);
static TEXTS: SlotCache<Text, { 1 << 15 }, MOST_TEXTS> = SlotCache::new();

/// The source of a cubin.
struct Text {
    cubin: Digest,
    kept: What,
}

enum What {
    Compressed(Vec<u8>),
    Program(Program),
    /// There was no room.
    Nothing,
}

/// Keeps the PTX of a cubin.
pub(crate) fn keep(cubin: &[u8], ptx: &[u8]) {
    insert(cubin, || {
        let compressed = lz4_flex::compress_prepend_size(ptx);
        (compressed.len(), What::Compressed(compressed))
    });
}

/// Keeps the program of a cubin.
pub(super) fn keep_program(cubin: &[u8], program: Program) {
    insert(cubin, || (program.bytes(), What::Program(program)));
}

fn insert(cubin: &[u8], what: impl FnOnce() -> (usize, What)) {
    let cubin = Digest::of_cubin(cubin);
    let _ = TEXTS.get(cubin.hash, || {
        let (bytes, what) = what();
        Text { cubin, kept: if reserve(bytes) { what } else { What::Nothing } }
    });
}

/// The PTX of a cubin; the error is why there is none.
pub(super) fn find(cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    let text = TEXTS.find(cubin.hash).filter(|text| text.cubin == cubin)?;
    Some(match &text.kept {
        What::Compressed(compressed) => {
            lz4_flex::decompress_size_prepended(compressed).map_err(|_| DAMAGED.into())
        }
        What::Program(program) => program.ptx(),
        What::Nothing => Err(NO_ROOM.into()),
    })
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

pub(super) const NO_ROOM: &str =
    "the process had compiled or loaded 12 MiB of PTX before, which is as much as is kept";
const DAMAGED: &str = "its PTX was kept, and cannot be read";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_is_found_by_the_whole_cubin_until_the_room_is_full() {
        let ptx = b".version 8.0\n".repeat(1000);
        let cubin = |number: u8| [&[number; 300 << 10][..], b"end"].concat();
        keep(&cubin(1), &ptx);
        assert_eq!(find(Digest::of_cubin(&cubin(1))), Some(Ok(ptx)));
        let mut other = cubin(1);
        *other.last_mut().expect("a byte") = 0;
        assert_eq!(find(Digest::of_cubin(&other)), None);
        assert!(reserve(1 << 20) && !reserve(MOST_BYTES) && !reserve(usize::MAX));
        let mut noise = 1_u64;
        let incompressible: Vec<u8> = core::iter::repeat_with(|| {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            noise.to_le_bytes()[3]
        })
        .take(MOST_BYTES)
        .collect();
        keep(&cubin(2), &incompressible);
        assert_eq!(find(Digest::of_cubin(&cubin(2))), Some(Err(NO_ROOM.into())));
    }
}
