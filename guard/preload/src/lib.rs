//! `libgridguard_preload.so`: watches the kernel launches and allocations of an unmodified CUDA program, and explains
//! the refused ones. `gridguard run -- PROGRAM` preloads it.
//!
//! CUDA runtimes find the driver with `dlsym`, `dlvsym` and `cuGetProcAddress`. The library intercepts these functions,
//! and replaces the functions that it watches in their results. A program without CUDA runs unchanged.
//!
//! Each folder depends on those before it:
//!
//! - `process`: options, output, stacks and the loaded objects of the process;
//! - `driver`: the functions and structures of the driver;
//! - `watch`: records of launches, images and allocations;
//! - `fix`: oversized launches in parts;
//! - `refuse`: explanations of refusals and late errors;
//! - `report`: the summary, the report and the recorded launches;
//! - `hook`: the intercepted functions, and how programs find them.
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

use fix::{assembler, caches};
use hook::{callers, session};
use process::{guarded, reserve};
use report::unwatched;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// `gridguard run` preloads only a library of its own version.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_upper_case_globals, reason = "its name is for `dlsym`, as the names of C functions")]
pub static gridguard_preload_version: [u8; VERSION.len()] = match VERSION.as_bytes().first_chunk() {
    Some(version) => *version,
    None => [0; VERSION.len()],
};

/// Called by the loader, after the C library is ready and before the program begins.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    reserve::begin();
    guarded::run(|| {
        process::begin();
        caches::begin();
        assembler::begin();
        unwatched::begin();
        if process::is_first() {
            process::register_end(session::at_exit);
            report::begin();
        }
        callers::note_startup();
    });
}
