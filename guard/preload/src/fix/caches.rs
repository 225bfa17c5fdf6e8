//! Finds machine code in the folders in which Triton, `torch.compile` and CuPy keep compiled kernels. Each folder is indexed
//! once; later only its new entries are.
//!
//! Triton's folder of a kernel has the cubin and its PTX, with the options of their compilation.
//!
//! A file of CuPy has a checksum and the cubin without its last byte, a zero that CuPy takes for the end of a text; in
//! memory the cubin has this byte again. The source is beside the file only with `CUPY_CACHE_SAVE_CUDA_SOURCE`, and without
//! the compiler's options, so it cannot be compiled again.

use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use gridguard_files::read_trusted;
use serde_json::Value;

use crate::fix::image::ELF;
use crate::process::{self, variable};
use crate::watch::handle_record::{Digest, Reason};

static CACHES: OnceLock<Mutex<Caches>> = OnceLock::new();

struct Caches {
    /// The caches of Triton.
    triton: Vec<Cache>,
    /// The folder in which `torch.compile` has a cache of Triton for each device.
    torch: Option<PathBuf>,
    cupy: Option<Cache>,
}

/// Finds the folders before the program begins, because programs change their environment.
pub(crate) fn begin() {
    let _ = CACHES.set(Mutex::new(caches(|name| variable(name).map(PathBuf::from))));
}

fn caches(variable: impl Fn(&CStr) -> Option<PathBuf>) -> Caches {
    let home = || variable(c"HOME");
    let triton = variable(c"TRITON_CACHE_DIR")
        .or_else(|| Some(variable(c"TRITON_HOME").or_else(home)?.join(".triton").join("cache")));
    let compiled = variable(c"TORCHINDUCTOR_CACHE_DIR").or_else(|| {
        let user = variable(c"LOGNAME").or_else(|| variable(c"USER")).unwrap_or("root".into());
        let folder = variable(c"TMPDIR").unwrap_or("/tmp".into());
        Some(folder.join(format!("torchinductor_{}", user.display())))
    });
    let cupy = variable(c"CUPY_CACHE_DIR").or_else(|| Some(home()?.join(".cupy/kernel_cache")));
    let triton = triton.into_iter().chain(compiled.clone());
    Caches {
        triton: triton.map(|folder| Cache::new(folder, true)).collect(),
        torch: compiled.map(|folder| folder.join("triton")),
        cupy: cupy.map(|folder| Cache::new(folder, false)),
    }
}

/// A folder with machine code, or with a folder for each kernel.
struct Cache {
    folder: PathBuf,
    has_folders: bool,
    /// Entries that are indexed, and when the folder was changed last before that.
    known: HashSet<OsString>,
    modified: Option<SystemTime>,
    files: BTreeMap<usize, Vec<CachedFile>>,
}

/// A file of a cache, with the digest of its cubin once it was read.
struct CachedFile {
    path: PathBuf,
    cubin: Option<Digest>,
}

impl Cache {
    fn new(folder: PathBuf, has_folders: bool) -> Self {
        let (known, files) = (HashSet::new(), BTreeMap::new());
        Self { folder, has_folders, known, modified: None, files }
    }

    /// Indexes new entries.
    fn refresh(&mut self) {
        let modified = self.folder.metadata().and_then(|known| known.modified()).ok();
        if modified.is_some() && modified == self.modified {
            return;
        }
        let mut is_complete = modified.is_some_and(is_settled);
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        for entry in entries.take(MOST_KERNELS).flatten() {
            let name = entry.file_name();
            if self.known.contains(&name) {
                continue;
            }
            let path = entry.path();
            let is_found = match self.has_folders {
                false => self.add(path),
                true => {
                    let files = std::fs::read_dir(&path).into_iter().flatten().flatten();
                    let cubins = files.map(|file| file.path());
                    let cubins =
                        cubins.filter(|path| path.extension().is_some_and(|is| is == "cubin"));
                    cubins.fold(false, |found, cubin| self.add(cubin) || found)
                }
            };
            // Triton creates the folder of a kernel before its files.
            let written = entry.metadata().and_then(|known| known.modified());
            if is_found || written.is_ok_and(is_settled) {
                self.known.insert(name);
            } else {
                is_complete = false;
            }
        }
        self.modified = modified.filter(|_| is_complete);
    }

    fn add(&mut self, path: PathBuf) -> bool {
        let file = path.symlink_metadata().ok().filter(|known| known.is_file());
        let bytes = file.and_then(|known| usize::try_from(known.len()).ok());
        bytes
            .inspect(|bytes| {
                self.files.entry(*bytes).or_default().push(CachedFile { path, cubin: None })
            })
            .is_some()
    }
}

/// Whether this time is long past: what is written now gets another one.
fn is_settled(time: SystemTime) -> bool {
    time.elapsed().is_ok_and(|since| since > Duration::from_secs(2))
}

/// The PTX beside a cubin with this digest. `None` if no cache has the cubin.
pub(super) fn ptx_of_triton(name: &CStr, cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    let name = name.to_str().ok().filter(|name| !name.contains('/'))?;
    let mut caches = process::patiently(CACHES.get()?)?;
    // `torch.compile` may have begun to use another device.
    let devices = caches.torch.iter().filter_map(|torch| std::fs::read_dir(torch).ok());
    let devices: Vec<_> = devices.flatten().take(MOST_DEVICES).flatten().collect();
    for folder in devices.into_iter().map(|device| device.path()) {
        if caches.triton.iter().all(|known| known.folder != folder) {
            caches.triton.push(Cache::new(folder, true));
        }
    }
    caches.triton.iter_mut().find_map(|cache| in_triton(cache, name, cubin))
}

fn in_triton(cache: &mut Cache, name: &str, cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    cache.refresh();
    let name = format!("{name}.cubin");
    let files = cache.files.get_mut(&cubin.bytes)?.iter_mut();
    let mut files = files.filter(|file| file.path.file_name().is_some_and(|known| *known == *name));
    files.find_map(|CachedFile { path, cubin: known }| {
        let read = |path: &Path| {
            let untrusted = |error| Reason::from(format!("Triton's cache is not used: {error}"));
            let missing = || Reason::from(format!("Triton's cache has no {}", path.display()));
            read_trusted(path, MOST_BYTES).map_err(untrusted)?.ok_or_else(missing)
        };
        if known.is_none() {
            match read(path) {
                Ok(found) => *known = Some(Digest::of_cubin(&found)),
                Err(reason) => return Some(Err(reason)),
            }
        }
        let ptx = || {
            compiled_plainly(&read(&path.with_extension("json"))?)?;
            let ptx = path.with_extension("ptx");
            let written =
                |path: &Path| path.symlink_metadata().and_then(|known| known.modified()).ok();
            // Triton writes the PTX first.
            match written(&ptx) > written(path) {
                true => Err("the PTX in Triton's cache is newer than the machine code".into()),
                false => read(&ptx),
            }
        };
        (*known == Some(cubin)).then(ptx)
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
    let caches = CACHES.get().and_then(process::patiently);
    caches.is_some_and(|mut caches| caches.cupy.as_mut().is_some_and(|cache| in_cupy(cache, cubin)))
}

fn in_cupy(cache: &mut Cache, cubin: Digest) -> bool {
    cache.refresh();
    let files = cache.files.range_mut(cubin.bytes..=cubin.bytes.saturating_add(MOST_OTHERS));
    files.flat_map(|(_, files)| files).any(|CachedFile { path, cubin: known }| {
        if known.is_none() {
            let file = gridguard_files::read(path, MOST_BYTES).ok().flatten().unwrap_or_default();
            let begin = file.windows(ELF.len()).take(MOST_OTHERS).position(|at| at == ELF);
            let code = begin.and_then(|begin| file.get(begin..)).unwrap_or_default();
            *known = Some(Digest::of_cubin(&[code, &[0]].concat()));
        }
        *known == Some(cubin)
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
            let Caches { triton, cupy, .. } = caches(|name| {
                let found = set.iter().find(|(known, _)| name.to_str() == Ok(*known));
                found.map(|(_, value)| PathBuf::from(value))
            });
            let folders = triton.into_iter().chain(cupy);
            folders.map(|cache| cache.folder.display().to_string()).collect::<Vec<_>>()
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
        let files = [("ptx", &b"text"[..]), ("cubin", b"code"), ("json", b"{}")];
        for (ending, bytes) in files {
            std::fs::write(kernel.join(format!("k.{ending}")), bytes).expect("a file");
        }
        let mut cache = Cache::new(folder.path().into(), true);
        let mut find = |cubin: &[u8]| in_triton(&mut cache, "k", Digest::of_cubin(cubin));
        assert_eq!(find(b"code"), Some(Ok(b"text".to_vec())));
        assert_eq!((find(b"cod"), find(b"node")), (None, None));
        std::fs::set_permissions(&kernel, std::fs::Permissions::from_mode(0o777))
            .expect("its mode");
        let refused = find(b"code").expect("found").expect_err("others may write there");
        assert!(refused.starts_with("Triton's cache is not used: "), "{refused}");
        // The index grows, and the PTX may be edited.
        let other = folder.path().join("OTHER");
        std::fs::create_dir(&other).expect("a folder");
        assert_eq!(find(b"later"), None);
        std::thread::sleep(Duration::from_millis(20));
        for (ending, bytes) in [("cubin", &b"later"[..]), ("json", b"{}"), ("ptx", b"text")] {
            std::thread::sleep(Duration::from_millis(20));
            std::fs::write(other.join(format!("k.{ending}")), bytes).expect("a file");
        }
        let refused = find(b"later").expect("found").expect_err("edited");
        assert_eq!(refused, "the PTX in Triton's cache is newer than the machine code");
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
        let mut cache = Cache::new(folder.path().into(), false);
        let found = b"abcde".map(|name| in_cupy(&mut cache, Digest::of_cubin(&cubin(name))));
        assert_eq!(found, [true, true, false, true, false]);
        let mut none = Cache::new(folder.path().join("none"), false);
        assert!(!in_cupy(&mut none, Digest::of_cubin(&cubin(b'a'))));
    }
}
