//! The limits that launches are validated against.

use core::ffi::c_char;
use std::ffi::CString;
use std::sync::Arc;

use gridguard::{DeviceLimits, Dim3, KernelLimits, LaunchLimits, catalog};

use crate::config::{gg_dim3, known_flags};
use crate::error::{create, entry, gg_error};
use crate::failure::{Failure, gg_status};
use crate::handles;
use crate::memory::{self, c_string, versioned};

/// The limits of one kernel on one device. Immutable; free it with `gg_free`.
pub struct gg_limits {
    pub(crate) limits: LaunchLimits,
    device_name: CString,
}

impl gg_limits {
    pub(crate) fn new(limits: LaunchLimits) -> Self {
        let device_name = c_string(limits.device().name.as_str());
        Self { limits, device_name }
    }
}

/// The known properties of a kernel. A property that is not known is zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_kernel_info {
    /// Set it to `sizeof(gg_kernel_info)`.
    pub struct_size: usize,
    /// The name in messages; NULL for none.
    pub name: *const c_char,
    /// Threads of a block by launch bounds, `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`.
    pub max_threads_per_block: u64,
    /// Registers of a thread, `CU_FUNC_ATTRIBUTE_NUM_REGS`.
    pub registers_per_thread: u64,
    /// Static shared memory in bytes, `CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES`.
    pub static_shared_bytes: u64,
    /// Dynamic shared memory that the kernel opted in to,
    /// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`; 0 if it did not.
    pub max_dynamic_shared_bytes: u64,
    /// Local memory of a thread in bytes, `CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES`.
    pub local_bytes_per_thread: u64,
    /// The cluster of `__cluster_dims__`; zeros for none.
    pub required_cluster: gg_dim3,
    /// The sum of some of `GG_OPTS_IN`, `GG_CLUSTER_MUST_BE_SET` and `GG_NON_PORTABLE_CLUSTERS`.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(gg_kernel_info, 88);

/// The kernel opts in to large dynamic shared memory if a launch needs it, as `gg_launch` does.
pub const GG_OPTS_IN: u32 = 1;
/// Every launch must specify a cluster, `CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET`.
pub const GG_CLUSTER_MUST_BE_SET: u32 = 2;
/// Clusters of more than 8 blocks are allowed,
/// `CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED`.
pub const GG_NON_PORTABLE_CLUSTERS: u32 = 4;

/// The limits and resources of a device, by the names of their `CU_DEVICE_ATTRIBUTE_`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_device_info {
    /// Set it to `sizeof(gg_device_info)`.
    pub struct_size: usize,
    /// The device's name. Valid until the limits are freed.
    pub name: *const c_char,
    /// Compute capability: the generation.
    pub capability_major: u32,
    /// Compute capability: the variant.
    pub capability_minor: u32,
    /// Blocks along each axis of a grid.
    pub max_grid: gg_dim3,
    /// Threads along each axis of a block.
    pub max_block: gg_dim3,
    /// Threads of a block.
    pub max_threads_per_block: u64,
    /// Threads of a warp.
    pub warp_size: u64,
    /// Registers of a block.
    pub max_registers_per_block: u64,
    /// Registers are allocated to a warp in multiples of this.
    pub register_allocation_unit: u64,
    /// Warps of a block are rounded up to a multiple of this for registers.
    pub warp_allocation_granularity: u64,
    /// Shared memory of a block in bytes without opt-in.
    pub max_shared_bytes_per_block: u64,
    /// Shared memory of a block in bytes with opt-in.
    pub max_shared_bytes_per_block_opt_in: u64,
    /// Shared memory in bytes that the system reserves for each block.
    pub reserved_shared_bytes_per_block: u64,
    /// Shared memory of a multiprocessor in bytes.
    pub shared_bytes_per_multiprocessor: u64,
    /// Multiprocessors; 0 if unknown.
    pub multiprocessors: u64,
    /// Resident threads of a multiprocessor.
    pub max_threads_per_multiprocessor: u64,
    /// Resident blocks of a multiprocessor.
    pub max_blocks_per_multiprocessor: u64,
    /// Registers of a multiprocessor.
    pub registers_per_multiprocessor: u64,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Blocks of a portable cluster; 0 without clusters.
    pub max_portable_cluster_blocks: u64,
    /// Bytes of all kernel parameters.
    pub max_parameter_bytes: u64,
    /// 1 if the device supports cooperative launches, else 0.
    pub cooperative_launch: u32,
    /// 1 if the device supports clusters, else 0.
    pub cluster_launch: u32,
}

versioned!(gg_device_info, 216);

/// The limits of a kernel on a GPU of the catalogue. `gpu` is a name or an alias, for example `h200` or `NVIDIA L4`;
/// `sm_86` for any GPU of a compute capability; `any` for the lowest limits of all. `kernel` may be NULL.
/// `GG_NOT_FOUND` with the known names if there is no such GPU. Needs no driver.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_limits_of_gpu(
    gpu: *const c_char,
    kernel: *const gg_kernel_info,
    out: *mut *mut gg_limits,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller's text, for the time of this call.
        let gpu = unsafe { memory::text(gpu, "gpu") }?;
        // SAFETY: the caller's structure, for the time of this call.
        unsafe { of_kernel(catalog::limits(gpu)?, kernel) }
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// The limits of a kernel on a device of this machine, by its ordinal. `kernel` may be NULL.
/// `GG_NOT_FOUND` if there is no such device, `GG_DRIVER` if there is no driver.
///
/// Thread-safe.
#[cfg(feature = "cuda")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_limits_of_device(
    ordinal: u32,
    kernel: *const gg_kernel_info,
    out: *mut *mut gg_limits,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        let ordinal = usize::try_from(ordinal).unwrap_or(usize::MAX);
        let device = gridguard::cuda::device_limits(ordinal)?;
        // SAFETY: the caller's structure, for the time of this call.
        unsafe { of_kernel(device, kernel) }
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// Writes the limits and resources of the device to `out`.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_limits_device(
    limits: *const gg_limits,
    out: *mut gg_device_info,
    error: *mut *mut gg_error,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let limits = unsafe { handles::get(limits, "limits") }?;
        // SAFETY: `out` is the caller's.
        unsafe { memory::write(out, &limits.device_info(), "out") }
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}

/// # Safety
///
/// As [`memory::read`].
unsafe fn of_kernel(
    device: Arc<DeviceLimits>,
    kernel: *const gg_kernel_info,
) -> Result<gg_limits, Failure> {
    // SAFETY: this function's contract.
    let Some(info) = unsafe { memory::read_optional(kernel, "kernel") }? else {
        let limits = LaunchLimits::new(device, KernelLimits::unknown(UNNAMED));
        return Ok(gg_limits::new(limits));
    };
    let all = GG_OPTS_IN | GG_CLUSTER_MUST_BE_SET | GG_NON_PORTABLE_CLUSTERS;
    known_flags(info.flags, all, "kernel.flags")?;
    // SAFETY: the caller's text, for the time of this call.
    let name = unsafe { memory::optional_text(info.name, "kernel.name") }?.unwrap_or(UNNAMED);
    let known = |number: u64| Some(number).filter(|number| *number > 0);
    let cluster = Dim3::from(info.required_cluster);
    let kernel = KernelLimits {
        name: name.to_owned(),
        max_threads_per_block: known(info.max_threads_per_block),
        // Only images state it.
        required_block: None,
        registers_per_thread: info.registers_per_thread,
        static_shared_bytes: info.static_shared_bytes,
        max_dynamic_shared_bytes: known(info.max_dynamic_shared_bytes),
        local_bytes_per_thread: info.local_bytes_per_thread,
        required_cluster: (cluster != Dim3::new(0, 0, 0)).then_some(cluster),
        cluster_must_be_set: info.flags & GG_CLUSTER_MUST_BE_SET != 0,
        non_portable_cluster_allowed: info.flags & GG_NON_PORTABLE_CLUSTERS != 0,
        // Batches declare it.
        index: Vec::new(),
    };
    let limits = LaunchLimits::new(device, kernel);
    let opts_in = info.flags & GG_OPTS_IN != 0;
    Ok(gg_limits::new(if opts_in { limits.with_automatic_opt_in() } else { limits }))
}

impl gg_limits {
    fn device_info(&self) -> gg_device_info {
        let device = self.limits.device();
        gg_device_info {
            struct_size: 0,
            name: self.device_name.as_ptr(),
            capability_major: device.compute_capability.major,
            capability_minor: device.compute_capability.minor,
            max_grid: device.max_grid.into(),
            max_block: device.max_block.into(),
            max_threads_per_block: device.max_threads_per_block,
            warp_size: device.warp_size,
            max_registers_per_block: device.max_registers_per_block,
            register_allocation_unit: device.register_allocation_unit,
            warp_allocation_granularity: device.warp_allocation_granularity,
            max_shared_bytes_per_block: device.max_shared_bytes_per_block,
            max_shared_bytes_per_block_opt_in: device.max_shared_bytes_per_block_opt_in,
            reserved_shared_bytes_per_block: device.reserved_shared_bytes_per_block,
            shared_bytes_per_multiprocessor: device.shared_bytes_per_multiprocessor,
            multiprocessors: device.multiprocessors,
            max_threads_per_multiprocessor: device.max_threads_per_multiprocessor,
            max_blocks_per_multiprocessor: device.max_blocks_per_multiprocessor,
            registers_per_multiprocessor: device.registers_per_multiprocessor,
            l2_bytes: device.l2_bytes,
            memory_bytes: device.memory_bytes,
            max_portable_cluster_blocks: device.max_portable_cluster_blocks,
            max_parameter_bytes: device.max_parameter_bytes,
            cooperative_launch: device.cooperative_launch.into(),
            cluster_launch: device.cluster_launch.into(),
        }
    }
}

/// A kernel without a name, in messages.
const UNNAMED: &str = "<unnamed>";
