//! Finds NVIDIA's libraries beside the driver, which toolkits and Python packages install where the loader
//! does not always look.

use std::path::Path;

use libloading::Library;

use crate::cuda::driver::symbols;

/// Folders of a toolkit that contain its libraries.
const TOOLKIT_FOLDERS: [&str; 2] = ["lib64", "targets/x86_64-linux/lib"];
const STUB: &str = "a toolkit's stub, for linking only";

/// Why a library is not used.
pub(crate) enum Rejected {
    /// It lacks this function.
    Lacks(&'static str),
    /// It is a stub that toolkits ship for linking: its functions do nothing.
    Stub,
}

/// Why no library was found.
pub(crate) enum NotFound {
    /// No name led to one: each with the loader's message.
    Missing { tried: Vec<(String, String)> },
    /// The library of this name lacks a function.
    Lacks { library: String, symbol: &'static str },
}

/// Opens the first library that `accept` takes, and returns its result and the library's name. It tries `names`
/// on the library path, then `file` in the toolkits at `CUDA_HOME`, `CUDA_PATH` (absolute paths only) and
/// `/usr/local/cuda`. The search ends at a library that lacks a function.
pub(crate) fn find<T>(
    names: &[&str],
    file: &str,
    accept: impl Fn(Library) -> Result<T, Rejected>,
) -> Result<(T, String), NotFound> {
    let mut names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut tried = Vec::new();
    let homes = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| std::env::var(name).ok());
    for home in homes.filter(|home| !home.is_empty()).chain(["/usr/local/cuda".to_owned()]) {
        if !Path::new(&home).is_absolute() {
            // The working directory may be anyone's.
            tried.push((home, "not an absolute path".to_owned()));
            continue;
        }
        for folder in TOOLKIT_FOLDERS {
            let path = Path::new(&home).join(folder).join(file);
            names.extend(path.to_str().map(str::to_owned));
        }
    }
    for name in names {
        match symbols::open(&[&name]) {
            Err(missing) => tried.extend(missing),
            Ok((library, _)) => match accept(library) {
                Ok(accepted) => return Ok((accepted, name)),
                Err(Rejected::Lacks(symbol)) => {
                    return Err(NotFound::Lacks { library: name, symbol });
                }
                // Closed before the next attempt: the loader would return a library that is already
                // loaded instead of another one with the same SONAME.
                Err(Rejected::Stub) => tried.push((name, STUB.to_owned())),
            },
        }
    }
    Err(NotFound::Missing { tried })
}

/// Whether `library`, which has `symbol`, is in a folder called `stubs`.
pub(crate) fn is_in_stubs(library: &Library, symbol: &'static str) -> bool {
    let file = symbols::file_of(library, symbol);
    let folder = file.as_deref().and_then(Path::parent).and_then(Path::file_name);
    folder.is_some_and(|folder| folder == "stubs")
}
