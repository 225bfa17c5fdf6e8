//! Which runtime a program that links one would have reached without this library: a process may have several
//! runtimes, whose symbols differ only in their version. Each call of an exported function goes where the
//! loader would have bound its caller.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::abi::{NOT_INITIALIZED, Status};
use crate::elf::{self, Object, Tables};
use crate::functions::FUNCTIONS;
use crate::{guarded, hooks};

/// Objects whose runtime is kept; that of others is looked up at each launch.
const MAX_CALLERS: usize = 64;

/// An object that calls runtimes; its end is 0 until all else is written.
struct Caller {
    begin: AtomicUsize,
    end: AtomicUsize,
    /// What stands for each function.
    targets: [AtomicPtr<c_void>; FUNCTIONS.len()],
}

static CALLERS: [Caller; MAX_CALLERS] = [const {
    Caller {
        begin: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        targets: [const { AtomicPtr::new(ptr::null_mut()) }; FUNCTIONS.len()],
    }
}; MAX_CALLERS];
static CLAIMED: AtomicUsize = AtomicUsize::new(0);
/// Objects that were loaded when the program began.
static STARTUP: AtomicUsize = AtomicUsize::new(0);

/// Notes how many objects are loaded when the program begins.
pub(crate) fn note_startup() {
    let mut count = 0;
    elf::visit(|_| {
        count += 1;
        false
    });
    STARTUP.store(count, Ordering::Relaxed);
}

/// What a call of function `function` that returns to `caller` is handed to. Without lock or allocation once
/// the caller's object is known; does not panic.
pub(crate) extern "C" fn choose(function: usize, caller: usize) -> *mut c_void {
    let known = CALLERS.iter().take_while(|known| known.end.load(Ordering::Acquire) != 0);
    let mut known = known.filter(|known| {
        let begin = known.begin.load(Ordering::Relaxed);
        caller.wrapping_sub(begin) < known.end.load(Ordering::Relaxed).wrapping_sub(begin)
    });
    let place = known.next();
    let target = place.and_then(|known| known.targets.get(function));
    match target.map(|target| target.load(Ordering::Acquire)) {
        Some(target) if !target.is_null() => target,
        _ => find(function, caller, place),
    }
}

#[cold]
fn find(function: usize, caller: usize, place: Option<&Caller>) -> *mut c_void {
    let Some(symbol) = FUNCTIONS.get(function).map(|function| function.symbol) else {
        return missing();
    };
    let Some((original, begin, end)) = bound(caller, symbol) else { return missing() };
    let target = hooks::replace(function, original);
    let place = place.or_else(|| {
        // The count stays far from its end: a full table is not claimed from again.
        let is_full = CLAIMED.load(Ordering::Relaxed) >= MAX_CALLERS;
        let claimed = (!is_full).then(|| CLAIMED.fetch_add(1, Ordering::Relaxed));
        let place = CALLERS.get(claimed?)?;
        place.begin.store(begin, Ordering::Relaxed);
        place.end.store(end, Ordering::Release);
        Some(place)
    });
    if let Some(target_of_caller) = place.and_then(|place| place.targets.get(function)) {
        guarded::run(|| keep_loaded(original));
        target_of_caller.store(target, Ordering::Release);
    }
    target
}

/// The function that a call of `name` from `caller` reaches without this library, and where the caller's
/// object begins and ends.
fn bound(caller: usize, name: &CStr) -> Option<(*mut c_void, usize, usize)> {
    let mut calling: Option<(Tables, usize, usize)> = None;
    let mut own = ptr::null_mut();
    let mut is_after = false;
    elf::visit(|object| {
        is_after |= object.is_own();
        if !object.contains(caller) {
            return false;
        }
        // An object before this library that has the function asks for the next one.
        own = if is_after { object.find(name) } else { ptr::null_mut() };
        let (begin, end) = object.range();
        calling = object.tables().map(|tables| (tables, begin, end));
        true
    });
    let (calling, begin, end) = calling?;
    if !own.is_null() {
        return Some((own, begin, end));
    }
    let (mut wanted, mut any): (*mut c_void, *mut c_void) = (ptr::null_mut(), ptr::null_mut());
    let (mut number, mut is_after) = (0, false);
    let startup = STARTUP.load(Ordering::Relaxed);
    elf::visit(|object| {
        number += 1;
        if object.is_own() {
            is_after = true;
            return false;
        }
        let found = if is_after { object.find(name) } else { ptr::null_mut() };
        if found.is_null() {
            return false;
        }
        if any.is_null() {
            any = found;
        }
        // SAFETY: the caller's object is loaded: the call returns there.
        let needed = object.name().is_some_and(|name| unsafe { calling.needs(name) });
        // What stands in front of a runtime is loaded with the program, and is none itself.
        if needed || (number <= startup && !is_runtime(object)) {
            wanted = found;
        }
        !wanted.is_null()
    });
    let found = if wanted.is_null() { any } else { wanted };
    (!found.is_null()).then_some((found, begin, end))
}

fn is_runtime(object: &Object<'_>) -> bool {
    object.name().is_some_and(|name| name.to_bytes().starts_with(b"libcudart.so"))
}

/// Keeps the library of `function` loaded: its address is kept.
fn keep_loaded(function: *const c_void) {
    let Some(path) = crate::stack::object_path(function) else { return };
    let mode = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: a path of the loader; nothing is loaded that is not loaded already.
    unsafe { libc::dlopen(path.as_ptr(), mode) };
}

/// What stands for a function that no loaded object has.
#[allow(clippy::as_conversions, reason = "the address of a function")]
fn missing() -> *mut c_void {
    extern "C" fn not_initialized() -> Status {
        const { assert!(size_of::<Status>() == size_of::<c_int>()) };
        NOT_INITIALIZED
    }
    not_initialized as *mut c_void
}
