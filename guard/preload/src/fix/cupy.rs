//! Tells whether CuPy took a cubin from its cache. A file there has a checksum and the cubin. The source is beside it only
//! with `CUPY_CACHE_SAVE_CUDA_SOURCE`, and without the compiler's options, so that it cannot be compiled again.

use std::path::Path;

use crate::process::caches;
use crate::watch::known::Digest;

/// Why the launch is not repaired, if CuPy's cache has the cubin.
pub(super) fn find(cubin: Digest) -> Option<&'static str> {
    caches::of_cupy().is_some_and(|cache| has(cache, cubin)).then_some(CACHED)
}

fn has(cache: &Path, cubin: Digest) -> bool {
    let Ok(entries) = std::fs::read_dir(cache) else { return false };
    entries.take(MOST_KERNELS).flatten().any(|entry| {
        let bytes = entry.metadata().ok().and_then(|known| usize::try_from(known.len()).ok());
        let checksum = bytes.and_then(|bytes| bytes.checked_sub(cubin.bytes));
        let Some(checksum) = checksum.filter(|bytes| *bytes <= MOST_CHECKSUM) else {
            return false;
        };
        let file = gridguard_files::read(&entry.path(), MOST_BYTES).ok().flatten();
        let found = file.and_then(|file| Some(Digest::of_cubin(file.get(checksum..)?)));
        found == Some(cubin)
    })
}

const CACHED: &str = "CuPy took its machine code from its cache, which has no PTX: CUPY_CACHE_IN_MEMORY=1 has CuPy compile it \
                      again";
/// The longest checksum. CuPy's versions have different ones.
const MOST_CHECKSUM: usize = 128;
/// Entries of the cache that are looked at.
const MOST_KERNELS: usize = 1 << 17;
/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cubin_is_found_behind_a_checksum_of_any_kind() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, checksum, cubin) in [("a", 40, b"one"), ("b", 64, b"two"), ("c", 129, b"six")] {
            let file = [vec![b'0'; checksum], cubin.to_vec()].concat();
            std::fs::write(folder.path().join(name), file).expect("a file");
        }
        let found =
            [b"one", b"two", b"six", b"ten"].map(|code| has(folder.path(), Digest::of_cubin(code)));
        assert_eq!(found, [true, true, false, false]);
        assert!(!has(&folder.path().join("none"), Digest::of_cubin(b"one")));
    }
}
