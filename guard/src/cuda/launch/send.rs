//! The driver's launch functions: plain launches, and those with a cluster, a priority, or that overlap.

use core::ffi::c_void;

use crate::cuda::driver::symbols::{
    ATTRIBUTE_CLUSTER_DIMENSION, ATTRIBUTE_COOPERATIVE, ATTRIBUTE_OVERLAP, ATTRIBUTE_PRIORITY,
    Driver, Handle, LaunchAttribute, LaunchConfigEx, Status,
};
use crate::launch::valid::ValidLaunch;

/// Makes one launch, which may `overlap` the one before. Plain launches use `cuLaunchKernel`, which
/// every driver has.
///
/// # Safety
///
/// As [`Target::launch_with`](crate::cuda::launch::Target::launch_with), and `params` points to as many values as the
/// function has parameters.
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

/// Makes one launch with more than grid, block and shared memory. `None` if a plain call does: a
/// kernel's compiled-in cluster needs no attribute, and drivers without `cuLaunchKernelEx` cannot
/// overlap launches.
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
        let (mut attributes, attribute_count) = attributes(launch, overlap);
        let config = LaunchConfigEx {
            grid: launch.grid(),
            block: launch.block(),
            shared_bytes: shared,
            stream,
            attributes: attributes.as_mut_ptr(),
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
    let cluster = launch.cluster().map(|cluster| (ATTRIBUTE_CLUSTER_DIMENSION, cluster));
    let cooperative = launch.is_cooperative().then_some((ATTRIBUTE_COOPERATIVE, [1, 0, 0]));
    let overlap = overlap.then_some((ATTRIBUTE_OVERLAP, [1, 0, 0]));
    let priority = launch.priority();
    let priority = priority.map(|first| (ATTRIBUTE_PRIORITY, [first.cast_unsigned(), 0, 0]));
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
        let (mut attributes, count) = attributes(&launch, true);
        let first = attributes.as_mut_ptr();
        let read: Vec<(u32, [i32; 3])> = (0..usize::try_from(count).expect("few"))
            .map(|place| {
                // SAFETY: `place` is below the returned count.
                let attribute = unsafe { first.add(place).read() };
                let [x, y, z, ..] = attribute.value;
                (attribute.id, [x, y, z].map(u32::cast_signed))
            })
            .collect();
        let expected = [
            (ATTRIBUTE_CLUSTER_DIMENSION, [2, 1, 1]),
            (ATTRIBUTE_COOPERATIVE, [1, 0, 0]),
            (ATTRIBUTE_OVERLAP, [1, 0, 0]),
            (ATTRIBUTE_PRIORITY, [-5, 0, 0]),
        ];
        assert_eq!(read, expected);
    }
}
