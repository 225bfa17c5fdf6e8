//! Launches a kernel, in chunks if its batch needs them.

use core::ffi::c_void;

use gridguard::cuda::RawLaunch;
use gridguard::{Choice, MAX_ARGS, Plan, RawArgs};

use crate::config::{
    GG_CONSTANT, GG_ITEMS, GG_LENGTH, GG_OFFSET, gg_batch, gg_config, gg_following,
};
use crate::error::{entry, gg_error};
use crate::failure::{Failure, gg_status};
use crate::handles;
use crate::kernel::gg_kernel;
use crate::memory;

/// Validates a launch and submits it to `config.stream`, as `cuLaunchKernel` does: unsplit if legal, else in
/// chunks of `batch`, which may be NULL.
///
/// `params` points to the value of each parameter. `batch.following` names the parameters that change from chunk to
/// chunk; a parameter with the number of items must be among them. All chunks are validated before the first is
/// launched. If the driver still refuses a chunk, the error has a `gg_progress`. `launches`, which may be NULL, gets
/// the number of launches.
///
/// The call returns before the launches have run. The arguments must match the kernel's parameters, and memory must
/// live until the launches have run. The stream must be of the kernel's context. The calling thread's current
/// context is the same afterwards. A legal launch neither allocates nor locks, once the kernel was launched with its
/// shared memory before.
///
/// Thread-safe, as `cuLaunchKernel` is: launches of one stream are in the order of the calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_launch(
    kernel: *const gg_kernel,
    config: *const gg_config,
    params: *const *mut c_void,
    batch: *const gg_batch,
    launches: *mut u64,
    error: *mut *mut gg_error,
) -> gg_status {
    let body = || {
        let handle = kernel;
        // SAFETY: the caller does not free the handle meanwhile: callbacks come last.
        let kernel = unsafe { handles::get(handle, "kernel") }?;
        let mut choice_was_rejected = false;
        // SAFETY: the caller's structures, for the time of this call; the caller vouches for stream and
        // parameters.
        let launched = unsafe {
            if batch.is_null() {
                launch(kernel, config, params)
            } else {
                launch_batch(kernel, config, params, batch, &mut choice_was_rejected)
            }
        };
        if kernel.guarded.listener.is_some() && (choice_was_rejected || !matches!(launched, Ok(1)))
        {
            // SAFETY: the caller does not free the handle meanwhile, and only the listener may.
            unsafe { tell(handle, choice_was_rejected, &launched) }?;
        }
        let launched = launched?;
        if !launches.is_null() {
            // SAFETY: not null, so it points to memory for a number.
            unsafe { launches.write_unaligned(launched) };
        }
        Ok(())
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}

/// Tells the kernel's listener, which may free the kernel.
///
/// # Safety
///
/// The handle is not freed before the listener is called.
#[cold]
unsafe fn tell(
    kernel: *const gg_kernel,
    choice_was_rejected: bool,
    launched: &Result<u64, Failure>,
) -> Result<(), Failure> {
    // SAFETY: this function's contract.
    let kernel = &unsafe { handles::keep(kernel, "kernel") }?.object;
    if let Some(listener) = &kernel.guarded.listener {
        listener.tell(&kernel.name, choice_was_rejected, launched);
    }
    Ok(())
}

/// Launches without a batch.
///
/// # Safety
///
/// As [`gg_launch`] says of structure, stream and parameters.
#[inline]
unsafe fn launch(
    kernel: &gg_kernel,
    config: *const gg_config,
    params: *const *mut c_void,
) -> Result<u64, Failure> {
    // SAFETY: this function's contract.
    unsafe {
        let config = memory::read(config, "config")?;
        let values = memory::array(params, kernel.parameters.len(), usize::MAX, "params")?;
        if values.iter().any(|value| value.is_null()) {
            return Err(Failure::null(VALUE));
        }
        let request = config.request()?;
        let launch = RawLaunch::Pointers(&request, params.cast_mut());
        Ok(kernel.guarded.guard.launch_raw(&kernel.kernel, config.stream, launch)?)
    }
}

/// Launches with a batch; out of line, to keep launches without one short. Notes whether the caller's choice
/// was rejected.
///
/// # Safety
///
/// As [`gg_launch`] says of structures, stream and parameters.
#[inline(never)]
unsafe fn launch_batch(
    kernel: &gg_kernel,
    config: *const gg_config,
    params: *const *mut c_void,
    batch: *const gg_batch,
    choice_was_rejected: &mut bool,
) -> Result<u64, Failure> {
    // SAFETY: this function's contract.
    let (config, batch) =
        unsafe { (memory::read(config, "config")?, &memory::read(batch, "batch")?) };
    let (request, stream) = (config.request()?, config.stream);
    let mut args = RawArgs::new();
    let count = usize::try_from(batch.following_count).unwrap_or(usize::MAX);
    // SAFETY: the caller's array, for the time of this call.
    let following = unsafe { memory::array(batch.following, count, MAX_ARGS, "batch.following") }?;
    // SAFETY: this function's contract.
    unsafe {
        let values = memory::array(params, kernel.parameters.len(), usize::MAX, "params")?;
        add(&mut args, kernel, values, batch, following)?;
    }
    let declared = batch.declared()?;
    let (guard, choice) = (&kernel.guarded.guard, batch.choice()?);
    if choice != Choice::AUTOMATIC {
        match Plan::new(&request, Some(&declared), kernel.kernel.limits(), choice) {
            Ok(plan) => {
                let launch = RawLaunch::Plan(&plan, &args);
                // SAFETY: this function's contract.
                return Ok(unsafe { guard.launch_raw(&kernel.kernel, stream, launch) }?);
            }
            Err(_) if batch.is_preference() => *choice_was_rejected = true,
            Err(violations) => return Err(violations.into()),
        }
    }
    let launch = RawLaunch::Request(&request, Some(&declared), &args);
    // SAFETY: this function's contract.
    Ok(unsafe { guard.launch_raw(&kernel.kernel, stream, launch) }?)
}

/// Adds the parameters of a launch with a batch.
///
/// # Safety
///
/// `values` are null, or point to values of the parameters' sizes, which live as long as `args`.
unsafe fn add<'a>(
    args: &mut RawArgs<'a>,
    kernel: &gg_kernel,
    values: &[*mut c_void],
    batch: &gg_batch,
    following: &[gg_following],
) -> Result<(), Failure> {
    let wrong =
        |parameter: u32, expected| Failure::range("batch.following.parameter", parameter, expected);
    for (place, one) in following.iter().enumerate() {
        let index = usize::try_from(one.parameter).unwrap_or(usize::MAX);
        if index >= kernel.parameters.len() {
            return Err(wrong(one.parameter, "less than the kernel's number of parameters"));
        }
        if following.iter().take(place).any(|other| other.parameter == one.parameter) {
            return Err(wrong(one.parameter, "named once"));
        }
    }
    let shares_blocks = batch.items_per_block > 1;
    for ((number, value), size) in (0_u32..).zip(values).zip(&kernel.parameters) {
        let one = following.iter().find(|one| one.parameter == number);
        let kind = one.map_or(0, |one| one.kind);
        // SAFETY: this function's contract.
        let bytes = || unsafe { memory::array(value.cast::<u8>(), *size, usize::MAX, VALUE) };
        match (kind, one, *size) {
            (GG_OFFSET, _, 4) => args.offset_as::<i32>(),
            (GG_OFFSET, _, 8) => args.offset_as::<u64>(),
            (GG_LENGTH, _, 4) => args.length_as::<i32>(),
            (GG_LENGTH, _, 8) => args.length_as::<u64>(),
            (GG_ITEMS, Some(one), 8) => {
                let base = <[u8; 8]>::try_from(bytes()?).map_or(0, u64::from_ne_bytes);
                let or = |given: u64, otherwise| if given == 0 { otherwise } else { given };
                let span_bytes = or(one.span_bytes, one.stride_bytes);
                let reach_bytes = or(one.reach_bytes, u64::MAX);
                args.items_within(base, one.stride_bytes, span_bytes, reach_bytes)
            }
            // If the driver does not know the sizes, nothing else checks them.
            (GG_ITEMS | GG_OFFSET | GG_LENGTH, ..) => {
                return Err(wrong(number, "a parameter of the kind's size"));
            }
            (0 | GG_CONSTANT, ..) => {
                let bytes = bytes()?;
                let is_checked = shares_blocks && kind != GG_CONSTANT;
                match (<[u8; 4]>::try_from(bytes), <[u8; 8]>::try_from(bytes)) {
                    (Ok(four), _) if is_checked => args.value(u32::from_ne_bytes(four)),
                    (_, Ok(eight)) if is_checked => args.value(u64::from_ne_bytes(eight)),
                    _ => args.bytes(bytes),
                }
            }
            (other, ..) => {
                return Err(Failure::range(
                    "batch.following.kind",
                    other,
                    "GG_ITEMS to GG_CONSTANT",
                ));
            }
        };
    }
    Ok(())
}

/// A null pointer to a value, in messages.
const VALUE: &str = "a pointer in params";

/// Waits for all launches on a `CUstream`, NULL for the default one, of the kernel's context.
/// `GG_DRIVER` if one of them failed: the message names the launches that may have caused it.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_synchronize(
    kernel: *const gg_kernel,
    stream: *mut c_void,
    error: *mut *mut gg_error,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let kernel = unsafe { handles::get(kernel, "kernel") }?;
        // SAFETY: the caller vouches for the stream.
        unsafe { kernel.guarded.guard.synchronize_raw(stream) }?;
        Ok(())
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}
