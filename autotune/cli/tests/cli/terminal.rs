//! What the command prints on terminals of several widths.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use expect_test::expect_file;

use crate::command::{command, gridguard};

/// What a screen shows besides help texts, with its exit code.
const SCREENS: [(&str, i32); 11] = [
    ("limits h200", 0),
    ("limits --compare a100 h200 sm_120", 0),
    ("limits rtx-2080-mobile", 2),
    ("check --gpu h200 --grid 1,76800 --block 128", 1),
    (
        "check --gpu h200 --grid 1,76800 --block 128 --batch-axis y --items 15360 --blocks-per-item 5 --max-items",
        0,
    ),
    ("check --gpu any,sm_86,h200 --grid 1,76800 --block 128 --shared-mem 100KiB", 1),
    ("check --gpu h200 --grid x --block 128", 2),
    ("check --requests --help", 0),
    ("explain 9", 0),
    ("explain grid-dim-y", 0),
    ("explain no failure at all", 1),
];

/// What the command prints with `columns`, on both streams.
fn printed(args: &str, code: i32, columns: usize) -> String {
    let mut command = command(Path::new("."), args);
    let variables = [("COLUMNS", &*columns.to_string()), ("LC_ALL", "C"), ("TERM", "dumb")];
    let output = command.envs(variables).output().expect("the command runs");
    assert_eq!(output.status.code(), Some(code), "{args}");
    String::from_utf8([output.stdout, output.stderr].concat()).expect("UTF-8")
}

/// The subcommands below `path`, which `-h` lists.
fn subcommands(path: &str) -> Vec<String> {
    let help = printed(&format!("{path} -h"), 0, 100);
    let listed = help.split("\nCommands:\n").nth(1).unwrap_or_default();
    let lines = listed.lines().take_while(|line| line.starts_with("  "));
    let first = lines.filter_map(|line| line.strip_prefix("  ").filter(|it| !it.starts_with(' ')));
    let names = first.filter_map(|line| line.split_whitespace().next());
    let named = names.filter(|name| *name != "help").map(|name| format!("{path} {name}"));
    named.flat_map(|path| [vec![path.clone()], subcommands(&path)].concat()).collect()
}

#[test]
fn every_screen_fits_the_terminal_and_breaks_no_word() {
    let helps = [vec![String::new()], subcommands("")].concat();
    let helps = helps.iter().map(|path| (format!("{path} -h"), 0));
    let screens = SCREENS.map(|(args, code)| (args.to_owned(), code));
    let cases: Vec<(String, i32)> = helps.chain(screens).collect();
    assert!(cases.len() > 25, "{cases:?}");
    for columns in [20, 40, 80, 120] {
        let mut shown = String::new();
        for (args, code) in &cases {
            let screen = printed(args, *code, columns);
            let whole = printed(args, *code, 400);
            let words: BTreeSet<&str> = whole.split_whitespace().collect();
            for line in screen.lines() {
                let is_one_word = line.split_whitespace().count() <= 2;
                assert!(
                    line.chars().count() <= columns || is_one_word,
                    "{args} at {columns}: {line}"
                );
                for word in line.split_whitespace().filter(|word| !word.ends_with(['\\', '…'])) {
                    assert!(words.contains(word), "{args} at {columns}: {word}");
                }
            }
            // Others change with the tuner's options, and are checked above.
            if !args.contains("tune") && !args.contains("profile") {
                shown += &format!("$ gridguard {}\n{screen}\n", args.trim_start());
            }
        }
        if columns >= 40 {
            expect_file![format!("screens/terminal-{columns}.txt")].assert_eq(&shown);
        }
    }
}

#[test]
fn a_terminal_decides_the_width_and_the_colours() {
    let on_terminal = |variables: &[(&str, &str)]| {
        let shell = format!("stty rows 24 cols 44; exec {} explain 9", gridguard().display());
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &shell, "/dev/null"]);
        script.stdin(Stdio::null()).env_remove("NO_COLOR").env("TERM", "xterm");
        let output = script.envs(variables.iter().copied()).output().expect("script of util-linux");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let coloured = on_terminal(&[]);
    assert!(coloured.contains("\u{1b}[1mcudaErrorInvalidConfiguration"), "{coloured}");
    for plain in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = on_terminal(&[plain]);
        assert!(!plain.contains('\u{1b}'), "{plain}");
        assert!(plain.lines().all(|line| line.trim_end().chars().count() <= 44), "{plain}");
        assert!(plain.lines().count() > 14, "{plain}");
    }
}
