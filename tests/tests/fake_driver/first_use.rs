//! Threads and processes that race to use something for the first time.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cudarc::nvrtc::Ptx;
use gridguard::cuda::{Args, Compiler, GuardedStream, Image, driver_version, forget_functions};
use gridguard::diagnose::Log;
use gridguard::profile::{Layers, Match};
use gridguard::{Choice, Dim3, Guard, LaunchLimits, LaunchRequest, Plan, catalog};
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::{CubinCache, ElementType, Kernels};

use crate::harness::{
    Driver, compilations, in_processes, initialisations, occupancy_questions, set_attributes,
    with_driver, with_fake,
};
use crate::kernels::{PTX, context, guard, kernel, parameters};
use crate::optional_features::launch_idle;

/// Threads that race.
const THREADS: usize = 8;
/// Races, each for something fresh.
const ROUNDS: usize = 20;
/// Machine code of `rms_norm`, which the cache takes, from a compiler slow enough to be met at work.
const COMPILER: [(&str, &str); 2] =
    [("GRIDGUARD_FAKE_NVRTC_CUBIN", "8,8,8,8,4"), ("GRIDGUARD_FAKE_NVRTC_MS", "5")];

/// What each of many threads makes of `work`, begun by all at once.
fn race<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        let begin = |thread| {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(thread)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(begin).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

fn norm() -> RmsNorm {
    norm_of(4096)
}

fn norm_of(columns: u64) -> RmsNorm {
    RmsNorm::new(70_000, columns, ElementType::F16).expect("legal")
}

/// Whether all are the same kernel: a plan for one is a plan for each.
fn are_one(kernels: &[LaunchLimits]) -> bool {
    let plan = |limits: &LaunchLimits| {
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        Plan::new(&request, None, limits, Choice::AUTOMATIC).expect("legal")
    };
    kernels.iter().all(|limits| plan(&kernels[0]).is_for(limits))
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
fn threads_with_kernels_of_their_own_share_the_code_on_disk() {
    with_driver(Driver::WithCompiler, &COMPILER, || {
        let guard = Arc::new(guard());
        for _ in 0..ROUNDS {
            let folder = tempfile::tempdir().expect("a folder");
            let cached =
                || Kernels::with_cache(Arc::clone(&guard), Some(CubinCache::at(folder.path())));
            let counts = race(|_| {
                let kernels = cached();
                kernels.limits(&norm()).expect("compiled or read");
                kernels.counts()
            });
            assert!(counts.iter().all(|one| one.failed == 0), "{counts:?}");
            assert!(counts.iter().all(|one| one.compiled + one.read == 1), "{counts:?}");
            let later = cached();
            later.limits(&norm()).expect("read");
            assert_eq!((later.counts().compiled, later.counts().read), (0, 1));
        }
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
            let deadline = Instant::now() + Duration::from_secs(60);
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

#[test]
fn a_kernel_that_many_threads_first_launch_is_opted_in_and_asked_about_once() {
    with_fake(&[], || {
        let guard = guard();
        for round in 1..=ROUNDS {
            let module = guard.load(&Image::new(PTX).expect("PTX")).expect("loads");
            // SAFETY: the fake driver's kernels write their items and nothing else.
            let idle =
                || unsafe { module.kernel("idle", parameters("idle")) }.expect("it is there");
            assert!(!are_one(&race(|_| idle().limits().clone())), "each asked for one of its own");

            let kernel = idle();
            let large = LaunchRequest::new(Dim3::ONE, Dim3::ONE).dynamic_shared_bytes(100_000);
            for launched in race(|_| launch_idle(&guard, &kernel, &large)) {
                assert_eq!(launched, Ok(1));
            }
            assert_eq!(set_attributes().len(), round, "once for each kernel");

            let before = occupancy_questions().len();
            let together = LaunchRequest::new(Dim3::new(8, 1, 1), Dim3::new(128, 1, 1));
            let together = together.dynamic_shared_bytes(60_000).cooperative();
            let answers = race(|_| {
                assert_eq!(launch_idle(&guard, &kernel, &together), Ok(1));
                kernel.occupancy(&together).expect("it answers")
            });
            assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
            // Who comes while it is being asked asks too; nobody asks again.
            let asked = occupancy_questions().len() - before;
            assert!((1..=THREADS).contains(&asked), "{asked}");
            race(|_| kernel.occupancy(&together).expect("it is known"));
            assert_eq!(occupancy_questions().len(), before + asked);
        }
    });
}

#[test]
fn a_function_of_cudarc_that_many_threads_first_launch_is_one_kernel_to_all() {
    with_fake(&[], || {
        let guard = guard();
        let context = context(&guard);
        for _ in 0..ROUNDS {
            let module = context.load_module(Ptx::from_src(PTX)).expect("loads");
            let function = module.load_function("idle").expect("it is there");
            let kernels = race(|_| {
                let stream = context.default_stream();
                let kernel = stream.launch_builder_guarded(&function).kernel();
                kernel.expect("its limits").limits().clone()
            });
            assert!(are_one(&kernels));
            forget_functions();
        }
    });
}

#[test]
fn the_first_launches_on_new_streams_are_all_on_record() {
    with_fake(&[], || {
        /// Launches of each thread on each stream; all of them fit in a ring.
        const LAUNCHES: usize = 7;
        for _ in 0..ROUNDS {
            // A context of its own, and so a record of its own.
            let guard = guard();
            let kernel = kernel(&guard, "idle");
            let shared = context(&guard).new_stream().expect("a stream");
            let streams = race(|_| {
                let own = context(&guard).new_stream().expect("a stream");
                for stream in [&shared, &own].into_iter().cycle().take(2 * LAUNCHES) {
                    let mut args = Args::new(stream);
                    args.value(0_u64);
                    let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
                    assert_eq!(guard.plan_and_launch(&kernel, &request, None, args), Ok(1));
                }
                own
            });
            let mut times = BTreeMap::new();
            for launch in guard.recent_launches() {
                *times.entry(launch.stream).or_insert(0) += 1;
            }
            let handle = |stream: &cudarc::driver::CudaStream| stream.cu_stream().addr();
            assert_eq!(times.remove(&handle(&shared)), Some(LAUNCHES * THREADS));
            for own in &streams {
                assert_eq!(times.remove(&handle(own)), Some(LAUNCHES));
            }
            assert!(times.is_empty(), "{times:?}");
            let counts = guard.counts();
            assert_eq!((counts.sharing_a_record, counts.unrecorded), (0, 0));
            assert_eq!(counts.launches, u64::try_from(2 * LAUNCHES * THREADS).expect("few"));
        }
    });
}

#[test]
fn what_a_process_finds_once_is_found_by_threads_that_ask_together() {
    // Each process is one race.
    in_processes(5, Driver::WithCompiler, &[], || {
        let versions = race(|_| (driver_version(), Compiler::find().expect("NVRTC").version()));
        assert!(versions.iter().all(|both| *both == (Ok(13_000), Ok((13, 0)))), "{versions:?}");
        assert_eq!(initialisations(), 1);

        let gpus = race(|_| catalog::gpus().expect("parses").as_ptr().addr());
        assert!(gpus.iter().all(|table| *table == gpus[0]), "one table for all");
        let rows = race(|_| catalog::corpus().expect("parses").as_ptr().addr());
        assert!(rows.iter().all(|table| *table == rows[0]), "one table for all");

        let found = race(|_| {
            let mut log = Log::new();
            log.line("RuntimeError: CUDA error: invalid configuration argument");
            log.findings()
        });
        assert!(found.iter().all(|one| one.len() == 1 && *one == found[0]), "{found:?}");

        let guards = race(|_| Guard::cuda(0).expect("a guard"));
        assert!(guards.iter().all(|one| context(one) == context(&guards[0])));
        let loaded = race(|thread| {
            let (identity, environment) = (guards[thread].identity(), guards[thread].environment());
            Layers::new().built_in(&identity).load(&identity, &environment).profile
        });
        let (_, first) = loaded[0].entries().next().expect("an H200 is tuned");
        for profile in &loaded {
            assert_eq!(profile.entries().count(), loaded[0].entries().count());
            let sizes: Vec<u64> = first.shape.iter().map(|(_, size)| *size).collect();
            assert_eq!(profile.lookup(&first.key, &sizes).matched, Match::Exact);
        }
    });
}
