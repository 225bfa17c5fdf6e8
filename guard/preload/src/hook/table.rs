//! The replacement of each intercepted function, the symbols that this library exports, and the results of
//! `cuGetProcAddress`, by which CUDA runtimes look up every function of the driver.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::Ordering;

use crate::driver::abi::{PER_THREAD_DEFAULT_STREAM, SUCCESS, Status};
use crate::driver::functions::{
    FUNCTIONS, LINKED, ORIGINALS, SLOTS, by_query, intercepted, is_unknown_launch, replacements,
};
use crate::driver::written;
use crate::fix::load;
use crate::hook::trampoline::{Choice, trampoline};
use crate::hook::{callers, compile, find, graph, launch, memory, runtime, synchronize};
use crate::report::unwatched;

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
    ($($place:literal $symbol:ident => $($function:ident)::+ $(, $way:ident)?;)*) => {
        #[allow(clippy::as_conversions, reason = "the addresses of functions")]
        static HOOKS: [Hook; FUNCTIONS.len()] = [$(Hook {
            export: Address(exports::$symbol as *const c_void),
            slots: [
                Address($($function)::+::<$place, 0> as *const c_void),
                Address($($function)::+::<$place, 1> as *const c_void),
                Address($($function)::+::<$place, 2> as *const c_void),
                Address($($function)::+::<$place, 3> as *const c_void),
            ],
        }),*];

        /// The exports that programs find if they link the driver or the runtime.
        #[allow(non_snake_case, reason = "names of the functions")]
        mod exports {
            use super::*;
            $(
                #[cfg_attr(not(test), unsafe(no_mangle))]
                #[unsafe(naked)]
                pub(super) unsafe extern "C-unwind" fn $symbol() {
                    export!($place, [$($function)::+] $(, $way)?);
                }
            )*
        }
    };
}

/// The code of an export: jumps to the replacement in the first slot, or to the result of `choose`.
macro_rules! export {
    ($place:literal, [$($function:ident)::+]) => {
        #[cfg(target_arch = "x86_64")]
        core::arch::naked_asm!("endbr64", "jmp {}", sym $($function)::+::<$place, LINKED>);
        #[cfg(target_arch = "aarch64")]
        core::arch::naked_asm!("hint #34", "b {}", sym $($function)::+::<$place, LINKED>);
    };
    ($place:literal, [$($function:ident)::+], by_caller) => {
        trampoline!(choose, $place)
    };
}

intercepted!(hooks);

replacements! {
    /// `cuGetProcAddress`, which has four arguments up to CUDA 11. It does not read the register of the fifth.
    get_proc_address(
        name: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64, found: *mut c_int,
    )
    |_through, call, original| {
        let status = call();
        // SAFETY: the caller's own name and flags; the pointer is to a live address.
        let ask = |version| written(ptr::null_mut(), |address| Some(unsafe {
            original(name, address, version, flags, ptr::null_mut())
        }));
        // SAFETY: the caller's own arguments, after the call.
        unsafe { replace_found(status, name, address, version, flags, ask) };
        status
    }
}

/// The replacement for a call of an export that returns to `caller`.
extern "C" fn choose(_: usize, _: usize, _: usize, function: usize, caller: usize) -> Choice {
    Choice::enter(callers::choose(function, caller, replace))
}

/// Replaces the address that a successful query wrote by its replacement. `ask` queries another version.
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
    ask: impl FnOnce(c_int) -> Option<*mut c_void>,
) {
    if name.is_null() || address.is_null() {
        return;
    }
    // SAFETY: the query took the name, which is not null.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    unwatched::asked_for(name);
    // SAFETY: a successful query wrote through the pointer.
    let Some(found) = (status == SUCCESS).then(|| unsafe { *address }).filter(|one| !one.is_null())
    else {
        return;
    };
    let per_thread = flags & PER_THREAD_DEFAULT_STREAM != 0 || name.ends_with(b"_ptsz");
    match by_query(name, version, per_thread, |since| ask(since) == Some(found)) {
        // SAFETY: as above.
        Some((function, true)) => unsafe { *address = replace(function, found) },
        None if !is_unknown_launch(name) => {}
        _ => unwatched::note(name),
    }
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
    unwatched::note(FUNCTIONS[function].name);
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
}
