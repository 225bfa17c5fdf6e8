//! The structure of the workspace: packages depend on the layers above them, and the files of a package do not import
//! each other in a circle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod modules;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use modules::Modules;
use serde::Deserialize;

/// The packages for users, in layers. A package depends only on packages of the layers before its own.
const LAYERS: [&[&str]; 14] = [
    &["gridguard-data"],
    &["gridguard-files"],
    &["gridguard-ptx"],
    &["gridguard-index"],
    &["gridguard-diagnose"],
    &["gridguard"],
    &["gridguard-pipeline"],
    &["gridguard-kernels"],
    &["gridguard-autotune"],
    &["gridguard-problems"],
    &["gridguard-fleet"],
    &["gridguard-report"],
    &["gridguard-preload", "gridguard-capi", "gridguard-candle", "gridguard-python"],
    &["gridguard-cli"],
];

#[derive(Deserialize)]
struct Workspace {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    /// The registries to publish to: none, or any.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// `dev` or `build`.
    kind: Option<String>,
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[test]
fn packages_depend_only_on_the_layers_above_them() {
    for Package { name, publish, dependencies, .. } in packages() {
        assert!(publish.is_some() || layer(&name).is_some(), "{name} has no layer");
        // Examples and tests are below all layers.
        let Some(own) = layer(&name) else { continue };
        let used = dependencies.iter().filter(|one| one.path.is_some() && one.kind.is_none());
        for other in used.map(|one| &*one.name) {
            let is_above = layer(other).is_some_and(|other| other < own);
            assert!(is_above, "{name} depends on {other}, which is not above it");
        }
    }
}

#[test]
fn the_files_of_a_package_do_not_import_each_other_in_a_circle() {
    let mut circles = Vec::new();
    let mut files = 0;
    let packages = packages().into_iter().filter(|package| layer(&package.name).is_some());
    for Target { src_path, kind } in packages.flat_map(|package| package.targets) {
        if kind.iter().any(|kind| ["lib", "bin", "cdylib"].contains(&kind.as_str())) {
            let modules = Modules::of_crate(&src_path);
            files += modules.len();
            circles.extend(modules.circles());
        }
    }
    assert!(files > 100, "{files} files were read");
    assert!(circles.is_empty(), "files that import each other: {circles:#?}");
}

#[test]
fn a_circle_is_found_through_paths_and_through_the_re_export_of_a_parent() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let circles = |files: &[(&str, &str)]| {
        files.iter().for_each(|(name, text)| std::fs::write(path(name), text).unwrap());
        Modules::of_crate(&path("lib.rs")).circles()
    };
    let found = circles(&[
        ("lib.rs", "mod one; mod two; mod three; pub use one::One;"),
        ("one.rs", "use crate::two::Two; pub struct One(Two);"),
        ("two.rs", "pub struct Two; impl Two { fn one(_: super::one::One) {} }"),
        ("three.rs", "#[cfg(test)] mod tests { use crate::One; } struct Three(crate::two::Two);"),
    ]);
    assert_eq!(found, BTreeSet::from([vec![path("one.rs"), path("two.rs")]]));
    let one = ("one.rs", "pub struct One;");
    let two = ("two.rs", "use crate::One; pub struct Two(One);");
    // The root re-exports `One` alone, so there is no circle yet.
    assert!(circles(&[one, two, ("lib.rs", "mod one; mod two; pub use one::One;")]).is_empty());
    let found = circles(&[("lib.rs", "mod one; mod two; pub use {one::One, two::Two};")]);
    assert_eq!(found, BTreeSet::from([vec![path("lib.rs"), path("two.rs")]]));
}

/// The layer of a package for users.
fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

/// The packages of the workspace, and the operators for candle, which are a workspace of their own.
fn packages() -> Vec<Package> {
    let of = |manifest: &str| {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
            .args(["--manifest-path", manifest])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Workspace>(&output.stdout).expect("metadata").packages
    };
    [of("../Cargo.toml"), of("../kernels/candle/Cargo.toml")].into_iter().flatten().collect()
}
