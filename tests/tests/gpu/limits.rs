//! Does the device answer what the catalogue says?

use gridguard::{DeviceLimits, Guard, catalog, cuda};

use super::support::guard;

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_catalogue_says_what_the_device_answers() {
    let device = cuda::device_limits(0).expect("a device");
    let row = catalog::gpu(&device.name).expect("the catalogue knows this device");
    // Field by field, so that a new one must be thought about.
    let DeviceLimits {
        name,
        compute_capability,
        max_grid,
        max_block,
        max_threads_per_block,
        warp_size,
        max_registers_per_block,
        register_allocation_unit,
        warp_allocation_granularity,
        max_shared_bytes_per_block,
        max_shared_bytes_per_block_opt_in,
        reserved_shared_bytes_per_block,
        shared_bytes_per_multiprocessor,
        multiprocessors,
        max_threads_per_multiprocessor,
        max_blocks_per_multiprocessor,
        registers_per_multiprocessor,
        l2_bytes,
        memory_bytes,
        cooperative_launch,
        cluster_launch,
        max_portable_cluster_blocks,
        max_parameter_bytes,
    } = &*row.limits;
    println!("{device:#?}");
    assert_eq!(device.name, *name);
    assert_eq!(device.compute_capability, *compute_capability);
    assert_eq!(device.max_grid, *max_grid);
    assert_eq!(device.max_block, *max_block);
    assert_eq!(device.max_threads_per_block, *max_threads_per_block);
    assert_eq!(device.warp_size, *warp_size);
    assert_eq!(device.max_registers_per_block, *max_registers_per_block);
    assert_eq!(device.register_allocation_unit, *register_allocation_unit);
    assert_eq!(device.warp_allocation_granularity, *warp_allocation_granularity);
    assert_eq!(device.max_shared_bytes_per_block, *max_shared_bytes_per_block);
    assert_eq!(device.max_shared_bytes_per_block_opt_in, *max_shared_bytes_per_block_opt_in);
    assert_eq!(device.reserved_shared_bytes_per_block, *reserved_shared_bytes_per_block);
    assert_eq!(device.shared_bytes_per_multiprocessor, *shared_bytes_per_multiprocessor);
    assert_eq!(device.multiprocessors, *multiprocessors);
    assert_eq!(device.max_threads_per_multiprocessor, *max_threads_per_multiprocessor);
    assert_eq!(device.max_blocks_per_multiprocessor, *max_blocks_per_multiprocessor);
    assert_eq!(device.registers_per_multiprocessor, *registers_per_multiprocessor);
    assert_eq!(device.l2_bytes, *l2_bytes);
    assert_eq!(device.memory_bytes, *memory_bytes);
    assert_eq!(device.cooperative_launch, *cooperative_launch);
    assert_eq!(device.cluster_launch, *cluster_launch);
    assert_eq!(device.max_portable_cluster_blocks, *max_portable_cluster_blocks);
    assert_eq!(device.max_parameter_bytes, *max_parameter_bytes);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_best_guard_is_a_device_and_gives_no_reason_against_it() {
    let best = Guard::best();
    assert!(best.is_cuda());
    assert!(best.fallback().is_none());
    assert_eq!(best.limits().name, guard().limits().name);
    let (free, total) = cuda::free_memory(0).expect("memory");
    assert!(0 < free && free <= total);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_bad_ordinal_is_told_what_there_is() {
    let error = Guard::cuda(4711).expect_err("no such device");
    assert!(matches!(error, cuda::CudaError::NoSuchDevice { ordinal: 4711, .. }), "{error}");
}
