//! Counts of the memory of the process, and explanations of refused allocations.

use gridguard_report::{MemoryHeld, MemoryKind, MemoryUse};

use crate::programs::{self, Ran, allocates, library, run, without_stack};

const LIMIT: (&str, &str) = ("GRIDGUARD_FAKE_ALLOC_LIMIT", "67108864");

/// Runs `allocates ACTION...` with and without the library, and checks that both print and return the same.
#[track_caller]
fn watched(words: &str, options: &[(&str, &str)]) -> String {
    let without = run(allocates(words).envs(options.iter().copied()));
    let with = run(preloaded(words).envs(options.iter().copied()));
    assert!(without.status.success() && without.err.is_empty(), "{without:?}");
    assert_eq!((&with.out, with.status), (&without.out, without.status), "{words}: {}", with.err);
    with.err
}

fn preloaded(words: &str) -> std::process::Command {
    let mut command = allocates(words);
    command.env("LD_PRELOAD", library());
    command
}

/// What the report of the program says of its memory.
fn reported(words: &str, options: &[(&str, &str)]) -> (MemoryUse, Ran) {
    let (ran, report) = programs::reported(preloaded(words).envs(options.iter().copied()));
    (report.memory, ran)
}

#[test]
fn a_refused_allocation_is_explained_word_for_word() {
    let words = "dlsym alloc=4194304 alloc=2097152 async=1024 alloc=83886080 launch";
    let err = watched(words, &[LIMIT, ("GRIDGUARD_FAKE_POOL_UNUSED", "3145728")]);
    let (before, after) = err.split_once("  largest").unwrap();
    assert_eq!(
        before,
        "\
gridguard: out of memory: cuMemAlloc_v2 returned CUDA_ERROR_OUT_OF_MEMORY (2), out of memory
  request   80.00 MiB (83886080 bytes) of device memory
  device    NVIDIA H200: 57.99 MiB (60816384 bytes) free of 139.79 GiB
  process   holds 6.00 MiB (6292480 bytes) in 3 allocations, at most 6.00 MiB so far; memory that a framework \
caches (PyTorch's freed tensors) counts as held
  pool      the device's memory pool keeps 3.00 MiB (3145728 bytes) unused
  others    about 139.73 GiB: other processes, and this one's contexts and code (an estimate: total - free - \
held)
"
    );
    let (largest, rest) = after.split_once("\n  next").unwrap();
    let groups: Vec<&str> = largest.lines().filter(|line| line.contains(" in ")).collect();
    assert!(largest.starts_with("   6.00 MiB in 2 allocations, from\n"), "{largest}");
    assert!(largest.contains("make_layer+0x"), "{groups:?}");
    assert!(
        largest.ends_with("1.00 KiB in 1 allocation, whose stack was not sampled"),
        "{largest}"
    );
    assert_eq!(
        without_stack(rest),
        "      the program received the error, and may try again; 22.00 MiB are missing: smaller batches or chunks, free a \
framework's cache (torch.cuda.empty_cache()), stop other processes on the device (nvidia-smi)
gridguard: 1 launch of 1 kernel accepted, 0 refused
  memory of device 0: at most 6.00 MiB held, 6.00 MiB now
  out of memory: 1 refused, of which 0 were followed by a success of the same size
"
    );
    assert!(rest.contains("  stack     make_layer+0x"), "{rest}");
}

#[test]
fn a_refused_allocation_that_is_tried_again_is_counted_and_not_repeated() {
    // Frees its cache and tries again, as a framework does.
    let words = "dlsym alloc=50000000 alloc=40000000 alloc=40000000 free alloc=40000000 launch";
    let err = watched(words, &[LIMIT]);
    assert_eq!(err.matches("gridguard: out of memory").count(), 1, "{err}");
    assert!(
        err.contains("\n  out of memory: 2 refused, of which 2 were followed by a success"),
        "{err}"
    );
    // Refused once more after that success, it is explained once more.
    let err = watched(&format!("{words} alloc=40000000"), &[LIMIT]);
    assert_eq!(err.matches("gridguard: out of memory").count(), 2, "{err}");
    assert!(err.contains("\n  out of memory: 3 refused, of which 2 were"), "{err}");
}

#[test]
fn refusals_without_end_are_explained_a_few_times() {
    let sizes: Vec<_> = (0..30).map(|number| format!("alloc={}", 70_000_000 + number)).collect();
    let err = watched(&format!("dlsym {}", sizes.join(" ")), &[LIMIT]);
    assert_eq!(err.matches("gridguard: out of memory").count(), 8, "{err}");
    assert_eq!(
        err.matches("further refused allocations are counted, and not explained").count(),
        1
    );
    assert!(err.contains("0 launches of 0 kernels accepted"), "a summary without a launch: {err}");
    assert!(err.contains("  out of memory: 30 refused, of which 0"), "{err}");
}

#[test]
fn every_function_that_allocates_is_watched() {
    for lookup in ["dlsym", "thread"] {
        let device = "alloc=1000000 pitch=1000 async=3000 pool=2000000 create=5000";
        let words = format!("{lookup} {device} managed=7000 pinned=600 host=50 launch");
        watched(&words, &[]);
        let (memory, _) = reported(&words, &[]);
        let held = |bytes, allocations| MemoryHeld { bytes, allocations, peak_bytes: bytes };
        let [on_device] = &*memory.devices else { panic!("{memory:?}") };
        assert_eq!((on_device.device, on_device.held), (0, held(3_008_000 + 4 * 1024, 5)));
        assert_eq!((memory.managed, memory.pinned), (held(7000, 1), held(650, 2)));
        let (freed, _) = reported(&format!("{words} free-all"), &[]);
        assert_eq!(
            freed.devices[0].held,
            MemoryHeld { bytes: 0, allocations: 0, ..on_device.held }
        );
        assert_eq!((freed.managed.bytes, freed.pinned.bytes), (0, 0));
        assert_eq!((freed.managed.peak_bytes, freed.pinned.peak_bytes), (7000, 650));
    }
}

#[test]
fn each_function_that_is_refused_is_named_with_what_it_asked_for() {
    let limits = [LIMIT, ("GRIDGUARD_FAKE_PINNED_LIMIT", "1000")];
    for (kind, function, memory, bytes) in [
        ("pitch", "cuMemAllocPitch_v2", MemoryKind::Device, 4 * 20_000_000),
        ("managed", "cuMemAllocManaged", MemoryKind::Managed, 70_000_000),
        ("async", "cuMemAllocAsync", MemoryKind::Device, 70_000_000),
        ("pool", "cuMemAllocFromPoolAsync", MemoryKind::Device, 70_000_000),
        ("create", "cuMemCreate", MemoryKind::Device, 70_000_000),
        ("pinned", "cuMemHostAlloc", MemoryKind::Pinned, 70_000_000),
        ("host", "cuMemAllocHost_v2", MemoryKind::Pinned, 70_000_000),
    ] {
        let asked = if kind == "pitch" { bytes / 4 } else { bytes };
        let (memory_use, ran) = reported(&format!("dlsym {kind}={asked}"), &limits);
        let [refusal] = &*memory_use.refusals else { panic!("{kind}: {}", ran.err) };
        assert_eq!((&*refusal.function, refusal.kind, refusal.code), (function, memory, 2));
        assert_eq!(refusal.requested_bytes, bytes, "{kind}");
        let others = refusal.other_bytes();
        assert_eq!(others.is_some(), memory == MemoryKind::Device, "{kind}: {others:?}");
    }
}

#[test]
fn allocations_of_many_threads_all_end() {
    watched("dlsym threads launch", &[]);
    let (memory, _) = reported("dlsym threads alloc=640 launch", &[]);
    let held = memory.devices[0].held;
    assert_eq!((held.bytes, held.allocations), (640, 1), "after 200,000 allocations");
    assert!((512 * 16..=8 * 16 * 512 * 7 + 640).contains(&held.peak_bytes), "{held:?}");
    assert_eq!(memory.untracked, 0);
}

#[test]
fn unknown_addresses_and_failing_frees_change_nothing() {
    let (memory, ran) = reported("dlsym alloc=5000 free-unknown launch", &[]);
    assert!(ran.out.contains("free 1 0\nfree 1 1\n"), "{}", ran.out);
    let expected = MemoryHeld { bytes: 5000, allocations: 1, peak_bytes: 5000 };
    assert_eq!(memory.devices[0].held, expected);
    assert_eq!(memory.refused, 0);
}

#[test]
fn a_device_s_memory_ends_when_it_is_reset() {
    let options = [("GRIDGUARD_FAKE_DEVICES", "2")];
    let words = "dlsym alloc=5000 create=300 device=1 alloc=70 launch reset";
    let (memory, _) = reported(words, &options);
    let held: Vec<_> = memory.devices.iter().map(|one| (one.device, one.held.bytes)).collect();
    assert_eq!(held, [(0, 300), (1, 70)], "physical memory is not of a context");
    assert_eq!(memory.devices[0].held.peak_bytes, 5300);
}

#[test]
fn a_child_holds_nothing_of_its_parent_s() {
    let words = "dlsym alloc=5000 alloc=80000000 launch child alloc=40 free-unknown launch";
    let err = watched(words, &[LIMIT]);
    let (child, parent) = err
        .split_once("gridguard: 1 launch of 1 kernel")
        .unwrap()
        .1
        .split_once("gridguard:")
        .unwrap();
    assert!(child.contains("at most 40 bytes held") && !child.contains("out of memory"), "{err}");
    assert!(parent.contains("at most 4.88 KiB held") && parent.contains("1 refused"), "{err}");
}

#[test]
fn a_process_that_only_allocates_prints_nothing() {
    assert_eq!(watched("dlsym alloc=5000 free child alloc=4000000", &[]), "");
}

#[test]
fn a_launch_without_memory_says_what_is_free() {
    let words = "dlsym alloc=5000 launch";
    let options = [LIMIT, ("GRIDGUARD_FAKE_FAIL_LAUNCH", "0"), ("GRIDGUARD_FAKE_FAIL_CODE", "2")];
    let err = watched(words, &options);
    assert!(err.starts_with("gridguard: launch refused: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{err}");
    let line = "\n  memory    63.99 MiB free of 139.79 GiB, 4.88 KiB allocated by this process\n";
    assert!(err.contains(line), "{err}");
}

#[test]
fn stacks_name_libraries_as_long_as_they_are_loaded() {
    for (action, is_named) in [("plugin", true), ("plugin-closed", false)] {
        let err = watched(&format!("dlsym {action} alloc=83886080"), &[LIMIT]);
        let (_, largest) = err.split_once("  largest   2.00 MiB in 1 allocation, from\n").unwrap();
        let (largest, _) = largest.split_once("  next").unwrap();
        assert_eq!(largest.contains("plugin_layer+0x"), is_named, "{err}");
        assert!(largest.contains("  main+0x"), "{err}");
    }
}

#[test]
fn a_late_error_that_an_allocation_or_its_end_returns_is_reported_and_the_memory_stays_held() {
    let fault = ("GRIDGUARD_FAKE_FAULT_LAUNCH", "0");
    for (action, function) in [("alloc=70", "cuMemAlloc_v2"), ("free", "cuMemFree_v2")] {
        let words = format!("dlsym alloc=5000 launch {action} free-unknown");
        let err = watched(&words, &[fault]);
        let expected = format!("gridguard: {function} returned CUDA_ERROR_ILLEGAL_ADDRESS (700)");
        assert!(err.starts_with(&expected), "{err}");
        assert!(
            err.contains("  launch    the only one that was not known to have succeeded"),
            "{err}"
        );
        assert!(err.contains("at most 4.88 KiB held, 4.88 KiB now"), "{err}");
    }
}

#[test]
fn a_launch_without_registers_for_its_block_names_them() {
    let err = watched("dlsym launch-wide", &[]);
    assert!(
        err.starts_with("gridguard: launch refused: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701)"),
        "{err}"
    );
    assert!(err.contains("\n  rule      registers-per-block: "), "{err}");
}
