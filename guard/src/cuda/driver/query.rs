//! Queries the driver: devices and their limits, kernels and their parameters.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::CudaContext;
use derive_more::Display;
use parking_lot::RwLock;

use crate::cuda::driver::error::DriverError;
use crate::cuda::driver::library::CurrentContext;
use crate::cuda::driver::log::{self, LogPosition};
use crate::cuda::driver::symbols::{
    AFFINITY_MULTIPROCESSORS, DeviceResource, Driver, ExecAffinity, Handle, LAST_DEFAULT_STREAM,
    RESOURCE_MULTIPROCESSORS, Status,
};
use crate::cuda::error::{CudaError, CudaErrorKind};
use crate::dim::saturated;
use crate::launch::rule::INVALID_VALUE;
use crate::limits::attributes::device_attribute;
use crate::limits::{DeviceLimits, KernelLimits};

/// The CUDA version that the driver supports: 1000 * major + 10 * minor.
///
/// # Errors
///
/// [`CudaError`] if there is no usable driver.
pub fn driver_version() -> Result<i32, CudaError> {
    Ok(Driver::get()?.version()?)
}

/// The number of visible devices, at least one.
///
/// # Errors
///
/// [`CudaError`] if there is no usable driver, or no device.
pub fn device_count() -> Result<usize, CudaError> {
    let driver = Driver::get()?;
    // SAFETY: the pointer is to a live integer.
    let ask = |count| unsafe { (driver.device_get_count)(count) };
    let count = driver.read("cuDeviceGetCount", 0, ask)?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(driver.no_device()),
    }
}

/// The limits of device `ordinal`, queried once for the process.
///
/// # Errors
///
/// [`CudaError`] if there is no driver, no such device, or a query fails.
pub fn device_limits(ordinal: usize) -> Result<Arc<DeviceLimits>, CudaError> {
    let device = device_handle(ordinal)?;
    Ok(limits_of_device(Driver::get()?, device)?)
}

/// The context (`CUcontext`) that is current on this thread; `None` if there is none.
///
/// # Errors
///
/// [`CudaError`] if there is no usable driver, or the query fails.
pub fn current_context() -> Result<Option<NonNull<c_void>>, CudaError> {
    Ok(NonNull::new(Driver::get()?.checked_current_context()?))
}

/// Which processes may use a device, as set by `nvidia-smi --compute-mode`.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
#[display(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ComputeMode {
    /// All.
    Default,
    /// One process at a time.
    Exclusive,
    /// None.
    Prohibited,
    /// A mode that this version does not know.
    Other(i32),
}

impl ComputeMode {
    const fn from_driver(number: i32) -> Self {
        match number {
            0 => Self::Default,
            // 1 was one thread at a time, which drivers since CUDA 8 treat as one process.
            1 | 3 => Self::Exclusive,
            2 => Self::Prohibited,
            other => Self::Other(other),
        }
    }
}

/// The compute mode of device `ordinal`. Creates no context.
///
/// # Errors
///
/// [`CudaError`] if there is no driver, no such device, or the query fails.
pub fn compute_mode(ordinal: usize) -> Result<ComputeMode, CudaError> {
    let (driver, device) = (Driver::get()?, device_handle(ordinal)?);
    Ok(ComputeMode::from_driver(attribute(driver, device, device_attribute::COMPUTE_MODE)?))
}

/// Free and total memory of device `ordinal` in bytes. Initialises the device's primary context for
/// the query, unless it is already.
///
/// # Errors
///
/// [`CudaError`] if there is no driver, no such device, or the context cannot be created.
pub fn free_memory(ordinal: usize) -> Result<(u64, u64), CudaError> {
    let (driver, device) = (Driver::get()?, device_handle(ordinal)?);
    // SAFETY: the driver returned the device; the pointer is to a live handle.
    let retain = |context| unsafe { (driver.primary_ctx_retain)(context, device) };
    let context = driver.read("cuDevicePrimaryCtxRetain", core::ptr::null_mut(), retain)?;
    let memory = free_memory_in(driver, context);
    // SAFETY: this function retained the primary context once.
    let status = unsafe { (driver.primary_ctx_release)(device) };
    let memory = memory?;
    driver.check("cuDevicePrimaryCtxRelease", status)?;
    Ok(memory)
}

/// Free and total memory of the device of `context` in bytes. The caller holds the context.
pub(crate) fn free_memory_in(
    driver: &'static Driver,
    context: Handle,
) -> Result<(u64, u64), DriverError> {
    let (mut free, mut total) = (0, 0);
    // Dropped after the check, which collects suspects in the current context.
    let _current = CurrentContext::new(driver, context)?;
    // SAFETY: both pointers are to live integers, and a context is current.
    let status = unsafe { (driver.mem_get_info)(&raw mut free, &raw mut total) };
    driver.check("cuMemGetInfo", status)?;
    Ok((saturated(free), saturated(total)))
}

/// The multiprocessors that a launch in `context`, which is current, can use, of `all` that the device
/// has: fewer in a green context, and under execution affinity, which MPS sets too.
pub(crate) fn multiprocessors_of_context(driver: &Driver, context: Handle, all: u64) -> u64 {
    let mut affinity = ExecAffinity::default();
    let status = driver.ctx_get_exec_affinity.map(|look_up| {
        // SAFETY: a context is current; the pointer is to a live structure of this type.
        unsafe { look_up(&raw mut affinity, AFFINITY_MULTIPROCESSORS) }
    });
    let by_affinity = counted(driver, status, affinity.multiprocessors);
    let mut resource = DeviceResource::NONE;
    let status = driver.ctx_get_dev_resource.map(|look_up| {
        // SAFETY: the context is current, so alive; the pointer is to a live structure, at least as
        // large as the driver's.
        unsafe { look_up(context, &raw mut resource, RESOURCE_MULTIPROCESSORS) }
    });
    let by_resource = counted(driver, status, resource.multiprocessors);
    by_affinity.into_iter().chain(by_resource).fold(all, u64::min)
}

/// The multiprocessors that a launch on `stream` can use: the SMs of the stream's green context; without one,
/// `of_context`.
///
/// # Safety
///
/// `stream` is a live stream of the current context, or stands for a default one.
pub(crate) unsafe fn multiprocessors_of_stream(
    driver: &Driver,
    stream: Handle,
    of_context: u64,
) -> u64 {
    let mut green = core::ptr::null_mut();
    if stream.addr() > LAST_DEFAULT_STREAM
        && let Some(look_up) = driver.stream_get_green_ctx
    {
        // SAFETY: the stream is alive, by this function's contract; the pointer is to a live handle.
        let status = unsafe { look_up(stream, &raw mut green) };
        if status != 0 {
            log::discard(driver);
        }
    }
    if green.is_null() {
        return of_context;
    }
    let mut resource = DeviceResource::NONE;
    let status = driver.green_ctx_get_dev_resource.map(|look_up| {
        // SAFETY: the driver returned the green context, which lives as long as its stream; the pointer is
        // to a live structure, at least as large as the driver's.
        unsafe { look_up(green, &raw mut resource, RESOURCE_MULTIPROCESSORS) }
    });
    counted(driver, status, resource.multiprocessors).unwrap_or(of_context)
}

/// The `count` that a query wrote. `None` if the driver lacks the query, or it failed.
fn counted(driver: &Driver, status: Option<Status>, count: u32) -> Option<u64> {
    if status? != 0 {
        log::discard(driver);
        return None;
    }
    Some(u64::from(count)).filter(|count| *count > 0)
}

fn device_handle(ordinal: usize) -> Result<c_int, CudaError> {
    let driver = Driver::get()?;
    let count = device_count()?;
    let missing = || CudaErrorKind::NoSuchDevice { ordinal, count };
    if ordinal >= count {
        return Err(missing().into());
    }
    let number = c_int::try_from(ordinal).map_err(|_| missing())?;
    // SAFETY: the pointer is to a live integer.
    Ok(driver.read("cuDeviceGet", 0, |device| unsafe { (driver.device_get)(device, number) })?)
}

fn query_device(driver: &Driver, device: c_int) -> Result<DeviceLimits, DriverError> {
    // SAFETY: the pointer is to a live integer.
    let ask = |bytes| unsafe { (driver.device_total_mem)(bytes, device) };
    let memory_bytes = saturated(driver.read("cuDeviceTotalMem", 0, ask)?);
    let (name, version) = (device_name(driver, device)?, driver.version()?);
    let ask = |number| attribute(driver, device, number);
    DeviceLimits::from_attributes(name, memory_bytes, version, ask)
}

fn attribute(driver: &Driver, device: c_int, number: i32) -> Result<i32, DriverError> {
    // SAFETY: the pointer is to a live integer, and the driver returned the device; for an unknown
    // attribute it returns an error.
    let ask = |value| unsafe { (driver.device_get_attribute)(value, number, device) };
    driver.read("cuDeviceGetAttribute", 0, ask)
}

fn device_name(driver: &Driver, device: c_int) -> Result<String, DriverError> {
    // SAFETY: the buffer has the 256 bytes that are passed as its size.
    let ask = |name: *mut [u8; 256]| unsafe { (driver.device_get_name)(name.cast(), 256, device) };
    let name = driver.read("cuDeviceGetName", [0; 256], ask)?;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// The limits of the device of `context`, which is current on this thread afterwards.
pub(crate) fn limits_of_context(
    driver: &Driver,
    context: &CudaContext,
) -> Result<Arc<DeviceLimits>, DriverError> {
    driver.bind_cudarc(context)?;
    limits_of_current_device(driver)
}

/// The limits of the device of the context that is current on this thread.
pub(crate) fn limits_of_current_device(driver: &Driver) -> Result<Arc<DeviceLimits>, DriverError> {
    // SAFETY: the pointer is to a live integer.
    let ask = |device| unsafe { (driver.ctx_get_device)(device) };
    limits_of_device(driver, driver.read("cuCtxGetDevice", 0, ask)?)
}

fn limits_of_device(driver: &Driver, device: c_int) -> Result<Arc<DeviceLimits>, DriverError> {
    /// The key is the driver's device handle, which need not be the ordinal.
    static KNOWN: RwLock<Vec<(c_int, Arc<DeviceLimits>)>> = RwLock::new(Vec::new());
    let find = |known: &[(c_int, Arc<DeviceLimits>)]| {
        known.iter().find(|(handle, _)| *handle == device).map(|(_, limits)| Arc::clone(limits))
    };
    if let Some(limits) = find(&KNOWN.read()) {
        return Ok(limits);
    }
    let limits = Arc::new(query_device(driver, device)?);
    let mut known = KNOWN.write();
    // Another thread may have added it meanwhile.
    if let Some(limits) = find(&known) {
        return Ok(limits);
    }
    known.push((device, Arc::clone(&limits)));
    Ok(limits)
}

/// The limits of a loaded function.
///
/// # Safety
///
/// `function` is loaded, and a context is current: for a function of another one the driver returns an
/// error.
pub(crate) unsafe fn kernel_limits(
    driver: &Driver,
    function: Handle,
    name: String,
) -> Result<KernelLimits, DriverError> {
    KernelLimits::from_attributes(name, |attribute| {
        // SAFETY: the function is loaded, by this function's contract; the pointer is to a live
        // integer; for an unknown attribute the driver returns an error.
        let ask = |value| unsafe { (driver.func_get_attribute)(value, attribute, function) };
        driver.read("cuFuncGetAttribute", 0, ask)
    })
}

/// Sizes of a function's parameters in bytes, if the driver knows them (CUDA 12.4 and later).
///
/// # Safety
///
/// `function` is loaded, and a context is current: for a function of another one the driver returns an
/// error.
pub(crate) unsafe fn parameter_sizes(
    driver: &Driver,
    function: Handle,
) -> Result<Option<Vec<usize>>, DriverError> {
    /// More than fit the 32,764 bytes of a kernel's parameters.
    const MAX_PARAMETERS: usize = 1 << 15;
    let Some(look_up) = driver.func_get_param_info else { return Ok(None) };
    let mut sizes = Vec::new();
    while sizes.len() < MAX_PARAMETERS {
        let (mut offset, mut size) = (0, 0);
        let start = LogPosition::now(driver);
        // SAFETY: the function is loaded, by this function's contract; both pointers are to live
        // integers; past the last parameter the driver returns an error.
        let status = unsafe { look_up(function, sizes.len(), &raw mut offset, &raw mut size) };
        if status == INVALID_VALUE {
            break;
        }
        driver.check_since(start, "cuFuncGetParamInfo", status)?;
        sizes.push(size);
    }
    log::discard(driver);
    Ok(Some(sizes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_modes_have_the_driver_s_numbers() {
        let modes = [0, 1, 2, 3, 7].map(|number| ComputeMode::from_driver(number).to_string());
        assert_eq!(modes, ["default", "exclusive", "prohibited", "exclusive", "7"]);
    }
}
