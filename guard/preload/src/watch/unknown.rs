//! Functions that the program asked for and that are not intercepted although they launch, as far as their names tell:
//! functions of a newer CUDA, or of a further driver library.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::watch::slot_cache::{hash_of, place_of};

/// Names that are kept, and the words of each.
const NAMES: usize = 16;
const WORDS: usize = 8;

/// A name, without a lock and without allocation, because `dlsym` may not do either. `hash` is 0 in a free place.
struct Name {
    hash: AtomicU64,
    text: [AtomicU64; WORDS],
}

// SAFETY: atomic numbers may be zero.
static ASKED_FOR: [Name; NAMES] = unsafe { core::mem::zeroed() };

/// Notes a function that was not intercepted.
#[cold]
pub(crate) fn note(name: &[u8]) {
    if let Some((place, true)) = place_of(hash_of(name), NAMES, |place| &ASKED_FOR[place].hash) {
        for (word, bytes) in ASKED_FOR[place].text.iter().zip(name.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(whole), Ordering::Relaxed);
        }
    }
}

/// The functions that were noted.
pub(crate) fn names() -> Vec<String> {
    let known = ASKED_FOR.iter().filter(|name| name.hash.load(Ordering::Relaxed) != 0);
    let text = |name: &Name| {
        let words = name.text.iter().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let bytes: Vec<u8> = words.flatten().filter(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    known.map(text).collect()
}
