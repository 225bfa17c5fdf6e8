//! The functions of driver and runtime that are replaced, and the originals that the replacements call.
//!
//! A program can reach a function by different ways: by linking, by `dlsym`, by `cuGetProcAddress`, in
//! two libraries named `libcuda`, through another library that replaces it. Each original has a
//! replacement of its own, a slot, so that every call reaches the function that it would have reached.

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::elf;
use crate::flag::Inside;

/// Originals of one function: the one that linked programs reach, then those that were looked up.
pub(crate) const SLOTS: usize = 4;
/// The slot of calls that the program linked.
pub(crate) const LINKED: usize = 0;

/// A function that is replaced.
pub(crate) struct Function {
    /// Its name in its library.
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

/// A function of the CUDA runtime, which `cuGetProcAddress` does not return.
const fn runtime(symbol: &'static CStr, per_thread: bool) -> Function {
    #[allow(clippy::reversed_empty_ranges, reason = "no version")]
    let versions = 1..=0;
    Function { symbol, name: symbol, versions, per_thread }
}

/// Versions as in `cudaTypedefs.h`.
#[rustfmt::skip]
pub(crate) static FUNCTIONS: [Function; 74] = [
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
    legacy(c"cuGraphAddKernelNode", c"cuGraphAddKernelNode", 10_000..=11_999),
    legacy(c"cuGraphAddKernelNode_v2", c"cuGraphAddKernelNode", 12_000..=NEWEST),
    legacy(c"cuGraphAddNode", c"cuGraphAddNode", 12_020..=12_029),
    legacy(c"cuGraphAddNode_v2", c"cuGraphAddNode", 12_030..=13_039),
    legacy(c"cuGraphAddNode_v3", c"cuGraphAddNode", 13_040..=NEWEST),
    legacy(c"cuGraphKernelNodeSetParams", c"cuGraphKernelNodeSetParams", 10_000..=11_999),
    legacy(c"cuGraphKernelNodeSetParams_v2", c"cuGraphKernelNodeSetParams", 12_000..=NEWEST),
    legacy(c"cuGraphNodeSetParams", c"cuGraphNodeSetParams", 12_020..=13_039),
    legacy(c"cuGraphNodeSetParams_v2", c"cuGraphNodeSetParams", 13_040..=NEWEST),
    legacy(c"cuGraphExecKernelNodeSetParams", c"cuGraphExecKernelNodeSetParams", 10_010..=11_999),
    legacy(c"cuGraphExecKernelNodeSetParams_v2", c"cuGraphExecKernelNodeSetParams", 12_000..=NEWEST),
    legacy(c"cuGraphExecNodeSetParams", c"cuGraphExecNodeSetParams", 12_020..=NEWEST),
    legacy(c"cuGraphInstantiate", c"cuGraphInstantiate", 10_000..=10_999),
    legacy(c"cuGraphInstantiate_v2", c"cuGraphInstantiate", 11_000..=NEWEST),
    legacy(c"cuGraphInstantiateWithFlags", c"cuGraphInstantiateWithFlags", 11_040..=NEWEST),
    legacy(c"cuGraphInstantiateWithParams", c"cuGraphInstantiateWithParams", 12_000..=NEWEST),
    per_thread(c"cuGraphInstantiateWithParams_ptsz", c"cuGraphInstantiateWithParams", 12_000..=NEWEST),
    legacy(c"cuGraphLaunch", c"cuGraphLaunch", 10_000..=NEWEST),
    per_thread(c"cuGraphLaunch_ptsz", c"cuGraphLaunch", 10_000..=NEWEST),
    runtime(c"cudaLaunchKernel", false),
    runtime(c"cudaLaunchKernel_ptsz", true),
    runtime(c"cudaLaunchKernelExC", false),
    runtime(c"cudaLaunchKernelExC_ptsz", true),
    runtime(c"cudaLaunchCooperativeKernel", false),
    runtime(c"cudaLaunchCooperativeKernel_ptsz", true),
    runtime(c"__cudaLaunchKernel", false),
    runtime(c"__cudaLaunchKernel_ptsz", true),
    legacy(c"cuMemAlloc_v2", c"cuMemAlloc", 3020..=NEWEST),
    legacy(c"cuMemAllocPitch_v2", c"cuMemAllocPitch", 3020..=NEWEST),
    legacy(c"cuMemAllocManaged", c"cuMemAllocManaged", 6000..=NEWEST),
    legacy(c"cuMemAllocAsync", c"cuMemAllocAsync", 11_020..=NEWEST),
    per_thread(c"cuMemAllocAsync_ptsz", c"cuMemAllocAsync", 11_020..=NEWEST),
    legacy(c"cuMemAllocFromPoolAsync", c"cuMemAllocFromPoolAsync", 11_020..=NEWEST),
    per_thread(c"cuMemAllocFromPoolAsync_ptsz", c"cuMemAllocFromPoolAsync", 11_020..=NEWEST),
    legacy(c"cuMemCreate", c"cuMemCreate", 10_020..=NEWEST),
    legacy(c"cuMemHostAlloc", c"cuMemHostAlloc", 2020..=NEWEST),
    legacy(c"cuMemAllocHost_v2", c"cuMemAllocHost", 3020..=NEWEST),
    legacy(c"cuMemFree_v2", c"cuMemFree", 3020..=NEWEST),
    legacy(c"cuMemFreeAsync", c"cuMemFreeAsync", 11_020..=NEWEST),
    per_thread(c"cuMemFreeAsync_ptsz", c"cuMemFreeAsync", 11_020..=NEWEST),
    legacy(c"cuMemRelease", c"cuMemRelease", 10_020..=NEWEST),
    legacy(c"cuMemFreeHost", c"cuMemFreeHost", 2000..=NEWEST),
    legacy(c"cuDevicePrimaryCtxReset", c"cuDevicePrimaryCtxReset", 7000..=10_999),
    legacy(c"cuDevicePrimaryCtxReset_v2", c"cuDevicePrimaryCtxReset", 11_000..=NEWEST),
    legacy(c"cuModuleUnload", c"cuModuleUnload", 2000..=NEWEST),
    legacy(c"cuLibraryUnload", c"cuLibraryUnload", 12_000..=NEWEST),
];

/// The originals of each function.
pub(crate) static ORIGINALS: [[AtomicPtr<c_void>; SLOTS]; FUNCTIONS.len()] =
    [const { [const { AtomicPtr::new(core::ptr::null_mut()) }; SLOTS] }; FUNCTIONS.len()];

/// Lookups whose result was not replaced, because no slot was free or the version is too new.
pub(crate) static UNWATCHED: AtomicU64 = AtomicU64::new(0);

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

/// Whether the function is one of the CUDA runtime.
pub(crate) fn is_runtime(function: usize) -> bool {
    FUNCTIONS.get(function).is_some_and(|function| function.versions.is_empty())
}

/// Calls `outermost`, or `nested` if a call of this thread is in a replacement already, as `inside` says.
#[inline(always)]
pub(crate) fn once<R>(
    inside: Inside,
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
