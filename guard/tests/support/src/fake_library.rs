//! Builds the fake driver and the fake NVRTC from their C sources.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the C sources.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fake-driver");

/// Builds `source` of the fake driver as `library` in `folder`, with a symbolic link `link` to it.
/// `define` is a further argument of the compiler.
///
/// # Panics
///
/// If gcc is missing or fails.
pub fn build(folder: &Path, source: &str, library: &str, link: &str, define: Option<&str>) {
    std::fs::create_dir_all(folder).expect("a folder for the library");
    let source = self::source(source);
    // Built under another name and moved, since another run may be using the old file.
    let fresh = folder.join(format!("fresh-{}", std::process::id()));
    let output = Command::new("gcc")
        // Bound to itself, as NVIDIA's: a library that is preloaded does not change what it calls.
        .args(["-shared", "-fPIC", "-Wl,-Bsymbolic", "-O2", "-Wall", "-Wextra", "-Werror"])
        .args(define)
        .arg("-o")
        .args([&fresh, &source])
        .arg("-lpthread")
        .output()
        .expect("gcc builds the library");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "gcc failed:\n{errors}");
    std::fs::rename(&fresh, folder.join(library)).expect("the library takes its place");
    let other = folder.join(format!("link-{}", std::process::id()));
    std::os::unix::fs::symlink(library, &other).expect("a link");
    std::fs::rename(&other, folder.join(link)).expect("the link takes its place");
}

/// The path of a C source.
#[must_use]
pub fn source(name: &str) -> PathBuf {
    Path::new(SOURCES).join(name)
}

/// File names of the driver that loaders try.
pub const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// File names of NVRTC that the guard tries before the folders of a toolkit.
pub const COMPILER: [&str; 4] =
    ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
