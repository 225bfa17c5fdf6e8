//! Launches with a workspace fall back to smaller chunks, and process every item once.

use gridguard::{
    Axis, BackoffError, BatchAxis, Choice, ChunkedRun, DeviceLimits, Dim3, KernelLimits,
    LaunchLimits, LaunchRequest, WorkspaceUse, launch_with_backoff,
};
use gridguard_test_support::invariants::backoff::{
    Refused, Simulated, batches, every_item_is_launched_once, limits,
};
use proptest::prelude::*;

use crate::cases;

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn every_item_is_launched_once_whatever_the_memory_does(batch in batches()) {
        every_item_is_launched_once(&batch);
    }
}

fn run(
    batch: BatchAxis,
    free: u64,
    usage: WorkspaceUse,
) -> Result<ChunkedRun, BackoffError<Refused>> {
    let request = LaunchRequest::new(Dim3::new(1, batch.items(), 1), Dim3::ONE);
    let mut memory = Simulated { free: vec![free], ..Simulated::default() };
    launch_with_backoff(&request, &batch, &limits(), Choice::AUTOMATIC, usage, &mut memory)
}

#[test]
fn chunks_are_halved_until_their_workspace_fits() {
    let batch = BatchAxis::new(Axis::Y, 64).workspace(1000, u64::MAX);
    for usage in [WorkspaceUse::Shared, WorkspaceUse::PerChunk] {
        let done = run(batch, 16_999, usage).expect("16 at a time");
        assert_eq!(done.tried, [64, 32, 16]);
        assert_eq!((done.chunk(), done.launches, done.items_done), (16, 4, 64));
        assert_eq!(done.workspace_bytes, 16_000);
    }
}

#[test]
fn the_floor_is_the_unit_of_the_batch() {
    let batch = BatchAxis::new(Axis::Y, 64).align(6).workspace(1000, u64::MAX);
    let done = run(batch, 6000, WorkspaceUse::Shared).expect("6 at a time");
    assert_eq!((done.chunk(), done.launches), (6, 11));
    let error = run(batch, 5999, WorkspaceUse::Shared).expect_err("6 are the least");
    let BackoffError::OutOfWorkspace { chunk, bytes, done, .. } = error else {
        panic!("{error}");
    };
    assert_eq!((chunk, bytes, done.items_done), (6, 6000, 0));
}

#[test]
fn a_kernel_s_own_cluster_bounds_the_chunks_where_the_launch_names_none() {
    let mut device = DeviceLimits::any_device();
    device.cluster_launch = true;
    device.max_portable_cluster_blocks = 8;
    let mut kernel = KernelLimits::unknown("k");
    kernel.required_cluster = Some(Dim3::new(1, 4, 1));
    let limits = LaunchLimits::new(device, kernel);
    let request = LaunchRequest::new(Dim3::new(1, 20, 1), Dim3::ONE).cluster(Dim3::new(0, 0, 0));
    // Starts at multiples of three, and of four for the cluster: half of the batch is too few.
    let batch = BatchAxis::new(Axis::Y, 20).align(3).workspace(10, u64::MAX);
    let mut memory = Simulated { free: vec![120], bytes_per_item: 10, ..Simulated::default() };
    let (choice, usage) = (Choice::AUTOMATIC, WorkspaceUse::Shared);
    let done = launch_with_backoff(&request, &batch, &limits, choice, usage, &mut memory)
        .expect("settles");
    assert_eq!((done.tried.as_slice(), done.launches), ([20, 12].as_slice(), 2));
    assert_eq!(done.items_done, 20);
}

#[test]
fn an_empty_batch_asks_for_nothing() {
    let batch = BatchAxis::new(Axis::Y, 0).workspace(1000, u64::MAX);
    assert_eq!(run(batch, 0, WorkspaceUse::Shared), Ok(ChunkedRun::default()));
}

#[test]
fn a_cooperative_launch_is_not_cut_for_want_of_memory() {
    let mut device = DeviceLimits::any_device();
    device.cooperative_launch = true;
    let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
    let request = LaunchRequest::new(Dim3::new(1, 8, 1), Dim3::ONE).cooperative();
    let batch = BatchAxis::new(Axis::Y, 8).workspace(10, u64::MAX);
    let mut memory = Simulated { free: vec![79], ..Simulated::default() };
    let usage = WorkspaceUse::Shared;
    let error =
        launch_with_backoff(&request, &batch, &limits, Choice::AUTOMATIC, usage, &mut memory);
    let Err(BackoffError::OutOfWorkspace { chunk: 8, bytes: 80, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(memory.allocations, 1);
}
