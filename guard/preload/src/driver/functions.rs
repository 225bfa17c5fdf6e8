//! The intercepted functions of driver and runtime, and the originals that their replacements call.
//!
//! A program can reach a function by several paths: by linking, by `dlsym`, by `cuGetProcAddress`, in two libraries
//! named `libcuda`, through another preloaded library. Each original has its own replacement, a slot, so that every
//! call reaches the function that it would have reached without this library.

use core::ffi::{CStr, c_int, c_void};
use core::mem;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

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
    /// The CUDA versions with this signature; none for functions of the runtime.
    pub(crate) versions: &'static [RangeInclusive<c_int>],
    /// Whether the function's default stream is the per-thread stream.
    pub(crate) per_thread: bool,
}

/// The newest CUDA version whose headers were read. A newer version may return functions with other signatures.
const NEWEST: c_int = 13_050;

/// The table of all intercepted functions, which is passed to the macro `$then`: symbol, versions as in
/// `cudaTypedefs.h`, replacement. With `by_caller` the replacement depends on the calling library.
macro_rules! intercepted {
    ($then:ident) => {
        $then! {
            cuLaunchKernel(4000..=NEWEST) => launch::kernel;
            cuLaunchKernel_ptsz(7000..=NEWEST) => launch::kernel;
            cuLaunchKernelEx(11_060..=NEWEST) => launch::kernel_ex;
            cuLaunchKernelEx_ptsz(11_060..=NEWEST) => launch::kernel_ex;
            cuLaunchCooperativeKernel(9000..=NEWEST) => launch::cooperative;
            cuLaunchCooperativeKernel_ptsz(9000..=NEWEST) => launch::cooperative;
            cuGetProcAddress(0..=11_999) => get_proc_address;
            cuGetProcAddress_v2(12_000..=NEWEST) => get_proc_address;
            cuModuleGetFunction(2000..=NEWEST) => find::kernel;
            cuLibraryGetKernel(12_000..=NEWEST) => find::kernel;
            cuStreamSynchronize(2000..=NEWEST) => synchronize::stream;
            cuStreamSynchronize_ptsz(7000..=NEWEST) => synchronize::stream;
            cuCtxSynchronize(2000..=12_999) => synchronize::context;
            cuCtxSynchronize_v2(13_000..=NEWEST) => synchronize::other;
            cuEventSynchronize(2000..=NEWEST) => synchronize::other;
            cuEventQuery(2000..=NEWEST) => synchronize::other;
            cuStreamQuery(2000..=NEWEST) => synchronize::other;
            cuStreamQuery_ptsz(7000..=NEWEST) => synchronize::other;
            cuMemcpyDtoH_v2(3020..=NEWEST) => synchronize::other;
            cuMemcpyDtoH_v2_ptds(7000..=NEWEST) => synchronize::other;
            cuModuleLoad(2000..=NEWEST) => load::module_file;
            cuModuleLoadData(2000..=NEWEST) => load::module;
            cuModuleLoadDataEx(2010..=NEWEST) => load::module_ex;
            cuModuleLoadFatBinary(2000..=NEWEST) => load::module_fatbin;
            cuLibraryLoadData(12_000..=NEWEST) => load::library;
            cuLibraryLoadFromFile(12_000..=NEWEST) => load::library_file;
            cuLibraryGetModule(12_000..=NEWEST) => find::in_context;
            cuKernelGetFunction(12_000..=NEWEST) => find::in_context;
            cuGraphAddKernelNode(10_000..=11_999) => graph::add_kernel_node;
            cuGraphAddKernelNode_v2(12_000..=NEWEST) => graph::add_kernel_node;
            cuGraphAddNode(12_020..=12_029) => graph::add_node;
            cuGraphAddNode_v2(12_030..=13_039) => graph::add_node_with_edges;
            cuGraphAddNode_v3(13_040..=NEWEST) => graph::add_node_with_edges;
            cuGraphKernelNodeSetParams(10_000..=11_999) => graph::set_kernel_node;
            cuGraphKernelNodeSetParams_v2(12_000..=NEWEST) => graph::set_kernel_node;
            cuGraphNodeSetParams(12_020..=13_039) => graph::set_node;
            cuGraphNodeSetParams_v2(13_040..=NEWEST) => graph::set_node;
            cuGraphExecKernelNodeSetParams(10_010..=11_999) => graph::set_exec_kernel_node;
            cuGraphExecKernelNodeSetParams_v2(12_000..=NEWEST) => graph::set_exec_kernel_node;
            cuGraphExecNodeSetParams(12_020..=NEWEST) => graph::set_exec_node;
            cuGraphInstantiate(10_000..=10_999) => graph::instantiate;
            cuGraphInstantiate_v2(11_000..=NEWEST) => graph::instantiate;
            cuGraphInstantiateWithFlags(11_040..=NEWEST) => graph::instantiate;
            cuGraphInstantiateWithParams(12_000..=NEWEST) => graph::instantiate;
            cuGraphInstantiateWithParams_ptsz(12_000..=NEWEST) => graph::instantiate;
            cuGraphLaunch(10_000..=NEWEST) => graph::launch;
            cuGraphLaunch_ptsz(10_000..=NEWEST) => graph::launch;
            cudaLaunchKernel() => runtime::kernel, by_caller;
            cudaLaunchKernel_ptsz() => runtime::kernel, by_caller;
            cudaLaunchKernelExC() => runtime::kernel_ex, by_caller;
            cudaLaunchKernelExC_ptsz() => runtime::kernel_ex, by_caller;
            cudaLaunchCooperativeKernel() => runtime::kernel, by_caller;
            cudaLaunchCooperativeKernel_ptsz() => runtime::kernel, by_caller;
            __cudaLaunchKernel() => runtime::kernel, by_caller;
            __cudaLaunchKernel_ptsz() => runtime::kernel, by_caller;
            nvrtcCompileProgram() => compile::nvrtc_compile, by_caller;
            nvrtcGetCUBIN() => compile::nvrtc, by_caller;
            nvJitLinkCreate() => compile::link_begin, by_caller;
            nvJitLinkAddData() => compile::link_data, by_caller;
            nvJitLinkAddFile() => compile::link_file, by_caller;
            nvJitLinkGetLinkedCubin() => compile::linked, by_caller;
            nvJitLinkDestroy() => compile::link_end, by_caller;
            cuMemAlloc_v2(3020..=NEWEST) => memory::device;
            cuMemAllocPitch_v2(3020..=NEWEST) => memory::pitch;
            cuMemAllocManaged(6000..=NEWEST) => memory::managed;
            cuMemAllocAsync(11_020..=NEWEST) => memory::device;
            cuMemAllocAsync_ptsz(11_020..=NEWEST) => memory::device;
            cuMemAllocFromPoolAsync(11_020..=NEWEST) => memory::device;
            cuMemAllocFromPoolAsync_ptsz(11_020..=NEWEST) => memory::device;
            cuMemCreate(10_020..=NEWEST) => memory::physical;
            cuMemHostAlloc(2020..=NEWEST) => memory::pinned;
            cuMemAllocHost_v2(3020..=NEWEST) => memory::pinned;
            cuMemFree_v2(3020..=NEWEST) => memory::free;
            cuMemFreeAsync(11_020..=NEWEST) => memory::free;
            cuMemFreeAsync_ptsz(11_020..=NEWEST) => memory::free;
            cuMemRelease(10_020..=NEWEST) => memory::release;
            cuMemFreeHost(2000..=NEWEST) => memory::free;
            cuDevicePrimaryCtxReset(7000..=10_999) => memory::reset_device;
            cuDevicePrimaryCtxReset_v2(11_000..=NEWEST) => memory::reset_device;
            cuModuleUnload(2000..=NEWEST) => load::unload;
            cuLibraryUnload(12_000..=NEWEST) => load::unload;
        }
    };
}
pub(crate) use intercepted;

macro_rules! functions {
    ($($symbol:ident($($versions:expr)?) => $($function:ident)::+ $(, $way:ident)?;)*) => {
        /// The place of each function in [`FUNCTIONS`].
        #[allow(non_camel_case_types, clippy::enum_variant_names, reason = "the names of the functions")]
        pub(crate) enum Place { $($symbol),* }

        pub(crate) static FUNCTIONS: [Function; [$(stringify!($symbol)),*].len()] = [
            $(function(concat!(stringify!($symbol), "\0"), &[$($versions)?])),*
        ];
    };
}

intercepted!(functions);

/// `text` is a symbol with its terminating zero.
const fn function(text: &'static str, versions: &'static [RangeInclusive<c_int>]) -> Function {
    let Ok(symbol) = CStr::from_bytes_with_nul(text.as_bytes()) else { return NOT_A_SYMBOL };
    let mut name = symbol.to_bytes();
    let mut per_thread = false;
    if let Some((before, b"_ptsz" | b"_ptds")) = name.split_last_chunk::<5>() {
        (name, per_thread) = (before, true);
    }
    if let Some((before, b"_v2" | b"_v3")) = name.split_last_chunk::<3>() {
        name = before;
    }
    Function { symbol, name, versions, per_thread }
}

const NOT_A_SYMBOL: Function =
    Function { symbol: c"", name: b"", versions: &[], per_thread: false };

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

/// Lookups that were not intercepted, because no slot was free or the version is too new.
pub(crate) static UNWATCHED: AtomicU64 = AtomicU64::new(0);

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

/// Whether the function belongs to the CUDA runtime, or to a compiler.
pub(crate) fn is_runtime(function: usize) -> bool {
    FUNCTIONS.get(function).is_some_and(|function| function.versions.is_empty())
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
