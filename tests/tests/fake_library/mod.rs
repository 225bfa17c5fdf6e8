//! Builds the libraries of `tests/fake-driver`, and others that are none.

use std::path::Path;
use std::process::Command;

/// Builds `source` of `tests/fake-driver` as `library` in `folder`, with the name `link` beside it.
pub(crate) fn build(folder: &Path, source: &str, library: &str, link: &str, switch: Option<&str>) {
    std::fs::create_dir_all(folder).expect("a folder for the library");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fake-driver").join(source);
    // Under another name first, since another run may be using the old one.
    let fresh = folder.join(format!("fresh-{}", std::process::id()));
    let output = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"])
        .args(switch)
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

/// Names under which the loader looks for the driver.
pub(crate) const DRIVER: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// Names under which it looks for NVRTC, before the folders of a toolkit.
pub(crate) const COMPILER: [&str; 4] =
    ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
