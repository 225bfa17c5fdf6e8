//! The replacement of each function, what this library exports, and `cuGetProcAddress`, by which CUDA
//! runtimes look up every function of the driver, this one included.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use core::sync::atomic::Ordering;

use crate::abi::{
    Allocate, AllocateAsync, AllocateFromPool, AllocatePitch, AllocateWith, CopyToHost,
    CreateMemory, FindInContext, FindKernel, Free, FreeAsync, LaunchCooperative, LaunchEx,
    LaunchKernel, LoadLibrary, LoadModule, LoadModuleEx, NOT_INITIALIZED, OnDevice, OnHandle,
    PER_THREAD_DEFAULT_STREAM, Plain, ProcAddress, ProcAddressV2, SUCCESS, Status,
};
use crate::fix::load;
use crate::functions::{self, FUNCTIONS, Function, LINKED, ORIGINALS, SLOTS, UNWATCHED};
use crate::memory::{allocate, free};
use crate::node::{
    AddKernelNode, AddNode, AddNodeWithEdges, Instantiate, LaunchGraph, SetExecKernelNode,
    SetExecNode, SetKernelNode, SetNode,
};
use crate::runtime::{RuntimeLaunch, RuntimeLaunchEx};
use crate::{callers, graph, late, launch, names, runtime};

/// A function pointer that is called with another signature.
type Replacement = unsafe extern "C-unwind" fn();

/// What stands for one function.
struct Hook {
    /// What this library exports under the symbol.
    export: Replacement,
    /// The replacement of each slot.
    slots: [Replacement; SLOTS],
}

/// Declares the replacements in the order of [`FUNCTIONS`], and exports each symbol.
macro_rules! hooks {
    ($($id:literal: $symbol:ident => $($function:ident)::+, $type:ty $(, $way:ident)?;)*) => {
        static HOOKS: [Hook; FUNCTIONS.len()] = [$(Hook {
            export: exports::$symbol,
            slots: [
                replacement!([$($function)::+], $id, 0, $type),
                replacement!([$($function)::+], $id, 1, $type),
                replacement!([$($function)::+], $id, 2, $type),
                replacement!([$($function)::+], $id, 3, $type),
            ],
        }),*];

        /// The symbols in the order of the replacements.
        #[cfg(test)]
        const SYMBOLS: &[(usize, &str)] = &[$(($id, stringify!($symbol))),*];

        /// What programs that link the driver or the runtime find first.
        #[allow(non_snake_case, reason = "the driver's and the runtime's names")]
        mod exports {
            use super::*;
            $(
                #[cfg_attr(not(test), unsafe(no_mangle))]
                #[unsafe(naked)]
                pub(super) unsafe extern "C-unwind" fn $symbol() {
                    export!($id, [$($function)::+] $(, $way)?);
                }
            )*
        }
    };
}

/// The code of an export: jumps to the replacement of the first slot, or to what `choose` returns for
/// the function and the address that the call returns to; the arguments stay in their registers.
macro_rules! export {
    ($id:literal, [$($function:ident)::+]) => {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!("endbr64", "jmp {}", sym $($function)::+::<$id, LINKED>);
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!("hint #34", "b {}", sym $($function)::+::<$id, LINKED>);
    };
    ($id:literal, [$($function:ident)::+], by_caller) => {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "sub rsp, 56",
            ".cfi_adjust_cfa_offset 56",
            "mov [rsp], rdi",
            "mov [rsp + 8], rsi",
            "mov [rsp + 16], rdx",
            "mov [rsp + 24], rcx",
            "mov [rsp + 32], r8",
            "mov [rsp + 40], r9",
            "mov edi, {function}",
            "mov rsi, [rsp + 56]",
            "call {choose}",
            "mov rdi, [rsp]",
            "mov rsi, [rsp + 8]",
            "mov rdx, [rsp + 16]",
            "mov rcx, [rsp + 24]",
            "mov r8, [rsp + 32]",
            "mov r9, [rsp + 40]",
            "add rsp, 56",
            ".cfi_adjust_cfa_offset -56",
            "jmp rax",
            ".cfi_endproc",
            function = const $id,
            choose = sym choose,
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!(
            "hint #34",
            "stp x29, x30, [sp, #-80]!",
            "stp x0, x1, [sp, #16]",
            "stp x2, x3, [sp, #32]",
            "stp x4, x5, [sp, #48]",
            "stp x6, x7, [sp, #64]",
            "mov x29, sp",
            "mov x0, #{function}",
            "mov x1, x30",
            "bl {choose}",
            "mov x16, x0",
            "ldp x0, x1, [sp, #16]",
            "ldp x2, x3, [sp, #32]",
            "ldp x4, x5, [sp, #48]",
            "ldp x6, x7, [sp, #64]",
            "ldp x29, x30, [sp], #80",
            "br x16",
            function = const $id,
            choose = sym choose,
        );
    };
}

macro_rules! replacement {
    ([$($function:ident)::+], $id:literal, $slot:literal, $type:ty) => {{
        let function: $type = $($function)::+::<$id, $slot>;
        // SAFETY: function pointers of one size; this one is never called with the type that it gets here.
        unsafe { mem::transmute::<$type, Replacement>(function) }
    }};
}

hooks! {
    0: cuLaunchKernel => launch::kernel, LaunchKernel;
    1: cuLaunchKernel_ptsz => launch::kernel, LaunchKernel;
    2: cuLaunchKernelEx => launch::kernel_ex, LaunchEx;
    3: cuLaunchKernelEx_ptsz => launch::kernel_ex, LaunchEx;
    4: cuLaunchCooperativeKernel => launch::cooperative, LaunchCooperative;
    5: cuLaunchCooperativeKernel_ptsz => launch::cooperative, LaunchCooperative;
    6: cuGetProcAddress => get_proc_address, ProcAddress;
    7: cuGetProcAddress_v2 => get_proc_address_v2, ProcAddressV2;
    8: cuModuleGetFunction => names::find_kernel, FindKernel;
    9: cuLibraryGetKernel => names::find_kernel, FindKernel;
    10: cuStreamSynchronize => late::synchronize_stream, OnHandle;
    11: cuStreamSynchronize_ptsz => late::synchronize_stream, OnHandle;
    12: cuCtxSynchronize => late::synchronize_context, Plain;
    13: cuCtxSynchronize_v2 => late::on_handle, OnHandle;
    14: cuEventSynchronize => late::on_handle, OnHandle;
    15: cuEventQuery => late::on_handle, OnHandle;
    16: cuStreamQuery => late::on_handle, OnHandle;
    17: cuStreamQuery_ptsz => late::on_handle, OnHandle;
    18: cuMemcpyDtoH_v2 => late::copy_to_host, CopyToHost;
    19: cuMemcpyDtoH_v2_ptds => late::copy_to_host, CopyToHost;
    20: cuModuleLoad => load::module_file, LoadModule;
    21: cuModuleLoadData => load::module, LoadModule;
    22: cuModuleLoadDataEx => load::module_ex, LoadModuleEx;
    23: cuModuleLoadFatBinary => load::module_fatbin, LoadModule;
    24: cuLibraryLoadData => load::library, LoadLibrary;
    25: cuLibraryLoadFromFile => load::library_file, LoadLibrary;
    26: cuLibraryGetModule => names::find_in_context, FindInContext;
    27: cuKernelGetFunction => names::find_in_context, FindInContext;
    28: cuGraphAddKernelNode => graph::add_kernel_node, AddKernelNode;
    29: cuGraphAddKernelNode_v2 => graph::add_kernel_node, AddKernelNode;
    30: cuGraphAddNode => graph::add_node, AddNode;
    31: cuGraphAddNode_v2 => graph::add_node_with_edges, AddNodeWithEdges;
    32: cuGraphAddNode_v3 => graph::add_node_with_edges, AddNodeWithEdges;
    33: cuGraphKernelNodeSetParams => graph::set_kernel_node, SetKernelNode;
    34: cuGraphKernelNodeSetParams_v2 => graph::set_kernel_node, SetKernelNode;
    35: cuGraphNodeSetParams => graph::set_node, SetNode;
    36: cuGraphNodeSetParams_v2 => graph::set_node, SetNode;
    37: cuGraphExecKernelNodeSetParams => graph::set_exec_kernel_node, SetExecKernelNode;
    38: cuGraphExecKernelNodeSetParams_v2 => graph::set_exec_kernel_node, SetExecKernelNode;
    39: cuGraphExecNodeSetParams => graph::set_exec_node, SetExecNode;
    40: cuGraphInstantiate => graph::instantiate, Instantiate;
    41: cuGraphInstantiate_v2 => graph::instantiate, Instantiate;
    42: cuGraphInstantiateWithFlags => graph::instantiate, Instantiate;
    43: cuGraphInstantiateWithParams => graph::instantiate, Instantiate;
    44: cuGraphInstantiateWithParams_ptsz => graph::instantiate, Instantiate;
    45: cuGraphLaunch => graph::launch, LaunchGraph;
    46: cuGraphLaunch_ptsz => graph::launch, LaunchGraph;
    47: cudaLaunchKernel => runtime::kernel, RuntimeLaunch, by_caller;
    48: cudaLaunchKernel_ptsz => runtime::kernel, RuntimeLaunch, by_caller;
    49: cudaLaunchKernelExC => runtime::kernel_ex, RuntimeLaunchEx, by_caller;
    50: cudaLaunchKernelExC_ptsz => runtime::kernel_ex, RuntimeLaunchEx, by_caller;
    51: cudaLaunchCooperativeKernel => runtime::kernel, RuntimeLaunch, by_caller;
    52: cudaLaunchCooperativeKernel_ptsz => runtime::kernel, RuntimeLaunch, by_caller;
    53: __cudaLaunchKernel => runtime::kernel, RuntimeLaunch, by_caller;
    54: __cudaLaunchKernel_ptsz => runtime::kernel, RuntimeLaunch, by_caller;
    55: cuMemAlloc_v2 => allocate::device, Allocate;
    56: cuMemAllocPitch_v2 => allocate::pitch, AllocatePitch;
    57: cuMemAllocManaged => allocate::managed, AllocateWith;
    58: cuMemAllocAsync => allocate::in_order, AllocateAsync;
    59: cuMemAllocAsync_ptsz => allocate::in_order, AllocateAsync;
    60: cuMemAllocFromPoolAsync => allocate::from_pool, AllocateFromPool;
    61: cuMemAllocFromPoolAsync_ptsz => allocate::from_pool, AllocateFromPool;
    62: cuMemCreate => allocate::physical, CreateMemory;
    63: cuMemHostAlloc => allocate::pinned_with, AllocateWith;
    64: cuMemAllocHost_v2 => allocate::pinned, Allocate;
    65: cuMemFree_v2 => free::memory, Free;
    66: cuMemFreeAsync => free::in_order, FreeAsync;
    67: cuMemFreeAsync_ptsz => free::in_order, FreeAsync;
    68: cuMemRelease => free::physical, Free;
    69: cuMemFreeHost => free::memory, Free;
    70: cuDevicePrimaryCtxReset => free::reset_device, OnDevice;
    71: cuDevicePrimaryCtxReset_v2 => free::reset_device, OnDevice;
    72: cuModuleUnload => load::unload, OnHandle;
    73: cuLibraryUnload => load::unload, OnHandle;
}

/// What a call of an export of function `function` that returns to `caller` is handed to.
extern "C" fn choose(function: usize, caller: usize) -> *mut c_void {
    callers::choose(function, caller, replace)
}

/// The function with this symbol, by its place in the table.
pub(crate) fn by_symbol(symbol: &CStr) -> Option<usize> {
    let name = symbol.to_bytes();
    let is_of_cuda = name.strip_prefix(b"__").unwrap_or(name).starts_with(b"cu");
    let place = || FUNCTIONS.iter().position(|function| function.symbol == symbol);
    is_of_cuda.then(place).flatten()
}

/// Whether `address` is what this library exports for the function.
pub(crate) fn is_export(function: usize, address: *mut c_void) -> bool {
    HOOKS.get(function).is_some_and(|hook| address_of(hook.export) == address)
}

/// The replacement for `original`, a function of the driver that was looked up; `original` itself if it is
/// null, a replacement already, or there are too many of them.
pub(crate) fn replace(function: usize, original: *mut c_void) -> *mut c_void {
    let (Some(hook), Some(slots)) = (HOOKS.get(function), ORIGINALS.get(function)) else {
        return original;
    };
    if original.is_null() || is_own(original) {
        return original;
    }
    for (slot, replacement) in slots.iter().zip(hook.slots).skip(LINKED + 1) {
        let free = core::ptr::null_mut();
        let claim = slot.compare_exchange(free, original, Ordering::AcqRel, Ordering::Acquire);
        if claim.is_ok() || claim == Err(original) {
            return address_of(replacement);
        }
    }
    UNWATCHED.fetch_add(1, Ordering::Relaxed);
    original
}

/// The function that `cuGetProcAddress` returns for `name`, `version` and the per-thread flag, if its
/// signature is known.
fn by_query(name: &CStr, version: c_int, per_thread: bool) -> Option<usize> {
    let named = |function: &Function| function.name == name || function.symbol == name;
    let known = |function: &Function| named(function) && function.versions.contains(&version);
    let of_flag = |function: &Function| known(function) && function.per_thread == per_thread;
    // Where the version or the function has no variant for threads, both flags mean the same.
    let place = FUNCTIONS.iter().position(of_flag).or_else(|| FUNCTIONS.iter().position(known));
    if place.is_none() && FUNCTIONS.iter().any(named) {
        UNWATCHED.fetch_add(1, Ordering::Relaxed);
    }
    place
}

/// Whether `address` is a function of this library.
fn is_own(address: *mut c_void) -> bool {
    let own = HOOKS.iter().flat_map(|hook| hook.slots.into_iter().chain([hook.export]));
    own.into_iter().any(|own| address_of(own) == address)
}

#[allow(clippy::as_conversions, reason = "the address of a function")]
fn address_of(function: Replacement) -> *mut c_void {
    function as *mut c_void
}

/// The replacement up to CUDA 11.
unsafe extern "C-unwind" fn get_proc_address<const H: usize, const S: usize>(
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Status {
    let Some(original) = functions::original::<H, S, ProcAddress>() else { return NOT_INITIALIZED };
    // SAFETY: the caller's own arguments.
    let status = unsafe { original(name, address, version, flags) };
    // SAFETY: as above, after the call.
    unsafe { replace_found(status, name, address, version, flags) };
    status
}

/// The replacement since CUDA 12.
unsafe extern "C-unwind" fn get_proc_address_v2<const H: usize, const S: usize>(
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    found: *mut c_int,
) -> Status {
    let Some(original) = functions::original::<H, S, ProcAddressV2>() else {
        return NOT_INITIALIZED;
    };
    // SAFETY: the caller's own arguments.
    let status = unsafe { original(name, address, version, flags, found) };
    // SAFETY: as above, after the call.
    unsafe { replace_found(status, name, address, version, flags) };
    status
}

/// Replaces the address that a successful query wrote.
///
/// # Safety
///
/// The arguments are those of a call of `cuGetProcAddress` that returned `status`.
unsafe fn replace_found(
    status: Status,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
) {
    if status != SUCCESS || name.is_null() || address.is_null() {
        return;
    }
    // SAFETY: the query accepted the name, which is not null.
    let name = unsafe { CStr::from_ptr(name) };
    if !name.to_bytes().starts_with(b"cu") {
        return;
    }
    let per_thread = flags & PER_THREAD_DEFAULT_STREAM != 0 || name.to_bytes().ends_with(b"_ptsz");
    if let Some(hook) = by_query(name, version, per_thread) {
        // SAFETY: the successful query wrote through the pointer.
        unsafe { *address = replace(hook, *address) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_have_the_same_order() {
        let symbols = FUNCTIONS.iter().map(|function| function.symbol.to_str().unwrap());
        let symbols: Vec<_> = symbols.enumerate().collect();
        assert_eq!(symbols, SYMBOLS);
    }

    #[test]
    fn a_query_finds_the_variant_of_its_version_and_flag() {
        let symbol = |name, version, per_thread| {
            by_query(name, version, per_thread).map(|place| FUNCTIONS[place].symbol)
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

    #[test]
    fn each_original_has_a_replacement_of_its_own_until_the_slots_are_taken() {
        let place = by_symbol(c"cuEventQuery").expect("replaced");
        let address = |number: usize| core::ptr::without_provenance_mut::<c_void>(number);
        let replaced = [16, 32, 16, 48, 64].map(|number| replace(place, address(number)));
        assert_eq!(replaced[0], replaced[2]);
        assert!(replaced[0] != replaced[1] && is_own(replaced[0]) && is_own(replaced[3]));
        assert_eq!(replaced[4], address(64));
        assert_eq!(replace(place, replaced[0]), replaced[0]);
        assert!(replace(place, address(0)).is_null());
    }
}
