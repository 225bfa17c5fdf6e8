//! Launches on another stream than that of their memory: the fake driver reports work that nothing
//! orders.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel, LaunchError};
use gridguard::{Axis, Guard};
use gridguard_test_support::fake_driver::{races, with_fake};

use crate::kernels::{context, guard, iota, kernel, launch_iota, plan_along, poisoned, read};

const ITEMS: u64 = 64;

/// Launches over memory of another stream.
fn launch(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
    out: &mut CudaSlice<u64>,
) -> Result<u64, LaunchError> {
    launch_iota(guard, kernel, &plan_along(kernel, Axis::Y, ITEMS), stream, out)
}

/// Launches on a stream over memory of another one, drops the launches' stream, then the memory.
fn drop_stream_then_memory(
    guard: &Guard,
    kernel: &Kernel,
    stream: Arc<CudaStream>,
    owner: &Arc<CudaStream>,
) {
    let mut out = poisoned(owner, ITEMS);
    assert_eq!(launch(guard, kernel, &stream, &mut out), Ok(1));
    drop(stream);
    drop(out);
    assert_eq!(races(), Vec::<String>::new());
}

#[test]
fn memory_outlives_launches_whose_stream_was_dropped() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = context(&guard).new_stream().expect("a stream");
        drop_stream_then_memory(&guard, &kernel, stream, &context(&guard).default_stream());
    });
}

#[test]
fn memory_of_another_object_for_the_same_context_is_written_and_freed_in_order() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let other = CudaContext::new(0).expect("the same primary context");
        let stream = context(&guard).new_stream().expect("a stream");
        drop_stream_then_memory(&guard, &kernel, stream, &other.default_stream());
        let (stream, owner) = (context(&guard).default_stream(), other.new_stream());
        drop_stream_then_memory(&guard, &kernel, stream, &owner.expect("a stream"));
    });
}

#[test]
fn memory_of_the_default_stream_outlives_launches_on_the_stream_of_a_thread() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let [stream, owner] =
            [context(&guard).per_thread_stream(), context(&guard).default_stream()];
        drop_stream_then_memory(&guard, &kernel, Arc::clone(&stream), &owner);
        drop_stream_then_memory(&guard, &kernel, owner, &stream);
    });
}

#[test]
fn memory_of_a_stream_of_a_thread_is_freed_after_launches_elsewhere() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = context(&guard).new_stream().expect("a stream");
        let owner = context(&guard).per_thread_stream();
        drop_stream_then_memory(&guard, &kernel, stream, &owner);
    });
}

#[test]
fn later_work_of_the_memorys_stream_comes_after_the_launches() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let owner = CudaContext::new(0).expect("the same primary context").default_stream();
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&owner, ITEMS);
        for _ in 0..3 {
            assert_eq!(launch(&guard, &kernel, &stream, &mut out), Ok(1));
            assert_eq!(read(&owner, &out), iota(ITEMS));
            owner.memset_zeros(&mut out).expect("the memory is ours");
        }
        assert_eq!(races(), Vec::<String>::new());
    });
}

#[test]
fn memory_of_two_objects_for_the_same_context_is_ordered_each() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_spill_y");
        let stream = context(&guard).new_stream().expect("a stream");
        let other = CudaContext::new(0).expect("the same primary context");
        let mut out = poisoned(&context(&guard).default_stream(), ITEMS);
        let mut spilled = poisoned(&other.default_stream(), ITEMS);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length().write(&mut spilled);
        let plan = plan_along(&kernel, Axis::Y, ITEMS);
        assert_eq!(guard.launch(&kernel, &plan, args), Ok(1));
        assert_eq!(races(), Vec::<String>::new());
    });
}
