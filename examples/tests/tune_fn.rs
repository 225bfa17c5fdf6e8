//! Runs the example `09_tune_fn` on the host.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::process::Command;

use gridguard::profile::{Document, StoredChoice};

#[test]
fn a_function_is_tuned_and_stored_in_a_profile() {
    let folder = tempfile::tempdir().expect("a folder");
    let test = std::env::current_exe().expect("this program");
    let built = test.parent().and_then(Path::parent).expect("the build folder");
    let mut example = Command::new(built.join("examples").join("09_tune_fn"));
    let output = example.arg(folder.path()).output().expect("the example is built");
    let out = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success() && out.starts_with("transpose: throughput\n"), "{out}");
    assert!(out.contains("candidates timed, 0 failed"), "{out}");

    let files = std::fs::read_dir(folder.path()).expect("a folder").flatten();
    let mut profiles =
        files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|it| it == "ron"));
    // A busy machine may decide nothing.
    let is_undecided = out.contains("\nundecided: ");
    let profile = profiles.next();
    assert_eq!(profile.is_none(), is_undecided, "{out}");
    let Some(profile) = profile else { return };
    let text = std::fs::read_to_string(profile).expect("text");
    assert_eq!(profiles.next(), None, "one device, one profile");
    let document = Document::parse(&text).expect("a profile").document;
    let [entry] = document.entries() else { panic!("{text}") };
    assert_eq!((&*entry.key.kernel, &*entry.found.tolerance), ("transpose", "0"));
    assert_eq!(entry.shape, [("rows".to_owned(), 512)]);
    let tile = entry.parameters.iter().find(|(name, _)| name == "tile").expect("a tile").1;
    assert!([1, 8, 32, 128].contains(&tile) && entry.choice != StoredChoice::Automatic, "{text}");
}
