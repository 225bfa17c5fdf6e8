//! Finds a shared library and says what was tried where there is none.

use std::path::PathBuf;

use libloading::Library;

/// Why no library was found: each name with the loader's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotFound {
    pub(super) tried: Vec<(String, String)>,
}

/// Opens the first of `names` that the loader finds.
pub(super) fn open<N: AsRef<str>>(names: &[N]) -> Result<(Library, String), NotFound> {
    let mut tried = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        // SAFETY: loading runs the library's initialisers. The names are those of NVIDIA's own
        // libraries, which may be loaded at any time from any thread.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok((library, name.to_owned())),
            Err(error) => tried.push((name.to_owned(), words(&error))),
        }
    }
    Err(NotFound { tried })
}

/// What the loader said, which is the cause of the error and not the error itself.
fn words(error: &libloading::Error) -> String {
    let cause = core::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), ToString::to_string)
}

/// The address of `symbol` in `library`, as a function pointer of type `F`.
///
/// # Safety
///
/// `F` is a function pointer type with the signature that the library gives `symbol`, and is not
/// used after the library was closed.
pub(super) unsafe fn symbol<F: Copy>(library: &Library, symbol: &'static str) -> Option<F> {
    // SAFETY: the caller vouches for the type.
    unsafe { library.get::<F>(symbol.as_bytes()) }.ok().map(|found| *found)
}

/// The file that `library`, which has `symbol`, was loaded from, where the system tells.
#[cfg(unix)]
pub(super) fn file_of(library: &Library, symbol: &'static str) -> Option<PathBuf> {
    use core::ffi::{CStr, c_char, c_int, c_void};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    /// `Dl_info`.
    #[repr(C)]
    struct Found {
        file: *const c_char,
        base: *mut c_void,
        name: *const c_char,
        address: *mut c_void,
    }

    unsafe extern "C" {
        fn dladdr(address: *const c_void, found: *mut Found) -> c_int;
    }

    // SAFETY: the address is only looked at.
    let address = *unsafe { library.get::<*const c_void>(symbol.as_bytes()) }.ok()?;
    let mut found = Found {
        file: core::ptr::null(),
        base: core::ptr::null_mut(),
        name: core::ptr::null(),
        address: core::ptr::null_mut(),
    };
    // SAFETY: the C library that std links has it; any address may be asked about, and the pointer is
    // to a live struct of the layout that it has.
    let known = unsafe { dladdr(address, &raw mut found) };
    if known == 0 || found.file.is_null() {
        return None;
    }
    // SAFETY: not null, so a zero-terminated path that lives as long as the library.
    let path = unsafe { CStr::from_ptr(found.file) };
    Some(OsStr::from_bytes(path.to_bytes()).into())
}

/// No system but Unix has folders of stubs.
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
            /// Keeps the functions above alive.
            #[allow(dead_code, reason = "holds the library open")]
            pub(super) library: libloading::Library,
        }

        impl $table {
            /// Fills the table, or names the first required symbol that the library lacks.
            fn resolve(library: libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: the signatures above are those of the vendor's headers, and the table
                // owns the library, so no pointer outlives it.
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
