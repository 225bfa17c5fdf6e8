//! `libgridguard_preload.so`: watches the kernel launches and allocations of an unmodified CUDA program, and
//! explains those that the driver refuses. `gridguard run -- PROGRAM` preloads it.
//!
//! The library stands in front of `dlsym`, `dlvsym` and `cuGetProcAddress`, by which CUDA runtimes find the
//! driver, and replaces the launch functions among their results. A program without CUDA runs as without it.
//!
//! - `lookup`: `dlsym` and `dlvsym`, without allocation, lock or panic;
//! - `elf`: symbols in the tables of loaded objects;
//! - `functions`, `hooks`: the functions that are replaced, their originals and replacements;
//! - `flag`: whether a thread is in a replacement already;
//! - `launch`, `graph`, `runtime`, `names`, `late`, `fix`: the replacements;
//! - `callers`: which runtime a program that links one reaches;
//! - `request`, `node`: launches and kernel nodes, as programs make them;
//! - `kernel`, `counters`: kernels and their counters; `table`: the counters of each handle, without a lock;
//! - `kept`: sets of values that are never freed;
//! - `memory`: the allocations;
//! - `watch`: what happens besides counting; `refusal`, `stack`, `record`, `report`: what it writes;
//! - `output`: the files, pipes and devices that it writes to.
//!
//! It has no interface for Rust.
#![allow(unsafe_code, reason = "it stands between C functions")]
#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]
#![cfg_attr(test, allow(dead_code, reason = "the tests are not preloaded"))]

mod abi;
mod cache;
mod callers;
mod counters;
mod driver;
mod elf;
mod explained;
mod fix;
mod flag;
mod functions;
mod graph;
mod guarded;
mod hooks;
mod kept;
mod kernel;
mod late;
mod launch;
mod lookup;
mod memory;
mod names;
mod node;
mod output;
mod process;
mod record;
mod refusal;
mod report;
mod request;
mod runtime;
mod stack;
mod table;
mod watch;

/// Called by the loader, after the C library is ready and before the program begins.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    guarded::run(|| {
        process::begin();
        if process::always_reports() {
            process::register_end(watch::at_exit);
        }
        callers::note_startup();
    });
}
