//! The functions that free: each takes the allocation out of the table and calls its original.

use core::ffi::c_int;

use super::allocate::{enter, once};
use super::live::{self, Key};
use super::sums;
use crate::abi::{Free, FreeAsync, Handle, NOT_INITIALIZED, OnDevice, SUCCESS, Status};
use crate::{functions, late};

/// `cuMemFree` and `cuMemFreeHost`.
pub(crate) unsafe extern "C-unwind" fn memory<const H: usize, const S: usize>(
    address: u64,
) -> Status {
    let Some(original) = functions::original::<H, S, Free>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own argument.
    ended((H, S), Key::of_address(address), || unsafe { original(address) })
}

/// `cuMemFreeAsync`.
pub(crate) unsafe extern "C-unwind" fn in_order<const H: usize, const S: usize>(
    address: u64,
    stream: Handle,
) -> Status {
    let Some(original) = functions::original::<H, S, FreeAsync>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own arguments.
    ended((H, S), Key::of_address(address), || unsafe { original(address, stream) })
}

/// `cuMemRelease`.
pub(crate) unsafe extern "C-unwind" fn physical<const H: usize, const S: usize>(
    handle: u64,
) -> Status {
    let Some(original) = functions::original::<H, S, Free>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own argument.
    ended((H, S), Key::of_handle(handle), || unsafe { original(handle) })
}

/// `cuDevicePrimaryCtxReset`, which frees what was allocated in the device's primary context.
pub(crate) unsafe extern "C-unwind" fn reset_device<const H: usize, const S: usize>(
    device: c_int,
) -> Status {
    let Some(original) = functions::original::<H, S, OnDevice>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own argument.
    let status = unsafe { original(device) };
    if status == SUCCESS
        && let Ok(device) = u8::try_from(device)
    {
        live::remove_device(device, sums::remove);
    }
    status
}

/// Calls the original, with which the allocation ends. It is taken out before: right after the call the
/// driver may give its address to another thread.
#[inline(always)]
fn ended(through: (usize, usize), key: Key, call: impl Fn() -> Status) -> Status {
    once(&call, || {
        let allocation = live::remove(key);
        if let Some(allocation) = allocation {
            sums::remove(allocation);
        }
        let status = call();
        if status != SUCCESS {
            if let Some(allocation) = allocation {
                enter(key, allocation);
            }
            late::check(through, status);
        } else if allocation.is_none() {
            sums::remove_untracked(key);
        }
        status
    })
}
