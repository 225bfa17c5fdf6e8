//! Finds a shared library and says what was tried where there is none.

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
