//! Programs without CUDA run unchanged.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::programs::{Ran, library, run};

/// The number of commands that run on any machine that can build the tests.
const EXPECTED: usize = 100;
/// How often a command is compared at most.
const TRIES: usize = 5;

#[test]
fn ordinary_programs_print_and_return_the_same() {
    let commands: Vec<&str> = include_str!("../programs/ordinary.txt")
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    let mut compared = 0;
    let mut different = Vec::new();
    for command in commands {
        let pair = || (run_in_folder(command, None), run_in_folder(command, Some(&library())));
        // What a program prints may depend on the moment: some pair must be equal.
        let (without, with) = (0..TRIES).map(|_| pair()).find(|(a, b)| a == b).unwrap_or_else(pair);
        // The shell did not find the program.
        compared += usize::from(without.status.code() != Some(127));
        if with != without {
            different.push(format!("{command}\n  without: {without:?}\n  with: {with:?}"));
        }
    }
    assert!(different.is_empty(), "{} differ:\n{}", different.len(), different.join("\n"));
    assert!(compared > EXPECTED, "only {compared} commands were found");
}

/// Runs a command of the shell in a new folder with some files, whose path has always the same length.
fn run_in_folder(command: &str, library: Option<&Path>) -> Ran {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("work");
    std::fs::create_dir(&work).unwrap();
    for (name, text) in FILES {
        std::fs::write(work.join(name), text).unwrap();
    }
    let mut shell = Command::new("sh");
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CUDA", "GRIDGUARD", "CARGO", "LD_"].iter().any(|prefix| text.starts_with(prefix)) {
            shell.env_remove(&name);
        }
    }
    shell.args(["-c", command]).current_dir(&work).stdin(Stdio::null());
    shell.envs(library.map(|path| ("LD_PRELOAD", path)));
    let Ran { status, out, err } = run(&mut shell);
    let path = folder.path().to_str().unwrap();
    let clean = |text: String| text.replace(path, "FOLDER");
    Ran { status, out: clean(out), err: clean(err) }
}

const FILES: [(&str, &str); 7] = [
    ("a.txt", "one foo\nthree bar\ntwo boo\n"),
    ("b.txt", "10\n9\n9\n8\n"),
    (
        "c.c",
        "#include <stdio.h>\n#include <stdlib.h>\nint main(int n, char **w) {\n  printf(\"%d %d\\n\", n, abs(-3));\n  \
         return w[0] == 0;\n}\n",
    ),
    ("d.py", "import collections\nprint(collections.Counter('hello').most_common(1))\n"),
    ("e.sh", "x=1\nwhile [ $x -le 3 ]; do echo $x; x=$((x + 1)); done\n"),
    ("f.pl", "my %h = (a => 1); print \"$_ $h{$_}\\n\" for keys %h;\n"),
    ("g.json", "{\"a\": [1, 2, {\"b\": null}]}\n"),
];
