//! Launches that allocate their own workspace, in smaller chunks if memory is short; and memory that
//! host and device share.
#![allow(unsafe_code, reason = "cudarc allocates unified memory unsafely")]

use std::thread;

use cudarc::driver::CudaSlice;
use gridguard::cuda::{Args, CudaErrorKind, Image, InOrder, Kernel, LaunchError, LaunchErrorKind};
use gridguard::{ArgsError, Axis, BatchAxis, DeviceLimits, Guard, Parameter, WorkspaceError};
use gridguard_test_support::fake_driver::{launches, races};

use crate::kernels::{
    POISON, PTX, assert_ordered, context, iota, items_along, kernel, launch_iota, plan_along,
    poisoned, read, with_guard, with_kernel,
};

const ITEMS: u64 = 64;
/// The output's 512 bytes beside 16 items of workspace, and less than 17.
const ROOM_FOR_16: (&str, &str) = ("GRIDGUARD_FAKE_ALLOC_LIMIT", "17000");

/// Launches `fake_spill_y` over 64 items of 1,000 bytes of workspace each.
fn spill(guard: &Guard, kernel: &Kernel) -> (Result<u64, LaunchError>, Vec<u64>) {
    let stream = context(guard).default_stream();
    let mut out: CudaSlice<u64> = poisoned(&stream, ITEMS);
    let (request, batch) = items_along(Axis::Y, ITEMS);
    let batch = batch.workspace(1000, u64::MAX);
    let mut args = Args::new(&stream);
    args.write_items(&mut out, 1).offset().length().workspace();
    let run = guard.launch(kernel, (&request, &batch), args);
    let written = read(&stream, &out);
    (run, written)
}

/// The error of a workspace that could not be allocated.
fn not_allocated(run: Result<u64, LaunchError>) -> WorkspaceError<gridguard::cuda::DriverError> {
    match run.expect_err("no memory").kind() {
        LaunchErrorKind::Workspace(error) => error.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_workspace_that_does_not_fit_is_halved_until_it_does() {
    with_guard(&[ROOM_FOR_16], |guard| {
        let (run, written) = spill(&guard, &kernel(&guard, "fake_spill_y"));
        assert_eq!((run, written), (Ok(4), iota(ITEMS)));
        assert_eq!(launches().len(), 4);
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches, counts.split), (1, 4, 1));
    });
}

#[test]
fn an_allocation_that_fails_for_another_reason_ends_the_run() {
    let settings = [("GRIDGUARD_FAKE_FAIL_ALLOC", "1"), ("GRIDGUARD_FAKE_FAIL_ALLOC_CODE", "999")];
    with_guard(&settings, |guard| {
        let (run, written) = spill(&guard, &kernel(&guard, "fake_spill_y"));
        let WorkspaceError { bytes, is_smallest, source, .. } = not_allocated(run);
        assert_eq!((bytes, is_smallest, source.code), (64_000, false, 999));
        assert_eq!((launches().len(), written), (0, vec![POISON; 64]));
    });
}

#[test]
fn a_launch_that_is_out_of_memory_is_not_repeated() {
    let settings =
        [ROOM_FOR_16, ("GRIDGUARD_FAKE_FAIL_LAUNCH", "1"), ("GRIDGUARD_FAKE_FAIL_CODE", "2")];
    with_guard(&settings, |guard| {
        let (run, written) = spill(&guard, &kernel(&guard, "fake_spill_y"));
        let error = run.expect_err("refused");
        let LaunchErrorKind::Stopped(stopped) = error.kind() else { panic!("{error:?}") };
        assert_eq!((stopped.chunk, stopped.launches, stopped.items_done), (1, 4, 16));
        assert_eq!((stopped.source.code, launches().len()), (2, 1));
        assert_eq!(written[..16], iota(16)[..]);
        assert_eq!(written[16..], [POISON; 48]);
    });
}

#[test]
fn if_one_item_does_not_fit_the_error_says_so() {
    with_guard(&[("GRIDGUARD_FAKE_ALLOC_LIMIT", "1500")], |guard| {
        let (run, _) = spill(&guard, &kernel(&guard, "fake_spill_y"));
        let error = not_allocated(run);
        assert_eq!((error.chunk, error.bytes, error.is_smallest), (1, 1000, true));
        assert_eq!((error.source.code, launches().len()), (2, 0));
        assert_eq!(guard.counts().refused_by_driver, 1);
        let text = error.to_string();
        assert!(
            text.starts_with(
                "cannot allocate 1000 bytes of workspace for a chunk of 1 of 64 items: \
                 cuMemAllocAsync returned CUDA_ERROR_OUT_OF_MEMORY (2)"
            ) && text.ends_with(": free memory, or use less workspace per item"),
            "{text}"
        );
    });
}

#[test]
fn a_workspace_needs_a_batch_and_a_request() {
    with_kernel(&[], "fake_spill_y", |guard, kernel, stream| {
        let mut out = poisoned(&stream, 8);
        let (request, _) = items_along(Axis::Y, 8);
        let refused = Err(ArgsError::WorkspaceNotAllocated { index: 3 }.into());
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length().workspace();
        assert_eq!(guard.launch(&kernel, &request, args), refused);
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length().workspace();
        assert_eq!(guard.launch(&kernel, &plan_along(&kernel, Axis::Y, 8), args), refused);
        assert_eq!(launches().len(), 0);
    });
}

#[test]
#[allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]
fn a_workspace_with_more_alignment_than_cuda_guarantees_is_refused() {
    with_guard(&[], |guard| {
        let module = guard.load(&Image::new(PTX).expect("PTX")).expect("it is for this device");
        let number = Parameter::of::<u64>();
        let parameters =
            [Parameter::Memory, number, number, Parameter::AlignedMemory { bytes: 512 }];
        // SAFETY: the kernel writes as many words as it has blocks, and is content with less.
        let kernel = unsafe { module.kernel("fake_spill_y", &parameters) }.expect("a kernel");
        let (run, _) = spill(&guard, &kernel);
        let wider =
            ArgsError::Misaligned { kernel: "fake_spill_y".into(), index: 3, alignment: 512 };
        assert_eq!(run, Err(wider.into()));
    });
}

#[test]
fn free_memory_caps_the_chunks_with_a_tenth_to_spare() {
    with_guard(&[("GRIDGUARD_FAKE_FREE_0", "100000")], |guard| {
        assert_eq!(guard.free_memory().expect("the query succeeds").0, 100_000);
        let batch = BatchAxis::new(Axis::Y, 1000);
        let capped = guard.workspace(batch, 1000).expect("the query succeeds");
        assert_eq!(capped, batch.workspace(1000, 90_000));
        assert_eq!(capped.items_within(65_535), 90);
    });
}

#[test]
fn the_host_has_no_device_memory() {
    let guard = Guard::host(DeviceLimits::any_device());
    assert_eq!(guard.free_memory(), Err(CudaErrorKind::OnHost.into()));
}

#[test]
fn the_host_reads_and_frees_unified_memory_after_the_launches() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let plan = plan_along(&kernel, Axis::Y, ITEMS);
        // cudarc tracks no other memory if there is one stream.
        let stream = context(&guard).default_stream();
        // SAFETY: any value is a valid `u64`.
        let mut out = unsafe { context(&guard).alloc_unified::<u64>(64, true) }.expect("memory");
        assert_eq!(launch_iota(&guard, &kernel, &plan, &stream, &mut out), Ok(1));
        drop(out);
        assert_ordered();
    });
}

/// Launches `fake_iota_y` over memory in order, on the stream of this thread.
fn write_in_order(guard: &Guard, kernel: &Kernel, out: &mut CudaSlice<u64>) {
    let stream = context(guard).per_thread_stream();
    // SAFETY: the tests below say what orders other work.
    let mut out = unsafe { InOrder::new(out.as_view_mut()) };
    let plan = plan_along(kernel, Axis::Y, ITEMS);
    assert_eq!(launch_iota(guard, kernel, &plan, &stream, &mut out), Ok(1));
}

#[test]
fn memory_in_order_is_used_on_its_thread_without_a_wait() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let stream = context(&guard).per_thread_stream();
        let mut out = poisoned(&stream, ITEMS);
        for _ in 0..3 {
            write_in_order(&guard, &kernel, &mut out);
        }
        assert_eq!(read(&stream, &out), iota(ITEMS));
        drop(out);
        assert_ordered();
    });
}

#[test]
fn launches_over_memory_in_order_wait_for_no_other_thread() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let mut out = poisoned(&context(&guard).per_thread_stream(), ITEMS);
        write_in_order(&guard, &kernel, &mut out);
        // Which breaks the promise.
        let other = || write_in_order(&guard, &kernel, &mut out);
        thread::scope(|scope| scope.spawn(other).join()).expect("it launches");
        assert_ne!(races(), Vec::<String>::new());
    });
}
