//! The examples in C and C++.

use std::path::Path;
use std::process::Command;

use crate::build::{PACKAGE, Program, library};

#[test]
fn the_c_example_prints_its_readme() {
    let program = Program::linked("gcc", &["-std=c99"], "../../../examples/c/plan.c", &[library()]);
    let readme = include_str!("../../../../examples/c/README.md");
    let printed = program.run(&["h200", "76800", "128", "15360"], &[]);
    assert!(printed.lines().count() == 3 && readme.contains(&printed), "{printed}");
}

/// Set to the compiler, with options such as the folder of its headers.
const NVCC: &str = "NVCC";

#[test]
#[ignore = "needs nvcc"]
fn the_cpp_example_compiles() {
    let nvcc = std::env::var(NVCC).unwrap_or_else(|_| "nvcc".into());
    let mut words = nvcc.split(' ');
    let package = Path::new(PACKAGE);
    let folder = tempfile::tempdir().expect("a folder");
    let status = Command::new(words.next().expect("a compiler"))
        .args(words)
        .args(["-std=c++17", "-arch=sm_90", "-Werror=all-warnings", "-I"])
        .arg(package.join("include"))
        .arg(package.join("../../examples/cpp/server.cu"))
        .arg(library())
        .arg("-o")
        .arg(folder.path().join("server"))
        .status()
        .expect("nvcc runs");
    assert!(status.success(), "{status}");
}
