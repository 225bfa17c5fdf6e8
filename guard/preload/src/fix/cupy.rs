//! Tells whether CuPy took a cubin from its cache. A file of the cache has a checksum and the cubin without its last
//! byte, a zero that CuPy takes for the end of a text; in memory the cubin has this byte again. The source is beside
//! the file only with `CUPY_CACHE_SAVE_CUDA_SOURCE`, and without the compiler's options, so it cannot be compiled
//! again.

use std::path::Path;

use crate::fix::image::ELF;
use crate::process::caches;
use crate::watch::handle_record::Digest;

/// Why the launch is not repaired, if CuPy's cache has the cubin.
pub(super) fn find(cubin: Digest) -> Option<&'static str> {
    caches::of_cupy().is_some_and(|cache| has(cache, cubin)).then_some(CACHED)
}

fn has(cache: &Path, cubin: Digest) -> bool {
    let Ok(entries) = std::fs::read_dir(cache) else { return false };
    entries.take(MOST_KERNELS).flatten().any(|entry| {
        let bytes = entry.metadata().ok().and_then(|known| usize::try_from(known.len()).ok());
        let others = bytes.and_then(|bytes| bytes.checked_sub(cubin.bytes));
        if others.is_none_or(|others| others > MOST_OTHERS) {
            return false;
        }
        let file = gridguard_files::read(&entry.path(), MOST_BYTES).ok().flatten();
        let found = file.and_then(|file| {
            let begin = file.windows(ELF.len()).take(MOST_OTHERS).position(|at| at == ELF)?;
            Some(Digest::of_cubin(&[file.get(begin..)?, &[0]].concat()))
        });
        found == Some(cubin)
    })
}

const CACHED: &str = "CuPy took its machine code from its cache, which has no PTX: CUPY_CACHE_IN_MEMORY=1 has CuPy compile it \
                      again";
/// Bytes of a file before and behind the cubin. CuPy's versions have different checksums, and names before the cubin.
const MOST_OTHERS: usize = 4 << 10;
/// The most entries of the cache that are searched.
const MOST_KERNELS: usize = 1 << 17;
/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cubin_is_found_between_a_checksum_and_padding_of_any_kind() {
        let folder = tempfile::tempdir().expect("a folder");
        let cubin = |name: u8| [ELF, &[name; 16], &[0; 44]].concat();
        for (name, before, behind) in [(b'a', 40, 0), (b'b', 64, 8), (b'c', MOST_OTHERS, 1)] {
            let file = [vec![b'0'; before], cubin(name), vec![0; behind]].concat();
            std::fs::write(folder.path().join(char::from(name).to_string()), file).expect("a file");
        }
        let cut = [vec![b'0'; 40], cubin(b'd')].concat();
        std::fs::write(folder.path().join("d"), cut.split_last().expect("bytes").1)
            .expect("a file");
        let found = b"abcde".map(|name| has(folder.path(), Digest::of_cubin(&cubin(name))));
        assert_eq!(found, [true, true, false, true, false]);
        assert!(!has(&folder.path().join("none"), Digest::of_cubin(&cubin(b'a'))));
    }
}
