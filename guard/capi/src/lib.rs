//! C interface of gridguard: the functions that `gridguard.h` declares.
//!
//! C and C++ programs use the header and the libraries `libgridguard.so` or `.a`; see the README. Types and
//! functions have the names of the header.
//!
//! # Contract of all functions
//!
//! Pointers are null, or valid for the time of the call. Texts end with a zero byte, structures have the size that
//! they state, and arrays have the length that is passed. A handle may be any number; a wrong handle is refused. No
//! thread frees a handle that another thread is using, except from within a callback. No panic leaves a function.
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

pub use check::*;
pub use config::*;
pub use error::*;
#[cfg(feature = "cuda")]
pub use event::*;
pub use explain::*;
pub use failure::gg_status;
#[cfg(feature = "cuda")]
pub use kernel::*;
#[cfg(feature = "cuda")]
pub use launch::*;
pub use limits::*;
#[cfg(feature = "profile")]
pub use profile::*;
pub use text::*;
