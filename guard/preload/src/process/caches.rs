//! The folders in which Triton and CuPy keep compiled kernels.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::process::variable;

static FOLDERS: OnceLock<Folders> = OnceLock::new();

struct Folders {
    /// The caches of Triton and `torch.compile`.
    triton: Vec<PathBuf>,
    cupy: Option<PathBuf>,
}

/// Finds the folders before the program begins, because programs change their environment.
pub(crate) fn begin() {
    let _ = FOLDERS.set(read(|name| variable(name).map(PathBuf::from)));
}

/// The folders whose entries are folders of one kernel each.
pub(crate) fn of_triton() -> Vec<PathBuf> {
    let known = FOLDERS.get().map(|known| known.triton.as_slice()).unwrap_or_default();
    let of_devices = |folder: &PathBuf| {
        // `torch.compile` has a folder for each device.
        let entries = std::fs::read_dir(folder.join("triton")).ok()?;
        Some(entries.take(MOST_DEVICES).filter_map(|entry| Some(entry.ok()?.path())))
    };
    known.iter().cloned().chain(known.iter().filter_map(of_devices).flatten()).collect()
}

/// The folder of CuPy.
pub(crate) fn of_cupy() -> Option<&'static Path> {
    FOLDERS.get()?.cupy.as_deref()
}

fn read(variable: impl Fn(&core::ffi::CStr) -> Option<PathBuf>) -> Folders {
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

/// More devices than a machine has.
const MOST_DEVICES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_triton_of_torch_and_of_cupy() {
        let read = |set: &[(&str, &str)]| {
            let Folders { triton, cupy } = read(|name| {
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
}
