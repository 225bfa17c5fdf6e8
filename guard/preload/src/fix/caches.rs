//! Finds machine code in the folders in which Triton and `torch.compile` keep compiled kernels. Each folder is indexed
//! when it has changed.
//!
//! Triton's folder of a kernel has the cubin and its PTX, with the options of their compilation.

use std::collections::HashMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use gridguard_files::read_trusted;
use serde_json::Value;

use crate::process::{self, variable};
use crate::watch::handle_record::{Digest, Reason};

static CACHES: OnceLock<Mutex<Caches>> = OnceLock::new();

struct Caches {
    /// The caches of Triton.
    triton: Vec<Cache>,
    /// The folder in which `torch.compile` has a cache of Triton for each device.
    torch: Option<PathBuf>,
}

/// Finds the folders before the program begins, because programs change their environment.
pub(crate) fn begin() {
    let _ = CACHES.set(Mutex::new(caches(|name| variable(name).map(PathBuf::from))));
}

fn caches(variable: impl Fn(&str) -> Option<PathBuf>) -> Caches {
    let home = || variable("HOME");
    let triton = variable("TRITON_CACHE_DIR")
        .or_else(|| Some(variable("TRITON_HOME").or_else(home)?.join(".triton").join("cache")));
    let compiled = variable("TORCHINDUCTOR_CACHE_DIR").or_else(|| {
        let user = variable("LOGNAME").or_else(|| variable("USER")).unwrap_or("root".into());
        let folder = variable("TMPDIR").unwrap_or("/tmp".into());
        Some(folder.join(format!("torchinductor_{}", user.display())))
    });
    let triton = triton.into_iter().chain(compiled.clone());
    Caches {
        triton: triton.map(Cache::new).collect(),
        torch: compiled.map(|folder| folder.join("triton")),
    }
}

/// A folder that has a folder for each kernel.
struct Cache {
    folder: PathBuf,
    /// When the folder was changed last before it was indexed; `None` if the index may lack a kernel.
    modified: Option<SystemTime>,
    /// The cubins by their size, each with its digest once it was read.
    cubins: HashMap<usize, Vec<(PathBuf, Option<Digest>)>>,
}

impl Cache {
    fn new(folder: PathBuf) -> Self {
        Self { folder, modified: None, cubins: HashMap::new() }
    }

    /// Indexes the folder, if it has changed since.
    fn refresh(&mut self) {
        let modified = self.folder.metadata().and_then(|known| known.modified()).ok();
        if modified.is_some() && modified == self.modified {
            return;
        }
        self.cubins.clear();
        let mut is_complete = modified.is_some_and(is_settled);
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        for entry in entries.take(MOST_KERNELS).flatten() {
            // Triton creates the folder of a kernel before its files.
            let written = entry.metadata().and_then(|known| known.modified());
            is_complete &= written.is_ok_and(is_settled);
            let files = std::fs::read_dir(entry.path()).into_iter().flatten().flatten();
            let paths = files.map(|file| file.path());
            for path in paths.filter(|path| path.extension().is_some_and(|is| is == "cubin")) {
                let file = path.symlink_metadata().ok().filter(|known| known.is_file());
                if let Some(bytes) = file.and_then(|known| usize::try_from(known.len()).ok()) {
                    self.cubins.entry(bytes).or_default().push((path, None));
                }
            }
        }
        self.modified = modified.filter(|_| is_complete);
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
            caches.triton.push(Cache::new(folder));
        }
    }
    caches.triton.iter_mut().find_map(|cache| in_triton(cache, name, cubin))
}

fn in_triton(cache: &mut Cache, name: &str, cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    cache.refresh();
    let name = format!("{name}.cubin");
    let files = cache.cubins.get_mut(&cubin.bytes)?.iter_mut();
    let mut files = files.filter(|(path, _)| path.file_name().is_some_and(|known| *known == *name));
    files.find_map(|(path, known)| {
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
            let text = read(&ptx)?;
            let written =
                |path: &Path| path.symlink_metadata().and_then(|known| known.modified()).ok();
            // Triton writes the PTX first.
            match written(&ptx) > written(path) {
                true => Err("the PTX in Triton's cache is newer than the machine code".into()),
                false => Ok(text),
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

/// More devices than a machine has.
const MOST_DEVICES: usize = 64;
/// The most entries of a cache that are searched.
const MOST_KERNELS: usize = 1 << 17;
/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_triton_and_of_torch() {
        let read = |set: &[(&str, &str)]| {
            let Caches { triton, .. } = caches(|name| {
                let found = set.iter().find(|(known, _)| name == *known);
                found.map(|(_, value)| PathBuf::from(value))
            });
            triton.into_iter().map(|cache| cache.folder.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(
            read(&[("HOME", "/home/a"), ("USER", "a")]),
            ["/home/a/.triton/cache", "/tmp/torchinductor_a"]
        );
        assert_eq!(
            read(&[("HOME", "/h"), ("TRITON_HOME", "/t"), ("TORCHINDUCTOR_CACHE_DIR", "/i")]),
            ["/t/.triton/cache", "/i"]
        );
        assert_eq!(
            read(&[("TRITON_CACHE_DIR", "/c"), ("TMPDIR", "/s")]),
            ["/c", "/s/torchinductor_root"]
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
        let mut cache = Cache::new(folder.path().into());
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
}
