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
    ($name:ident, $choose:path) => {
        #[cfg(not(test))]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            crate::hook::trampoline::trampoline!($choose, 0);
        }
    };
}

entry!(dlsym, choose);
entry!(dlvsym, choose_version);

unsafe extern "C" fn choose(handle: *mut c_void, name: *const c_char) -> Choice {
    let real = real(&REAL_DLSYM, || elf::next(c"dlsym"));
    // SAFETY: the caller's own arguments for the function `dlsym` at this address.
    let find = || unsafe { mem::transmute::<*mut c_void, Dlsym>(real)(handle, name) };
    // SAFETY: the name is null or a string, as `dlsym` demands of its caller.
    unsafe { outcome(handle, name, real, find) }
}

unsafe extern "C" fn choose_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> Choice {
    let real = real(&REAL_DLVSYM, || elf::next(c"dlvsym"));
    // SAFETY: the caller's own arguments for the function `dlvsym` at this address.
    let find = || unsafe { mem::transmute::<*mut c_void, Dlvsym>(real)(handle, name, version) };
    // SAFETY: the name is null or a string, as `dlvsym` demands of its caller.
    unsafe { outcome(handle, name, real, find) }
}

/// A jump to `real`, or for an intercepted function its replacement. `find` is a call of `real`.
///
/// # Safety
///
/// `name` is null or points to a string.
unsafe fn outcome(
    handle: *mut c_void,
    name: *const c_char,
    real: *mut c_void,
    find: impl FnOnce() -> *mut c_void,
) -> Choice {
    // SAFETY: by this function's contract: the name is null or a string, and a function is only found for a string.
    unsafe {
        match function_of(handle, name) {
            Some(function) => Choice::value(replaced(function, find(), (handle, name))),
            None if !name.is_null() && triton::MODULES.contains(&CStr::from_ptr(name)) => {
                Choice::value(triton::initialiser(find()))
            }
            None => {
                if !name.is_null()
                    && is_unknown_launch(CStr::from_ptr(name).to_bytes())
                    && !find().is_null()
                {
                    unwatched::note(CStr::from_ptr(name).to_bytes());
                }
                Choice::enter(real)
            }
        }
    }
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

/// The intercepted function called `name`. `None` for a caller that asks for the next function after itself: it is
/// between this library and the driver, and a replacement would call it again.
///
/// # Safety
///
/// `name` is null or points to a string.
unsafe fn function_of(handle: *mut c_void, name: *const c_char) -> Option<usize> {
    if name.is_null() || handle == libc::RTLD_NEXT {
        return None;
    }
    // SAFETY: not null, so a string by this function's contract.
    table::by_symbol(unsafe { CStr::from_ptr(name) })
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
