//! The functions of compilers in the process that return machine code. With `--fix` the PTX of the same program is kept.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ffi::CString;

use crate::driver::abi::{Handle, SUCCESS, Status};
use crate::driver::functions::{FUNCTIONS, beside, replacements};
use crate::driver::written;
use crate::fix::compilers;
use crate::process::{self, guarded, reserve};

replacements! {
    /// `nvrtcCompileProgram`.
    nvrtc_compile(program: Handle, count: c_int, options: *const *const c_char)
    |_through, call| {
        let count = c_uint::try_from(count).unwrap_or(0);
        // SAFETY: the successful call read so many options.
        kept(call, program, || unsafe { compilers::begun(program, texts(options, count)) })
    }

    /// `nvrtcGetCUBIN`.
    nvrtc(program: Handle, cubin: *mut c_char)
    |through, call| {
        // SAFETY: the successful call wrote the cubin of the program.
        kept(call, cubin, || unsafe { keep(through, program, cubin) })
    }

    /// `nvJitLinkCreate`.
    link_begin(linker: *mut Handle, count: c_uint, options: *const *const c_char)
    |_through, call| {
        // SAFETY: the successful call wrote the handle, and read so many options.
        kept(call, linker, || unsafe { compilers::begun(*linker, texts(options, count)) })
    }

    /// `nvJitLinkAddData`, and `nvJitLinkAddFile` with a path and no more.
    link_input(linker: Handle, kind: c_int, data: *const c_void, bytes: usize, name: *const c_char)
    |_through, call| {
        kept(call, linker, || {
            let is_data = FUNCTIONS[H].name == b"nvJitLinkAddData" && !data.is_null();
            // SAFETY: the successful call read so many bytes.
            let data = is_data.then(|| unsafe { core::slice::from_raw_parts(data.cast(), bytes) });
            compilers::added(linker, kind, data);
        })
    }

    /// `nvJitLinkGetLinkedCubin`.
    linked(linker: Handle, cubin: *mut c_void)
    |through, call| {
        // SAFETY: the successful call wrote the cubin.
        kept(call, cubin, || unsafe { keep_linked(through, linker, cubin) })
    }

    /// `nvJitLinkDestroy`.
    link_end(linker: *mut Handle)
    |_through, call| {
        if process::options().keeps_ptx() && !linker.is_null() {
            // SAFETY: the caller's own handle.
            let linker = unsafe { *linker };
            guarded::run(|| compilers::ended(linker));
        }
        call()
    }
}

/// Calls the original. After a success `keep` notes what it made, if PTX is kept and `given` is not null.
fn kept<T, R>(call: impl Fn() -> Status, given: *const T, keep: impl FnOnce() -> R) -> Status {
    let status = call();
    if status == SUCCESS && process::options().keeps_ptx() && !given.is_null() {
        guarded::run(keep);
    }
    status
}

/// Copies of strings.
///
/// # Safety
///
/// `texts` is null or points to `count` strings.
unsafe fn texts(texts: *const *const c_char, count: c_uint) -> Vec<CString> {
    let count = if texts.is_null() { 0 } else { usize::try_from(count).unwrap_or(0) };
    // SAFETY: by this function's contract.
    (0..count).map(|place| unsafe { CStr::from_ptr(*texts.add(place)).to_owned() }).collect()
}

/// Keeps what was linked to a cubin.
///
/// # Safety
///
/// `linker` is one of this nvJitLink, and `cubin` is its cubin.
unsafe fn keep_linked(through: (usize, usize), linker: Handle, cubin: *const c_void) -> Option<()> {
    type Ask = unsafe extern "C-unwind" fn(Handle, *mut usize) -> Status;
    // SAFETY: NVIDIA's header declares this signature.
    let size = unsafe { beside::<Ask>(through, c"nvJitLinkGetLinkedCubinSize") }?;
    // SAFETY: the pointer is to a live integer.
    let bytes = written(0, |bytes| Some(unsafe { size(linker, bytes) }))?;
    // SAFETY: nvJitLink wrote so many bytes.
    compilers::linked(through, linker, unsafe { core::slice::from_raw_parts(cubin.cast(), bytes) });
    Some(())
}

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
            beside::<Ask<usize>>(through, c"nvrtcGetCUBINSize")?,
            beside::<Ask<usize>>(through, c"nvrtcGetPTXSize")?,
            beside::<Ask<u8>>(through, c"nvrtcGetPTX")?,
        )
    };
    // SAFETY: the pointers are to live integers.
    let bytes = |ask: Ask<usize>| written(0, |bytes| Some(unsafe { ask(program, bytes) }));
    let (size, ptx_bytes) = (bytes(size)?, bytes(ptx_size)?);
    reserve::for_text(ptx_bytes).ok()?;
    let mut text = vec![0; ptx_bytes];
    // SAFETY: the text has room for the PTX of the program, and NVRTC wrote `size` bytes of its cubin.
    let cubin = unsafe {
        (ptx(program, text.as_mut_ptr()) == SUCCESS).then_some(())?;
        core::slice::from_raw_parts(cubin.cast(), size)
    };
    compilers::compiled(program, cubin, &text);
    Some(())
}
