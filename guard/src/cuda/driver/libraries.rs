//! Finds NVIDIA's libraries beside the driver, which toolkits and Python packages install where the loader
//! does not always look.

use std::path::Path;

use libloading::Library;

use crate::cuda::driver::symbols;
use crate::cuda::error::{CudaError, CudaErrorKind, CudaLibrary};

/// Folders of a toolkit that contain its libraries.
const TOOLKIT_FOLDERS: [&str; 2] = ["lib64", "targets/x86_64-linux/lib"];
const STUB: &str = "a toolkit's stub, for linking only";

/// Opens the first library that is no stub, and returns its functions and its name. `symbol` is a function that the
/// library has. The search tries `names` on the library path, then the library's file in the toolkits at `CUDA_HOME`,
/// `CUDA_PATH` (absolute paths only) and `/usr/local/cuda`. It ends with an error at a library in which `resolve`
/// misses a function.
///
/// Toolkits ship stubs for linking, whose functions do nothing.
pub(crate) fn find<T>(
    of: CudaLibrary,
    names: &[&str],
    symbol: &'static str,
    resolve: impl Fn(Library) -> Result<T, &'static str>,
    is_stub: impl Fn(&T) -> bool,
) -> Result<(T, String), CudaError> {
    let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut tried = Vec::new();
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| std::env::var(name).ok());
    for home in homes.filter(|home| !home.is_empty()).chain(["/usr/local/cuda".to_owned()]) {
        if !Path::new(&home).is_absolute() {
            // The working directory may be anyone's.
            tried.push((home, "not an absolute path".to_owned()));
            continue;
        }
        let [file, _] = of.names();
        for folder in TOOLKIT_FOLDERS {
            let path = Path::new(&home).join(folder).join(format!("{file}.so"));
            names.extend(path.to_str().map(str::to_owned));
        }
    }
    for name in names {
        match symbols::open(&[&name]) {
            Err(missing) => tried.extend(missing),
            Ok((library, _)) if is_in_stubs(&library, symbol) => {
                tried.push((name, STUB.to_owned()));
            }
            Ok((library, _)) => match resolve(library) {
                // Closed before the next attempt: the loader would return a library that is already
                // loaded instead of another one with the same SONAME.
                Ok(found) if is_stub(&found) => tried.push((name, STUB.to_owned())),
                Ok(found) => return Ok((found, name)),
                Err(symbol) => {
                    return Err(CudaErrorKind::SymbolMissing { of, library: name, symbol }.into());
                }
            },
        }
    }
    Err(CudaErrorKind::LibraryMissing { of, tried }.into())
}

/// Whether `library`, which has `symbol`, is in a folder called `stubs`.
fn is_in_stubs(library: &Library, symbol: &'static str) -> bool {
    let file = symbols::file_of(library, symbol);
    let folder = file.as_deref().and_then(Path::parent).and_then(Path::file_name);
    folder.is_some_and(|folder| folder == "stubs")
}
