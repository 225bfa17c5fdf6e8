//! Legal launches are validated and planned without an allocation.
#![allow(unsafe_code, reason = "calls as C programs make them")]

use core::ptr::{null, null_mut};

use gridguard_capi::{
    GG_AXIS_Y, gg_batch, gg_chunk, gg_config, gg_dim3, gg_free, gg_limits_of_gpu, gg_plan,
    gg_plan_info, gg_status, gg_validate,
};
use gridguard_test_support::allocator::{Counting, allocations_of};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn zeroed<T: Copy>() -> T {
    // SAFETY: structures of the interface consist of numbers and pointers.
    unsafe { core::mem::zeroed() }
}

#[test]
fn a_legal_launch_is_validated_and_planned_without_an_allocation() {
    let (mut limits, error) = (null_mut(), null_mut());
    // SAFETY: a text, and pointers to live variables.
    let made = unsafe { gg_limits_of_gpu(c"h200".as_ptr(), null(), &raw mut limits, error) };
    assert_eq!(made, gg_status::GG_OK);
    let mut config = gg_config {
        struct_size: size_of::<gg_config>(),
        grid: gg_dim3 { x: 1, y: 65_535, z: 1 },
        block: gg_dim3 { x: 128, y: 1, z: 1 },
        ..zeroed()
    };
    // SAFETY: a live handle and a whole structure.
    let validate = |config: &gg_config| unsafe { gg_validate(limits, config, error) };
    assert_eq!(allocations_of(|| validate(&config)), (gg_status::GG_OK, 0));
    config.grid.y = 76_800;
    let (rejected, allocations) = allocations_of(|| validate(&config));
    assert!(rejected == gg_status::GG_REJECTED && allocations > 0, "violations are counted");
    let batch =
        gg_batch { struct_size: size_of::<gg_batch>(), axis: GG_AXIS_Y, items: 76_800, ..zeroed() };
    let mut info = gg_plan_info { struct_size: size_of::<gg_plan_info>(), ..zeroed() };
    let mut chunks: [gg_chunk; 2] = zeroed();
    let (info, chunks) = (&raw mut info, (&raw mut chunks).cast());
    // SAFETY: a live handle, whole structures, and memory for two launches.
    let plan = || unsafe { gg_plan(limits, &config, &batch, info, 0, chunks, 2, error) };
    assert_eq!(allocations_of(plan), (gg_status::GG_OK, 0));
    // SAFETY: nothing uses the handle any more.
    assert_eq!(unsafe { gg_free(limits.cast()) }, gg_status::GG_OK);
}
