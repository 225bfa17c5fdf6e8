//! Launches that allocate their own workspace, in smaller chunks if memory is short; and memory that
//! host and device share.
#![allow(unsafe_code, reason = "cudarc allocates unified memory unsafely")]

use std::thread;

use cudarc::driver::CudaSlice;
use gridguard::cuda::{Args, CudaError, Image, InOrder, Kernel, LaunchError};
use gridguard::{
    ArgsError, Axis, BackoffError, BatchAxis, Choice, ChunkedRun, DeviceLimits, Guard, Parameter,
    WorkspaceUse,
};
use gridguard_test_support::fake_driver::{launches, races, with_fake};

use crate::kernels::{
    POISON, PTX, context, guard, iota, items_along, kernel, plan_along, poisoned, read,
};

const ITEMS: u64 = 64;
/// The output's 512 bytes beside 16 items of workspace, and less than 17.
const ROOM_FOR_16: (&str, &str) = ("GRIDGUARD_FAKE_ALLOC_LIMIT", "17000");

/// Launches `fake_spill_y` over 64 items of 1,000 bytes of workspace each.
fn spill(
    guard: &Guard,
    kernel: &Kernel,
    usage: WorkspaceUse,
) -> (Result<ChunkedRun, LaunchError>, Vec<u64>) {
    let stream = context(guard).default_stream();
    let mut out: CudaSlice<u64> = poisoned(&stream, ITEMS);
    let (request, batch) = items_along(Axis::Y, ITEMS);
    let batch = batch.workspace(1000, u64::MAX);
    let mut args = Args::with_workspace(&stream);
    args.write_items(&mut out, 1).offset().length().workspace();
    let choice = Choice::AUTOMATIC;
    let run = guard.launch_with_workspace(kernel, &request, &batch, choice, usage, args);
    let written = read(&stream, &out);
    (run, written)
}

fn stopped_run(run: Result<ChunkedRun, LaunchError>) -> BackoffError<gridguard::cuda::DriverError> {
    match run {
        Err(LaunchError::Backoff(error)) => *error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_workspace_that_does_not_fit_is_halved_until_it_does() {
    with_fake(&[ROOM_FOR_16], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_spill_y");
        for usage in [WorkspaceUse::Shared, WorkspaceUse::PerChunk] {
            let (run, written) = spill(&guard, &kernel, usage);
            let run = run.expect("16 at a time");
            assert_eq!(run.tried, [64, 32, 16]);
            assert_eq!((run.launches, run.items_done), (4, 64));
            assert_eq!(run.workspace_bytes, 16_000);
            assert_eq!(written, iota(ITEMS));
        }
        assert_eq!(launches().len(), 8);
        let counts = guard.counts();
        assert_eq!((counts.plans, counts.launches, counts.split), (2, 8, 2));
    });
}

#[test]
fn a_workspace_that_fits_is_one_launch() {
    with_fake(&[], || {
        let guard = guard();
        let (run, written) = spill(&guard, &kernel(&guard, "fake_spill_y"), WorkspaceUse::Shared);
        assert_eq!(run.map(|run| run.tried), Ok(vec![64]));
        assert_eq!((launches().len(), written), (1, iota(ITEMS)));
    });
}

#[test]
fn memory_that_others_take_midway_loses_no_launch_and_repeats_none() {
    // The output is allocation 0; then 64 fail by the limit, 32 pass, and the second 32 fail.
    let settings = [("GRIDGUARD_FAKE_ALLOC_LIMIT", "33000"), ("GRIDGUARD_FAKE_FAIL_ALLOC", "3")];
    with_fake(&settings, || {
        let guard = guard();
        let (run, written) = spill(&guard, &kernel(&guard, "fake_spill_y"), WorkspaceUse::PerChunk);
        let run = run.expect("16 fit");
        assert_eq!((run.tried, run.launches), (vec![64, 32, 16], 3));
        assert_eq!(written, iota(ITEMS));
        let grids: Vec<bool> =
            launches().iter().map(|line| line.contains(" grid=1,32,1 ")).collect();
        assert_eq!(grids, [true, false, false]);
    });
}

#[test]
fn an_allocation_that_fails_for_another_reason_ends_the_run() {
    let settings = [("GRIDGUARD_FAKE_FAIL_ALLOC", "1"), ("GRIDGUARD_FAKE_FAIL_ALLOC_CODE", "999")];
    with_fake(&settings, || {
        let guard = guard();
        let (run, written) = spill(&guard, &kernel(&guard, "fake_spill_y"), WorkspaceUse::Shared);
        let BackoffError::Allocation { bytes: 64_000, done, source, .. } = stopped_run(run) else {
            panic!("another end");
        };
        assert_eq!((done.items_done, source.code), (0, 999));
        assert_eq!((launches().len(), written), (0, vec![POISON; 64]));
    });
}

#[test]
fn a_launch_that_is_out_of_memory_is_not_repeated() {
    let settings =
        [ROOM_FOR_16, ("GRIDGUARD_FAKE_FAIL_LAUNCH", "1"), ("GRIDGUARD_FAKE_FAIL_CODE", "2")];
    with_fake(&settings, || {
        let guard = guard();
        let (run, written) = spill(&guard, &kernel(&guard, "fake_spill_y"), WorkspaceUse::Shared);
        let BackoffError::Launch { chunk: 16, done, source, .. } = stopped_run(run) else {
            panic!("another end");
        };
        assert_eq!((done.items_done, done.launches, source.code), (16, 1, 2));
        assert_eq!(written[..16], iota(16)[..]);
        assert_eq!(written[16..], [POISON; 48]);
    });
}

#[test]
fn if_one_item_does_not_fit_the_error_has_what_was_tried() {
    with_fake(&[("GRIDGUARD_FAKE_ALLOC_LIMIT", "1500")], || {
        let guard = guard();
        let (run, _) = spill(&guard, &kernel(&guard, "fake_spill_y"), WorkspaceUse::Shared);
        let BackoffError::OutOfWorkspace { chunk: 1, bytes: 1000, done, source, .. } =
            stopped_run(run)
        else {
            panic!("another end");
        };
        assert_eq!(done.tried, [64, 32, 16, 8, 4, 2, 1]);
        assert_eq!((source.code, launches().len()), (2, 0));
        assert_eq!(guard.counts().refused_by_driver, 1);
    });
}

#[test]
fn a_workspace_needs_a_stream_and_a_parameter() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_spill_y");
        let stream = context(&guard).default_stream();
        let mut out = poisoned(&stream, 8);
        let (request, batch) = items_along(Axis::Y, 8);
        let bring = |args: Args<'_>| {
            let (choice, usage) = (Choice::AUTOMATIC, WorkspaceUse::Shared);
            guard.launch_with_workspace(&kernel, &request, &batch, choice, usage, args)
        };
        let not_brought = LaunchError::Args(ArgsError::WorkspaceNotAllocated { index: 3 });
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length().workspace();
        assert_eq!(bring(args), Err(not_brought.clone()));
        let mut args = Args::with_workspace(&stream);
        args.write_items(&mut out, 1).offset().length().workspace();
        let plain = guard.plan_and_launch(&kernel, &request, Some(&batch), args);
        assert_eq!(plain, Err(not_brought));
        let mut args = Args::with_workspace(&stream);
        args.write_items(&mut out, 1).offset().length();
        assert_eq!(bring(args), Err(LaunchError::Args(ArgsError::WorkspaceUnused)));
        assert_eq!(launches().len(), 0);
    });
}

#[test]
#[allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]
fn a_workspace_with_more_alignment_than_cuda_guarantees_is_refused() {
    with_fake(&[], || {
        let guard = guard();
        let module = guard.load(&Image::new(PTX).expect("PTX")).expect("it is for this device");
        let number = Parameter::of::<u64>();
        let parameters =
            [Parameter::Memory, number, number, Parameter::AlignedMemory { bytes: 512 }];
        // SAFETY: the kernel writes as many words as it has blocks, and is content with less.
        let kernel = unsafe { module.kernel("fake_spill_y", &parameters) }.expect("a kernel");
        let (run, _) = spill(&guard, &kernel, WorkspaceUse::Shared);
        let wider =
            ArgsError::Misaligned { kernel: "fake_spill_y".into(), index: 3, alignment: 512 };
        assert_eq!(run, Err(LaunchError::Args(wider)));
    });
}

#[test]
fn free_memory_caps_the_chunks_with_a_tenth_to_spare() {
    with_fake(&[("GRIDGUARD_FAKE_FREE_0", "100000")], || {
        let guard = guard();
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
    assert!(matches!(guard.free_memory(), Err(CudaError::Load(_))));
}

#[test]
fn the_host_reads_and_frees_unified_memory_after_the_launches() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let plan = plan_along(&kernel, Axis::Y, ITEMS);
        // With one stream cudarc tracks no other memory.
        let stream = context(&guard).default_stream();
        // SAFETY: any value is a valid `u64`.
        let mut out = unsafe { context(&guard).alloc_unified::<u64>(64, true) }.expect("memory");
        let mut args = Args::new(&stream);
        args.write_items(&mut out, 1).offset().length();
        assert_eq!(guard.launch(&kernel, &plan, args), Ok(1));
        drop(out);
        assert_eq!(races(), Vec::<String>::new());
    });
}

/// Launches `fake_iota_y` over memory in order, on the stream of this thread.
fn write_in_order(guard: &Guard, kernel: &Kernel, out: &mut CudaSlice<u64>) {
    let stream = context(guard).per_thread_stream();
    // SAFETY: the tests below say what orders other work.
    let mut out = unsafe { InOrder::new(out.as_view_mut()) };
    let mut args = Args::new(&stream);
    args.write_items(&mut out, 1).offset().length();
    assert_eq!(guard.launch(kernel, &plan_along(kernel, Axis::Y, ITEMS), args), Ok(1));
}

#[test]
fn memory_in_order_is_used_on_its_thread_without_a_wait() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let stream = context(&guard).per_thread_stream();
        let mut out = poisoned(&stream, ITEMS);
        for _ in 0..3 {
            write_in_order(&guard, &kernel, &mut out);
        }
        assert_eq!(read(&stream, &out), iota(ITEMS));
        drop(out);
        assert_eq!(races(), Vec::<String>::new());
    });
}

#[test]
fn launches_over_memory_in_order_wait_for_no_other_thread() {
    with_fake(&[], || {
        let guard = guard();
        let kernel = kernel(&guard, "fake_iota_y");
        let mut out = poisoned(&context(&guard).per_thread_stream(), ITEMS);
        write_in_order(&guard, &kernel, &mut out);
        // Which breaks the promise.
        let other = || write_in_order(&guard, &kernel, &mut out);
        thread::scope(|scope| scope.spawn(other).join()).expect("it launches");
        assert_ne!(races(), Vec::<String>::new());
    });
}
