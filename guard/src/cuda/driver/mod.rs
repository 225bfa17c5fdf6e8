//! The CUDA libraries: calls enter, handles, limits and typed errors leave.

pub(crate) mod error;
pub(crate) mod history;
pub(crate) mod libraries;
pub(crate) mod library;
pub(crate) mod log;
pub(crate) mod nvrtc;
pub(crate) mod query;
pub(crate) mod suspects;
pub(crate) mod symbols;
