//! Notes the options of NVRTC's programs, and the options and inputs of nvJitLink's linkers, and keeps the PTX of the cubins
//! that they make: of NVRTC the program's, of nvJitLink its one PTX, or its code for link-time optimisation (Numba), of
//! which nvJitLink makes PTX when a launch needs it.

use core::ffi::c_int;
use core::mem;
use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::{CStr, CString};
use std::sync::Mutex;

use crate::driver::abi::Handle;
use crate::fix::program::{INPUT_CODE, Program};
use crate::fix::store::{self, Text};
use crate::process::{self, reserve};
use crate::watch::handle_record::Reason;

/// A program of NVRTC, or a linker.
#[derive(Clone)]
struct Build {
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

/// The latest builds of the process.
static BUILDS: Mutex<Vec<Build>> = Mutex::new(Vec::new());
/// Whether a call was missed. The builds are then unknown.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// Notes a compiled program or a new linker, and its options.
pub(crate) fn begun(handle: Handle, options: Vec<CString>) {
    builds(|builds| {
        builds.retain(|known| known.handle != handle.addr());
        if builds.len() == MOST_BUILDS {
            builds.remove(0);
        }
        builds.push(Build { handle: handle.addr(), options, inputs: Inputs::None });
    });
}

/// Notes an input of a linker; `data` is `None` for a file.
pub(crate) fn added(handle: Handle, kind: c_int, data: Option<&[u8]>) {
    builds(|builds| {
        let Some(linker) = builds.iter_mut().find(|known| known.handle == handle.addr()) else {
            return;
        };
        let data =
            data.filter(|data| data.len() <= MOST_BYTES && reserve::for_text(data.len()).is_ok());
        linker.inputs = match (mem::replace(&mut linker.inputs, Inputs::Other), data) {
            (Inputs::None, Some(text)) if kind == INPUT_PTX => Inputs::Ptx(text.to_vec()),
            (Inputs::None, Some(code)) if kind == INPUT_CODE => Inputs::Code(vec![code.to_vec()]),
            (Inputs::Code(all), Some(code)) if kind == INPUT_CODE => {
                Inputs::Code(all.into_iter().chain([code.to_vec()]).collect())
            }
            _ => Inputs::Other,
        };
    });
}

/// Keeps the PTX of a program for the cubin that NVRTC made of it.
pub(crate) fn compiled(handle: Handle, cubin: &[u8], ptx: &[u8]) {
    let build = build_of(handle).ok_or_else(|| "the options of NVRTC are not known".into());
    store::keep(cubin, || {
        build.and_then(|build| build.allows(OF_NVRTC)).map(|()| Text::compressed(ptx))
    });
}

/// Keeps the source of the cubin that a linker made.
pub(crate) fn linked(through: (usize, usize), handle: Handle, cubin: &[u8]) {
    let Some(build) = build_of(handle) else { return };
    let allowed = match &build.inputs {
        Inputs::Code(_) => build.allows(OF_CODE),
        _ => build.allows(OF_LINKER),
    };
    store::keep(cubin, || match build.inputs {
        Inputs::None | Inputs::Other => Err("nvJitLink made it of several inputs".into()),
        Inputs::Ptx(text) => allowed.map(|()| Text::compressed(&text)),
        Inputs::Code(inputs) => {
            allowed.map(|()| Text::Program(Program::new(through, build.options, &inputs)))
        }
    });
}

/// Forgets a linker.
pub(crate) fn ended(handle: Handle) {
    builds(|builds| builds.retain(|known| known.handle != handle.addr()));
}

fn build_of(handle: Handle) -> Option<Build> {
    builds(|builds| builds.iter().find(|known| known.handle == handle.addr()).cloned()).flatten()
}

impl Build {
    /// Whether each option is one of these. What another one changes, the driver cannot repeat.
    fn allows(&self, known: &str) -> Result<(), Reason> {
        let is_known = |option: &&CStr| {
            let name = option.to_bytes().split(|byte| *byte == b'=').next().unwrap_or_default();
            // Others are the value of the option before.
            !name.starts_with(b"-")
                || known.split(' ').any(|known| known.as_bytes() == name)
                || DEFINITIONS.iter().any(|known| name.starts_with(known.as_bytes()))
        };
        match self.options.iter().map(CString::as_c_str).find(|option| !is_known(option)) {
            Some(option) => Err(format!(
                "it was compiled with an option that the driver does not apply: {}",
                option.to_string_lossy()
            )
            .into()),
            None => Ok(()),
        }
    }
}

/// Calls `work`, unless the lock is taken for long: a child process may have inherited it.
fn builds<R>(work: impl FnOnce(&mut Vec<Build>) -> R) -> Option<R> {
    let open = process::patiently(&BUILDS);
    INCOMPLETE.fetch_or(open.is_none(), Ordering::Relaxed);
    let mut open = open.filter(|_| !INCOMPLETE.load(Ordering::Relaxed))?;
    Some(work(&mut open))
}

/// `NVJITLINK_INPUT_PTX`.
const INPUT_PTX: c_int = 2;
/// Options of NVRTC that change its PTX, or messages.
const OF_NVRTC: &str = "-arch --gpu-architecture --include-path --define-macro --undefine-macro -include --pre-include \
    -std --std -ftz --ftz -prec-div --prec-div -prec-sqrt --prec-sqrt -fmad --fmad -use_fast_math --use_fast_math \
    -default-device --device-as-default-execution-space -restrict --restrict -w --disable-warnings -lineinfo \
    --generate-line-info --device-int128 -no-source-include --no-source-include -minimal --minimal";
const DEFINITIONS: [&str; 3] = ["-I", "-D", "-U"];
/// Options of nvJitLink that a driver also applies, or that change messages and lines of the source.
const OF_LINKER: &str = "-arch -O3 -lineinfo -verbose";
/// The same, and options that change the PTX that nvJitLink makes of code for optimisation.
const OF_CODE: &str = "-arch -O3 -lineinfo -verbose -lto -ftz -prec-div -prec-sqrt -fma -kernels-used -variables-used \
    -optimize-unused-variables";
/// The largest input that is kept.
const MOST_BYTES: usize = 64 << 20;
const MOST_BUILDS: usize = 1024;
