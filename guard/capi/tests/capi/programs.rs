//! C programs against the library, in C and in C++, with sanitizers, and linked statically.

use std::num::NonZeroU64;
use std::path::PathBuf;

use gridguard::catalog;
use gridguard::profile::{DeviceIdentity, Document, Entry, Environment, Key, StoredChoice};

use crate::build::{Program, archive, library};

/// The programs that need no CUDA driver.
const PROGRAMS: [&str; 2] = ["c/planning.c", "c/misuse.c"];

/// Builds and runs each program.
fn use_the_library(compiler: &str, options: &[&str], library: &PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("profile.ron");
    std::fs::write(&profile, profile_of_one_entry()).expect("it is written");
    let profile = profile.to_str().expect("UTF-8");
    for source in PROGRAMS {
        let program = Program::linked(compiler, options, source, std::slice::from_ref(library));
        program.run(&[], &[("PROFILE", profile)]);
    }
}

fn profile_of_one_entry() -> String {
    let device = DeviceIdentity::new(&catalog::gpu("h200").expect("catalogued").limits);
    let mut document = Document::new(device, Environment::default());
    let max_items = NonZeroU64::new(4096).expect("not zero");
    document
        .insert(Entry {
            key: Key { kernel: "attention".into(), dtypes: "f16".into(), ..Key::default() },
            shape: vec![("items".into(), 15_360), ("heads".into(), 5)],
            choice: StoredChoice::Chunked { max_items },
            parameters: vec![("warps".into(), 4)],
            launches: 4,
            ..Entry::default()
        })
        .expect("valid");
    document.to_string()
}

#[test]
fn programs_in_c99_use_the_library() {
    use_the_library("gcc", &["-std=c99"], &library());
}

#[test]
fn programs_with_sanitizers_find_no_defect() {
    let options = ["-std=c99", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    use_the_library("gcc", &options, &library());
}

#[test]
fn programs_link_the_static_library() {
    use_the_library("gcc", &["-std=c99"], &archive());
}

#[test]
fn the_same_programs_are_cpp() {
    for standard in ["-std=c++11", "-std=c++17"] {
        use_the_library("g++", &["-x", "c++", standard], &library());
    }
}

/// The first block of the README in this language after `heading`.
fn block_of_the_readme(heading: &str, language: &str) -> &'static str {
    let text = include_str!("../../README.md").split_once(heading).expect("a heading").1;
    let block = text.split_once(&format!("```{language}\n")).expect("a block").1;
    block.split_once("```").expect("its end").0
}

#[test]
fn the_functions_of_the_readme_compile() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("functions.c");
    std::fs::write(&source, block_of_the_readme("\n## Launch\n", "c")).expect("it is written");
    let source = source.to_str().expect("UTF-8");
    Program::linked("gcc", &["-std=c99", "-shared", "-fPIC"], source, &[library()]);
}

#[test]
fn the_program_of_the_readme_prints_what_the_readme_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("readme.c");
    std::fs::write(&source, block_of_the_readme("", "c")).expect("it is written");
    let source = source.to_str().expect("UTF-8");
    let program = Program::linked("gcc", &["-std=c99"], source, &[library()]);
    assert_eq!(program.run(&[], &[]), block_of_the_readme("", "text"));
}
