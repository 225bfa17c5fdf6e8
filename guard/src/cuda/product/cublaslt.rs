//! Finds libcublasLt.
//!
//! The library is loaded and called without cudarc, as NVRTC is: a missing library is an error and no panic,
//! and any version works.

use once_cell::sync::OnceCell;

use crate::cuda::driver::libraries::{self, is_in_stubs};
use crate::cuda::driver::symbols::{CublasLtFunctions, Status, owned};
use crate::cuda::error::{CudaLibrary, LibraryUnavailable};
use crate::cuda::product::error::ProductError;

/// NVIDIA's library of matrix products.
#[derive(Clone, Copy, Debug)]
pub struct CublasLt {
    pub(super) functions: &'static CublasLtFunctions,
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
    /// [`LibraryUnavailable`] if there is no library, or it lacks a function.
    pub fn find() -> Result<Self, LibraryUnavailable> {
        static FOUND: OnceCell<(CublasLtFunctions, String)> = OnceCell::new();
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

    pub(super) fn check(&self, call: &'static str, code: Status) -> Result<(), ProductError> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: returns a static string for every number, known or not.
        let name = unsafe { owned((self.functions.get_status_name)(code)) };
        Err(ProductError::Call { call, code, name: name.unwrap_or_else(|| "unknown error".into()) })
    }
}

fn load(names: &[&str]) -> Result<(CublasLtFunctions, String), LibraryUnavailable> {
    let is_stub = |found: &CublasLtFunctions| is_in_stubs(&found.library, "cublasLtGetVersion");
    libraries::find(CudaLibrary::CublasLt, names, CublasLtFunctions::resolve, is_stub)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
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
            let LibraryUnavailable::LibraryMissing { tried, .. } = &error else {
                panic!("{error:?}");
            };
            assert_eq!(tried.first().map(|(name, _)| &**name), Some("libno-such-library.so"));
            assert!(error.to_string().contains("/usr/local/cuda/lib64/libcublasLt.so"), "{error}");
        }
    }
}
