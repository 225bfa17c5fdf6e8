//! C interface of gridguard: the functions that `gridguard.h` declares.
//!
//! C and C++ programs use the header and the libraries `libgridguard.so` or `.a`; see the README. Names
//! are those of C.
//!
//! # Contract of all functions
//!
//! Pointers are null, or valid for the time of the call: texts end with a zero byte, structures have the
//! size that they state, arrays the length that is passed. A handle may be any number; a wrong one is
//! refused. No thread frees a handle that another one is using, except from within a callback. No panic leaves
//! a function.
#![allow(non_camel_case_types, reason = "the names of C")]
#![allow(unsafe_code, reason = "memory of the caller")]
#![allow(clippy::missing_safety_doc, reason = "stated above for all functions")]

mod check;
mod config;
mod error;
#[cfg(feature = "cuda")]
mod event;
mod explain;
mod failure;
mod handles;
#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "cuda")]
mod launch;
mod limits;
mod memory;
#[cfg(feature = "profile")]
mod profile;
mod text;

pub use check::{gg_check_json, gg_chunk, gg_plan, gg_plan_info, gg_validate};
pub use config::{
    GG_AXIS_X, GG_AXIS_Y, GG_AXIS_Z, GG_CONSTANT, GG_COOPERATIVE, GG_DEPENDENT, GG_FOLDABLE,
    GG_HAS_PRIORITY, GG_ITEMS, GG_LENGTH, GG_OFFSET, GG_PREFERENCE, GG_STRATEGY_AUTOMATIC,
    GG_STRATEGY_CHUNKED, GG_STRATEGY_FOLDED, GG_STRATEGY_SHIFTED, GG_STRATEGY_WHOLE, gg_batch,
    gg_config, gg_dim3, gg_following,
};
pub use error::{
    GG_AXIS_NONE, gg_error, gg_error_driver_code, gg_error_message, gg_error_progress,
    gg_error_status, gg_error_violation, gg_error_violation_count, gg_progress, gg_violation,
};
#[cfg(feature = "cuda")]
pub use event::{
    GG_EVENT_CHOICE_REJECTED, GG_EVENT_FAILED, GG_EVENT_REJECTED, GG_EVENT_SPLIT, gg_event,
    gg_event_callback,
};
pub use explain::{gg_error_explain, gg_explain};
pub use failure::gg_status;
#[cfg(feature = "cuda")]
pub use kernel::{
    gg_counts, gg_guard, gg_guard_create, gg_guard_options, gg_kernel, gg_kernel_counts,
    gg_kernel_create, gg_kernel_limits,
};
#[cfg(feature = "cuda")]
pub use launch::{gg_launch, gg_synchronize};
#[cfg(feature = "cuda")]
pub use limits::gg_limits_of_device;
pub use limits::{
    GG_CLUSTER_MUST_BE_SET, GG_NON_PORTABLE_CLUSTERS, GG_OPTS_IN, gg_device_info, gg_kernel_info,
    gg_limits, gg_limits_device, gg_limits_of_gpu,
};
#[cfg(feature = "profile")]
pub use profile::{
    GG_DEFAULT_NO_ENTRIES, GG_DEFAULT_NO_NEIGHBOUR, GG_DEFAULT_OTHER_SOURCE,
    GG_DEFAULT_OUT_OF_RANGE, GG_DEFAULT_SIZE_COUNT, GG_DEFAULT_ZERO_SIZE, GG_GRAPH, GG_HOT_CACHE,
    GG_LAYER_EMBEDDED, GG_LAYER_EXPLICIT, GG_LAYER_NONE, GG_LAYER_SHIPPED, GG_LAYER_USER,
    GG_MATCH_BUCKET, GG_MATCH_DEFAULT, GG_MATCH_EXACT, GG_MATCH_NEIGHBOUR, gg_key, gg_key_create,
    gg_key_info, gg_parameter, gg_profile, gg_profile_load, gg_profile_look_up, gg_profile_notice,
    gg_tuned,
};
pub use text::{gg_free, gg_text, gg_text_data, gg_version};
