//! The shared library exports the functions of the header, and nothing else.

use std::path::Path;
use std::process::Command;

use crate::build::{PACKAGE, library};

/// The functions of the interface. One that is removed from here breaks programs.
fn listed() -> Vec<String> {
    let path = Path::new(PACKAGE).join("tests/symbols.txt");
    std::fs::read_to_string(path).expect("the list").lines().map(str::to_owned).collect()
}

#[test]
fn the_library_exports_exactly_the_listed_functions() {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(library())
        .output()
        .expect("nm runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut exported: Vec<_> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    exported.sort_unstable();
    assert_eq!(exported, listed());
}

#[test]
fn the_header_declares_exactly_the_listed_functions() {
    let header = include_str!("../../include/gridguard.h");
    let mut declared: Vec<_> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#']))
        .filter_map(|line| {
            let before = line.split_once('(')?.0;
            before.rsplit([' ', '*']).next()
        })
        .filter(|name| name.starts_with("gg_"))
        .collect();
    declared.sort_unstable();
    assert_eq!(declared, listed());
}
