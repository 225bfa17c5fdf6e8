//! Runs work off the hot path, unnoticed by the program.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::process::flag::Flag;
use crate::process::reserve;

/// Runs `work` on a stack of this library, because a thread of the program may have 16 KiB. A panic ends only `work`, and
/// the result is `None`. Signals and a cancellation of the thread are deferred, and `errno` is restored. Without memory
/// `work` is not run.
pub(crate) fn run<R>(work: impl FnOnce() -> R) -> Option<R> {
    if reserve::is_low() {
        return None;
    }
    // The values that `work` shares are atomics, or are read only once written.
    let caught = || catch_unwind(AssertUnwindSafe(work)).ok();
    if Flag::Guarded.replace(true) {
        return caught();
    }
    // SAFETY: the C library returns the address of this thread's own variable.
    let (errno, before) = unsafe { (libc::__errno_location(), *libc::__errno_location()) };
    let result = undisturbed(|| on_own_stack(caught).flatten());
    // SAFETY: as above.
    unsafe { errno.write(before) };
    Flag::Guarded.replace(false);
    result
}

/// Runs `work`, which must not unwind. The thread's signals, but faults, and its cancellation are deferred.
fn undisturbed<R>(work: impl FnOnce() -> R) -> R {
    let (mut cancellation, mut signals) = (0, MaybeUninit::<libc::sigset_t>::zeroed());
    let mut deferred = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the pointers are to an integer and to signal sets, which the first calls initialise.
    unsafe {
        libc::sigfillset(deferred.as_mut_ptr());
        for fault in FAULTS {
            libc::sigdelset(deferred.as_mut_ptr(), fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, deferred.as_ptr(), signals.as_mut_ptr());
        pthread_setcancelstate(CANCEL_DISABLE, &raw mut cancellation);
    }
    let result = work();
    // SAFETY: the states that the first calls wrote.
    unsafe {
        pthread_setcancelstate(cancellation, ptr::null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, signals.as_ptr(), ptr::null_mut());
    }
    result
}

/// A stack that no thread uses now. The first one is mapped when the library is loaded, while there is memory.
static SPARE: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Runs `work`, which must not unwind, on another stack; `None` if there is no memory for one.
pub(crate) fn on_own_stack<R, F: FnOnce() -> R>(work: F) -> Option<R> {
    extern "C" fn call<R, F: FnOnce() -> R>(data: *mut c_void) {
        // SAFETY: the pair below, which outlives the call.
        let (work, result) = unsafe { &mut *data.cast::<(Option<F>, Option<R>)>() };
        *result = work.take().map(|work| work());
    }
    let spare = SPARE.swap(ptr::null_mut(), Ordering::AcqRel);
    let stack = if spare.is_null() { new_stack()? } else { spare };
    let mut data = (Some(work), None);
    // SAFETY: the stack is this thread's alone, and its end is aligned. `call` takes the pair, and does not unwind.
    unsafe { switch((&raw mut data).cast(), call::<R, F>, stack.add(STACK_BYTES)) };
    give_back(stack);
    data.1
}

/// A stack, below which a page is not mapped.
fn new_stack() -> Option<*mut u8> {
    let stack = reserve::map(STACK_BYTES)?;
    // SAFETY: the first page of the mapping.
    unsafe { libc::mprotect(stack.cast(), GUARD_BYTES, libc::PROT_NONE) };
    Some(stack)
}

fn give_back(stack: *mut u8) {
    let other = SPARE.swap(stack, Ordering::AcqRel);
    if !other.is_null() {
        // SAFETY: a stack that no thread uses.
        unsafe { libc::munmap(other.cast(), STACK_BYTES) };
    }
}

/// Calls `work` with `data` on the stack that ends at `top`. Unwinders find their way back.
///
/// # Safety
///
/// The stack is unused, and `top` is aligned to 16 bytes. `work` takes `data` and does not unwind.
#[unsafe(naked)]
unsafe extern "C" fn switch(data: *mut c_void, work: extern "C" fn(*mut c_void), top: *mut u8) {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        ".cfi_startproc",
        "hint #34",
        "stp x29, x30, [sp, #-16]!",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset x29, -16",
        ".cfi_offset x30, -8",
        "mov x29, sp",
        ".cfi_def_cfa_register x29",
        "mov sp, x2",
        "blr x1",
        "mov sp, x29",
        ".cfi_def_cfa_register sp",
        "ldp x29, x30, [sp], #16",
        "ret",
        ".cfi_endproc",
    );
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;
/// Signals that the code itself raises.
const FAULTS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGABRT];
/// As much as a first thread has: a driver may compile on it.
const STACK_BYTES: usize = 8 << 20;
/// Pages have 64 KiB at most.
const GUARD_BYTES: usize = 64 << 10;
