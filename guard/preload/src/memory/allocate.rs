//! The functions that allocate: each calls its original, and enters what it returned.

use core::ffi::c_uint;

use gridguard_report::MemoryKind;

use super::live::{self, Allocation, Inserted, Key};
use super::request::{Request, wide};
use super::{refusal, stacks, sums};
use crate::abi::{
    Allocate, AllocateAsync, AllocateFromPool, AllocatePitch, AllocateWith, CreateMemory, Handle,
    LOCATION_DEVICE, LOCATIONS_HOST, MemoryProperties, NOT_INITIALIZED, OUT_OF_MEMORY, SUCCESS,
    Status,
};
use crate::flag::Inside;
use crate::{functions, late, watch};

/// Defines replacements of functions that take a result, a number of bytes and more.
macro_rules! replacements {
    ($($(#[$doc:meta])* $name:ident: $type:ident, $kind:ident $(, $more:ident: $of:ty)*;)*) => {$(
        $(#[$doc])*
        pub(crate) unsafe extern "C-unwind" fn $name<const H: usize, const S: usize>(
            result: *mut u64,
            bytes: usize,
            $($more: $of,)*
        ) -> Status {
            let Some(original) = functions::original::<H, S, $type>() else {
                return NOT_INITIALIZED;
            };
            // SAFETY: the caller's own arguments.
            let call = || unsafe { original(result, bytes $(, $more)*) };
            // SAFETY: the successful call wrote the address.
            let made = || unsafe { (Key::of_address(*result), wide(bytes)) };
            watched(Request::new((H, S), MemoryKind::$kind, bytes), call, made)
        }
    )*};
}

replacements! {
    /// `cuMemAlloc`.
    device: Allocate, Device;
    /// `cuMemAllocManaged`.
    managed: AllocateWith, Managed, flags: c_uint;
    /// `cuMemAllocAsync`.
    in_order: AllocateAsync, Device, stream: Handle;
    /// `cuMemAllocFromPoolAsync`.
    from_pool: AllocateFromPool, Device, pool: Handle, stream: Handle;
    /// `cuMemAllocHost`.
    pinned: Allocate, Pinned;
    /// `cuMemHostAlloc`.
    pinned_with: AllocateWith, Pinned, flags: c_uint;
}

/// `cuMemAllocPitch`.
pub(crate) unsafe extern "C-unwind" fn pitch<const H: usize, const S: usize>(
    result: *mut u64,
    pitch: *mut usize,
    row_bytes: usize,
    rows: usize,
    element_bytes: c_uint,
) -> Status {
    let Some(original) = functions::original::<H, S, AllocatePitch>() else {
        return NOT_INITIALIZED;
    };
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(result, pitch, row_bytes, rows, element_bytes) };
    // SAFETY: the successful call wrote both.
    let made = || unsafe { (Key::of_address(*result), wide((*pitch).saturating_mul(rows))) };
    watched(Request::new((H, S), MemoryKind::Device, row_bytes.saturating_mul(rows)), call, made)
}

/// `cuMemCreate`: physical memory, which is mapped later.
pub(crate) unsafe extern "C-unwind" fn physical<const H: usize, const S: usize>(
    result: *mut u64,
    bytes: usize,
    properties: *const MemoryProperties,
    flags: u64,
) -> Status {
    let Some(original) = functions::original::<H, S, CreateMemory>() else {
        return NOT_INITIALIZED;
    };
    // SAFETY: the caller's own arguments.
    let call = || unsafe { original(result, bytes, properties, flags) };
    // SAFETY: the successful call wrote the handle.
    let made = || unsafe { (Key::of_handle(*result), wide(bytes)) };
    // SAFETY: null or live properties, as the driver demands of its caller.
    let location = unsafe { properties.as_ref() }.map(|one| (one.location_kind, one.location));
    let request = match location {
        Some((kind, _)) if LOCATIONS_HOST.contains(&kind) => {
            Request::new((H, S), MemoryKind::Pinned, bytes)
        }
        _ => Request::new((H, S), MemoryKind::Device, bytes),
    };
    let device = location.filter(|(kind, _)| *kind == LOCATION_DEVICE).map(|(_, device)| device);
    let request = Request { device, ..request };
    watched(request, call, made)
}

/// Makes a call that allocates or frees: `outermost`, or `nested` within another one.
#[inline(always)]
pub(super) fn once<R>(nested: impl FnOnce() -> R, outermost: impl FnOnce() -> R) -> R {
    functions::once(Inside::Allocation, nested, outermost)
}

/// Calls the original, and enters the allocation that `made` returns, or explains why there is none.
#[inline(always)]
fn watched(
    request: Request,
    call: impl Fn() -> Status,
    made: impl FnOnce() -> (Key, u64),
) -> Status {
    once(&call, || {
        let status = call();
        match status {
            SUCCESS => {
                let (key, bytes) = made();
                succeeded(&request, key, bytes);
            }
            OUT_OF_MEMORY => {
                watch::ensure_begun();
                refusal::refused(&request, status);
            }
            _ => {
                late::check(request.through, status);
            }
        }
        status
    })
}

fn succeeded(request: &Request, key: Key, bytes: u64) {
    watch::ensure_begun();
    // The driver reserves nothing for an allocation of no bytes.
    if bytes == 0 {
        return;
    }
    let (kind, device) = (request.kind, request.device_number());
    enter(key, Allocation { bytes, kind, device, stack: stacks::sample(bytes) });
    sums::succeed(kind, device, request.bytes);
}

/// Enters a live allocation.
pub(super) fn enter(key: Key, allocation: Allocation) {
    let Inserted { has_place, replaced } = live::insert(key, allocation);
    if let Some(replaced) = replaced {
        sums::remove(replaced);
    }
    match has_place {
        true => sums::add(allocation),
        false => sums::add_untracked(allocation.bytes),
    }
}
