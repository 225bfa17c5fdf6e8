//! Kernels that Triton compiled, whose PTX is in its cache.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{LAUNCH, assert_refused};
use crate::fixes::{FIX, Loaded, QUIET, load};

const TOUCH: &[u8] = include_bytes!("../../images/triton/touch.cubin");
const TOUCH_PTX: &str = include_str!("../../images/triton/touch.ptx");
const TOUCH_OPTIONS: &str = include_str!("../../images/triton/touch.json");

/// A cache of Triton in `folder`.
fn cache(folder: &Path, ptx: &str, options: &str) -> PathBuf {
    for (entry, cubin) in [("OTHER", &TOUCH[1..]), ("KERNEL", TOUCH)] {
        let entry = folder.join("cache").join(entry);
        fs::create_dir_all(&entry).unwrap();
        fs::write(entry.join("touch.ptx"), ptx).unwrap();
        fs::write(entry.join("touch.cubin"), cubin).unwrap();
        fs::write(entry.join("touch.json"), options).unwrap();
    }
    folder.join("cache")
}

fn load_touch(variable: &str, cache: &Path) -> Loaded {
    let options = [FIX, QUIET].map(|(name, value)| (name, PathBuf::from(value)));
    let options = [&options[..], &[(variable, cache.to_owned())]].concat();
    load(TOUCH, "dlsym", &format!("load=freed name=touch {LAUNCH}"), &options)
}

#[test]
fn a_kernel_of_triton_is_repaired_by_the_ptx_in_its_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path(), TOUCH_PTX, TOUCH_OPTIONS);
    let loaded = load_touch("TRITON_CACHE_DIR", &cache);
    assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
    let launched = |loaded: &Loaded| loaded.log.matches("launch touch__gridguard_folded ").count();
    assert_eq!(launched(&loaded), 1);
    // The folder of `torch.compile` has one for each device.
    let compiled = folder.path().join("torchinductor_user").join("triton");
    fs::create_dir_all(&compiled).unwrap();
    fs::rename(&cache, compiled.join("0")).unwrap();
    let loaded = load_touch("TORCHINDUCTOR_CACHE_DIR", compiled.parent().unwrap());
    assert_eq!(launched(&loaded), 1, "{}", loaded.ran.err);
}

#[test]
fn a_cache_of_triton_that_does_not_fit_is_refused_with_the_reason() {
    let refused = |ptx: &str, options: &str, mode: u32, reason: &str| {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(folder.path(), ptx, options);
        fs::set_permissions(cache.join("KERNEL"), fs::Permissions::from_mode(mode)).unwrap();
        assert_refused(&load_touch("TRITON_CACHE_DIR", &cache), reason);
    };
    let other = TOUCH_PTX.replace(".param .u32 touch", ".param .u64 touch");
    refused(
        &other,
        TOUCH_OPTIONS,
        0o755,
        "the parameters of its PTX are others: it is of another build",
    );
    let fewer = TOUCH_PTX.replace(",\n\t.param .u64 .ptr .global .align 1 touch_param_3", "");
    refused(
        &fewer,
        TOUCH_OPTIONS,
        0o755,
        "the parameters of its PTX are others: it is of another build",
    );
    let named = TOUCH_PTX.replace("touch(", "another(");
    refused(&named, TOUCH_OPTIONS, 0o755, "its PTX has no entry of its name");
    refused("", TOUCH_OPTIONS, 0o755, "its PTX cannot be read: ");
    let plain = TOUCH_OPTIONS.replace("true", "false");
    refused(TOUCH_PTX, &plain, 0o755, "Triton compiled it without fused multiplications");
    refused(TOUCH_PTX, TOUCH_OPTIONS, 0o777, "Triton's cache is not used: ");
    let missing =
        "its module is machine code, whose PTX is neither in Triton's caches nor was compiled";
    let folder = tempfile::tempdir().unwrap();
    assert_refused(&load_touch("TRITON_CACHE_DIR", folder.path()), missing);
}

#[test]
fn links_pipes_and_devices_in_a_cache_are_neither_read_nor_waited_for() {
    let missing = "its module is machine code, whose PTX is neither in Triton's caches nor";
    for (name, reason) in [
        ("touch.cubin", missing),
        ("touch.json", "Triton's cache is not used: "),
        ("touch.ptx", "Triton's cache is not used: "),
    ] {
        for kind in ["link", "device", "pipe"] {
            let folder = tempfile::tempdir().unwrap();
            let cache = cache(folder.path(), TOUCH_PTX, TOUCH_OPTIONS);
            for kernel in fs::read_dir(&cache).unwrap() {
                let (path, moved) = (kernel.unwrap().path().join(name), folder.path().join(name));
                fs::rename(&path, &moved).unwrap();
                match kind {
                    "link" => symlink(&moved, &path).unwrap(),
                    "device" => symlink("/dev/zero", &path).unwrap(),
                    _ => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
                }
            }
            assert_refused(&load_touch("TRITON_CACHE_DIR", &cache), reason);
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("touch.cubin");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    symlink("/dev/zero", folder.path().join("a")).unwrap();
    for cache in [folder.path(), &pipe, Path::new("/dev/zero"), Path::new("/nowhere")] {
        for variable in ["TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"] {
            assert_refused(&load_touch(variable, cache), missing);
        }
    }
}
