//! The functions that allocate and free memory.

use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering;

use gridguard_report::MemoryKind;

use crate::driver::abi::{
    LOCATION_DEVICE, LOCATIONS_HOST, MemoryProperties, OUT_OF_MEMORY, SUCCESS, Status,
};
use crate::driver::functions::{FUNCTIONS, once, replacements};
use crate::hook::session;
use crate::process::flag::Flag;
use crate::refuse::{late, memory as refuse};
use crate::watch::memory::live::{self, Allocation, Inserted, Key};
use crate::watch::memory::request::{Request, wide};
use crate::watch::memory::{stacks, sums};

replacements! {
    /// All functions that write an address and take its bytes first. Here and below, a function with fewer arguments does
    /// not read the registers of the others.
    allocate(result: *mut u64, bytes: usize, third: usize, fourth: usize)
    |through, call| {
        let request = Request::new(through, kind_of(H), bytes);
        // SAFETY: the successful call wrote the address.
        watched(request, call, || unsafe { (Key::of_address(*result), request.bytes) })
    }

    /// `cuMemAllocPitch`.
    pitch(result: *mut u64, pitch: *mut usize, row_bytes: usize, rows: usize, element_bytes: c_uint)
    |through, call| {
        // SAFETY: the successful call wrote both.
        let made = || unsafe { (Key::of_address(*result), wide((*pitch).saturating_mul(rows))) };
        watched(Request::new(through, MemoryKind::Device, row_bytes.saturating_mul(rows)), call, made)
    }

    /// `cuMemCreate`: physical memory, which is mapped later.
    physical(result: *mut u64, bytes: usize, properties: *const MemoryProperties, flags: u64)
    |through, call| {
        // SAFETY: the successful call wrote the handle.
        let made = || unsafe { (Key::of_handle(*result), wide(bytes)) };
        // SAFETY: null or live properties, as the driver demands of its caller.
        let location = unsafe { properties.as_ref() }.map(|one| (one.location_kind, one.location));
        let is_host = location.is_some_and(|(kind, _)| LOCATIONS_HOST.contains(&kind));
        let kind = if is_host { MemoryKind::Pinned } else { MemoryKind::Device };
        let device = location.filter(|(kind, _)| *kind == LOCATION_DEVICE).map(|(_, device)| device);
        watched(Request { device, ..Request::new(through, kind, bytes) }, call, made)
    }

    /// `cuMemFree`, `cuMemFreeHost` and `cuMemFreeAsync`.
    free(address: u64, stream: usize)
    |through, call| { ended(through, Key::of_address(address), call) }

    /// `cuMemRelease`.
    release(handle: u64)
    |through, call| { ended(through, Key::of_handle(handle), call) }

    /// `cuDevicePrimaryCtxReset`, which frees the memory of the device's primary context.
    reset_device(device: c_int)
    |_through, call| {
        let status = call();
        if status == SUCCESS
            && let Ok(device) = u8::try_from(device)
        {
            live::remove_device(device, sums::remove);
        }
        status
    }
}

/// The kind of memory that a function allocates.
#[inline]
fn kind_of(function: usize) -> MemoryKind {
    match FUNCTIONS[function].name {
        b"cuMemAllocManaged" => MemoryKind::Managed,
        b"cuMemHostAlloc" | b"cuMemAllocHost" => MemoryKind::Pinned,
        _ => MemoryKind::Device,
    }
}

/// Calls the original, and records the allocation that `made` describes, or explains its refusal.
#[inline(always)]
fn watched(
    request: Request,
    call: impl Fn() -> Status,
    made: impl FnOnce() -> (Key, u64),
) -> Status {
    once(Flag::Allocation, &call, || {
        let status = call();
        match status {
            SUCCESS => {
                let (key, bytes) = made();
                succeeded(&request, key, bytes);
            }
            OUT_OF_MEMORY => {
                session::ensure_begun();
                refuse::refused(&request, status);
            }
            _ => {
                late::check(request.through, status);
            }
        }
        status
    })
}

fn succeeded(request: &Request, key: Key, bytes: u64) {
    session::ensure_begun();
    // The driver reserves nothing for an allocation of no bytes.
    if bytes == 0 {
        return;
    }
    let (kind, device) = (request.kind, request.device_number());
    enter(key, Allocation { bytes, kind, device, stack: stacks::sample(bytes) });
    sums::succeed(kind, device, request.bytes);
}

/// Records a live allocation.
fn enter(key: Key, allocation: Allocation) {
    let Inserted { has_place, replaced } = live::insert(key, allocation);
    if let Some(replaced) = replaced {
        sums::remove(replaced);
    }
    match has_place {
        true => sums::add(allocation),
        false => drop(sums::UNTRACKED.fetch_add(1, Ordering::Relaxed)),
    }
}

/// Removes the record of the allocation, then calls the original, which frees it. After the call another thread may get
/// the same address.
#[inline(always)]
fn ended(through: (usize, usize), key: Key, call: impl Fn() -> Status) -> Status {
    once(Flag::Allocation, &call, || {
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
        }
        status
    })
}
