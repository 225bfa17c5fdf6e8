//! Completions and the version.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::run;

#[test]
fn every_shell_gets_a_script_with_subcommands_options_and_words() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = run(Path::new("."), &["completions", shell]).exits(0).out;
        for word in ["explain", "blocks-per-item", "bug-report"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
        let suggests = ["bash", "fish", "zsh"].contains(&shell);
        for word in ["rtx-4090", "sm_120", "rms_norm"] {
            assert!(!suggests || script.contains(word), "{shell}: {word}");
        }
    }
    run(Path::new("."), "completions cmd.exe").exits(2);
}

#[test]
fn arguments_that_take_a_profile_complete_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = run(folder.path(), "completions bash").exits(0).out;
    // bash completes files where the script has nothing.
    assert!(script.contains("complete -F _gridguard -o bashdefault -o default gridguard"));
    fs::write(folder.path().join("gridguard.bash"), script).expect("written");
    fs::write(folder.path().join("mine.ron"), "").expect("written");
    let completed = |words: &str| {
        let last = words.split(' ').count() - 1;
        let shell = format!(
            "source ./gridguard.bash; COMP_WORDS=({words}); COMP_CWORD={last}; \
             _gridguard gridguard \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[*]}}\""
        );
        let mut bash = Command::new("bash");
        let output = bash.args(["-c", &shell]).current_dir(folder.path()).output().expect("bash");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    for words in ["tune --profile", "profile explain --profile", "profile merge a --output"] {
        assert_eq!(completed(&format!("gridguard {words} mi")), "mine.ron\n", "{words}");
    }
    for words in ["show", "prune", "merge"] {
        assert_eq!(completed(&format!("gridguard profile {words} mi")), "\n", "{words}");
    }
    let zsh = run(folder.path(), "completions zsh").exits(0).out;
    for argument in ["':file -- Profile", "'*::files -- "] {
        let line = zsh.lines().find(|line| line.starts_with(argument));
        assert!(line.is_some_and(|line| line.contains("_files")), "{argument}: {line:?}");
    }
}

#[test]
fn the_version_names_the_release_and_the_commit() {
    let version = run(Path::new("."), "--version").exits(0).out;
    assert!(version.starts_with(concat!("gridguard ", env!("CARGO_PKG_VERSION"))), "{version}");
}

#[test]
fn a_misspelt_subcommand_gets_a_suggestion() {
    run(Path::new("."), "explane").exits(2).notes("'explain'");
}
