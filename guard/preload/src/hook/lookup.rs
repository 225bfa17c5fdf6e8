//! `dlsym` and `dlvsym`: forward every name to the next library's function, and replace the intercepted functions in the
//! results.
//!
//! The next function is entered by a jump, with the caller's return address, so `RTLD_NEXT`, `RTLD_DEFAULT`
//! and namespaces keep their meaning. Nothing here allocates, locks or can panic.

use core::ffi::{CStr, c_char, c_void};
use core::mem;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::driver::functions::is_unknown_launch;
use crate::hook::trampoline::Choice;
use crate::hook::{table, triton};
use crate::process::elf;
use crate::report::unwatched;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Defines the function that other libraries find under this name.
macro_rules! entry {
    ($name:ident, $number:literal) => {
        #[cfg(not(test))]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            crate::hook::trampoline::trampoline!(choose, $number);
        }
    };
}

entry!(dlsym, 0);
entry!(dlvsym, 1);

/// The answer of `dlsym`, or with `number` 1 of `dlvsym`: a jump to the next library's function, or the replacement of what
/// that returns.
unsafe extern "C" fn choose(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    number: usize,
) -> Choice {
    let real = match number {
        0 => real(&REAL_DLSYM, || elf::next(c"dlsym")),
        _ => real(&REAL_DLVSYM, || elf::next(c"dlvsym")),
    };
    // A caller that asks for the next function after itself is between this library and the driver, and a replacement
    // would call it again.
    if name.is_null() || handle == libc::RTLD_NEXT {
        return Choice::enter(real);
    }
    // SAFETY: the caller's own arguments for the function at this address. `dlsym` does not read the register of the
    // version.
    let find = || unsafe { mem::transmute::<*mut c_void, Dlvsym>(real)(handle, name, version) };
    // SAFETY: not null, so a string, as `dlsym` demands of its caller.
    let text = unsafe { CStr::from_ptr(name) };
    if let Some(function) = table::by_symbol(text) {
        // SAFETY: a string.
        return Choice::value(unsafe { replaced(function, find(), (handle, name)) });
    }
    if triton::MODULES.contains(&text) {
        return Choice::value(triton::initialiser(find()));
    }
    if is_unknown_launch(text.to_bytes()) && !find().is_null() {
        unwatched::note(text.to_bytes());
    }
    Choice::enter(real)
}

/// The replacement of `found`, the result of the next library.
///
/// # Safety
///
/// `name` points to a string.
unsafe fn replaced(
    function: usize,
    found: *mut c_void,
    (handle, name): (*mut c_void, *const c_char),
) -> *mut c_void {
    if !table::is_export(function, found) {
        return table::replace(function, found);
    }
    // This library is loaded before the driver, so the search found our export. Without this library the caller would
    // find the next one. Only the C library's own `dlsym` returns it: the `dlsym` of another library takes "next"
    // relative to itself.
    let own = real(&LIBC_DLSYM, || {
        let beside = elf::beside(libc_address(), c"dlsym");
        if beside.is_null() { elf::next(c"dlsym") } else { beside }
    });
    // SAFETY: the function at this address is `dlsym`.
    let own = unsafe { mem::transmute::<*mut c_void, Dlsym>(own) };
    // SAFETY: a string by this function's contract, and the caller's handle.
    let find = |handle| unsafe { own(handle, name) };
    let mut next = find(libc::RTLD_NEXT);
    // Another library's `dlsym` may search all objects, whatever the handle is: HAMi-core's does.
    if next.is_null() && handle != libc::RTLD_DEFAULT {
        next = find(handle);
        if table::is_export(function, next) {
            // This lookup fails, and `dlerror` tells the program.
            next = find(libc::RTLD_NEXT);
        }
    }
    table::replace(function, next)
}

/// The function that `find` returns, found once.
fn real(known: &AtomicPtr<c_void>, find: impl FnOnce() -> *mut c_void) -> *mut c_void {
    let found = known.load(Ordering::Acquire);
    if !found.is_null() {
        return found;
    }
    let found = find();
    known.store(found, Ordering::Release);
    // Only a C library other than glibc lacks this function. The jump then goes to a harmless function.
    if found.is_null() { nothing() } else { found }
}

/// An address within the C library.
#[allow(clippy::as_conversions, reason = "the address of a function")]
fn libc_address() -> *const c_void {
    libc::__errno_location as *const c_void
}

/// The address of a function that returns null.
#[allow(clippy::as_conversions, reason = "the address of a function")]
fn nothing() -> *mut c_void {
    extern "C" fn null() -> *mut c_void {
        core::ptr::null_mut()
    }
    null as *mut c_void
}

static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static LIBC_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
