//! The replacement of each intercepted function, the symbols that this library exports, and the results of
//! `cuGetProcAddress`, by which CUDA runtimes look up every function of the driver.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering;

use crate::driver::abi::{PER_THREAD_DEFAULT_STREAM, SUCCESS, Status};
use crate::driver::functions::{
    FUNCTIONS, Function, LINKED, ORIGINALS, Place, SLOTS, UNWATCHED, intercepted, replacements,
};
use crate::fix::load;
use crate::hook::{callers, compile, find, graph, launch, memory, runtime, synchronize, unwatched};

/// The replacement of one function.
struct Hook {
    /// The function that this library exports under the symbol.
    export: Address,
    /// The replacement in each slot.
    slots: [Address; SLOTS],
}

/// The address of a function.
struct Address(*const c_void);

// SAFETY: the code of a function is never changed.
unsafe impl Sync for Address {}

macro_rules! hooks {
    ($($symbol:ident($($versions:expr)?) => $($function:ident)::+ $(, $way:ident)?;)*) => {
        #[allow(clippy::as_conversions, reason = "the addresses of functions")]
        static HOOKS: [Hook; FUNCTIONS.len()] = [$(Hook {
            export: Address(exports::$symbol as *const c_void),
            slots: [
                Address($($function)::+::<{ Place::$symbol as usize }, 0> as *const c_void),
                Address($($function)::+::<{ Place::$symbol as usize }, 1> as *const c_void),
                Address($($function)::+::<{ Place::$symbol as usize }, 2> as *const c_void),
                Address($($function)::+::<{ Place::$symbol as usize }, 3> as *const c_void),
            ],
        }),*];

        /// The exports that programs find if they link the driver or the runtime.
        #[allow(non_snake_case, clippy::as_conversions, reason = "names and numbers of the functions")]
        mod exports {
            use super::*;
            $(
                #[cfg_attr(not(test), unsafe(no_mangle))]
                #[unsafe(naked)]
                pub(super) unsafe extern "C-unwind" fn $symbol() {
                    export!($symbol, [$($function)::+] $(, $way)?);
                }
            )*
        }
    };
}

/// The code of an export: jumps to the replacement in the first slot, or to the result of `choose`. The arguments stay
/// in their registers.
macro_rules! export {
    ($symbol:ident, [$($function:ident)::+]) => {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!("endbr64", "jmp {}", sym $($function)::+::<{ Place::$symbol as usize }, LINKED>);
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!("hint #34", "b {}", sym $($function)::+::<{ Place::$symbol as usize }, LINKED>);
    };
    ($symbol:ident, [$($function:ident)::+], by_caller) => {
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
            function = const Place::$symbol as usize,
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
            function = const Place::$symbol as usize,
            choose = sym choose,
        );
    };
}

intercepted!(hooks);

replacements! {
    /// `cuGetProcAddress`, which has four arguments up to CUDA 11. It does not read the register of the fifth.
    get_proc_address(
        name: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64, found: *mut c_int,
    )
    |_through, call| {
        let status = call();
        // SAFETY: the caller's own arguments, after the call.
        unsafe { replace_found(status, name, address, version, flags) };
        status
    }
}

/// The replacement for a call of an export that returns to `caller`.
extern "C" fn choose(function: usize, caller: usize) -> *mut c_void {
    callers::choose(function, caller, replace)
}

/// Replaces the address that a successful query wrote by its replacement.
///
/// # Safety
///
/// A call of `cuGetProcAddress` with these arguments returned `status`.
unsafe fn replace_found(
    status: Status,
    name: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
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

/// The function with this symbol, by its place in the table.
pub(crate) fn by_symbol(symbol: &CStr) -> Option<usize> {
    let name = symbol.to_bytes();
    let name = name.strip_prefix(b"__").unwrap_or(name);
    let is_of_cuda = name.starts_with(b"cu") || name.starts_with(b"nv");
    let place = || FUNCTIONS.iter().position(|function| function.symbol == symbol);
    is_of_cuda.then(place).flatten()
}

/// Whether `address` is what this library exports for the function.
pub(crate) fn is_export(function: usize, address: *mut c_void) -> bool {
    HOOKS.get(function).is_some_and(|hook| ptr::eq(hook.export.0, address))
}

/// The replacement for `original`, a function of the driver that was looked up. Returns `original` if it is null or
/// already a replacement, or if no slot is free.
pub(crate) fn replace(function: usize, original: *mut c_void) -> *mut c_void {
    let (Some(hook), Some(slots)) = (HOOKS.get(function), ORIGINALS.get(function)) else {
        return original;
    };
    if original.is_null() || is_own(original) {
        return original;
    }
    for (slot, replacement) in slots.iter().zip(&hook.slots).skip(LINKED + 1) {
        let free = ptr::null_mut();
        let claim = slot.compare_exchange(free, original, Ordering::AcqRel, Ordering::Acquire);
        if claim.is_ok() || claim == Err(original) {
            return replacement.0.cast_mut();
        }
    }
    UNWATCHED.fetch_add(1, Ordering::Relaxed);
    original
}

/// Whether `address` is a function of this library.
fn is_own(address: *mut c_void) -> bool {
    let mut own = HOOKS.iter().flat_map(|hook| hook.slots.iter().chain([&hook.export]));
    own.any(|own| ptr::eq(own.0, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_original_has_a_replacement_of_its_own_until_the_slots_are_taken() {
        let place = by_symbol(c"cuEventQuery").expect("replaced");
        let address = |number: usize| ptr::without_provenance_mut::<c_void>(number);
        let replaced = [16, 32, 16, 48, 64].map(|number| replace(place, address(number)));
        assert_eq!(replaced[0], replaced[2]);
        assert!(replaced[0] != replaced[1] && is_own(replaced[0]) && is_own(replaced[3]));
        assert_eq!(replaced[4], address(64));
        assert_eq!(replace(place, replaced[0]), replaced[0]);
        assert!(replace(place, address(0)).is_null());
    }

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
