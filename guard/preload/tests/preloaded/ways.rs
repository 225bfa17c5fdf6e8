//! Launches are watched and reach the same function, however a program finds the driver.

use crate::programs::{
    Driver, library, opener, other_driver, plain, preloaded, run, same, test_program, watched,
};

#[track_caller]
fn assert_seen(err: &str, accepted: &str, refused: usize) {
    assert_eq!(err.matches("launch refused").count(), refused.min(1), "{err}");
    assert!(err.contains(&format!("gridguard: {accepted} accepted, {refused} refused\n")), "{err}");
}

#[test]
fn every_way_to_find_the_driver_is_watched() {
    for way in ["linked", "dlsym", "default", "query-11", "query-12", "query-12-thread", "query-14"]
    {
        let err = watched(Driver::Whole, &format!("{way} good refused good"));
        assert_seen(&err, "2 launches of 1 kernel", 1);
    }
    let err = watched(Driver::Versioned, "dlvsym good refused good");
    assert_seen(&err, "2 launches of 1 kernel", 1);
}

#[test]
fn all_kinds_of_launches_are_watched() {
    for way in ["linked", "dlsym", "query-12", "query-12-thread"] {
        let err = watched(Driver::Whole, &format!("{way} ex cooperative kernel good"));
        assert_eq!(err.matches("launch refused").count(), 2, "{way}: {err}");
        assert!(err.contains("gridguard: 2 launches of 1 kernel accepted, 2 refused"), "{err}");
    }
}

#[test]
fn functions_of_a_cuda_to_come_are_named_if_they_launch() {
    for (words, named) in [
        ("dlsym good anew", "cuLaunchAnew"),
        ("query-12 good anew", "cuLaunchAnew"),
        // The driver has another function for this version.
        ("query-14 good cooperative", "cuLaunchCooperativeKernel"),
    ] {
        let err = watched(Driver::Whole, words);
        assert!(err.contains(&format!("gridguard: {named} is of a newer CUDA, or ")), "{err}");
        assert_seen(&err, "1 launch of 1 kernel", 0);
    }
}

#[test]
fn a_variant_with_streams_of_threads_reaches_its_own_function() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    for (way, entries) in [("query-12", 0), ("query-12-thread", 4)] {
        let words = format!("{way} good ex wait");
        run(preloaded(Driver::Whole, &words).env("GRIDGUARD_FAKE_LOG", &log));
        let with = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        run(plain(Driver::Whole, &words).env("GRIDGUARD_FAKE_LOG", &log));
        let without = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        let calls = |log: &str| -> Vec<String> {
            let is_call = |line: &&str| line.starts_with("entry") || line.starts_with("launch");
            log.lines().filter(is_call).map(str::to_owned).collect()
        };
        assert_eq!(calls(&with), calls(&without));
        assert_eq!(with.matches("entry ").count(), entries, "{with}");
    }
}

#[test]
fn another_preloaded_library_sees_each_launch_once_in_either_order() {
    for way in ["linked", "dlsym"] {
        let words = format!("{way} good refused good");
        let alone =
            run(plain(Driver::Whole, &words).env("LD_PRELOAD", test_program("interposer.so")));
        assert!(alone.out.ends_with("interposer saw 3\n"), "{}", alone.out);
        let (own, other) = (library(), test_program("interposer.so"));
        for (order, is_first) in [([&own, &other], true), ([&other, &own], false)] {
            let order = order.map(|path| path.to_str().unwrap()).join(":");
            let both = run(plain(Driver::Whole, &words).env("LD_PRELOAD", &order));
            assert_eq!((&both.out, both.status), (&alone.out, alone.status), "{way}: {}", both.err);
            // A library before this one that looks up the C library's own `dlsym` goes past this one.
            match is_first || way == "linked" {
                true => assert_seen(&both.err, "2 launches of 1 kernel", 1),
                false => assert_eq!(both.err, "", "{way}"),
            }
        }
    }
}

#[test]
fn another_preloaded_library_may_search_all_objects_for_the_driver() {
    let words = "dlsym good refused good";
    let order =
        [library(), test_program("interposer.so")].map(|path| path.display().to_string()).join(":");
    let with = |preloaded: &str| {
        let mut command = plain(Driver::Whole, words);
        run(command.env("LD_PRELOAD", preloaded).env("INTERPOSER_ANY", "1"))
    };
    let (alone, both) = (with(&test_program("interposer.so").display().to_string()), with(&order));
    assert_eq!((&both.out, both.status), (&alone.out, alone.status), "{}", both.err);
    assert!(both.out.ends_with("interposer saw 3\n"), "{}", both.out);
    assert_seen(&both.err, "2 launches of 1 kernel", 1);
}

#[test]
fn launches_of_a_second_driver_library_are_watched_and_reach_it() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let words = format!("dlsym good other={} good refused good", other_driver().display());
    let err = watched(Driver::Whole, &words);
    // Both have loaded one image.
    assert_seen(&err, "3 launches of 1 kernel", 1);
    run(preloaded(Driver::Whole, &words).env("GRIDGUARD_FAKE_LOG", &log));
    let log = std::fs::read_to_string(&log).unwrap();
    // Each library is initialised by itself.
    assert_eq!((log.matches("init ").count(), log.matches("launch ").count()), (2, 3), "{log}");
}

#[test]
fn a_driver_that_is_missing_or_lacks_a_function_is_as_without_the_library() {
    let err = watched(Driver::Missing, "dlsym good");
    assert_eq!(err, "");
    for way in ["dlsym", "default"] {
        assert_eq!(watched(Driver::Broken, &format!("{way} good")), "");
    }
    let err = watched(Driver::Old, "dlsym good refused");
    assert_seen(&err, "1 launch of 1 kernel", 1);
    assert!(err.contains("  kernel    touch(float*, int)\n"), "named by its lookup: {err}");
}

#[test]
fn a_plugin_that_is_bound_to_itself_alone_is_named_at_the_end() {
    let with = |flags: &str| {
        let mut command = opener(flags);
        command.env("LD_PRELOAD", library()).env("GRIDGUARD_RUN_QUIET", "1");
        same(&mut opener(flags), &mut command)
    };
    assert!(with("local").contains("launch refused: "));
    assert_eq!(
        with("deep"),
        "gridguard: opened.so was opened with RTLD_DEEPBIND: launches by CUDA functions that it has looked up are not \
         seen\n"
    );
}
