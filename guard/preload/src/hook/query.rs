//! Replaces the results of `cuGetProcAddress`, by which CUDA runtimes look up every function of the driver.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering;

use crate::driver::abi::{PER_THREAD_DEFAULT_STREAM, SUCCESS, Status};
use crate::driver::functions::{FUNCTIONS, Function, UNWATCHED};
use crate::hook::unwatched;

/// Replaces the address that a successful query wrote by the result of `replace`.
///
/// # Safety
///
/// A call of `cuGetProcAddress` with these arguments returned `status`.
pub(crate) unsafe fn replace_found(
    status: Status,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    replace: fn(usize, *mut c_void) -> *mut c_void,
) {
    if name.is_null() || address.is_null() {
        return;
    }
    // SAFETY: the query took the name, which is not null.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    unwatched::asked_for(name);
    if status != SUCCESS || !name.starts_with(b"cu") {
        return;
    }
    let per_thread = flags & PER_THREAD_DEFAULT_STREAM != 0 || name.ends_with(b"_ptsz");
    if let Some(function) = by_query(name, version, per_thread) {
        // SAFETY: the successful query wrote through the pointer.
        unsafe { *address = replace(function, *address) };
    }
}

/// The function that `cuGetProcAddress` returns for `name`, `version` and the per-thread flag, if its
/// signature is known.
fn by_query(name: &[u8], version: c_int, per_thread: bool) -> Option<usize> {
    let named = |function: &Function| [function.name, function.symbol.to_bytes()].contains(&name);
    let known = |function: &Function| {
        named(function) && function.versions.iter().any(|range| range.contains(&version))
    };
    let of_flag = |function: &Function| known(function) && function.per_thread == per_thread;
    // If the version or the function has no per-thread variant, both flags mean the same.
    let place = FUNCTIONS.iter().position(of_flag).or_else(|| FUNCTIONS.iter().position(known));
    if place.is_none() && FUNCTIONS.iter().any(named) {
        UNWATCHED.fetch_add(1, Ordering::Relaxed);
    }
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_finds_the_variant_of_its_version_and_flag() {
        let symbol = |name: &CStr, version, per_thread| {
            by_query(CStr::to_bytes(name), version, per_thread).map(|place| FUNCTIONS[place].symbol)
        };
        assert_eq!(symbol(c"cuLaunchKernel", 4000, false), Some(c"cuLaunchKernel"));
        assert_eq!(symbol(c"cuLaunchKernel", 13_000, true), Some(c"cuLaunchKernel_ptsz"));
        assert_eq!(symbol(c"cuLaunchKernel", 4000, true), Some(c"cuLaunchKernel"));
        assert_eq!(symbol(c"cuGetProcAddress", 11_030, false), Some(c"cuGetProcAddress"));
        assert_eq!(symbol(c"cuGetProcAddress", 12_000, true), Some(c"cuGetProcAddress_v2"));
        assert_eq!(symbol(c"cuGetProcAddress_v2", 12_000, false), Some(c"cuGetProcAddress_v2"));
        assert_eq!(symbol(c"cuCtxSynchronize", 12_090, false), Some(c"cuCtxSynchronize"));
        assert_eq!(symbol(c"cuCtxSynchronize", 13_000, false), Some(c"cuCtxSynchronize_v2"));
        assert_eq!(symbol(c"cuMemcpyDtoH", 2000, false), None);
        assert_eq!(symbol(c"cuLaunchKernel", 14_000, false), None);
        assert_eq!(symbol(c"cuInit", 12_000, false), None);
        assert_eq!(symbol(c"cuGraphAddNode", 12_020, false), Some(c"cuGraphAddNode"));
        assert_eq!(symbol(c"cuGraphAddNode", 12_080, true), Some(c"cuGraphAddNode_v2"));
        assert_eq!(symbol(c"cuGraphLaunch", 13_000, true), Some(c"cuGraphLaunch_ptsz"));
        assert_eq!(symbol(c"cudaLaunchKernel", 13_000, false), None);
    }
}
