//! The functions of compilers in the process that return machine code. With `--fix` the PTX of the same program is kept.

use core::ffi::{CStr, c_char};
use core::mem;

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
        if status == SUCCESS && process::options().fix && !cubin.is_null() {
            // SAFETY: the successful call wrote the cubin of the program.
            guarded::run(|| unsafe { keep(through, program, cubin) });
        }
        status
    }
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
