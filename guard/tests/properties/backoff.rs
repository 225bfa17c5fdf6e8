//! A workspace that does not fit is halved, with the chunks, until it does.

use gridguard::{
    Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Plan,
    WorkspaceError,
};
use gridguard_test_support::invariants::backoff::{
    Refused, Simulated, a_workspace_fits_all_chunks, batches, limits,
};
use proptest::prelude::*;

use super::cases;

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn a_workspace_fits_all_chunks_whatever_the_memory_does(batch in batches()) {
        a_workspace_fits_all_chunks(&batch);
    }
}

type Fitted = Result<(Plan, u64), WorkspaceError<Refused>>;

/// The plan and its workspace if `free` bytes are free, and the bytes of each allocation.
fn fit(
    request: &LaunchRequest,
    batch: BatchAxis,
    limits: &LaunchLimits,
    free: u64,
) -> (Fitted, Vec<u64>) {
    let plan = Plan::new(request, Some(&batch), limits, Choice::AUTOMATIC).expect("legal");
    let mut memory = Simulated { free: vec![free], ..Simulated::default() };
    (memory.fit(plan, request, &batch, limits), memory.asked)
}

fn rows(batch: BatchAxis) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(1, batch.items(), 1), Dim3::ONE)
}

#[test]
fn chunks_are_halved_until_their_workspace_fits() {
    let batch = BatchAxis::new(Axis::Y, 64).workspace(1000, u64::MAX);
    let (fitted, asked) = fit(&rows(batch), batch, &limits(), 16_999);
    let (plan, bytes) = fitted.expect("16 at a time");
    assert_eq!(asked, [64_000, 32_000, 16_000]);
    assert_eq!((plan.largest_chunk(), plan.len(), bytes), (16, 4, 16_000));
}

#[test]
fn no_chunk_is_smaller_than_the_unit_of_the_batch() {
    let batch = BatchAxis::new(Axis::Y, 64).align(6).workspace(1000, u64::MAX);
    let (fitted, _) = fit(&rows(batch), batch, &limits(), 6000);
    let (plan, _) = fitted.expect("6 at a time");
    assert_eq!((plan.largest_chunk(), plan.len()), (6, 11));
    let (fitted, _) = fit(&rows(batch), batch, &limits(), 5999);
    let error = fitted.expect_err("6 are the least");
    assert_eq!((error.chunk, error.bytes, error.is_smallest), (6, 6000, true));
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
    let (fitted, asked) = fit(&request, batch, &limits, 120);
    let (plan, _) = fitted.expect("12 at a time");
    assert_eq!((asked, plan.len(), plan.items()), (vec![200, 120], 2, 20));
}

#[test]
fn a_cooperative_launch_is_not_cut_for_want_of_memory() {
    let mut device = DeviceLimits::any_device();
    device.cooperative_launch = true;
    let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
    let request = LaunchRequest::new(Dim3::new(1, 8, 1), Dim3::ONE).cooperative();
    let batch = BatchAxis::new(Axis::Y, 8).workspace(10, u64::MAX);
    let (fitted, asked) = fit(&request, batch, &limits, 79);
    let error = fitted.expect_err("one launch");
    assert_eq!((error.chunk, error.bytes, asked.len()), (8, 80, 1));
}
