//! Compiles CUDA C++ at run time with NVRTC.
//!
//! The library is loaded and called without cudarc: a missing library is an error and no panic, any
//! version works, and no device is needed.

use core::ffi::{CStr, c_char, c_int};
use std::ffi::CString;

use once_cell::sync::OnceCell;

use crate::cuda::driver::libraries;
use crate::cuda::driver::symbols::{Handle, Nvrtc, Status, owned};
use crate::cuda::error::{CudaError, CudaErrorKind, CudaLibrary};
use crate::image::{Image, ImageError};
use crate::limits::ComputeCapability;

/// The run-time compiler for CUDA C++.
#[derive(Clone, Copy, Debug)]
pub struct Compiler {
    nvrtc: &'static Nvrtc,
    library: &'static str,
}

/// How to compile a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompileOptions {
    /// The program's name in messages, such as `attention.cu`.
    pub name: String,
    /// The architecture to generate machine code for.
    pub architecture: ComputeCapability,
    /// Allows instructions that only this architecture has, such as Hopper's warpgroup matrix
    /// instructions: compiles for `sm_90a` and the like, whose code runs on no later device.
    pub architecture_specific: bool,
    /// Macros and their values.
    pub defines: Vec<(String, String)>,
    /// Further options for NVRTC.
    pub options: Vec<String>,
}

impl CompileOptions {
    /// Plain C++17 for `architecture`.
    pub fn new(name: impl Into<String>, architecture: ComputeCapability) -> Self {
        Self {
            name: name.into(),
            architecture,
            architecture_specific: false,
            defines: Vec::new(),
            options: Vec::new(),
        }
    }

    /// The architecture's name, such as `sm_90` or `sm_90a`.
    pub fn target(&self) -> String {
        let suffix = if self.architecture_specific { "a" } else { "" };
        self.architecture.sm() + suffix
    }

    /// Defines the macro `name` as `value`.
    #[must_use]
    pub fn define(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.defines.push((name.into(), value.to_string()));
        self
    }
}

/// What a program is compiled to.
#[derive(Clone, Copy)]
enum Output {
    Cubin,
    Ptx,
}

/// A compiled program.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Machine code for the requested architecture, or PTX for it and later ones.
    pub image: Image,
    /// The compiler's log, mostly empty.
    pub log: String,
}

/// Names for the loader, tried before the folders of a toolkit.
const NAMES: [&str; 5] =
    ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "nvrtc64_120_0.dll"];

impl Compiler {
    /// The compiler, found once for the process: on the library path, then in the toolkits at
    /// `CUDA_HOME`, `CUDA_PATH` (absolute paths only) and `/usr/local/cuda`. After a failure the next
    /// call searches again.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if there is no library, or it lacks a function.
    pub fn find() -> Result<Self, CudaError> {
        static NVRTC: OnceCell<(Nvrtc, String)> = OnceCell::new();
        let find =
            || libraries::find(CudaLibrary::Nvrtc, &NAMES, "nvrtcVersion", Nvrtc::resolve, is_stub);
        let (nvrtc, library) = NVRTC.get_or_try_init(find)?;
        Ok(Self { nvrtc, library })
    }

    /// The file name of the library.
    pub const fn library(&self) -> &str {
        self.library
    }

    /// The version of NVRTC: major and minor.
    ///
    /// # Errors
    ///
    /// [`CudaErrorKind::Compiler`] if the call fails.
    pub fn version(&self) -> Result<(u32, u32), CudaError> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to live integers.
        let status = unsafe { (self.nvrtc.version)(&raw mut major, &raw mut minor) };
        self.check("nvrtcVersion", status)?;
        let number = |part| u32::try_from(part).unwrap_or(0);
        Ok((number(major), number(minor)))
    }

    /// Compiles `source` to machine code.
    ///
    /// # Errors
    ///
    /// [`CudaErrorKind::Compilation`] with the compiler's log if the source does not compile.
    pub fn compile(&self, source: &str, options: &CompileOptions) -> Result<Compiled, CudaError> {
        self.compile_to(Output::Cubin, source, options)
    }

    /// Compiles `source` to PTX for the virtual architecture of the options' one, such as for
    /// [`Guard::load_ptx`](crate::Guard) of the feature `ptx`. [`Image::ptx`] is its text.
    ///
    /// # Errors
    ///
    /// As [`Self::compile`].
    pub fn compile_to_ptx(
        &self,
        source: &str,
        options: &CompileOptions,
    ) -> Result<Compiled, CudaError> {
        self.compile_to(Output::Ptx, source, options)
    }

    fn compile_to(
        &self,
        output: Output,
        source: &str,
        options: &CompileOptions,
    ) -> Result<Compiled, CudaError> {
        let source = c_string(source, "the source")?;
        let name = c_string(&options.name, "the program's name")?;
        let architecture = match output {
            Output::Cubin => options.target(),
            Output::Ptx => options.target().replace("sm_", "compute_"),
        };
        let mut flags =
            vec![format!("--gpu-architecture={architecture}"), "--std=c++17".to_owned()];
        flags.extend(options.defines.iter().map(|(name, value)| format!("-D{name}={value}")));
        flags.extend(options.options.iter().cloned());
        let flags: Result<Vec<CString>, _> =
            flags.iter().map(|flag| c_string(flag, "an option")).collect();
        let program = OpenProgram::new(*self, &source, &name)?;
        let status = program.compile(&flags?);
        let log = program.log()?;
        if status != 0 {
            return Err(CudaErrorKind::Compilation {
                program: options.name.clone(),
                architecture,
                code: status,
                name: self.name_of(status),
                log,
            }
            .into());
        }
        let nvrtc = self.nvrtc;
        let (call, size, read) = match output {
            Output::Cubin => ("nvrtcGetCUBIN", nvrtc.get_cubin_size, nvrtc.get_cubin),
            Output::Ptx => ("nvrtcGetPTX", nvrtc.get_ptx_size, nvrtc.get_ptx),
        };
        let bytes = program.text(call, size, read)?;
        let image = Image::new(bytes).map_err(|error: ImageError| CudaErrorKind::Compiler {
            call,
            code: 0,
            name: error.to_string(),
        })?;
        Ok(Compiled { image, log })
    }

    fn check(&self, call: &'static str, status: Status) -> Result<(), CudaError> {
        if status == 0 {
            return Ok(());
        }
        Err(CudaErrorKind::Compiler { call, code: status, name: self.name_of(status) }.into())
    }

    fn name_of(&self, status: Status) -> String {
        // SAFETY: returns a static string for every number, known or not.
        let name = unsafe { owned((self.nvrtc.get_error_string)(status)) };
        name.unwrap_or_else(|| "unknown error".into())
    }
}

/// Whether `nvrtc` is a stub that toolkits ship for linking. Its functions print to standard output and
/// return the number of bytes printed, even where they should return a pointer (CUDA 13.0).
fn is_stub(nvrtc: &Nvrtc) -> bool {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are to live integers.
    let status = unsafe { (nvrtc.version)(&raw mut major, &raw mut minor) };
    status != 0
}

fn c_string(text: &str, what: &'static str) -> Result<CString, CudaError> {
    CString::new(text).map_err(|_| CudaErrorKind::ZeroByte { what }.into())
}

/// A program of the compiler, destroyed when dropped.
struct OpenProgram {
    compiler: Compiler,
    program: Handle,
}

impl OpenProgram {
    fn new(compiler: Compiler, source: &CStr, name: &CStr) -> Result<Self, CudaError> {
        let mut program = core::ptr::null_mut();
        let none = core::ptr::null();
        // SAFETY: both texts are zero-terminated and copied by the call; there are no headers.
        let status = unsafe {
            let (source, name) = (source.as_ptr(), name.as_ptr());
            (compiler.nvrtc.create_program)(&raw mut program, source, name, 0, none, none)
        };
        compiler.check("nvrtcCreateProgram", status)?;
        Ok(Self { compiler, program })
    }

    fn compile(&self, flags: &[CString]) -> Status {
        let pointers: Vec<*const c_char> = flags.iter().map(|flag| flag.as_ptr()).collect();
        let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
        // SAFETY: `self` holds the program open; the `count` options are zero-terminated and outlive
        // the call.
        unsafe { (self.compiler.nvrtc.compile_program)(self.program, count, pointers.as_ptr()) }
    }

    fn log(&self) -> Result<String, CudaError> {
        let nvrtc = self.compiler.nvrtc;
        let bytes = self.text("nvrtcGetProgramLog", nvrtc.get_log_size, nvrtc.get_log)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_end_matches('\0').trim().to_owned())
    }

    fn text(
        &self,
        call: &'static str,
        size_of: unsafe extern "C" fn(Handle, *mut usize) -> Status,
        read: unsafe extern "C" fn(Handle, *mut c_char) -> Status,
    ) -> Result<Vec<u8>, CudaError> {
        let mut size = 0;
        // SAFETY: `self` holds the program open; the pointer is to a live integer.
        let status = unsafe { size_of(self.program, &raw mut size) };
        self.compiler.check(call, status)?;
        let mut bytes = vec![0_u8; size];
        // SAFETY: the buffer has the size that the compiler just returned.
        let status = unsafe { read(self.program, bytes.as_mut_ptr().cast()) };
        self.compiler.check(call, status)?;
        Ok(bytes)
    }
}

impl Drop for OpenProgram {
    fn drop(&mut self) {
        // SAFETY: `new` created it, and nothing else destroys it. An error can only leak the program.
        let _ = unsafe { (self.compiler.nvrtc.destroy_program)(&raw mut self.program) };
    }
}
