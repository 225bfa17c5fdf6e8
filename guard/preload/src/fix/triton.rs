//! Finds the PTX of a cubin in Triton's caches, where the folder of a kernel has both, with the options of their
//! compilation.

use std::ffi::CStr;
use std::path::Path;

use gridguard_files::read_trusted;
use serde_json::Value;

use crate::process::caches;
use crate::watch::handle_record::{Digest, Reason};

/// The PTX beside a cubin with this digest. `None` if no cache has the cubin.
pub(super) fn find(name: &CStr, cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
    let name = name.to_str().ok().filter(|name| !name.contains('/'))?;
    caches::of_triton().iter().find_map(|cache| in_cache(cache, name, cubin))
}

fn in_cache(cache: &Path, name: &str, cubin: Digest) -> Option<Result<Vec<u8>, Reason>> {
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

/// The most entries of a cache that are searched.
const MOST_KERNELS: usize = 1 << 17;
/// The largest file that is read.
const MOST_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

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
        let find = |cubin: &[u8]| in_cache(folder.path(), "k", Digest::of_cubin(cubin));
        assert_eq!(find(b"code"), Some(Ok(b"text".to_vec())));
        assert_eq!((find(b"cod"), find(b"node")), (None, None));
        std::fs::set_permissions(&kernel, std::fs::Permissions::from_mode(0o777))
            .expect("its mode");
        let refused = find(b"code").expect("found").expect_err("others may write there");
        assert!(refused.starts_with("Triton's cache is not used: "), "{refused}");
    }
}
