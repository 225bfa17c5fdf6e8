//! Programs that nvJitLink linked, from which it makes their PTX.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use std::ffi::CString;

use crate::driver::abi::{Handle, SUCCESS, Status};
use crate::driver::functions::beside;
use crate::watch::handle_record::Reason;

/// A program that nvJitLink linked from code for link-time optimisation.
#[derive(Debug)]
pub(super) struct Program {
    /// The hook and slot of a call of nvJitLink.
    through: (usize, usize),
    options: Vec<CString>,
    /// Each input, compressed.
    inputs: Vec<Vec<u8>>,
}

impl Program {
    /// The program of these inputs.
    pub(super) fn new(through: (usize, usize), options: Vec<CString>, inputs: &[Vec<u8>]) -> Self {
        let inputs = inputs.iter().map(|input| lz4_flex::compress_prepend_size(input)).collect();
        Self { through, options, inputs }
    }

    /// Bytes of memory that the program takes.
    pub(super) fn bytes(&self) -> usize {
        self.inputs.iter().map(Vec::len).sum()
    }

    /// The PTX that nvJitLink makes of the program.
    pub(super) fn ptx(&self) -> Result<Vec<u8>, Reason> {
        type Create =
            unsafe extern "C-unwind" fn(*mut Handle, c_uint, *const *const c_char) -> Status;
        type Add = unsafe extern "C-unwind" fn(
            Handle,
            c_int,
            *const c_void,
            usize,
            *const c_char,
        ) -> Status;
        type Ask<T> = unsafe extern "C-unwind" fn(Handle, *mut T) -> Status;
        type Call = unsafe extern "C-unwind" fn(Handle) -> Status;
        type End = unsafe extern "C-unwind" fn(*mut Handle) -> Status;
        let damaged = |_| "its code was kept, and cannot be read";
        let inputs = self.inputs.iter().map(|input| lz4_flex::decompress_size_prepended(input));
        let inputs = inputs.collect::<Result<Vec<_>, _>>().map_err(damaged)?;
        let through = self.through;
        // SAFETY: NVIDIA's header declares these signatures.
        let functions = unsafe {
            (
                beside::<Create>(through, c"nvJitLinkCreate"),
                beside::<Add>(through, c"nvJitLinkAddData"),
                beside::<Call>(through, c"nvJitLinkComplete"),
                beside::<Ask<usize>>(through, c"nvJitLinkGetLinkedPtxSize"),
                beside::<Ask<u8>>(through, c"nvJitLinkGetLinkedPtx"),
                beside::<End>(through, c"nvJitLinkDestroy"),
            )
        };
        let (Some(create), Some(add), Some(complete), Some(size), Some(get), Some(end)) = functions
        else {
            return Err("nvJitLink was unloaded".into());
        };
        let options = self.options.iter().map(|option| option.as_c_str());
        let options: Vec<_> = options.chain([c"-ptx"]).map(CStr::as_ptr).collect();
        let (mut linker, mut bytes, mut text) = (ptr::null_mut(), 0, Vec::new());
        let done = |status| if status == SUCCESS { Ok(()) } else { Err(status) };
        let mut link = || {
            let count = c_uint::try_from(options.len()).unwrap_or(0);
            // SAFETY: the options and inputs live until the linker is destroyed; the text has the size that nvJitLink
            // states.
            unsafe {
                done(create(&raw mut linker, count, options.as_ptr()))?;
                for input in &inputs {
                    let data = input.as_ptr().cast();
                    done(add(linker, INPUT_CODE, data, input.len(), c"input".as_ptr()))?;
                }
                done(complete(linker))?;
                done(size(linker, &raw mut bytes))?;
                text.resize(bytes, 0);
                done(get(linker, text.as_mut_ptr()))
            }
        };
        let linked = link();
        if !linker.is_null() {
            // SAFETY: nvJitLink made it, and it is destroyed once.
            unsafe { end(&raw mut linker) };
        }
        linked.map_err(|status| format!("nvJitLink did not make its PTX: error {status}"))?;
        Ok(text)
    }
}

/// `NVJITLINK_INPUT_LTOIR`.
pub(super) const INPUT_CODE: c_int = 3;
