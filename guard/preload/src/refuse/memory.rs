//! Explains allocations that the driver refused: the free memory of the device, and the memory of the process by stack.

use std::collections::BTreeMap;

use gridguard_report::{AllocationGroup, Bytes, DeviceFree, MemoryKind, RefusedAllocation};

use crate::driver::Driver;
use crate::driver::abi::Status;
use crate::driver::functions::FUNCTIONS;
use crate::process::stack::Stacks;
use crate::process::{guarded, python};
use crate::refuse::{Explained, paragraph};
use crate::watch::memory::live::{self, Allocation};
use crate::watch::memory::request::Request;
use crate::watch::memory::{stacks, sums};

/// Refused allocations that are explained; later ones are only counted.
const MAX_EXPLAINED: usize = 8;
/// Places with the most live memory that are shown.
const SHOWN_GROUPS: usize = 5;
/// Frames that are shown of each.
const SHOWN_FRAMES: usize = 12;

pub(crate) static EXPLAINED: Explained<RefusedAllocation, MAX_EXPLAINED> =
    Explained::new(RefusedAllocation::message);

/// Explains a refused allocation. If one of the same kind and size was refused before, and none succeeded since, only
/// counts it: a program may catch the error and try again.
#[cold]
pub(crate) fn refused(request: &Request, status: Status) {
    guarded::run(|| {
        let device = request.device_number();
        if sums::refuse(request.kind, device, request.bytes) {
            EXPLAINED.explain("allocations", || {
                let refusal = explain(request, device, status);
                let head =
                    format!("out of memory: {} returned {}", refusal.function, refusal.error);
                let mut lines = refusal.lines();
                lines.extend(python::shown(&refusal.python).map(|frame| ("python", frame)));
                (paragraph(&head, &lines, &refusal.stack), refusal)
            });
        }
    });
}

/// The current device's memory in words, for a launch that ran out of memory.
pub(crate) fn at_launch(driver: &Driver) -> Option<String> {
    let (free, total) = driver.free_memory()?;
    let device = u8::try_from(driver.device_number()?).ok()?;
    let held = sums::of(MemoryKind::Device, device).held();
    let (free, total, held) = (Bytes(free), Bytes(total), Bytes(held.bytes));
    Some(format!("{free} free of {total}, {held} allocated by this process"))
}

fn explain(request: &Request, device: u8, status: Status) -> RefusedAllocation {
    let &Request { through, kind, bytes, .. } = request;
    let driver = Driver::of(through);
    let Stacks { python, native } = Stacks::now();
    // The driver tells of the current device only.
    let is_current = driver.device_number() == Some(device.into());
    let limits = driver.device_limits().filter(|_| is_current);
    let free = driver.free_memory().filter(|_| is_current).map(|(free_bytes, total_bytes)| {
        let pool_unused_bytes = driver.unused_of_pool(device.into()).unwrap_or(0);
        DeviceFree { free_bytes, total_bytes, pool_unused_bytes }
    });
    let symbol = FUNCTIONS.get(through.0).map(|function| function.symbol.to_string_lossy());
    RefusedAllocation {
        function: symbol.unwrap_or_default().into_owned(),
        code: status,
        error: driver.error(status),
        kind,
        requested_bytes: bytes,
        device_name: limits
            .map_or_else(|| format!("device {device}"), |limits| limits.name.clone()),
        device: free,
        held: sums::of(kind, device).held(),
        largest: largest(kind, device),
        python,
        stack: native.iter().map(ToString::to_string).collect(),
    }
}

/// The live allocations that count as memory of this kind and device, by where they were made, the most bytes
/// first.
fn largest(kind: MemoryKind, device: u8) -> Vec<AllocationGroup> {
    let is_wanted = |live: &Allocation| {
        live.kind == kind && (kind != MemoryKind::Device || live.device == device)
    };
    let mut groups: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for Allocation { bytes, stack, .. } in live::all().filter(is_wanted) {
        let (sum, number) = groups.entry(stack).or_default();
        *sum = sum.saturating_add(bytes);
        *number += 1;
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(stack, (bytes, _))| (core::cmp::Reverse(*bytes), *stack));
    let group = |(stack, (bytes, allocations))| {
        let frames = stacks::frames(stack, SHOWN_FRAMES);
        let stack = frames.iter().map(ToString::to_string).collect();
        AllocationGroup { bytes, allocations, stack }
    };
    groups.into_iter().take(SHOWN_GROUPS).map(group).collect()
}
