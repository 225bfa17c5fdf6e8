//! The folders in which Triton keeps compiled kernels.

use std::path::PathBuf;
use std::sync::OnceLock;

use crate::process::variable;

static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Notes the folders, before the program begins: programs change their environment.
pub(crate) fn begin() {
    let _ = FOLDERS.set(read(|name| variable(name).map(PathBuf::from)));
}

/// The folders whose entries are folders of one kernel each.
pub(crate) fn of_triton() -> Vec<PathBuf> {
    let known = FOLDERS.get().map(Vec::as_slice).unwrap_or_default();
    let of_devices = |folder: &PathBuf| {
        // `torch.compile` has a folder for each device.
        let entries = std::fs::read_dir(folder.join("triton")).ok()?;
        Some(entries.take(MOST_DEVICES).filter_map(|entry| Some(entry.ok()?.path())))
    };
    known.iter().cloned().chain(known.iter().filter_map(of_devices).flatten()).collect()
}

fn read(variable: impl Fn(&core::ffi::CStr) -> Option<PathBuf>) -> Vec<PathBuf> {
    let home = || variable(c"HOME");
    let triton = variable(c"TRITON_CACHE_DIR")
        .or_else(|| Some(variable(c"TRITON_HOME").or_else(home)?.join(".triton").join("cache")));
    let compiled = variable(c"TORCHINDUCTOR_CACHE_DIR").or_else(|| {
        let user = variable(c"LOGNAME").or_else(|| variable(c"USER")).unwrap_or("root".into());
        let folder = variable(c"TMPDIR").unwrap_or("/tmp".into());
        Some(folder.join(format!("torchinductor_{}", user.display())))
    });
    triton.into_iter().chain(compiled).collect()
}

/// More devices than a machine has.
const MOST_DEVICES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_of_triton_and_of_torch() {
        let read = |set: &[(&str, &str)]| {
            let folders = read(|name| {
                let found = set.iter().find(|(known, _)| name.to_str() == Ok(*known));
                found.map(|(_, value)| PathBuf::from(value))
            });
            folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>()
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
}
