//! Opt-ins that a program forgot: a kernel is launched with more dynamic shared memory than by default, or in clusters above
//! the portable size, and its attribute does not allow that.

use core::ffi::c_int;

use crate::driver::Driver;
use crate::driver::abi::{Handle, INVALID_CLUSTER_SIZE, INVALID_VALUE, SUCCESS, Status};
use crate::driver::request::Launch;
use crate::process::demangle::demangled;
use crate::process::{self, guarded};
use crate::watch::slot_cache::{SlotCache, hash_of};

/// The calls that the program lacks.
static CALLS: SlotCache<String, { 1 << 7 }, 64> = SlotCache::new();

/// The attributes, as the driver and the runtime name them.
const SHARED_BYTES: (c_int, &str) = (8, "cudaFuncAttributeMaxDynamicSharedMemorySize");
const NON_PORTABLE_CLUSTER: (c_int, &str) = (14, "cudaFuncAttributeNonPortableClusterSizeAllowed");

/// An attribute that was set for the program.
pub(crate) struct OptIn {
    driver: &'static Driver,
    function: Handle,
    attribute: c_int,
    before: c_int,
    call: String,
}

/// Makes a refused launch again by `again` if `--fix` is on and its kernel lacks an opt-in. Returns whether the driver
/// accepted it.
pub(crate) fn repaired(launch: &Launch, status: Status, again: &dyn Fn() -> Status) -> bool {
    let may_lack = [INVALID_VALUE, INVALID_CLUSTER_SIZE].contains(&status);
    let set = if may_lack { opt_in(launch) } else { Vec::new() };
    let is_accepted = !set.is_empty() && again() == SUCCESS;
    settle(set, is_accepted);
    is_accepted
}

/// Sets the attributes that the kernel of a launch lacks, if `--fix` is on and the device allows the launch with them.
pub(crate) fn opt_in(launch: &Launch) -> Vec<OptIn> {
    if !process::options().fix || launch.kernel.is_null() || launch.host {
        return Vec::new();
    }
    // SAFETY: the program is launching the kernel just now.
    guarded::run(|| unsafe { set_missing(launch) }).flatten().unwrap_or_default()
}

/// # Safety
///
/// The kernel of the launch is loaded.
unsafe fn set_missing(launch: &Launch) -> Option<Vec<OptIn>> {
    let driver = Driver::of(launch.through);
    let (device, request) = (driver.device_limits()?, launch.request());
    // SAFETY: by this function's contract.
    let (limits, name, function) = unsafe {
        let name = driver.name_of(launch.kernel)?.to_string_lossy();
        (driver.limits_for(launch, &name), name, driver.function_of(launch.kernel))
    };
    let shared = request.dynamic_shared_bytes;
    let needs_shared = limits.max_dynamic_shared_bytes.is_some_and(|most| shared > most)
        && shared + limits.static_shared_bytes <= device.max_shared_bytes_per_block_opt_in;
    let blocks = request.cluster.map_or(0, |cluster| cluster.volume());
    let needs_cluster = device.cluster_launch
        && !limits.non_portable_cluster_allowed
        && blocks > device.max_portable_cluster_blocks.into();
    let missing = [
        needs_shared.then_some((SHARED_BYTES, c_int::try_from(shared).ok()?)),
        needs_cluster.then_some((NON_PORTABLE_CLUSTER, 1)),
    ];
    let set = |((attribute, name_of_runtime), value): ((c_int, &str), c_int)| {
        let mut before = 0;
        // SAFETY: the kernel is loaded; the pointer is to a live integer.
        let is_set = unsafe {
            driver.function_attribute?(&raw mut before, attribute, function) == SUCCESS
                && driver.set_function_attribute?(function, attribute, value) == SUCCESS
        };
        let call =
            format!("cudaFuncSetAttribute({}, {name_of_runtime}, {value})", demangled(&name));
        is_set.then_some(OptIn { driver, function, attribute, before, call })
    };
    Some(missing.into_iter().flatten().filter_map(set).collect())
}

/// Notes the calls that the program lacks if the launch `is_accepted` with them, or else undoes them.
pub(crate) fn settle(set: Vec<OptIn>, is_accepted: bool) {
    guarded::run(|| {
        for OptIn { driver, function, attribute, before, call } in set {
            if is_accepted {
                CALLS.get(hash_of(&call), || call);
            } else if let Some(undo) = driver.set_function_attribute {
                // SAFETY: the program is launching the kernel just now.
                unsafe { undo(function, attribute, before) };
            }
        }
    });
}

/// The calls that the program lacks and that were made for it.
pub(crate) fn missing_calls() -> Vec<String> {
    CALLS.all().cloned().collect()
}
