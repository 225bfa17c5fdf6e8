//! Finds machine code in the folders in which Triton, `torch.compile` and CuPy keep compiled kernels.
//!
//! Triton's folder of a kernel has the cubin and its PTX, with the options of their compilation.
//!
//! A file of CuPy has a checksum and the cubin without its last byte, a zero that CuPy takes for the end of a text; in
//! memory the cubin has this byte again. The source is beside the file only with `CUPY_CACHE_SAVE_CUDA_SOURCE`, and without
//! the compiler's options, so it cannot be compiled again.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gridguard_files::read_trusted;
use serde_json::Value;

use crate::fix::image::ELF;
use crate::process::variable;
use crate::watch::handle_record::{Digest, Reason};

static FOLDERS: OnceLock<Folders> = OnceLock::new();

struct Folders {
    /// The caches of Triton and `torch.compile`.
    triton: Vec<PathBuf>,
    cupy: Option<PathBuf>,
}

/// Finds the folders before the program begins, because programs change their environment.
pub(crate) fn begin() {
    let _ = FOLDERS.set(folders(|name| variable(name).map(PathBuf::from)));
}

/// The folders whose entries are folders of one kernel of Triton each.
fn of_triton() -> Vec<PathBuf> {
    let known = FOLDERS.get().map(|known| known.triton.as_slice()).unwrap_or_default();
    let of_devices = |folder: &PathBuf| {
        // `torch.compile` has a folder for each device.
        let entries = std::fs::read_dir(folder.join("triton")).ok()?;
        Some(entries.take(MOST_DEVICES).filter_map(|entry| Some(entry.ok()?.path())))
    };
    known.iter().cloned().chain(known.iter().filter_map(of_devices).flatten()).collect()
}

fn folders(variable: impl Fn(&CStr) -> Option<PathBuf>) -> Folders {
    let home = || variable(c"HOME");
    let triton = variable(c"TRITON_CACHE_DIR")
        .or_else(|| Some(variable(c"TRITON_HOME").or_else(home)?.join(".triton").join("cache")));
    let compiled = variable(c"TORCHINDUCTOR_CACHE_DIR").or_else(|| {
        let user = variable(c"LOGNAME").or_else(|| variable(c"USER")).unwrap_or("root".into());
        let folder = variable(c"TMPDIR").unwrap_or("/tmp".into());
        Some(folder.join(format!("torchinductor_{}", user.display())))
    });
    let cupy = variable(c"CUPY_CACHE_DIR").or_else(|| Some(home()?.join(".cupy/kernel_cache")));
    Folders { triton: triton.into_iter().chain(compiled).collect(), cupy }
}

/// The PTX beside a cubin with this digest. `None` if no cache has the cubin.
pub(super) fn ptx_of_triton(name: &CStr, cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    let name = name.to_str().ok().filter(|name| !name.contains('/'))?;
    of_triton().iter().find_map(|cache| in_triton(cache, name, cubin))
}

fn in_triton(cache: &Path, name: &str, cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    let entries = std::fs::read_dir(cache).ok()?.take(MOST_KERNELS).flatten();
    entries.into_iter().find_map(|entry| {
        let file = |ending: &str| entry.path().join(format!("{name}.{ending}"));
        let path = file("cubin");
        let bytes = path.symlink_metadata().ok().filter(|known| known.is_file())?.len();
        if usize::try_from(bytes) != Ok(cubin.bytes) {
            return None;
        }
        let read = |path: &Path| {
            let untrusted = |error| Reason::from(format!("Triton's cache is not used: {error}"));
            let missing = || Reason::from(format!("Triton's cache has no {}", path.display()));
            read_trusted(path, MOST_BYTES).map_err(untrusted)?.ok_or_else(missing)
        };
        let found = match read(&path) {
            Ok(found) if Digest::of_cubin(&found) != cubin => return None,
            found => found,
        };
        Some(found.and_then(|_| {
            compiled_plainly(&read(&file("json"))?)?;
            read(&file("ptx"))
        }))
    })
}

/// Whether the driver compiles the PTX as Triton did.
fn compiled_plainly(options: &[u8]) -> Result<(), Reason> {
    let options: Value = serde_json::from_slice(options)
        .map_err(|error| format!("Triton's options of the kernel cannot be read: {error}"))?;
    let option = |name: &str| options.get(name).unwrap_or(&Value::Null);
    if option("enable_fp_fusion") == &Value::Bool(false) {
        return Err("Triton compiled it without fused multiplications and additions, which the driver cannot".into());
    }
    match option("ptx_options") {
        Value::Null => Ok(()),
        Value::String(none) if none.is_empty() => Ok(()),
        other => Err(format!("Triton compiled it with options of its own: {other}").into()),
    }
}

/// Whether CuPy took a cubin from its cache.
pub(super) fn is_of_cupy(cubin: Digest) -> bool {
    let cache = FOLDERS.get().and_then(|folders| folders.cupy.as_deref());
    cache.is_some_and(|cache| in_cupy(cache, cubin))
}

fn in_cupy(cache: &Path, cubin: Digest) -> bool {
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

/// More devices than a machine has.
const MOST_DEVICES: usize = 64;
/// The most entries of a cache that are searched.
const MOST_KERNELS: usize = 1 << 17;
/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;
/// Bytes of a file before and behind the cubin. CuPy's versions have different checksums, and names before the cubin.
const MOST_OTHERS: usize = 4 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_triton_of_torch_and_of_cupy() {
        let read = |set: &[(&str, &str)]| {
            let Folders { triton, cupy } = folders(|name| {
                let found = set.iter().find(|(known, _)| name.to_str() == Ok(*known));
                found.map(|(_, value)| PathBuf::from(value))
            });
            let folders = triton.into_iter().chain(cupy);
            folders.map(|folder| folder.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            read(&[("HOME", "/home/a"), ("USER", "a")]),
            ["/home/a/.triton/cache", "/tmp/torchinductor_a", "/home/a/.cupy/kernel_cache"]
        );
        assert_eq!(
            read(&[("HOME", "/h"), ("TRITON_HOME", "/t"), ("TORCHINDUCTOR_CACHE_DIR", "/i")]),
            ["/t/.triton/cache", "/i", "/h/.cupy/kernel_cache"]
        );
        assert_eq!(
            read(&[("TRITON_CACHE_DIR", "/c"), ("TMPDIR", "/s"), ("CUPY_CACHE_DIR", "/p")]),
            ["/c", "/s/torchinductor_root", "/p"]
        );
    }

    #[test]
    fn a_kernel_that_was_compiled_otherwise_is_refused() {
        let refused =
            |options: &str| compiled_plainly(options.as_bytes()).map_err(|why| why.into_owned());
        assert_eq!(refused(r#"{"enable_fp_fusion": true, "ptx_options": null}"#), Ok(()));
        assert_eq!(refused("{}"), Ok(()));
        for (options, why) in [
            (r#"{"enable_fp_fusion": false}"#, "Triton compiled it without fused"),
            (r#"{"ptx_options": "--opt-level 0"}"#, "Triton compiled it with options of its own"),
            ("", "Triton's options of the kernel cannot be read"),
        ] {
            assert!(refused(options).unwrap_err().starts_with(why), "{options}");
        }
    }

    #[test]
    fn a_cache_of_another_user_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let kernel = folder.path().join("HASH");
        std::fs::create_dir(&kernel).expect("a folder");
        let files = [("cubin", &b"code"[..]), ("ptx", b"text"), ("json", b"{}")];
        for (ending, bytes) in files {
            std::fs::write(kernel.join(format!("k.{ending}")), bytes).expect("a file");
        }
        let find = |cubin: &[u8]| in_triton(folder.path(), "k", Digest::of_cubin(cubin));
        assert_eq!(find(b"code"), Some(Ok(b"text".to_vec())));
        assert_eq!((find(b"cod"), find(b"node")), (None, None));
        std::fs::set_permissions(&kernel, std::fs::Permissions::from_mode(0o777))
            .expect("its mode");
        let refused = find(b"code").expect("found").expect_err("others may write there");
        assert!(refused.starts_with("Triton's cache is not used: "), "{refused}");
    }

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
        let found = b"abcde".map(|name| in_cupy(folder.path(), Digest::of_cubin(&cubin(name))));
        assert_eq!(found, [true, true, false, true, false]);
        assert!(!in_cupy(&folder.path().join("none"), Digest::of_cubin(&cubin(b'a'))));
    }
}
