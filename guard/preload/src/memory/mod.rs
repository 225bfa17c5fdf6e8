//! The memory that the program allocates through the driver: how much it holds, by whom, and why an
//! allocation was refused.
//!
//! - `allocate`, `free`: the replacements; `request`: what the program asks for;
//! - `live`: the live allocations, by address; `sums`: how much they are; `stacks`: where they come from;
//! - `refusal`: what is written of an allocation that the driver refused.

use gridguard_report::{MemoryKind, MemoryUse};

pub(crate) mod allocate;
pub(crate) mod free;
mod live;
mod refusal;
mod request;
mod stacks;
mod sums;

pub(crate) use refusal::at_launch;

/// What is known of the process's memory, for the summary and the report.
pub(crate) fn collect() -> MemoryUse {
    let (refused, retried) = sums::refused();
    MemoryUse {
        devices: sums::devices(),
        managed: sums::of(MemoryKind::Managed, 0).held(),
        pinned: sums::of(MemoryKind::Pinned, 0).held(),
        untracked: sums::untracked(),
        refused,
        retried,
        refusals: refusal::explained(),
    }
}

/// Forgets everything, in a child process: what its parent allocated is not the child's.
pub(crate) fn reset() {
    live::reset();
    sums::reset();
    refusal::reset();
}
