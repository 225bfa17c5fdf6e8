//! The intercepted functions of driver and runtime, and the originals that their replacements call.
//!
//! A program can reach a function by several paths: by linking, by `dlsym`, by `cuGetProcAddress`, in two libraries
//! named `libcuda`, through another preloaded library. Each original has its own replacement, a slot, so that every
//! call reaches the function that it would have reached without this library.

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::mem;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::process::elf;
use crate::process::flag::Flag;

/// Originals of one function: slot 0 for linked programs, then a slot for each original that was looked up.
pub(crate) const SLOTS: usize = 4;
/// The slot for calls of linked programs.
pub(crate) const LINKED: usize = 0;

/// A function that is intercepted.
pub(crate) struct Function {
    /// Its name in its library.
    pub(crate) symbol: &'static CStr,
    /// The name that `cuGetProcAddress` takes.
    pub(crate) name: &'static [u8],
    /// The first CUDA version with this function; 0 for functions of the runtime and of compilers.
    pub(crate) since: c_int,
    /// Whether the function's default stream is the per-thread stream.
    pub(crate) per_thread: bool,
}

// The intercepted functions, `intercepted!` with their replacements, and the attributes: `entry_points.ron`.
include!(concat!(env!("OUT_DIR"), "/entry_points.rs"));
pub(crate) use intercepted;

/// Whether a function of this name launches, as far as its name tells, and is not in the table.
pub(crate) fn is_unknown_launch(name: &[u8]) -> bool {
    let name = name.strip_suffix(b"_ptsz").unwrap_or(name);
    LAUNCHES.iter().any(|start| name.starts_with(start.as_bytes()))
        && !KNOWN_LAUNCHES.iter().any(|known| known.as_bytes() == name)
}

/// The function that `cuGetProcAddress` returns for `name`, `version` and the per-thread flag, and whether it is certain:
/// for a version after the newest that was compared, `is_same` must say that the driver returns the same function for
/// the known version.
pub(crate) fn by_query(
    name: &[u8],
    version: c_int,
    per_thread: bool,
    is_same: impl FnOnce(c_int) -> bool,
) -> Option<(usize, bool)> {
    let applies = |(_, function): &(usize, &Function)| {
        (1..=version).contains(&function.since)
            && [function.name, function.symbol.to_bytes()].contains(&name)
    };
    // If the version or the function has no per-thread variant, both flags mean the same.
    let rank = |(_, of): &(usize, &Function)| (of.per_thread == per_thread, of.since);
    let (place, function) = FUNCTIONS.iter().enumerate().filter(applies).max_by_key(rank)?;
    Some((place, version <= COMPARED || is_same(function.since)))
}

/// Defines replacements of functions of driver or runtime. In the body `call()` calls the original with the
/// arguments of the program, and `through` is the [`FUNCTIONS`] place and the slot of the call.
macro_rules! replacements {
    ($(
        $(#[$doc:meta])*
        $name:ident($($argument:ident: $type:ty),* $(,)?)
        |$through:ident, $call:ident $(, $original:ident)?| $body:block
    )*) => {$(
        $(#[$doc])*
        pub(crate) unsafe extern "C-unwind" fn $name<const H: usize, const S: usize>(
            $($argument: $type),*
        ) -> $crate::driver::abi::Status {
            type Original = unsafe extern "C-unwind" fn($($type),*) -> $crate::driver::abi::Status;
            let $through = (H, S);
            // SAFETY: the table names this replacement for a function of this type.
            let Some(original) = (unsafe { $crate::driver::functions::original::<Original>((H, S)) }) else {
                return $crate::driver::abi::NOT_INITIALIZED;
            };
            // SAFETY: the caller's own arguments.
            let $call = || unsafe { original($($argument),*) };
            $(let $original = original;)?
            $body
        }
    )*};
}
pub(crate) use replacements;

/// The originals of each function.
pub(crate) static ORIGINALS: [[AtomicPtr<c_void>; SLOTS]; FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS] }; FUNCTIONS.len()];

/// The original of a function and a slot; `None` if no loaded driver has it.
///
/// # Safety
///
/// `F` is the type of the function.
#[inline(always)]
pub(crate) unsafe fn original<F: Copy>(through: (usize, usize)) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let known = original_address(through);
    let found = if known.is_null() { find_linked(through) } else { known };
    // SAFETY: not null, so the address of a function, of type `F` by this function's contract.
    (!found.is_null()).then(|| unsafe { mem::transmute_copy::<*mut c_void, F>(&found) })
}

/// A function and slot of the driver that the program has called or looked up.
pub(crate) fn known() -> (usize, usize) {
    let all = (0..FUNCTIONS.len()).flat_map(|place| (0..SLOTS).map(move |slot| (place, slot)));
    let mut of_driver = all.filter(|(place, _)| !is_runtime(*place));
    of_driver.find(|through| !original_address(*through).is_null()).unwrap_or_default()
}

/// Whether the function belongs to the CUDA runtime, or to a compiler.
pub(crate) fn is_runtime(function: usize) -> bool {
    FUNCTIONS.get(function).is_some_and(|function| function.since == 0)
}

/// Calls `outermost`, or `nested` if this thread is already in a replacement of this kind.
#[inline(always)]
pub(crate) fn once<R>(
    inside: Flag,
    nested: impl FnOnce() -> R,
    outermost: impl FnOnce() -> R,
) -> R {
    if inside.replace(true) {
        return nested();
    }
    let result = outermost();
    inside.replace(false);
    result
}

/// The function `name` of the library that a call went to.
///
/// # Safety
///
/// `F` is the type of the function.
pub(crate) unsafe fn beside<F: Copy>(through: (usize, usize), name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let found = elf::beside(original_address(through), name);
    // SAFETY: not null, so the address of a function, of type `F` by this function's contract.
    (!found.is_null()).then(|| unsafe { mem::transmute_copy::<*mut c_void, F>(&found) })
}

/// The address of the original; null if there is none.
#[inline(always)]
pub(crate) fn original_address((function, slot): (usize, usize)) -> *mut c_void {
    let original = ORIGINALS.get(function).and_then(|slots| slots.get(slot));
    original.map_or(core::ptr::null_mut(), |original| original.load(Ordering::Acquire))
}

#[cold]
fn find_linked((function, slot): (usize, usize)) -> *mut c_void {
    match (FUNCTIONS.get(function), ORIGINALS.get(function)) {
        (Some(function), Some(slots)) if slot == LINKED => {
            let found = elf::next(function.symbol);
            slots[LINKED].store(found, Ordering::Release);
            found
        }
        _ => core::ptr::null_mut(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_finds_the_variant_of_its_version_and_flag() {
        let symbol = |name: &str, version, per_thread| {
            let (place, is_certain) = by_query(name.as_bytes(), version, per_thread, |_| false)?;
            is_certain.then(|| FUNCTIONS[place].symbol)
        };
        for (name, version, per_thread, found) in [
            ("cuLaunchKernel", 4000, false, Some(c"cuLaunchKernel")),
            ("cuLaunchKernel", 13_000, true, Some(c"cuLaunchKernel_ptsz")),
            ("cuLaunchKernel", 4000, true, Some(c"cuLaunchKernel")),
            ("cuGetProcAddress", 11_030, false, Some(c"cuGetProcAddress")),
            ("cuGetProcAddress_v2", 12_000, true, Some(c"cuGetProcAddress_v2")),
            ("cuCtxSynchronize", 12_090, false, Some(c"cuCtxSynchronize")),
            ("cuCtxSynchronize", 13_000, false, Some(c"cuCtxSynchronize_v2")),
            ("cuMemcpyDtoH", 2000, false, None),
            ("cuInit", 12_000, false, None),
            ("cuGraphAddNode", 12_020, false, Some(c"cuGraphAddNode")),
            ("cuGraphAddNode", 12_080, true, Some(c"cuGraphAddNode_v2")),
            ("cudaLaunchKernel", 13_000, false, None),
        ] {
            assert_eq!(symbol(name, version, per_thread), found, "{name} {version}");
        }
        assert!(
            is_unknown_launch(b"cuLaunchAnew_ptsz") && !is_unknown_launch(b"cuLaunchKernel_ptsz")
        );
    }

    #[test]
    fn each_function_is_found_by_its_first_version_and_by_a_later_one_that_is_the_same() {
        for (place, function) in FUNCTIONS.iter().enumerate().filter(|(_, one)| one.since > 0) {
            let Function { name, since, per_thread, .. } = function;
            let found =
                |version, known| by_query(name, version, *per_thread, |since| since == known);
            assert_eq!(found(*since, 0), Some((place, true)), "{:?}", function.symbol);
            let (newest, is_certain) = found(14_000, *since).expect("known");
            assert_eq!(is_certain, FUNCTIONS[newest].since == *since, "{:?}", function.symbol);
            assert_eq!(found(14_000, 0), Some((newest, false)), "{:?}", function.symbol);
        }
    }
}
