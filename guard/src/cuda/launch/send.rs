//! The driver's launch functions, for plain launches and for launches with a cluster, a priority or an overlap.

use core::ffi::c_void;

use crate::cuda::driver::symbols::{Driver, Handle, Status};
use crate::launch::abi::{
    CLUSTER_DIMENSION, COOPERATIVE, DEPENDENT, LaunchAttribute, LaunchConfig, PRIORITY,
};
use crate::launch::valid::ValidLaunch;

/// Makes one launch, which may `overlap` the one before. Plain launches use `cuLaunchKernel`, which
/// every driver has.
///
/// # Safety
///
/// - `function` is loaded in the current context, and `stream` is a live stream of that context, or null for its
///   default one. Both stay so until the launch has run, or until no graph that captured it can run.
/// - `launch` was validated against the limits of `function`, whose shared memory was opted in to.
/// - `params` points to as many pointers as the function has parameters, each to a value of its parameter's size. The
///   driver reads them during the call.
/// - The values keep the contract of the device code: memory behind them is alive and long enough until the launch has
///   run, and other work on it is ordered before or after, for a captured launch also whenever the graph runs.
/// - If `overlap`, the device code executes `griddepcontrol.wait` before it uses what the launch before writes, or the
///   two write nothing that the other uses.
#[inline]
pub(crate) unsafe fn send(
    driver: &Driver,
    function: Handle,
    stream: Handle,
    launch: &ValidLaunch,
    overlap: bool,
    params: *mut *mut c_void,
) -> (&'static str, Status) {
    if overlap || !launch.is_plain() {
        // SAFETY: this function's contract.
        let sent = unsafe { send_extras(driver, function, stream, launch, overlap, params) };
        if let Some(sent) = sent {
            return sent;
        }
    }
    let ([gx, gy, gz], [bx, by, bz]) = (launch.grid(), launch.block());
    let (call, shared) = (driver.launch_kernel, launch.dynamic_shared_bytes());
    let extra = core::ptr::null_mut();
    // SAFETY: this function's contract; `extra` may be null where `params` is not.
    let status = unsafe { call(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra) };
    ("cuLaunchKernel", status)
}

/// Makes one launch with attributes. `None` if the launch needs none and a plain call is enough: a kernel's compiled-in
/// cluster needs no attribute, and drivers without `cuLaunchKernelEx` cannot overlap launches.
///
/// # Safety
///
/// As [`send`].
#[inline(never)]
unsafe fn send_extras(
    driver: &Driver,
    function: Handle,
    stream: Handle,
    launch: &ValidLaunch,
    overlap: bool,
    params: *mut *mut c_void,
) -> Option<(&'static str, Status)> {
    let ([gx, gy, gz], [bx, by, bz]) = (launch.grid(), launch.block());
    let shared = launch.dynamic_shared_bytes();
    let needs_ex = launch.cluster().is_some() || overlap || launch.priority().is_some();
    if needs_ex && let Some(launch_ex) = driver.launch_kernel_ex {
        let (attributes, attribute_count) = attributes(launch, overlap);
        let config = LaunchConfig {
            grid: launch.grid(),
            block: launch.block(),
            shared_bytes: shared,
            stream,
            attributes: attributes.as_ptr(),
            attribute_count,
        };
        let extra = core::ptr::null_mut();
        // SAFETY: the configuration and its attributes outlive the call; the rest is this function's
        // contract.
        let status = unsafe { launch_ex(&raw const config, function, params, extra) };
        return Some(("cuLaunchKernelEx", status));
    }
    if launch.is_cooperative() {
        let call = driver.launch_cooperative_kernel;
        // SAFETY: this function's contract.
        let status = unsafe { call(function, gx, gy, gz, bx, by, bz, shared, stream, params) };
        return Some(("cuLaunchCooperativeKernel", status));
    }
    None
}

/// The attributes of a launch, and how many of the array are used.
fn attributes(launch: &ValidLaunch, overlap: bool) -> ([LaunchAttribute; 4], u32) {
    let mut attributes = [LaunchAttribute::NONE; 4];
    let cluster = launch.cluster().map(|cluster| (CLUSTER_DIMENSION, cluster));
    let cooperative = launch.is_cooperative().then_some((COOPERATIVE, [1, 0, 0]));
    let overlap = overlap.then_some((DEPENDENT, [1, 0, 0]));
    let priority = launch.priority();
    let priority = priority.map(|first| (PRIORITY, [first.cast_unsigned(), 0, 0]));
    let wanted = [cluster, cooperative, overlap, priority].into_iter().flatten();
    let mut count = 0;
    for (place, (id, value)) in attributes.iter_mut().zip(wanted) {
        *place = LaunchAttribute::new(id, value);
        count += 1;
    }
    (attributes, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::request::LaunchRequest;
    use crate::launch::validate::validate;
    use crate::{DeviceLimits, Dim3, KernelLimits, LaunchLimits};

    #[test]
    fn the_driver_reads_a_launch_s_attributes_in_their_order() {
        let mut device = DeviceLimits::any_device();
        (device.cluster_launch, device.max_portable_cluster_blocks) = (true, 8);
        device.cooperative_launch = true;
        let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
        let request = LaunchRequest::new(Dim3::new(4, 2, 1), Dim3::ONE).cluster(Dim3::new(2, 1, 1));
        let request = LaunchRequest { priority: Some(-5), ..request.cooperative() };
        let launch = validate(&request, &limits).expect("legal");
        let (attributes, count) = attributes(&launch, true);
        let read: Vec<(u32, [i32; 3])> = attributes
            .iter()
            .take(usize::try_from(count).expect("few"))
            .map(|LaunchAttribute { id, value: [x, y, z, ..], .. }| {
                (*id, [x, y, z].map(|part| part.cast_signed()))
            })
            .collect();
        let expected = [
            (CLUSTER_DIMENSION, [2, 1, 1]),
            (COOPERATIVE, [1, 0, 0]),
            (DEPENDENT, [1, 0, 0]),
            (PRIORITY, [-5, 0, 0]),
        ];
        assert_eq!(read, expected);
    }
}
