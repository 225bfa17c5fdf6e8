//! Takes the allocations of the program, and returns the live ones, their sums and their stacks.

mod clock;
pub(crate) mod live;
pub(crate) mod request;
pub(crate) mod stacks;
pub(crate) mod sums;
pub(crate) mod timeline;

/// Forgets everything, in a child process: its parent's allocations are not its own.
pub(crate) fn reset() {
    live::reset();
    sums::reset();
    timeline::reset();
}
