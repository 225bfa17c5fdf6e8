//! Loads shared libraries at run time and looks up their functions.

use std::path::PathBuf;

use libloading::Library;

/// The library was not found: each name that was tried, with the loader's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotFound {
    pub(super) tried: Vec<(String, String)>,
}

/// Opens the first of `names` that the loader finds, and returns it with its name.
pub(super) fn open<N: AsRef<str>>(names: &[N]) -> Result<(Library, String), NotFound> {
    let mut tried = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        // SAFETY: `Library::new` runs the library's initialisers. All names are those of NVIDIA's
        // libcuda and libnvrtc, whose initialisers may run on any thread at any time.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok((library, name.to_owned())),
            Err(error) => tried.push((name.to_owned(), loader_message(&error))),
        }
    }
    Err(NotFound { tried })
}

/// What `dlopen` said: the source of libloading's error.
fn loader_message(error: &libloading::Error) -> String {
    let source = core::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}

/// The function pointer of type `F` at `symbol` in `library`.
///
/// # Safety
///
/// `F` is a function pointer type with the signature that the library gives `symbol`, and is not
/// used after the library is closed.
pub(super) unsafe fn symbol<F: Copy>(library: &Library, symbol: &'static str) -> Option<F> {
    // SAFETY: `F` has the symbol's type, by this function's contract.
    unsafe { library.get::<F>(symbol.as_bytes()) }.ok().map(|found| *found)
}

/// The path of the file that `library`, which has `symbol`, was loaded from, where the system knows.
#[cfg(unix)]
pub(super) fn file_of(library: &Library, symbol: &'static str) -> Option<PathBuf> {
    use core::ffi::CStr;
    use core::mem::MaybeUninit;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    // SAFETY: the address is not dereferenced, so its type does not matter.
    let address = *unsafe { library.get::<*const libc::c_void>(symbol.as_bytes()) }.ok()?;
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: `dladdr` accepts any address and writes at most one `Dl_info` through the pointer.
    let found = unsafe { libc::dladdr(address, info.as_mut_ptr()) };
    // SAFETY: `Dl_info` holds only pointers, for which all zeros is a valid value.
    let path = unsafe { info.assume_init() }.dli_fname;
    if found == 0 || path.is_null() {
        return None;
    }
    // SAFETY: not null, so a zero-terminated path that lives as long as the library, which the
    // caller holds open.
    let path = unsafe { CStr::from_ptr(path) };
    Some(OsStr::from_bytes(path.to_bytes()).into())
}

/// Only Unix toolkits ship stub folders.
#[cfg(not(unix))]
pub(super) const fn file_of(_library: &Library, _symbol: &'static str) -> Option<PathBuf> {
    None
}

/// Declares a table of a library's functions, each with its C signature, and how to fill it.
macro_rules! function_table {
    (
        $(#[$doc:meta])*
        struct $table:ident;
        required { $($name:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)* }
        optional { $($maybe:ident = $maybe_symbol:literal: fn($($maybe_arg:ty),*) -> $maybe_ret:ty;)* }
    ) => {
        $(#[$doc])*
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $(pub(super) $maybe: Option<unsafe extern "C" fn($($maybe_arg),*) -> $maybe_ret>,)*
            /// Keeps the functions above loaded.
            pub(super) library: libloading::Library,
        }

        impl $table {
            /// Fills the table, or returns the first required symbol that the library lacks.
            pub(super) fn resolve(library: libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: each signature above is the one that the vendor's header declares for its
                // symbol, and the table owns the library, so no pointer outlives it.
                unsafe {
                    $(let $name = super::library::symbol(&library, $symbol).ok_or($symbol)?;)*
                    $(let $maybe = super::library::symbol(&library, $maybe_symbol);)*
                    Ok(Self { $($name,)* $($maybe,)* library })
                }
            }
        }

        impl core::fmt::Debug for $table {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_struct(stringify!($table)).finish_non_exhaustive()
            }
        }
    };
}

pub(super) use function_table;
