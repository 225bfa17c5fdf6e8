//! Limits of 32-bit indices that are found in PTX, once for each entry.

use core::hash::BuildHasher;
use std::hash::RandomState;
use std::sync::{Arc, LazyLock, OnceLock};

use gridguard_index::{EntryPlaces, Sizes};
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::limits::IndexLimit;

/// The PTX of a module.
#[derive(Debug)]
pub(crate) struct Ptx {
    text: Box<[u8]>,
    hash: u64,
    /// Found at the first lookup, since reading takes longer than the analysis of most entries.
    places: OnceLock<EntryPlaces>,
}

/// The limits of entries, by the hash and length of their text and by name. The hash has a random key, so nobody can
/// provoke a collision.
type IndexTable = HashMap<(u64, usize, String), Arc<[IndexLimit]>>;

static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Ptx {
    /// `None` if the text is too long to be analysed.
    pub(crate) fn new(text: &[u8]) -> Option<Self> {
        let (hash, places) = (HASHER.hash_one(text), OnceLock::new());
        (text.len() <= MOST_BYTES).then(|| Self { text: text.into(), hash, places })
    }

    /// The limits of the entry `name`. None if the text is not PTX, which the driver reports.
    ///
    /// Reading the PTX of a module takes 10 ms for each megabyte, once. The limits of an entry take 0.6 ms (median) to
    /// 80 ms (maximum of 1,328 entries of candle, ggml, CuPy and Triton). A cache on disk would save little, because
    /// its file name would be a hash of the whole text.
    pub(crate) fn limits(&self, name: &str) -> Arc<[IndexLimit]> {
        static KNOWN: LazyLock<Mutex<IndexTable>> = LazyLock::new(Mutex::default);
        let key = (self.hash, self.text.len(), name.to_owned());
        if let Some(known) = KNOWN.lock().get(&key) {
            return Arc::clone(known);
        }
        // The analysis runs without the lock, because it takes long.
        let read = || EntryPlaces::read(&self.text).unwrap_or_default();
        let entry = self.places.get_or_init(read).index(&self.text, name).ok().flatten();
        let limits = entry.into_iter().flat_map(|mut entry| entry.limits(&Sizes::default()));
        let limits: Arc<[IndexLimit]> = limits.map(IndexLimit::from).collect();
        let mut known = KNOWN.lock();
        if known.len() >= MOST_ENTRIES {
            known.clear();
        }
        Arc::clone(known.entry(key).or_insert(limits))
    }
}

/// The longest text that is analysed.
const MOST_BYTES: usize = 32 << 20;
/// Entries whose limits are kept.
const MOST_ENTRIES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = ".version 8.0\n.target sm_80\n.visible .entry rows(.param .u64 out) {\n\
        ld.param.u64 %rd1, [out];\nmov.u32 %r1, %ctaid.y;\nshl.b32 %r2, %r1, 16;\n\
        mul.wide.s32 %rd2, %r2, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\nret;\n}\n";

    fn limits(text: &str, name: &str) -> Arc<[IndexLimit]> {
        Ptx::new(text.as_bytes()).expect("short").limits(name)
    }

    #[test]
    fn an_entry_is_analysed_once_for_all_modules_with_its_text() {
        let first = limits(ROWS, "rows");
        assert_eq!(first.len(), 1);
        assert!(Arc::ptr_eq(&first, &limits(ROWS, "rows")));
        let masked = ROWS.replace("shl.b32 %r2, %r1, 16", "and.b32 %r2, %r1, 16");
        assert!(limits(&masked, "rows").is_empty() && limits(ROWS, "other").is_empty());
    }

    #[test]
    fn what_is_no_ptx_has_no_limits() {
        assert!(limits("garbage", "rows").is_empty() && limits("", "").is_empty());
        assert!(Ptx::new(&vec![b' '; MOST_BYTES + 1]).is_none());
    }
}
