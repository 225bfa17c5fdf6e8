//! Compares device limits field by field.

use gridguard::DeviceLimits;

/// Asserts that two devices have the same limits; a failure names the field.
///
/// # Panics
///
/// If a field differs.
pub fn assert_same_limits(one: &DeviceLimits, other: &DeviceLimits) {
    // Without `..`, so that a new field must be added here.
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
    } = one;
    macro_rules! same {
        ($($field:ident)*) => {$(
            assert_eq!($field, &other.$field, stringify!($field));
        )*};
    }
    same!(name compute_capability max_grid max_block max_threads_per_block warp_size);
    same!(max_registers_per_block register_allocation_unit warp_allocation_granularity);
    same!(max_shared_bytes_per_block max_shared_bytes_per_block_opt_in);
    same!(reserved_shared_bytes_per_block shared_bytes_per_multiprocessor multiprocessors);
    same!(max_threads_per_multiprocessor max_blocks_per_multiprocessor);
    same!(registers_per_multiprocessor l2_bytes memory_bytes cooperative_launch cluster_launch);
    same!(max_portable_cluster_blocks max_parameter_bytes);
}
