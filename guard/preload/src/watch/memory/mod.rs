//! Takes the allocations of the program, and returns the live ones, their sums and their stacks.

pub(crate) mod live;
pub(crate) mod request;
pub(crate) mod stacks;
pub(crate) mod sums;

/// Forgets everything, in a child process: its parent's allocations are not its own.
pub(crate) fn reset() {
    live::reset();
    sums::reset();
}
