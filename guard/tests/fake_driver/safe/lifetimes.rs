//! What a launch uses is dropped, leaked or left while it may still run.

use cudarc::driver::CudaSlice;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use gridguard::Guard;
use gridguard::cuda::{Args, LaunchErrorKind};
use gridguard_test_support::fake_driver::{launches, unloads, with_fake};

use super::{ITEMS, assert_ordered, look, write};
use crate::kernels::{context, guard, iota, kernel, poisoned, read, with_guard, with_kernel};

#[test]
fn a_module_is_unloaded_after_its_launches() {
    with_guard(&[], |guard| {
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&stream, ITEMS);
        let kernel = kernel(&guard, "fake_iota_y");
        assert_eq!(write(&guard, &kernel, &stream, &mut out), Ok(1));
        drop((guard, kernel));
        assert_eq!(unloads().len(), 1);
        assert_ordered();
    });
}

#[test]
fn memory_keeps_its_context_once_guard_and_kernel_are_gone() {
    with_fake(&[], || {
        let launched = |guard: &Guard| -> CudaSlice<u64> {
            let stream = context(guard).new_stream().expect("a stream");
            let mut out = poisoned(&context(guard).default_stream(), ITEMS);
            let launched = write(guard, &kernel(guard, "fake_iota_y"), &stream, &mut out);
            assert_eq!(launched, Ok(1));
            out
        };
        let out = launched(&guard());
        assert_eq!(read(out.stream(), &out), iota(ITEMS));
        drop(out);
        assert_ordered();
    });
}

#[test]
fn forgotten_arguments_launch_nothing_and_leave_the_memory_usable() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&context(&guard).default_stream(), ITEMS);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length();
        std::mem::forget(args);
        assert_eq!(launches(), Vec::<String>::new());
        assert_eq!(write(&guard, &kernel, &stream, &mut out), Ok(1));
        drop(out);
        assert_ordered();
    });
}

#[test]
fn forgotten_memory_is_never_freed() {
    with_guard(&[], |guard| {
        let stream = context(&guard).new_stream().expect("a stream");
        let mut out = poisoned(&context(&guard).default_stream(), ITEMS);
        let launched = write(&guard, &kernel(&guard, "fake_iota_y"), &stream, &mut out);
        assert_eq!(launched, Ok(1));
        std::mem::forget(out);
        drop((stream, guard));
        assert_ordered();
    });
}

#[test]
fn halves_of_one_slice_are_written_on_two_streams_and_freed_after_both() {
    with_guard(&[], |guard| {
        let (reader, writer) = (kernel(&guard, "look"), kernel(&guard, "fake_iota_y"));
        let stream = || context(&guard).new_stream().expect("a stream");
        let (a, b) = (stream(), stream());
        let mut out = poisoned(&a, 2 * ITEMS);
        let (mut left, mut right) = out.split_at_mut(64);
        assert_eq!(write(&guard, &writer, &a, &mut left), Ok(1));
        assert_eq!(write(&guard, &writer, &b, &mut right), Ok(1));
        assert_eq!(look(&guard, &reader, &a, &right.into_view()), Ok(1));
        drop((a, b, out));
        assert_ordered();
    });
}

#[test]
fn a_view_ends_where_its_slice_goes_on_and_may_be_empty() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 2 * ITEMS);
        for range in [0..63, 65..128, 128..128] {
            let refused = write(&guard, &kernel, &stream, &mut out.slice_mut(range));
            assert!(matches!(refused.expect_err("too short").kind(), LaunchErrorKind::Args(_)));
        }
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn a_refused_launch_does_not_count_as_a_use() {
    with_fake(&[("GRIDGUARD_FAKE_DEVICES", "2")], || {
        let (guard, other) = (guard(), Guard::cuda(1).expect("a second device"));
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = context(&guard).new_stream().expect("a stream");
        let mut foreign = poisoned(&context(&other).new_stream().expect("a stream"), ITEMS);
        let refused = write(&guard, &kernel, &stream, &mut foreign);
        let (what, name) = ("an argument's memory", "fake_iota_y".into());
        assert_eq!(refused, Err(LaunchErrorKind::OtherContext { what, kernel: name }.into()));
        // What the refused launch left behind would fail this one.
        let mut out = poisoned(&stream, ITEMS);
        assert_eq!(write(&guard, &kernel, &stream, &mut out), Ok(1));
        let other_kernel = crate::kernels::kernel(&other, "fake_iota_y");
        let owner = foreign.stream().clone();
        assert_eq!(write(&other, &other_kernel, &owner, &mut foreign), Ok(1));
        assert_ordered();
    });
}

#[test]
fn a_module_that_is_dropped_while_another_stream_is_captured_stays_loaded() {
    with_guard(&[], |guard| {
        let [stream, captured] = [(); 2].map(|()| context(&guard).new_stream().expect("a stream"));
        let mut out = poisoned(&stream, ITEMS);
        let kernel = kernel(&guard, "fake_iota_y");
        assert_eq!(write(&guard, &kernel, &stream, &mut out), Ok(1));
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        captured.begin_capture(mode).expect("the stream is idle");
        drop(kernel);
        let _ = captured.end_capture(CUgraphInstantiate_flags(0));
        assert_eq!(unloads(), Vec::<String>::new());
        assert_ordered();
    });
}
