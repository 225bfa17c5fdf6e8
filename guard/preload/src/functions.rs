//! The functions of the driver that are replaced, and the originals that the replacements call.
//!
//! A program can reach a function by different ways: by linking, by `dlsym`, by `cuGetProcAddress`, in
//! two libraries named `libcuda`, through another library that replaces it. Each original has a
//! replacement of its own, a slot, so that every call reaches the function that it would have reached.

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::elf;

/// Originals of one function: the one that linked programs reach, then those that were looked up.
pub(crate) const SLOTS: usize = 4;
/// The slot of calls that the program linked.
pub(crate) const LINKED: usize = 0;

/// A function of the driver that is replaced.
pub(crate) struct Function {
    /// Its name in the driver library.
    pub(crate) symbol: &'static CStr,
    /// Its name for `cuGetProcAddress`.
    pub(crate) name: &'static CStr,
    /// The versions with which `cuGetProcAddress` returns a function of this signature.
    pub(crate) versions: RangeInclusive<c_int>,
    /// Whether its default stream is the thread's own.
    pub(crate) per_thread: bool,
}

/// The newest CUDA version whose headers were read: for a newer one, `cuGetProcAddress` may return a
/// function with another signature under the same name.
const NEWEST: c_int = 13_050;

const fn legacy(
    symbol: &'static CStr,
    name: &'static CStr,
    versions: RangeInclusive<c_int>,
) -> Function {
    Function { symbol, name, versions, per_thread: false }
}

const fn per_thread(
    symbol: &'static CStr,
    name: &'static CStr,
    versions: RangeInclusive<c_int>,
) -> Function {
    Function { symbol, name, versions, per_thread: true }
}

/// Versions as in `cudaTypedefs.h`.
#[rustfmt::skip]
pub(crate) static FUNCTIONS: [Function; 28] = [
    legacy(c"cuLaunchKernel", c"cuLaunchKernel", 4000..=NEWEST),
    per_thread(c"cuLaunchKernel_ptsz", c"cuLaunchKernel", 7000..=NEWEST),
    legacy(c"cuLaunchKernelEx", c"cuLaunchKernelEx", 11_060..=NEWEST),
    per_thread(c"cuLaunchKernelEx_ptsz", c"cuLaunchKernelEx", 11_060..=NEWEST),
    legacy(c"cuLaunchCooperativeKernel", c"cuLaunchCooperativeKernel", 9000..=NEWEST),
    per_thread(c"cuLaunchCooperativeKernel_ptsz", c"cuLaunchCooperativeKernel", 9000..=NEWEST),
    legacy(c"cuGetProcAddress", c"cuGetProcAddress", 0..=11_999),
    legacy(c"cuGetProcAddress_v2", c"cuGetProcAddress", 12_000..=NEWEST),
    legacy(c"cuModuleGetFunction", c"cuModuleGetFunction", 2000..=NEWEST),
    legacy(c"cuLibraryGetKernel", c"cuLibraryGetKernel", 12_000..=NEWEST),
    legacy(c"cuStreamSynchronize", c"cuStreamSynchronize", 2000..=NEWEST),
    per_thread(c"cuStreamSynchronize_ptsz", c"cuStreamSynchronize", 7000..=NEWEST),
    legacy(c"cuCtxSynchronize", c"cuCtxSynchronize", 2000..=12_999),
    legacy(c"cuCtxSynchronize_v2", c"cuCtxSynchronize", 13_000..=NEWEST),
    legacy(c"cuEventSynchronize", c"cuEventSynchronize", 2000..=NEWEST),
    legacy(c"cuEventQuery", c"cuEventQuery", 2000..=NEWEST),
    legacy(c"cuStreamQuery", c"cuStreamQuery", 2000..=NEWEST),
    per_thread(c"cuStreamQuery_ptsz", c"cuStreamQuery", 7000..=NEWEST),
    legacy(c"cuMemcpyDtoH_v2", c"cuMemcpyDtoH", 3020..=NEWEST),
    per_thread(c"cuMemcpyDtoH_v2_ptds", c"cuMemcpyDtoH", 7000..=NEWEST),
    legacy(c"cuModuleLoad", c"cuModuleLoad", 2000..=NEWEST),
    legacy(c"cuModuleLoadData", c"cuModuleLoadData", 2000..=NEWEST),
    legacy(c"cuModuleLoadDataEx", c"cuModuleLoadDataEx", 2010..=NEWEST),
    legacy(c"cuModuleLoadFatBinary", c"cuModuleLoadFatBinary", 2000..=NEWEST),
    legacy(c"cuLibraryLoadData", c"cuLibraryLoadData", 12_000..=NEWEST),
    legacy(c"cuLibraryLoadFromFile", c"cuLibraryLoadFromFile", 12_000..=NEWEST),
    legacy(c"cuLibraryGetModule", c"cuLibraryGetModule", 12_000..=NEWEST),
    legacy(c"cuKernelGetFunction", c"cuKernelGetFunction", 12_000..=NEWEST),
];

/// The originals of each function.
pub(crate) static ORIGINALS: [[AtomicPtr<c_void>; SLOTS]; FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS] }; FUNCTIONS.len()];

/// The original that the replacement of function `H` in slot `S` calls; `None` if a linked program calls a
/// function that no loaded driver has. `F` is the type of the function.
#[inline]
pub(crate) fn original<const H: usize, const S: usize, F: Copy>() -> Option<F> {
    let known = ORIGINALS[H][S].load(Ordering::Acquire);
    let found = if known.is_null() { find_linked::<H, S>() } else { known };
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: not null, so the address of the driver's function, whose type `F` the table of replacements
    // states.
    (!found.is_null()).then(|| unsafe { mem::transmute_copy::<*mut c_void, F>(&found) })
}

/// The original of a function and slot that are known only at run time.
///
/// # Safety
///
/// `F` is the type of the function.
pub(crate) unsafe fn original_of<F: Copy>(through: (usize, usize)) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let known = original_address(through);
    // SAFETY: not null, so the address of a function, of type `F` by this function's contract.
    (!known.is_null()).then(|| unsafe { mem::transmute_copy::<*mut c_void, F>(&known) })
}

/// The address of the original, for finding other functions of the same library.
pub(crate) fn original_address((function, slot): (usize, usize)) -> *mut c_void {
    let original = ORIGINALS.get(function).and_then(|slots| slots.get(slot));
    original.map_or(core::ptr::null_mut(), |original| original.load(Ordering::Acquire))
}

#[cold]
fn find_linked<const H: usize, const S: usize>() -> *mut c_void {
    if S != LINKED {
        return core::ptr::null_mut();
    }
    let found = elf::next(FUNCTIONS[H].symbol);
    ORIGINALS[H][S].store(found, Ordering::Release);
    found
}
