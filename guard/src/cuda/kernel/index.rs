//! Limits of 32-bit indices that are found in PTX, once for each text.

use core::hash::BuildHasher;
use std::hash::RandomState;
use std::sync::{Arc, LazyLock};

use gridguard_ptx::Sizes;
use hashbrown::HashMap;
use parking_lot::Mutex;

use crate::limits::IndexLimit;

/// The limits of the entries that have some, by name.
pub(crate) type IndexLimits = HashMap<String, Vec<IndexLimit>>;

/// Texts by hash and length. The hash has a random key, so nobody can provoke a collision.
type Texts = HashMap<(u64, usize), Arc<IndexLimits>>;

/// The limits of the entries of `text`. None if the text is not PTX, which the driver reports, or is too long.
pub(crate) fn of(text: &[u8]) -> Arc<IndexLimits> {
    static KNOWN: LazyLock<Mutex<Texts>> = LazyLock::new(Mutex::default);
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    if text.len() > MOST_BYTES {
        return Arc::default();
    }
    let key = (HASHER.hash_one(text), text.len());
    if let Some(known) = KNOWN.lock().get(&key) {
        return Arc::clone(known);
    }
    // Without the lock: a long text takes seconds.
    let entries = gridguard_ptx::index(text).unwrap_or_default().into_iter();
    let limits = entries.filter_map(|mut entry| {
        let limits: Vec<_> =
            entry.limits(&Sizes::default()).into_iter().map(IndexLimit::from).collect();
        (!limits.is_empty()).then_some((entry.name, limits))
    });
    let limits = Arc::new(limits.collect());
    let mut known = KNOWN.lock();
    if known.len() >= MOST_TEXTS {
        known.clear();
    }
    Arc::clone(known.entry(key).or_insert(limits))
}

/// The longest text that is analysed.
const MOST_BYTES: usize = 32 << 20;
/// Texts whose limits are kept.
const MOST_TEXTS: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = ".version 8.0\n.target sm_80\n.visible .entry rows(.param .u64 out) {\n\
        ld.param.u64 %rd1, [out];\nmov.u32 %r1, %ctaid.y;\nshl.b32 %r2, %r1, 16;\n\
        mul.wide.s32 %rd2, %r2, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\nret;\n}\n";

    #[test]
    fn a_text_is_analysed_once() {
        let first = of(ROWS.as_bytes());
        assert_eq!(first.keys().collect::<Vec<_>>(), ["rows"]);
        assert!(Arc::ptr_eq(&first, &of(ROWS.as_bytes())));
        let wide = ROWS.replace("shl.b32 %r2, %r1, 16", "and.b32 %r2, %r1, 16");
        assert!(of(wide.as_bytes()).is_empty());
    }

    #[test]
    fn what_is_no_ptx_has_no_limits() {
        assert!(of(b"garbage").is_empty() && of(b"").is_empty());
        assert!(of(&vec![b' '; MOST_BYTES + 1]).is_empty());
    }
}
