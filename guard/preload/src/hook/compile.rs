//! The functions of compilers in the process that return machine code. With `--fix` the PTX of the same program is kept.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

use crate::driver::abi::{Handle, SUCCESS, Status};
use crate::driver::functions::{original_address, replacements};
use crate::driver::written;
use crate::fix::store;
use crate::process::{self, elf, guarded};

replacements! {
    /// `nvrtcGetCUBIN`.
    nvrtc(program: Handle, cubin: *mut c_char)
    |through, call| {
        let status = call();
        if status == SUCCESS && process::options().keeps_ptx() && !cubin.is_null() {
            // SAFETY: the successful call wrote the cubin of the program.
            guarded::run(|| unsafe { keep(through, program, cubin) });
        }
        status
    }

    /// `nvJitLinkAddData`.
    link_data(linker: Handle, kind: c_int, data: *const c_void, bytes: usize, name: *const c_char)
    |_through, call| {
        let status = call();
        if status == SUCCESS && process::options().keeps_ptx() {
            guarded::run(|| {
                let is_text = kind == INPUT_PTX && bytes <= MOST_BYTES && !data.is_null();
                // SAFETY: the successful call read so many bytes.
                let input = is_text.then(|| unsafe { core::slice::from_raw_parts(data.cast(), bytes) });
                links(|links| links.add(linker, input));
            });
        }
        status
    }

    /// `nvJitLinkAddFile`.
    link_file(linker: Handle, kind: c_int, path: *const c_char)
    |_through, call| {
        let status = call();
        if status == SUCCESS && process::options().keeps_ptx() {
            guarded::run(|| links(|links| links.add(linker, None)));
        }
        status
    }

    /// `nvJitLinkGetLinkedCubin`.
    linked(linker: Handle, cubin: *mut c_void)
    |through, call| {
        let status = call();
        if status == SUCCESS && process::options().keeps_ptx() && !cubin.is_null() {
            // SAFETY: the successful call wrote the cubin.
            guarded::run(|| unsafe { keep_linked(through, linker, cubin) });
        }
        status
    }

    /// `nvJitLinkDestroy`.
    link_end(linker: *mut Handle)
    |_through, call| {
        if process::options().keeps_ptx() && !linker.is_null() {
            // SAFETY: the caller's own handle.
            let linker = unsafe { *linker };
            guarded::run(|| links(|links| links.0.retain(|(known, _)| *known != linker.addr())));
        }
        call()
    }
}

/// The linkers of nvJitLink, each with its input if it has one input, which is PTX.
struct Links(Vec<(usize, Option<Vec<u8>>)>);

static LINKS: Mutex<Links> = Mutex::new(Links(Vec::new()));
/// Whether an input was missed. Then it is not known whether a linker has one input.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

impl Links {
    fn add(&mut self, linker: Handle, input: Option<&[u8]>) {
        let is_full = self.0.len() >= MOST_LINKERS;
        match self.0.iter_mut().find(|(known, _)| *known == linker.addr()) {
            // Several inputs are linked to one cubin.
            Some((_, inputs)) => *inputs = None,
            None if is_full => INCOMPLETE.store(true, Ordering::Relaxed),
            None => self.0.push((linker.addr(), input.map(<[u8]>::to_vec))),
        }
    }
}

/// Calls `work`, unless the lock is taken for long: a child process may have inherited it.
fn links<R>(work: impl FnOnce(&mut Links) -> R) -> Option<R> {
    let open = (0..MOST_TRIES).find_map(|_| {
        let open = LINKS.try_lock().ok();
        if open.is_none() {
            std::thread::yield_now();
        }
        open
    });
    if open.is_none() {
        INCOMPLETE.store(true, Ordering::Relaxed);
    }
    let mut open = open.filter(|_| !INCOMPLETE.load(Ordering::Relaxed))?;
    Some(work(&mut open))
}

/// Keeps the PTX that was linked to a cubin alone.
///
/// # Safety
///
/// `linker` is one of this nvJitLink, and `cubin` is its cubin.
unsafe fn keep_linked(through: (usize, usize), linker: Handle, cubin: *const c_void) -> Option<()> {
    type Ask = unsafe extern "C-unwind" fn(Handle, *mut usize) -> Status;
    let known = links(|links| {
        let mut all = links.0.iter();
        all.find(|(known, _)| *known == linker.addr()).and_then(|(_, input)| input.clone())
    });
    let text = known.flatten()?;
    // SAFETY: NVIDIA's header declares this signature.
    let size = unsafe { function::<Ask>(through, c"nvJitLinkGetLinkedCubinSize") }?;
    // SAFETY: the pointer is to a live integer.
    let bytes = written(0, |bytes| Some(unsafe { size(linker, bytes) }))?;
    // SAFETY: nvJitLink wrote so many bytes.
    store::keep(unsafe { core::slice::from_raw_parts(cubin.cast(), bytes) }, &text);
    Some(())
}

/// `NVJITLINK_INPUT_PTX`.
const INPUT_PTX: c_int = 2;
/// The largest input that is kept.
const MOST_BYTES: usize = 64 << 20;
const MOST_LINKERS: usize = 1024;
/// Attempts to take the lock.
const MOST_TRIES: usize = 1000;

/// Keeps the PTX of a program for its cubin.
///
/// # Safety
///
/// `program` is a compiled one of this NVRTC, and `cubin` is its cubin.
unsafe fn keep(through: (usize, usize), program: Handle, cubin: *const c_char) -> Option<()> {
    type Ask<T> = unsafe extern "C-unwind" fn(Handle, *mut T) -> Status;
    // SAFETY: NVIDIA's header declares these signatures.
    let (size, ptx_size, ptx) = unsafe {
        (
            function::<Ask<usize>>(through, c"nvrtcGetCUBINSize")?,
            function::<Ask<usize>>(through, c"nvrtcGetPTXSize")?,
            function::<Ask<u8>>(through, c"nvrtcGetPTX")?,
        )
    };
    // SAFETY: the pointers are to live integers.
    let bytes = |ask: Ask<usize>| written(0, |bytes| Some(unsafe { ask(program, bytes) }));
    let (size, ptx_bytes) = (bytes(size)?, bytes(ptx_size)?);
    let mut text = vec![0; ptx_bytes];
    // SAFETY: the text has room for the PTX of the program, and NVRTC wrote `size` bytes of its cubin.
    let cubin = unsafe {
        (ptx(program, text.as_mut_ptr()) == SUCCESS).then_some(())?;
        core::slice::from_raw_parts(cubin.cast(), size)
    };
    store::keep(cubin, &text);
    Some(())
}

/// The function `name` of the library that the call went to.
///
/// # Safety
///
/// `F` is the type of the function.
unsafe fn function<F: Copy>(through: (usize, usize), name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<Handle>()) };
    let found = elf::beside(original_address(through), name);
    // SAFETY: not null, so the address of a function, of type `F` by this function's contract.
    (!found.is_null()).then(|| unsafe { mem::transmute_copy::<Handle, F>(&found) })
}
