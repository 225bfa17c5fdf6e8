//! `gridguard tune`: searches that a signal ends, and what the next run does.

use super::{DEFAULTS, SLOW, folder, journaled, norms, rows, tune_norms};
use crate::command::{parsed, run, signal, start, wait_until};

#[test]
fn an_interrupted_run_keeps_its_measurements_and_the_next_one_resumes() {
    let folder = folder();
    let profile = folder.path().join("p.ron");
    tune_norms(folder.path(), &["300x8"], "").exits(0);
    let first = parsed(&profile);
    // Among all candidates, so that the search does not end before the signal.
    let args = norms(&["300x8", "30000x8"], "").replace(DEFAULTS, "");
    let child = start(folder.path(), &args);
    wait_until(|| journaled(folder.path(), "30000x8") > 5);
    signal(child, "-INT")
        .exits(130)
        .notes("stopping; measurements are kept")
        .prints("0 tuned, 1 already in the profile, 1 left for the next run");
    assert_eq!(parsed(&profile), first);
    assert!(journaled(folder.path(), "30000x8") > 5);

    let ran = run(folder.path(), &args);
    let second = parsed(&profile);
    if ran.code == Some(0) {
        ran.prints("1 tuned, 1 already in the profile");
        assert_eq!(rows(&second), [300, 30_000]);
    } else {
        // On a busy machine.
        ran.exits(1).prints("undecided: ");
        assert_eq!(rows(&second), [300]);
    }
    assert_eq!(second.entries()[0], first.entries()[0]);
    assert!(!folder.path().join("p.ron.unfinished").exists());
}

#[test]
fn a_killed_run_leaves_a_valid_profile_and_the_next_one_continues() {
    let folder = folder();
    let shapes = ["300x8", SLOW];
    let child = start(folder.path(), &norms(&shapes, ""));
    wait_until(|| journaled(folder.path(), SLOW) > 5);
    assert_eq!(signal(child, "-KILL").code, None);
    assert_eq!(rows(&parsed(&folder.path().join("p.ron"))), [300]);
    let before = journaled(folder.path(), SLOW);
    let ran = start(folder.path(), &norms(&shapes, ""));
    wait_until(|| journaled(folder.path(), SLOW) > before);
    signal(ran, "-INT").exits(130).prints("1 already in the profile, 1 left for the next run");
}
