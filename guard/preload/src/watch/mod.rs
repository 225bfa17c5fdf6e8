//! Records launches, loaded images and allocations: counters by kernel, the last launches and the live memory.

pub(crate) mod counters;
pub(crate) mod handle_record;
pub(crate) mod kernel;
pub(crate) mod memory;
pub(crate) mod recent;
pub(crate) mod slot_cache;
pub(crate) mod table;
