//! Launches a kernel, in chunks where its batch needs them.

use core::ffi::c_void;

use gridguard::cuda::RawLaunch;
use gridguard::{BatchAxis, KernelArgs, LaunchRequest, Plan};

use crate::config::{
    GG_CONSTANT, GG_ITEMS, GG_LENGTH, GG_OFFSET, gg_batch, gg_config, gg_following, range,
};
use crate::error::{entry, gg_error};
use crate::failure::{Failure, gg_status};
use crate::handles;
use crate::kernel::gg_kernel;
use crate::memory;

/// Validates a launch and submits it to `config.stream`, as `cuLaunchKernel` does: in one launch if that is
/// legal, else in chunks of `batch`, which may be NULL.
///
/// `params` points to the value of each parameter. Those that change from chunk to chunk are named in
/// `batch.following`; a parameter with the number of items must be one of them. All chunks are validated before
/// the first is launched. If the driver refuses one even so, the error has a `gg_progress`. `launches`, which
/// may be NULL, gets the number of launches.
///
/// The call returns before the launches have run. Arguments must be what the kernel takes, and memory must
/// live until the launches have run. The stream must be of the kernel's context. The calling thread's current
/// context is the same afterwards. Neither allocates nor locks if the launch is legal, once the kernel was
/// launched with its shared memory before.
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
        if kernel.listener().is_some() && (choice_was_rejected || !matches!(launched, Ok(1))) {
            // SAFETY: as above.
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
    let kernel = unsafe { handles::keep(kernel, "kernel") }?;
    if let Some(listener) = kernel.listener() {
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
        check_values(kernel, params)?;
        let request = config.request()?;
        let launch = RawLaunch::Pointers(&request, params.cast_mut());
        Ok(kernel.guard().launch_raw(&kernel.kernel, config.stream, launch)?)
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
    let mut args = KernelArgs::new();
    // SAFETY: the caller's array, for the time of this call.
    let following = unsafe { following_of(batch) }?;
    // SAFETY: this function's contract.
    unsafe { add(&mut args, kernel, params, batch, following) }?;
    let declared = batch.declared()?;
    match chosen_plan(kernel, &request, batch, &declared)? {
        Chosen::Plan(plan) => {
            let launch = RawLaunch::Plan(&plan, &args);
            // SAFETY: this function's contract.
            return Ok(unsafe { kernel.guard().launch_raw(&kernel.kernel, stream, launch) }?);
        }
        Chosen::Rejected => *choice_was_rejected = true,
        Chosen::Automatic => {}
    }
    let launch = RawLaunch::Request(&request, Some(&declared), &args);
    // SAFETY: this function's contract.
    Ok(unsafe { kernel.guard().launch_raw(&kernel.kernel, stream, launch) }?)
}

/// What the caller's choice comes to.
#[allow(clippy::large_enum_variant, reason = "it stays on the stack")]
enum Chosen {
    /// The planner chooses.
    Automatic,
    /// The planner chooses, since the caller's preference is not legal.
    Rejected,
    Plan(Plan),
}

fn chosen_plan(
    kernel: &gg_kernel,
    request: &LaunchRequest,
    batch: &gg_batch,
    declared: &BatchAxis,
) -> Result<Chosen, Failure> {
    let choice = batch.choice()?;
    if choice == gridguard::Choice::AUTOMATIC {
        return Ok(Chosen::Automatic);
    }
    match Plan::new(request, Some(declared), kernel.kernel.limits(), choice) {
        Ok(plan) => Ok(Chosen::Plan(plan)),
        Err(_) if batch.is_preference() => Ok(Chosen::Rejected),
        Err(violations) => Err(violations.into()),
    }
}

/// Checks that there is a value for each parameter.
///
/// # Safety
///
/// As [`gg_launch`] says of parameters.
#[inline]
unsafe fn check_values(kernel: &gg_kernel, params: *const *mut c_void) -> Result<(), Failure> {
    for index in 0..kernel.parameters.len() {
        // SAFETY: this function's contract.
        unsafe { value_of(params, index) }?;
    }
    Ok(())
}

/// Adds the parameters of a launch with a batch.
///
/// # Safety
///
/// As [`check_values`]; the values live as long as `args`.
unsafe fn add<'a>(
    args: &mut KernelArgs<'a>,
    kernel: &'a gg_kernel,
    params: *const *mut c_void,
    batch: &gg_batch,
    following: &[gg_following],
) -> Result<(), Failure> {
    for (place, one) in following.iter().enumerate() {
        let index = usize::try_from(one.parameter).unwrap_or(usize::MAX);
        if index >= kernel.parameters.len() {
            let expected = "less than the kernel's number of parameters";
            return Err(range("batch.following.parameter", one.parameter, expected));
        }
        if following.iter().take(place).any(|other| other.parameter == one.parameter) {
            let expected = "named once";
            return Err(range("batch.following.parameter", one.parameter, expected));
        }
    }
    let shares_blocks = batch.items_per_block > 1;
    for ((index, number), size) in (0..).zip(0_u32..).zip(&kernel.parameters) {
        let one = following.iter().find(|one| one.parameter == number);
        let kind = one.map_or(0, |one| one.kind);
        match (kind, one, *size) {
            (GG_OFFSET, _, 4) => args.offset_as::<i32>(),
            (GG_OFFSET, _, _) => args.offset(),
            (GG_LENGTH, _, 4) => args.length_as::<i32>(),
            (GG_LENGTH, _, _) => args.length(),
            (GG_ITEMS, Some(one), size) => {
                // SAFETY: this function's contract.
                let bytes = unsafe { bytes_of(params, index, size) }?;
                let base = <[u8; 8]>::try_from(bytes).map_or(0, u64::from_ne_bytes);
                let or = |given: u64, otherwise| if given == 0 { otherwise } else { given };
                let span_bytes = or(one.span_bytes, one.stride_bytes);
                let reach_bytes = or(one.reach_bytes, u64::MAX);
                args.items_within(base, one.stride_bytes, span_bytes, reach_bytes)
            }
            (0 | GG_CONSTANT, _, size) => {
                // SAFETY: this function's contract.
                let bytes = unsafe { bytes_of(params, index, size) }?;
                let is_checked = shares_blocks && kind != GG_CONSTANT;
                match (<[u8; 4]>::try_from(bytes), <[u8; 8]>::try_from(bytes)) {
                    (Ok(four), _) if is_checked => args.value(u32::from_ne_bytes(four)),
                    (_, Ok(eight)) if is_checked => args.value(u64::from_ne_bytes(eight)),
                    _ => args.bytes(bytes),
                }
            }
            (other, ..) => {
                return Err(range("batch.following.kind", other, "GG_ITEMS to GG_CONSTANT"));
            }
        };
        // Where the driver does not know the sizes, nothing else checks them.
        if matches!(kind, GG_OFFSET | GG_LENGTH) && !matches!(*size, 4 | 8)
            || kind == GG_ITEMS && *size != 8
        {
            let expected = "a parameter of the kind's size";
            return Err(range("batch.following.parameter", number, expected));
        }
    }
    Ok(())
}

/// The value of a parameter.
///
/// # Safety
///
/// As [`check_values`].
#[inline]
unsafe fn bytes_of<'a>(
    params: *const *mut c_void,
    index: usize,
    size: usize,
) -> Result<&'a [u8], Failure> {
    // SAFETY: this function's contract.
    let value = unsafe { value_of(params, index) }?;
    // SAFETY: it points to a value of the parameter's size.
    Ok(unsafe { core::slice::from_raw_parts(value, size) })
}

/// The address of a parameter's value.
///
/// # Safety
///
/// As [`check_values`].
#[inline]
unsafe fn value_of(params: *const *mut c_void, index: usize) -> Result<*const u8, Failure> {
    if params.is_null() {
        return Err(Failure::Null("params"));
    }
    // SAFETY: it has a pointer for each parameter.
    let value = unsafe { params.add(index).read_unaligned() };
    if value.is_null() {
        return Err(Failure::Null("a pointer in params"));
    }
    Ok(value.cast::<u8>().cast_const())
}

/// # Safety
///
/// The batch's array is the caller's, and lives as long as the result.
unsafe fn following_of<'a>(batch: &gg_batch) -> Result<&'a [gg_following], Failure> {
    let count = usize::try_from(batch.following_count).unwrap_or(usize::MAX);
    // SAFETY: this function's contract.
    unsafe { memory::array(batch.following, count, gridguard::MAX_ARGS, "batch.following") }
}

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
        unsafe { kernel.guard().synchronize_raw(stream) }?;
        Ok(())
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}
