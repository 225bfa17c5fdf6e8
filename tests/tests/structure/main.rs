//! The structure of the workspace: dependencies between packages and between files point one way.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod graph;
mod modules;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use modules::Modules;
use serde::Deserialize;

/// The packages of the workspace that each library or program may depend on.
const ALLOWED: [(&str, &[&str]); 13] = [
    ("gridguard-data", &[]),
    ("gridguard-diagnose", &[]),
    ("gridguard-files", &[]),
    ("gridguard-ptx", &[]),
    ("gridguard", &["gridguard-data", "gridguard-diagnose", "gridguard-files", "gridguard-ptx"]),
    ("gridguard-report", &["gridguard", "gridguard-diagnose", "gridguard-files"]),
    ("gridguard-capi", &["gridguard", "gridguard-autotune"]),
    ("gridguard-preload", &["gridguard", "gridguard-files", "gridguard-report"]),
    ("gridguard-kernels", &["gridguard", "gridguard-files"]),
    ("gridguard-candle", &["gridguard", "gridguard-kernels"]),
    ("gridguard-autotune", &["gridguard", "gridguard-files"]),
    ("gridguard-fleet", &["gridguard", "gridguard-files"]),
    (
        "gridguard-cli",
        &[
            "gridguard",
            "gridguard-autotune",
            "gridguard-files",
            "gridguard-fleet",
            "gridguard-kernels",
            "gridguard-ptx",
            "gridguard-report",
        ],
    ),
];

#[derive(Deserialize)]
struct Workspace {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

#[test]
fn packages_depend_only_on_those_that_the_design_allows() {
    let allowed: BTreeMap<_, BTreeSet<_>> =
        ALLOWED.iter().map(|(name, others)| (*name, others.iter().copied().collect())).collect();
    let packages = published();
    let names: BTreeSet<_> = packages.iter().map(|package| package.name.as_str()).collect();
    assert_eq!(names, allowed.keys().copied().collect(), "published packages");
    for Package { name, dependencies, .. } in &packages {
        for dependency in dependencies {
            let own = dependency.path.is_some() && dependency.kind.is_none();
            let other = dependency.name.as_str();
            assert!(!own || allowed[name.as_str()].contains(other), "{name} depends on {other}");
        }
    }
}

#[test]
fn no_files_of_a_package_import_each_other_in_a_circle() {
    let mut found = Vec::new();
    let mut files = 0;
    for Package { name, targets, .. } in published() {
        for Target { src_path, kind } in targets {
            if kind.iter().any(|kind| ["lib", "bin", "cdylib"].contains(&kind.as_str())) {
                let modules = Modules::of_crate(&src_path);
                files += modules.len();
                let root = src_path.parent().expect("a folder");
                found.extend(
                    modules.cycles().iter().map(|cycle| describe(&name, root, &modules, cycle)),
                );
            }
        }
    }
    assert!(files > 100, "{files} files were read");
    assert!(found.is_empty(), "files that import each other:\n{}", found.join("\n"));
}

#[test]
fn a_circle_of_two_files_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("lib.rs", "mod one; mod two; mod three; pub use one::One;");
    write("one.rs", "use crate::two::Two; pub struct One(Two);");
    write("two.rs", "pub struct Two; impl Two { fn one(_: super::one::One) {} }");
    write(
        "three.rs",
        "#[cfg(test)] mod tests { use crate::One; } pub struct Three(crate::two::Two);",
    );
    let cycles = Modules::of_crate(&folder.path().join("lib.rs")).cycles();
    assert_eq!(cycles, [[folder.path().join("one.rs"), folder.path().join("two.rs")]]);
}

#[test]
fn a_module_that_imports_through_the_re_export_of_its_parent_is_in_a_circle() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("lib.rs", "mod one; mod two; pub use one::One;");
    write("one.rs", "pub struct One;");
    write("two.rs", "use crate::One; pub struct Two(One);");
    // The root re-exports from `one` alone, so that is no circle yet.
    let root = folder.path().join("lib.rs");
    assert!(Modules::of_crate(&root).cycles().is_empty());
    write("lib.rs", "mod one; mod two; pub use one::One; pub use two::Two;");
    let cycles = Modules::of_crate(&root).cycles();
    assert_eq!(cycles, [[folder.path().join("lib.rs"), folder.path().join("two.rs")]]);
}

/// The published packages of the workspace.
fn published() -> Vec<Package> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let workspace: Workspace = serde_json::from_slice(&output.stdout).expect("metadata");
    workspace.packages.into_iter().filter(|package| package.publish.is_none()).collect()
}

/// A cycle as lines: each of its references.
fn describe(package: &str, root: &Path, modules: &Modules, cycle: &[PathBuf]) -> String {
    let name = |file: &Path| file.strip_prefix(root).unwrap_or(file).display().to_string();
    let references = modules.references_within(cycle);
    let lines = references
        .iter()
        .map(|(from, to)| format!("{package}: {} refers to {}\n", name(from), name(to)));
    lines.collect()
}
