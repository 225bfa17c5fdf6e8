//! Launches on another stream than the stream of their memory.

use std::sync::Arc;

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use gridguard::cuda::{Args, Kernel, LaunchErrorKind};
use gridguard::{Axis, Guard};
use gridguard_test_support::fake_driver::launches;

use super::{ITEMS, assert_ordered, look, write};
use crate::kernels::{context, iota, kernel, plan_along, poisoned, read, with_guard, with_kernel};

/// Launches on a stream over memory of another one, drops the launches' stream, then the memory.
fn drop_stream_then_memory(
    guard: &Guard,
    kernel: &Kernel,
    stream: Arc<CudaStream>,
    owner: &Arc<CudaStream>,
) {
    let mut out = poisoned(owner, ITEMS);
    assert_eq!(write(guard, kernel, &stream, &mut out), Ok(1));
    drop(stream);
    drop(out);
    assert_ordered();
}

#[test]
fn memory_of_any_stream_outlives_launches_on_another_that_was_dropped() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let own = context(&guard);
        let other = CudaContext::new(0).expect("the same primary context");
        let new = |context: &Arc<CudaContext>| context.new_stream().expect("a stream");
        for (stream, owner) in [
            (new(own), own.default_stream()),
            (new(own), other.default_stream()),
            (own.default_stream(), new(&other)),
            (own.per_thread_stream(), own.default_stream()),
            (own.default_stream(), own.per_thread_stream()),
            (new(own), own.per_thread_stream()),
        ] {
            drop_stream_then_memory(&guard, &kernel, stream, &owner);
        }
    });
}

#[test]
fn later_work_of_the_memorys_stream_comes_after_the_launches() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let owner = CudaContext::new(0).expect("the same primary context").default_stream();
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&owner, ITEMS);
        for _ in 0..3 {
            assert_eq!(write(&guard, &kernel, &stream, &mut out), Ok(1));
            assert_eq!(read(&owner, &out), iota(ITEMS));
            owner.memset_zeros(&mut out).expect("the memory is ours");
        }
        assert_ordered();
    });
}

#[test]
fn memory_of_two_objects_for_the_same_context_is_ordered_each() {
    with_kernel(&[], "fake_spill_y", |guard, kernel, _| {
        let stream = context(&guard).new_stream().expect("a stream");
        let other = CudaContext::new(0).expect("the same primary context");
        let mut out = poisoned(&context(&guard).default_stream(), ITEMS);
        let mut spilled = poisoned(&other.default_stream(), ITEMS);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length().write(&mut spilled);
        let plan = plan_along(&kernel, Axis::Y, ITEMS);
        assert_eq!(guard.launch(&kernel, &plan, args), Ok(1));
        assert_ordered();
    });
}

/// Reads memory of one stream on two others, then writes it on the last one.
fn read_twice_then_write(
    guard: &Guard,
    owner: &Arc<CudaStream>,
    [first, second]: [&Arc<CudaStream>; 2],
) {
    let (reader, writer) = (kernel(guard, "look"), kernel(guard, "fake_iota_y"));
    let mut memory = poisoned(owner, ITEMS);
    assert_eq!(look(guard, &reader, first, &memory), Ok(1));
    assert_eq!(look(guard, &reader, second, &memory), Ok(1));
    assert_eq!(write(guard, &writer, second, &mut memory), Ok(1));
    assert_ordered();
}

#[test]
fn a_launch_that_writes_waits_for_every_stream_that_reads() {
    with_guard(&[], |guard| {
        let stream = || context(&guard).new_stream().expect("a stream");
        let (a, b, owner) = (stream(), stream(), stream());
        read_twice_then_write(&guard, &owner, [&a, &b]);
        read_twice_then_write(&guard, &owner, [&owner, &b]);
        read_twice_then_write(&guard, &owner, [&a, &owner]);
        let other = CudaContext::new(0).expect("the same primary context").default_stream();
        read_twice_then_write(&guard, &other, [&a, &b]);
    });
}

#[test]
fn a_write_through_another_object_for_the_context_is_seen_by_every_stream() {
    with_guard(&[], |guard| {
        let (reader, writer) = (kernel(&guard, "look"), kernel(&guard, "fake_iota_y"));
        let other = CudaContext::new(0).expect("the same primary context");
        let [owner, third] = [other.new_stream(), other.new_stream()].map(|s| s.expect("a stream"));
        let mut memory = poisoned(&owner, ITEMS);
        // The guard's own object has no streams, so that it tracks nothing.
        let stream = context(&guard).default_stream();
        assert_eq!(write(&guard, &writer, &stream, &mut memory), Ok(1));
        assert_eq!(look(&guard, &reader, &third, &memory), Ok(1));
        assert_eq!(write(&guard, &writer, &stream, &mut memory), Ok(1));
        assert_eq!(read(&third, &memory), iota(ITEMS));
        assert_ordered();
    });
}

/// An error on record in a context, which cudarc returns from its next call there.
fn fail_next(context: &CudaContext) {
    context.record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_NOT_SUPPORTED)));
}

#[test]
fn a_launch_that_could_not_wait_for_earlier_work_is_refused() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let stream = context(&guard).new_stream().expect("a stream");
        let other = CudaContext::new(0).expect("the same primary context");
        for owner in [context(&guard), &other].map(|context| context.new_stream()) {
            let owner = owner.expect("a stream");
            let mut out = poisoned(&owner, ITEMS);
            fail_next(owner.context());
            let mut args = Args::new(&stream);
            args.write_items(&mut out, 1).offset().length();
            // Whoever asks clears the failure.
            let _ = context(&guard).check_err();
            let plan = plan_along(&kernel, Axis::Y, ITEMS);
            let refused = guard.launch(&kernel, &plan, args).expect_err("it waited for nothing");
            assert!(matches!(refused.kind(), LaunchErrorKind::Driver(_)), "{refused}");
            assert_eq!(write(&guard, &kernel, &stream, &mut out), Ok(1));
        }
        assert_eq!(launches().len(), 2);
        assert_ordered();
    });
}
