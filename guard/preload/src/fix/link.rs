//! Keeps the inputs that nvJitLink links to a cubin: one PTX, or code for link-time optimisation (Numba). When a launch
//! needs the PTX of the code, nvJitLink makes it from the same inputs and options.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::CString;
use std::sync::Mutex;

use crate::driver::abi::{Handle, SUCCESS, Status};
use crate::driver::functions::beside;
use crate::fix::store;
use crate::watch::handle_record::Reason;

/// A linker with its inputs.
#[derive(Clone)]
struct Linker {
    handle: usize,
    options: Vec<CString>,
    inputs: Inputs,
}

#[derive(Clone)]
enum Inputs {
    None,
    Ptx(Vec<u8>),
    Code(Vec<Vec<u8>>),
    /// Several inputs, of which not all are code for optimisation.
    Other,
}

/// The linkers of the process.
struct Linkers(Vec<Linker>);

static LINKERS: Mutex<Linkers> = Mutex::new(Linkers(Vec::new()));
/// Whether a call was missed. The inputs of linkers are then unknown.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Notes a new linker and its options.
pub(crate) fn created(handle: Handle, options: Vec<CString>) {
    linkers(|linkers| {
        linkers.remove(handle);
        let is_room = linkers.0.len() < MOST_LINKERS;
        INCOMPLETE.fetch_or(!is_room, Ordering::Relaxed);
        if is_room {
            linkers.0.push(Linker { handle: handle.addr(), options, inputs: Inputs::None });
        }
    });
}

/// Notes an input of a linker; `data` is `None` for a file.
pub(crate) fn added(handle: Handle, kind: c_int, data: Option<&[u8]>) {
    linkers(|linkers| {
        let Some(linker) = linkers.0.iter_mut().find(|known| known.handle == handle.addr()) else {
            return;
        };
        let data = data.filter(|data| data.len() <= MOST_BYTES);
        linker.inputs = match (core::mem::replace(&mut linker.inputs, Inputs::Other), data) {
            (Inputs::None, Some(text)) if kind == INPUT_PTX => Inputs::Ptx(text.to_vec()),
            (Inputs::None, Some(code)) if kind == INPUT_CODE => Inputs::Code(vec![code.to_vec()]),
            (Inputs::Code(all), Some(code)) if kind == INPUT_CODE => {
                Inputs::Code(all.into_iter().chain([code.to_vec()]).collect())
            }
            _ => Inputs::Other,
        };
    });
}

/// Keeps the cubin that a linker made.
pub(crate) fn linked(through: (usize, usize), handle: Handle, cubin: &[u8]) {
    let known = |linkers: &mut Linkers| {
        linkers.0.iter().find(|known| known.handle == handle.addr()).cloned()
    };
    let Some(Linker { options, inputs, .. }) = linkers(known).flatten() else { return };
    let is_harmless = |option: &CString| {
        HARMLESS.split(' ').any(|harmless| option.as_bytes().starts_with(harmless.as_bytes()))
    };
    match inputs {
        _ if !options.iter().all(is_harmless) => {}
        Inputs::Ptx(text) => store::keep(cubin, &text),
        Inputs::Code(inputs) => {
            store::keep_program(cubin, Program::new(through, options, &inputs));
        }
        Inputs::None | Inputs::Other => {}
    }
}

/// Forgets a linker.
pub(crate) fn ended(handle: Handle) {
    linkers(|linkers| linkers.remove(handle));
}

impl Linkers {
    fn remove(&mut self, handle: Handle) {
        self.0.retain(|known| known.handle != handle.addr());
    }
}

/// Calls `work`, unless the lock is taken for long: a child process may have inherited it.
fn linkers<R>(work: impl FnOnce(&mut Linkers) -> R) -> Option<R> {
    let open = (0..MOST_TRIES).find_map(|_| {
        let open = LINKERS.try_lock().ok();
        if open.is_none() {
            std::thread::yield_now();
        }
        open
    });
    INCOMPLETE.fetch_or(open.is_none(), Ordering::Relaxed);
    let mut open = open.filter(|_| !INCOMPLETE.load(Ordering::Relaxed))?;
    Some(work(&mut open))
}

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
const INPUT_CODE: c_int = 3;
/// `NVJITLINK_INPUT_PTX`.
const INPUT_PTX: c_int = 2;
/// Options that are already in the PTX, or that a driver also applies.
const HARMLESS: &str = "-arch= -lto -O3 -lineinfo -ftz= -prec-div= -prec-sqrt= -fma= -kernels-used= -variables-used= \
    -optimize-unused-variables -verbose";
/// The largest input that is kept.
const MOST_BYTES: usize = 64 << 20;
const MOST_LINKERS: usize = 1024;
/// Attempts to take the lock.
const MOST_TRIES: usize = 1000;
