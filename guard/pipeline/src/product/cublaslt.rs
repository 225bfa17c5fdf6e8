//! Finds libcublasLt.
//!
//! The library is loaded and called without cudarc, as NVRTC is: a missing library is an error and no panic,
//! and any version works.

use core::ffi::{CStr, c_char, c_int, c_void};

use gridguard::cuda::schedule::find_library;
use gridguard::cuda::{CudaError, CudaLibrary};
use libloading::Library;
use once_cell::sync::OnceCell;

use crate::error::Error;

/// An object of the library, or a stream of the driver.
pub(crate) type Handle = *mut c_void;
/// A `cublasStatus_t`, as an integer: the library returns codes that a binding may not know.
pub(crate) type Status = c_int;

/// NVIDIA's library of matrix products.
#[derive(Clone, Copy, Debug)]
pub struct CublasLt {
    pub(crate) functions: &'static Functions,
    library: &'static str,
}

/// Names for the loader, tried before the folders of a toolkit.
const NAMES: [&str; 6] = [
    "libcublasLt.so",
    "libcublasLt.so.13",
    "libcublasLt.so.12",
    "libcublasLt.so.11",
    "cublasLt64_13.dll",
    "cublasLt64_12.dll",
];

impl CublasLt {
    /// The library, found once for the process: on the library path, then in the toolkits at
    /// `CUDA_HOME`, `CUDA_PATH` (absolute paths only) and `/usr/local/cuda`. After a failure the next
    /// call searches again. Needs no device.
    ///
    /// # Errors
    ///
    /// [`CudaError`] if there is no library, or it lacks a function.
    pub fn find() -> Result<Self, CudaError> {
        static FOUND: OnceCell<(Functions, String)> = OnceCell::new();
        let (functions, library) = FOUND.get_or_try_init(|| load(&NAMES))?;
        Ok(Self { functions, library })
    }

    /// The name that the loader found the library by.
    pub const fn library(&self) -> &str {
        self.library
    }

    /// The version of the library: major, minor and patch.
    pub fn version(&self) -> (u32, u32, u32) {
        // SAFETY: the function takes nothing.
        let version = unsafe { (self.functions.get_version)() };
        let part = |number: usize| u32::try_from(number).unwrap_or(0);
        (part(version / 10_000), part(version / 100 % 100), part(version % 100))
    }

    pub(crate) fn check(&self, call: &'static str, code: Status) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: the function takes any number.
        let name = unsafe { (self.functions.get_status_name)(code) };
        // SAFETY: not null, so a static string, which the library has for every number.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy());
        let name = name.unwrap_or("unknown error".into());
        Err(call_failed(call, code, &name))
    }
}

pub(crate) fn call_failed(call: &str, code: Status, name: &str) -> Error {
    Error::product(format!("{call} returned {name} ({code})"))
}

fn load(names: &[&str]) -> Result<(Functions, String), CudaError> {
    find_library(CudaLibrary::CublasLt, names, "cublasLtGetVersion", Functions::resolve)
}

/// Declares the table of functions with what resolves it.
macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// Functions of libcublasLt.
        #[derive(Debug)]
        pub(crate) struct Functions {
            $(pub(crate) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            /// Keeps the functions above loaded.
            _library: Library,
        }

        impl Functions {
            /// The functions of `library`, or the first that it lacks.
            fn resolve(library: Library) -> Result<Self, &'static str> {
                // SAFETY: NVIDIA's header declares the signature of each field for its symbol, and the table keeps the
                // library open for as long as the functions.
                unsafe {
                    $(let $name = *library.get($symbol.as_bytes()).map_err(|_| $symbol)?;)*
                    Ok(Self { $($name,)* _library: library })
                }
            }
        }
    };
}

functions! {
    get_version = "cublasLtGetVersion": fn() -> usize;
    get_status_name = "cublasLtGetStatusName": fn(Status) -> *const c_char;
    create = "cublasLtCreate": fn(*mut Handle) -> Status;
    destroy = "cublasLtDestroy": fn(Handle) -> Status;
    description_create = "cublasLtMatmulDescCreate": fn(*mut Handle, c_int, c_int) -> Status;
    description_set = "cublasLtMatmulDescSetAttribute": fn(Handle, c_int, *const c_void, usize) -> Status;
    description_destroy = "cublasLtMatmulDescDestroy": fn(Handle) -> Status;
    layout_create = "cublasLtMatrixLayoutCreate": fn(*mut Handle, c_int, u64, u64, i64) -> Status;
    layout_destroy = "cublasLtMatrixLayoutDestroy": fn(Handle) -> Status;
    preference_create = "cublasLtMatmulPreferenceCreate": fn(*mut Handle) -> Status;
    preference_set = "cublasLtMatmulPreferenceSetAttribute": fn(Handle, c_int, *const c_void, usize) -> Status;
    preference_destroy = "cublasLtMatmulPreferenceDestroy": fn(Handle) -> Status;
    heuristic = "cublasLtMatmulAlgoGetHeuristic": fn(
        Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut HeuristicResult, *mut c_int
    ) -> Status;
    matmul = "cublasLtMatmul": fn(
        Handle, Handle, *const c_void, *const c_void, Handle, *const c_void, Handle, *const c_void, *const c_void,
        Handle, *mut c_void, Handle, *const [u64; 8], *mut c_void, usize, Handle
    ) -> Status;
}

/// `cublasLtMatmulHeuristicResult_t`: an opaque algorithm, and its workspace.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeuristicResult {
    pub(crate) algorithm: [u64; 8],
    pub(crate) workspace_bytes: usize,
    pub(crate) status: Status,
    pub(crate) waves: f32,
    pub(crate) reserved: [c_int; 4],
}

impl HeuristicResult {
    /// To be written by the library.
    pub(crate) const NONE: Self =
        Self { algorithm: [0; 8], workspace_bytes: 0, status: -1, waves: 0.0, reserved: [0; 4] };
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use gridguard::cuda::CudaErrorKind;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri opens no libraries")]
    fn a_library_of_another_kind_is_named_with_the_function_that_it_lacks() {
        let error = load(&["libno-such-library.so", "libc.so.6"]).expect_err("the C library");
        assert_eq!(
            error.to_string(),
            "libc.so.6 has no cublasLtGetVersion: it is too old, or not cuBLASLt"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri opens no libraries")]
    fn a_missing_library_is_an_error_with_every_name_that_was_tried() {
        // A toolkit may be installed.
        if let Err(error) = load(&["libno-such-library.so"]) {
            let CudaErrorKind::LibraryMissing { tried, .. } = error.kind() else {
                panic!("{error:?}");
            };
            assert_eq!(tried.first().map(|(name, _)| &**name), Some("libno-such-library.so"));
            assert!(error.to_string().contains("/usr/local/cuda/lib64/libcublasLt.so"), "{error}");
        }
    }
}
