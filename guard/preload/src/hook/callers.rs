//! Finds the runtime that a calling library is bound to: a process may have several runtimes, whose symbols differ only
//! in their version.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::driver::abi::{NOT_INITIALIZED, Status};
use crate::driver::functions::{FUNCTIONS, Function};
use crate::process::elf::{self, Object, Tables};
use crate::process::guarded;

/// The most callers of a function whose runtime is kept. The runtime of other callers is looked up at each launch.
const MAX_CALLERS: usize = 64;

/// The objects that call a function.
struct Callers {
    claimed: AtomicUsize,
    callers: [Caller; MAX_CALLERS],
}

/// An object that calls a function. Its end is written last, and 0 until then.
struct Caller {
    begin: AtomicUsize,
    end: AtomicUsize,
    /// The replacement of the function.
    target: AtomicPtr<c_void>,
}

/// The first letters of the names of runtimes and compilers. A process may have several of each.
const RUNTIMES: [&[u8]; 3] = [b"libcudart", b"libnvrtc.so", b"libnvJitLink.so"];
/// The callers of each function.
// SAFETY: atomic numbers may be zero, and atomic pointers null.
static CALLERS: [Callers; FUNCTIONS.len()] = unsafe { core::mem::zeroed() };
/// Objects that were loaded when the program began.
static STARTUP: AtomicUsize = AtomicUsize::new(0);

/// Notes how many objects are loaded when the program begins.
pub(crate) fn note_startup() {
    let mut count = 0;
    elf::find_map(|_| -> Option<()> {
        count += 1;
        None
    });
    STARTUP.store(count, Ordering::Relaxed);
}

/// The replacement for a call of `function` that returns to `caller`: the result of `replace` for the original that the
/// caller's object is bound to. Does not panic. Once the object is known, neither locks nor allocates.
#[inline]
pub(crate) fn choose(
    function: usize,
    caller: usize,
    replace: fn(usize, *mut c_void) -> *mut c_void,
) -> *mut c_void {
    let (Some(Function { symbol, .. }), Some(callers)) =
        (FUNCTIONS.get(function), CALLERS.get(function))
    else {
        return missing();
    };
    for known in callers.callers.iter().take(callers.claimed.load(Ordering::Relaxed)) {
        let end = known.end.load(Ordering::Acquire);
        if (known.begin.load(Ordering::Relaxed)..end).contains(&caller) {
            return known.target.load(Ordering::Relaxed);
        }
    }
    find(symbol, caller, callers, |original| replace(function, original))
}

#[cold]
fn find(
    symbol: &CStr,
    caller: usize,
    callers: &Callers,
    replace: impl FnOnce(*mut c_void) -> *mut c_void,
) -> *mut c_void {
    let (calling, original) = bound(caller, symbol);
    if original.is_null() {
        return missing();
    }
    let target = replace(original);
    let contains =
        |Calling { range: (begin, end), .. }: &Calling| (*begin..*end).contains(&original.addr());
    if calling.as_ref().is_some_and(contains) {
        // A plugin with a runtime within may be unloaded, and another one loaded in its place.
        return target;
    }
    // The runtime stays loaded.
    guarded::run(|| core::mem::forget(elf::hold(original.addr())));
    if let Some(Calling { range: (begin, end), .. }) = calling
        // The count cannot overflow: a full table is not claimed from again.
        && callers.claimed.load(Ordering::Relaxed) < MAX_CALLERS
        && let Some(place) = callers.callers.get(callers.claimed.fetch_add(1, Ordering::Relaxed))
    {
        place.begin.store(begin, Ordering::Relaxed);
        place.target.store(target, Ordering::Relaxed);
        place.end.store(end, Ordering::Release);
    }
    target
}

/// The object that calls.
struct Calling {
    tables: Tables,
    /// Where it begins and ends.
    range: (usize, usize),
}

/// The object that contains `caller`, and the function that its call of `name` would reach without this library, or
/// null. `None` for generated code. After a tail call, the caller of the wrapper counts.
fn bound(caller: usize, name: &CStr) -> (Option<Calling>, *mut c_void) {
    let mut is_after = false;
    let found = elf::find_map(|object| {
        is_after |= object.is_own();
        object.contains(caller).then(|| {
            // An object before this library that has the function asks for the next one.
            let own = if is_after { object.find(name) } else { None };
            (object.tables().map(|tables| Calling { tables, range: object.range() }), own)
        })
    });
    let (calling, own) = found.unwrap_or_default();
    if let Some(own) = own {
        return (calling, own);
    }
    let (mut first, mut number, mut is_after) = (None, 0, false);
    let startup = STARTUP.load(Ordering::Relaxed);
    let wanted = elf::find_map(|object| {
        number += 1;
        let found = if is_after { object.find(name) } else { None };
        is_after |= object.is_own();
        let found = found?;
        first = first.or(Some(found));
        let needed = object.name().zip(calling.as_ref()).is_some_and(|(name, calling)| {
            // SAFETY: the caller's object is loaded: the call returns there.
            unsafe { calling.tables.needs(name) }
        });
        // A library that replaces functions of a runtime is loaded with the program.
        (needed || (number <= startup && !is_runtime(object))).then_some(found)
    });
    (calling, wanted.or(first).unwrap_or(ptr::null_mut()))
}

fn is_runtime(object: &Object<'_>) -> bool {
    let is_one = |name: &CStr| RUNTIMES.iter().any(|start| name.to_bytes().starts_with(start));
    object.name().is_some_and(is_one)
}

/// The replacement of a function that no loaded object has.
#[allow(clippy::as_conversions, reason = "the address of a function")]
fn missing() -> *mut c_void {
    extern "C" fn not_initialized() -> Status {
        const { assert!(size_of::<Status>() == size_of::<c_int>()) };
        NOT_INITIALIZED
    }
    not_initialized as *mut c_void
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_reaches_what_the_loader_would_have_bound_it_to() {
        let name = c"malloc";
        // SAFETY: a name, looked up in all libraries.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let own = (&raw const STARTUP).addr();
        // Callers: the C library, this program, generated code.
        for (caller, known) in [(expected.addr(), true), (own, true), (1, false)] {
            let (calling, found) = bound(caller, name);
            assert_eq!((calling.is_some(), found), (known, expected), "{caller:#x}");
            let within = |Calling { range: (begin, end), .. }| (begin..end).contains(&caller);
            assert!(calling.is_none_or(within), "{caller:#x}");
            assert!(bound(caller, c"no_such_function").1.is_null());
        }
    }
}
