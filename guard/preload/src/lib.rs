//! `libgridguard_preload.so`: watches the kernel launches and allocations of an unmodified CUDA program, and
//! explains those that the driver refuses. `gridguard run -- PROGRAM` preloads it.
//!
//! The library stands in front of `dlsym`, `dlvsym` and `cuGetProcAddress`, by which CUDA runtimes find the
//! driver, and replaces the launch functions among their results. A program without CUDA runs as without it.
//!
//! Each folder depends on those before it:
//!
//! - `process`: options, output, stacks and the loaded objects of the process;
//! - `driver`: the functions and structures of the driver;
//! - `watch`: what is recorded;
//! - `fix`: how oversized launches are made in parts;
//! - `refuse`: how refusals are explained;
//! - `report`: what is written at the end;
//! - `hook`: which functions are intercepted, and how programs find them.
//!
//! It has no interface for Rust.
#![allow(unsafe_code, reason = "it stands between C functions")]
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![cfg_attr(test, allow(dead_code, reason = "the tests are not preloaded"))]

mod driver;
mod fix;
mod hook;
mod process;
mod refuse;
mod report;
mod watch;

use hook::{callers, session};
use process::guarded;

/// Called by the loader, after the C library is ready and before the program begins.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    guarded::run(|| {
        process::begin();
        if process::always_reports() {
            process::register_end(session::at_exit);
        }
        callers::note_startup();
    });
}
