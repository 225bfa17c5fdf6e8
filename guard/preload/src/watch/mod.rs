//! Takes accepted launches, loaded images and allocations, and returns counters by kernel, the last launches and the
//! live memory.

pub(crate) mod counters;
pub(crate) mod kept;
pub(crate) mod kernel;
pub(crate) mod known;
pub(crate) mod memory;
pub(crate) mod recent;
pub(crate) mod table;
