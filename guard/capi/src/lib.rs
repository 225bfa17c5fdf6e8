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

pub use check::*;
pub use config::*;
pub use error::*;
pub use explain::*;
pub use failure::*;
pub use handles::*;
#[cfg(feature = "cuda")]
pub use kernel::*;
#[cfg(feature = "cuda")]
pub use launch::*;
pub use limits::*;
pub use memory::*;
#[cfg(feature = "profile")]
pub use profile::*;

/// The version of the library: 1000000 * major + 1000 * minor + patch. Within a major version, and
/// within a minor version before 1.0, programs compiled with an older header work with a newer library.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn gg_version() -> u32 {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
        + number(env!("CARGO_PKG_VERSION_MINOR")) * 1000
        + number(env!("CARGO_PKG_VERSION_PATCH"))
}
