//! Threads and processes that race to use something for the first time.
#![allow(unsafe_code, reason = "the caller vouches for the kernel's contract")]

use std::collections::BTreeMap;

use gridguard::cuda::{Args, Compiler, Image, driver_version, forget_functions};
use gridguard::{Dim3, Guard, LaunchRequest, catalog};
use gridguard_test_support::fake_driver::{
    Driver, in_processes, initialisations, occupancy_queries, set_attributes, with_fake,
};
use gridguard_test_support::{THREADS, are_one, race};

use crate::kernels::{PTX, context, function, guard, kernel, loaded, parameters, with_guard};
use crate::optional_features::launch_idle;

/// Races, each for something fresh.
const ROUNDS: usize = 20;

#[test]
fn a_kernel_that_many_threads_launch_first_is_opted_in_and_queried_once() {
    with_guard(&[], |guard| {
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

            let before = occupancy_queries().len();
            let together = LaunchRequest::new(Dim3::new(8, 1, 1), Dim3::new(128, 1, 1));
            let together = together.dynamic_shared_bytes(60_000).cooperative();
            let results = race(|_| {
                assert_eq!(launch_idle(&guard, &kernel, &together), Ok(1));
                kernel.occupancy(&together).expect("it returns")
            });
            assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
            // Who comes while it is being asked asks too; nobody asks again.
            let asked = occupancy_queries().len() - before;
            assert!((1..=THREADS).contains(&asked), "{asked}");
            race(|_| kernel.occupancy(&together).expect("it is known"));
            assert_eq!(occupancy_queries().len(), before + asked);
        }
    });
}

#[test]
fn a_function_of_cudarc_that_many_threads_launch_first_is_one_kernel() {
    with_guard(&[], |guard| {
        let context = context(&guard);
        for _ in 0..ROUNDS {
            let function = function(context, "idle");
            let kernels = race(|_| {
                let stream = context.default_stream();
                let kernel = guard.builder(&stream, &function).kernel();
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
            let (guard, kernel, _) = loaded("idle");
            let shared = context(&guard).new_stream().expect("a stream");
            let streams = race(|_| {
                let own = context(&guard).new_stream().expect("a stream");
                for stream in [&shared, &own].into_iter().cycle().take(2 * LAUNCHES) {
                    let mut args = Args::new(stream);
                    args.value(0_u64);
                    let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
                    assert_eq!(guard.launch(&kernel, &request, args), Ok(1));
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
            assert_eq!(counts.sharing_a_record, 0);
            assert_eq!(counts.launches, u64::try_from(2 * LAUNCHES * THREADS).expect("few"));
        }
    });
}

#[test]
fn threads_that_race_find_the_same_driver_and_compiler() {
    // Each process is one race.
    in_processes(5, Driver::WithCompiler, &[], || {
        let versions = race(|_| (driver_version(), Compiler::find().expect("NVRTC").version()));
        assert!(versions.iter().all(|both| *both == (Ok(13_000), Ok((13, 0)))), "{versions:?}");
        assert_eq!(initialisations(), 1);

        let gpus = race(|_| catalog::gpus().expect("parses").as_ptr().addr());
        assert!(gpus.iter().all(|table| *table == gpus[0]), "one table for all");

        let guards = race(|_| Guard::cuda(0).expect("a guard"));
        assert!(guards.iter().all(|one| context(one) == context(&guards[0])));
    });
}

#[test]
#[cfg(feature = "profile")]
fn threads_that_race_load_the_same_profile() {
    use gridguard::profile::{Layers, Match};

    in_processes(5, Driver::WithCompiler, &[], || {
        let guards = race(|_| Guard::cuda(0).expect("a guard"));
        let loaded = race(|thread| {
            let (identity, environment) = (guards[thread].identity(), guards[thread].environment());
            Layers::new().built_in(&identity).load(&identity, &environment).profile
        });
        let mut entries = loaded[0].entries().map(|(_, entry)| entry);
        let first = entries.find(|entry| !entry.is_confirmed()).expect("an H200 is tuned");
        for profile in &loaded {
            assert_eq!(profile.entries().count(), loaded[0].entries().count());
            let sizes: Vec<u64> = first.shape.iter().map(|(_, size)| *size).collect();
            assert_eq!(profile.lookup(&first.key, &sizes).matched, Match::Exact);
        }
    });
}

#[test]
fn a_share_of_the_cache_is_asked_for_as_shared_memory() {
    with_fake(&[], || {
        let kernel = kernel(&guard(), "idle");
        kernel.prefer_shared_memory(None).expect("the driver's own choice");
        kernel.prefer_shared_memory(Some(75)).expect("it is a share");
        let refused = kernel.prefer_shared_memory(Some(101)).expect_err("more than all");
        assert_eq!(
            (refused.call, &*refused.name),
            ("cuFuncSetAttribute", "CUDA_ERROR_INVALID_VALUE")
        );
        assert_eq!(set_attributes().len(), 2);
    });
}
