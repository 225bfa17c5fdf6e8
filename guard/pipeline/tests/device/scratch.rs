//! Scratch that is kept from one run of a pipeline to the next.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::Guard;
use gridguard_pipeline::{Budget, PipelineScratch};
use gridguard_test_support::fake_driver::work;

use crate::from_host;
use crate::kernels::{assert_ordered, context, with_guard};
use crate::spilling::{self, streams, with_new_stream};

/// Bytes of scratch of a chunk of 50 items: two buffers of 8 bytes an item, and what aligns them.
const SCRATCH: u64 = 2 * 512 + 256;
const LOGGED: &[(&str, &str)] = &[("GRIDGUARD_FAKE_LOG_WORK", "1")];

/// Runs a pipeline in chunks of at most `at_most` items, two of them in flight, and returns the allocations and frees.
fn run(
    guard: &Guard,
    stream: &Arc<CudaStream>,
    at_most: u64,
    scratch: &mut PipelineScratch,
) -> Vec<String> {
    let more = streams(guard, 1);
    let before = work().len();
    let budget = Budget::UNLIMITED.at_most(at_most).in_flight(2);
    from_host::run(guard, budget, stream, &more, Some(scratch));
    assert_ordered();
    let after = work().split_off(before);
    let changes = after.iter().filter_map(|line| line.split_once(' '));
    let changes = changes.filter(|(_, what)| what.starts_with("allocate") || *what == "free");
    changes.map(|(_, what)| what.to_owned()).collect()
}

fn allocated(bytes: u64) -> String {
    format!("allocate {bytes}")
}

#[test]
fn runs_in_turn_allocate_once() {
    with_new_stream(LOGGED, |guard, stream| {
        let mut scratch = PipelineScratch::new();
        assert_eq!(scratch.bytes(), 0);
        let of_both = [allocated(SCRATCH), allocated(SCRATCH)];
        assert_eq!(run(&guard, &stream, 50, &mut scratch), of_both);
        for at_most in [50, 50, 25] {
            assert_eq!(run(&guard, &stream, at_most, &mut scratch), [""; 0], "{at_most}");
            assert_eq!(scratch.bytes(), 2 * SCRATCH);
        }
        let before = work().len();
        drop(scratch);
        let freed = work().split_off(before);
        assert_eq!(freed.iter().filter(|line| line.ends_with(" free")).count(), 2, "{freed:?}");
    });
}

#[test]
fn what_is_too_small_is_freed_before_more_is_allocated() {
    with_new_stream(LOGGED, |guard, stream| {
        let mut scratch = PipelineScratch::new();
        run(&guard, &stream, 25, &mut scratch);
        let freed = || "free".to_owned();
        let expected = [freed(), freed(), allocated(SCRATCH), allocated(SCRATCH)];
        assert_eq!(run(&guard, &stream, 50, &mut scratch), expected);
    });
}

#[test]
fn a_run_on_another_stream_gets_memory_of_its_own() {
    with_guard(LOGGED, |guard| {
        let mut scratch = PipelineScratch::new();
        let stream = spilling::stream(&guard);
        run(&guard, &stream, 50, &mut scratch);
        let other = spilling::stream(&guard);
        let again = run(&guard, &other, 50, &mut scratch);
        let count = |what: &str| again.iter().filter(|line| line.starts_with(what)).count();
        assert_eq!((count("free"), count("allocate")), (2, 2), "{again:?}");
    });
}

#[test]
fn nothing_is_kept_of_a_stream_that_is_another_one_on_each_thread() {
    with_guard(LOGGED, |guard| {
        let mut scratch = PipelineScratch::new();
        let stream = context(&guard).per_thread_stream();
        run(&guard, &stream, 50, &mut scratch);
        assert_eq!(scratch.bytes(), 0);
    });
}

#[test]
fn a_run_in_smaller_chunks_keeps_only_their_scratch() {
    let limited = [LOGGED, &[("GRIDGUARD_FAKE_ALLOC_LIMIT", "2000")]].concat();
    with_new_stream(&limited, |guard, stream| {
        let mut scratch = PipelineScratch::new();
        let more = streams(&guard, 1);
        let budget = Budget::UNLIMITED.at_most(50).in_flight(2);
        let run = from_host::run(&guard, budget, &stream, &more, Some(&mut scratch));
        assert_eq!(run.tried, [50, 25]);
        assert_eq!(scratch.bytes(), run.scratch_bytes);
    });
}
