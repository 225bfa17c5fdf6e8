//! Threads and processes that race to compile a kernel, on the fake driver: needs gcc, but no GPU.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gridguard::{Choice, Guard, LaunchLimits};
use gridguard_files::Distrust;
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::{
    CodeCounts, CubinCache, CubinCacheError, ElementType, Kernels, MAX_KEPT_KERNELS,
};
use gridguard_test_support::fake_driver::{
    Driver, compilations, in_processes, unloads, with_driver,
};
use gridguard_test_support::{THREADS, are_one, race};

/// Races, each for something fresh.
const ROUNDS: usize = 20;
/// Makes the fake NVRTC return machine code of `rms_norm`, slowly enough for threads to overlap.
const COMPILER: [(&str, &str); 2] =
    [("GRIDGUARD_FAKE_NVRTC_CUBIN", "8,8,8,8,4"), ("GRIDGUARD_FAKE_NVRTC_MS", "5")];

fn guard() -> Guard {
    Guard::cuda(0).expect("the fake driver has a device")
}

fn norm() -> RmsNorm {
    norm_of(4096)
}

fn norm_of(columns: u64) -> RmsNorm {
    RmsNorm::new(70_000, columns, ElementType::F16).expect("legal")
}

#[test]
fn an_operation_is_compiled_once_and_everyone_gets_the_one_kernel() {
    with_driver(Driver::WithCompiler, &COMPILER, || {
        let guard = Arc::new(guard());
        for round in 1..=ROUNDS {
            let kernels = Kernels::with_cache(Arc::clone(&guard), None);
            let got = race(|thread| match thread % 2 {
                0 => kernels.limits(&norm_of(4096)).expect("compiles"),
                _ => kernels.limits(&norm_of(512)).expect("compiles"),
            });
            let of = |remainder| {
                let of = |(thread, _): &(usize, LaunchLimits)| thread % 2 == remainder;
                let own = got.iter().cloned().enumerate().filter(of).map(|(_, kernel)| kernel);
                own.collect::<Vec<_>>()
            };
            assert!(are_one(&of(0)) && are_one(&of(1)));
            assert!(!are_one(&got), "two operations have two kernels");
            assert_eq!(kernels.counts().compiled, 2);
            assert_eq!(compilations().len(), 2 * round);
        }
    });
}

#[test]
fn a_compilation_that_fails_is_told_to_everyone_and_tried_again() {
    // Machine code of `gridguard_invert` has no `rms_norm`.
    with_driver(Driver::WithCompiler, &[("GRIDGUARD_FAKE_NVRTC_MS", "1")], || {
        let guard = Arc::new(guard());
        let kernels = Kernels::with_cache(guard, None);
        for _ in 0..ROUNDS {
            for answer in race(|_| kernels.limits(&norm()).map(drop)) {
                let error = answer.expect_err("no such kernel").to_string();
                assert!(error.contains("rms_norm"), "{error}");
            }
        }
        assert_eq!(compilations().len(), ROUNDS * THREADS);
    });
}

#[test]
fn the_kernel_that_was_not_used_for_the_longest_is_dropped_unless_something_uses_it() {
    with_driver(Driver::WithCompiler, &COMPILER[..1], || {
        let kernels = Kernels::with_cache(guard(), None);
        let use_of = |columns: u64| {
            let before = kernels.counts().compiled;
            let prepared = kernels.prepare(norm_of(columns), Choice::AUTOMATIC).expect("compiles");
            (prepared, kernels.counts().compiled - before)
        };
        let most = u64::try_from(MAX_KEPT_KERNELS.get()).expect("few");
        let (held, _) = use_of(1);
        for columns in 2..=most {
            assert_eq!(use_of(columns).1, 1);
        }
        assert_eq!((use_of(1).1, use_of(2).1), (0, 0), "all are kept so far");
        assert_eq!(use_of(most + 1).1, 1);
        assert_eq!(unloads().len(), 1, "3 was not used for the longest");
        assert_eq!((use_of(1).1, use_of(2).1, use_of(3).1), (0, 0, 1));
        assert_eq!(unloads().len(), 2);
        for columns in 2..=most + 1 {
            use_of(columns);
        }
        let dropped = unloads().len();
        assert_eq!(use_of(1).1, 1, "dropped from the table");
        // The kernel that something prepared is still loaded, beside the new one.
        drop(held);
        assert_eq!(unloads().len(), dropped + 2, "that of `held`, and the oldest of the table");
    });
}

#[cfg(unix)]
#[test]
fn code_that_others_may_have_written_is_compiled_and_the_reason_is_kept() {
    use std::os::unix::fs::PermissionsExt as _;

    with_driver(Driver::WithCompiler, &COMPILER, || {
        let guard = Arc::new(guard());
        let folder = tempfile::tempdir().expect("a folder");
        let limits = |folder: &std::path::Path| {
            let kernels = Kernels::with_cache(Arc::clone(&guard), Some(CubinCache::at(folder)));
            kernels.limits(&norm()).expect("compiled or read");
            kernels.counts()
        };
        assert_eq!(limits(folder.path()).compiled, 1);
        assert_eq!(limits(folder.path()).read, 1);
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777))
            .expect("its mode");
        let CodeCounts { compiled, read, failed, last_failure } = limits(folder.path());
        assert_eq!((compiled, read, failed), (1, 0, 2), "neither read nor written");
        let path = folder.path().to_owned();
        let why = Distrust::Writable { path, mode: 0o1777 };
        assert_eq!(last_failure, Some(CubinCacheError::Untrusted(why)));
    });
}

#[test]
fn processes_that_first_use_a_kernel_together_leave_one_whole_entry_on_disk() {
    const PROCESSES: usize = 4;
    let folder = tempfile::tempdir().expect("a folder");
    let shared = folder.path().to_str().expect("text").to_owned();
    let settings = [COMPILER[0], COMPILER[1], ("GRIDGUARD_TEST_SHARED", &*shared)];
    in_processes(PROCESSES, Driver::WithCompiler, &settings, || {
        let folder = PathBuf::from(std::env::var_os("GRIDGUARD_TEST_SHARED").expect("it is set"));
        let guard = Arc::new(guard());
        let cache_of = |round: usize| CubinCache::at(folder.join(format!("cache-{round}")));
        for round in 0..=ROUNDS {
            // All begin a round together, and so have ended the one before.
            let here = folder.join(format!("round-{round}"));
            std::fs::create_dir_all(&here).expect("a folder");
            std::fs::write(here.join(std::process::id().to_string()), "").expect("written");
            let deadline = Instant::now() + Duration::from_secs(600);
            while std::fs::read_dir(&here).expect("a folder").count() < PROCESSES {
                assert!(Instant::now() < deadline, "another process is missing");
                std::thread::yield_now();
            }
            if let Some(before) = round.checked_sub(1) {
                let files = std::fs::read_dir(cache_of(before).folder()).expect("a cache").count();
                assert_eq!(files, 1, "an entry and nothing beside it");
            }
            let cached = || Kernels::with_cache(Arc::clone(&guard), Some(cache_of(round)));
            let kernels = cached();
            kernels.limits(&norm()).expect("compiled or read");
            let counts = kernels.counts();
            assert_eq!((counts.compiled + counts.read, counts.failed), (1, 0), "{counts:?}");
            let later = cached();
            later.limits(&norm()).expect("read");
            assert_eq!((later.counts().compiled, later.counts().read), (0, 1));
        }
    });
}
