//! Keeps the inputs that nvJitLink links to a cubin: one PTX, or code for link-time optimisation (Numba). When a launch
//! needs the PTX of the code, nvJitLink makes it from the same inputs and options.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::CString;
use std::sync::Mutex;

use crate::driver::abi::Handle;
use crate::fix::program::{INPUT_CODE, Program};
use crate::fix::store;

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
