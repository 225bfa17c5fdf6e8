//! Reads and writes the caller's memory: structures of several versions, texts and results.
//!
//! Functions that every call needs are always inlined, here and in `handles` and `config`. Other functions make the
//! failures. Otherwise each step would copy its result through memory.

use core::ffi::{CStr, c_char};
use std::ffi::CString;

use crate::failure::{Failure, gg_status};
use crate::handles;

/// A structure of the interface, whose first field is its size.
///
/// A later version appends fields. A caller that was compiled with an older header passes a smaller
/// size. The fields that it does not know are then zero, which is every field's default.
///
/// # Safety
///
/// The type is `repr(C)`, begins with a `usize` of its size, and all bytes zero are a valid value.
pub(crate) unsafe trait Versioned: Copy {
    /// The size in the first version that had the structure. It never changes.
    const OLDEST: usize;
}

/// Implements [`Versioned`] for a `repr(C)` structure of numbers and pointers.
macro_rules! versioned {
    ($structure:ty, $oldest:literal) => {
        const _: () = assert!(core::mem::offset_of!($structure, struct_size) == 0);
        // SAFETY: `repr(C)` with its size first; numbers and pointers may be zero.
        unsafe impl $crate::memory::Versioned for $structure {
            const OLDEST: usize = $oldest;
        }
    };
}
pub(crate) use versioned;

/// The structure at `from`.
///
/// # Safety
///
/// `from` is null, or points to a `usize`. If this is a size of the structure, the structure has this size.
#[inline(always)]
pub(crate) unsafe fn read<T: Versioned>(from: *const T, what: &'static str) -> Result<T, Failure> {
    // SAFETY: this function's contract.
    let size = unsafe { size_at(from, what) }?;
    if size == size_of::<T>() {
        // SAFETY: the caller's structure has all fields.
        return Ok(unsafe { from.read_unaligned() });
    }
    // SAFETY: the caller's structure has `size` bytes, fewer than a `T`.
    Ok(unsafe { widened(from, size) })
}

/// The structure at `from`, of `size` bytes, with the fields that it lacks. A function of its own, so that
/// the fields of a whole structure stay in registers.
///
/// # Safety
///
/// `from` points to `size` bytes of the structure, at most all.
#[cold]
#[inline(never)]
unsafe fn widened<T: Versioned>(from: *const T, size: usize) -> T {
    // SAFETY: zeros are a valid value, by the contract of `Versioned`.
    let mut value: T = unsafe { core::mem::zeroed() };
    let to = (&raw mut value).cast::<u8>();
    // SAFETY: both have at least `size` bytes, which do not overlap.
    unsafe { to.copy_from_nonoverlapping(from.cast(), size) };
    value
}

/// As [`read`]; `None` for null.
///
/// # Safety
///
/// As [`read`].
#[inline(always)]
pub(crate) unsafe fn read_optional<T: Versioned>(
    from: *const T,
    what: &'static str,
) -> Result<Option<T>, Failure> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: this function's contract.
    unsafe { read(from, what) }.map(Some)
}

/// Writes the fields of `value` that the caller knows to the structure at `to`, except its size.
///
/// # Safety
///
/// As [`read`], and nothing else accesses the memory.
#[inline(always)]
pub(crate) unsafe fn write<T: Versioned>(
    to: *mut T,
    value: &T,
    what: &'static str,
) -> Result<(), Failure> {
    /// The size itself stays.
    const FROM: usize = size_of::<usize>();
    // SAFETY: this function's contract.
    let size = unsafe { size_at(to, what) }?;
    let from = core::ptr::from_ref(value).cast::<u8>();
    // SAFETY: both have at least `size` bytes, which do not overlap.
    let copy = |size| unsafe {
        to.cast::<u8>().add(FROM).copy_from_nonoverlapping(from.add(FROM), size - FROM);
    };
    // A copy of a constant size needs no call.
    if size == size_of::<T>() {
        copy(size_of::<T>());
    } else {
        copy(size);
    }
    Ok(())
}

/// Checks that a result can be written to the structure at `to`, before there are effects.
///
/// # Safety
///
/// As [`read`].
#[inline(always)]
unsafe fn size_at<T: Versioned>(to: *const T, what: &'static str) -> Result<usize, Failure> {
    let (oldest, newest) = (T::OLDEST, size_of::<T>());
    if to.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: not null, so it points to a `usize`.
    let given = unsafe { to.cast::<usize>().read_unaligned() };
    if (oldest..=newest).contains(&given) {
        return Ok(given);
    }
    Err(unknown_size(what, given, oldest, newest))
}

#[cold]
#[inline(never)]
fn unknown_size(what: &str, given: usize, oldest: usize, newest: usize) -> Failure {
    let known = if oldest == newest { newest.to_string() } else { format!("{oldest} to {newest}") };
    let text = format!(
        "{what}.struct_size is {given}, this library takes {known}: set it to sizeof, and compile with the \
         header of this library or of an older one"
    );
    Failure::new(gg_status::GG_INVALID_STRUCT, text)
}

/// The text at `from`, which ends with a zero byte.
///
/// # Safety
///
/// `from` is null, or points to such a text, which stays unchanged.
pub(crate) unsafe fn text<'a>(from: *const c_char, what: &'static str) -> Result<&'a str, Failure> {
    // SAFETY: this function's contract.
    unsafe { optional_text(from, what) }?.ok_or(Failure::null(what))
}

/// As [`text`]; `None` for null.
///
/// # Safety
///
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(
    from: *const c_char,
    what: &'static str,
) -> Result<Option<&'a str>, Failure> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so it points to a text with a zero byte.
    let text = unsafe { CStr::from_ptr(from) }.to_str();
    let not_utf8 = |_| Failure::new(gg_status::GG_INVALID_ARGUMENT, format!("{what} is not UTF-8"));
    text.map(Some).map_err(not_utf8)
}

/// The `count` elements at `from`, at most `most`; none for a count of zero.
///
/// # Safety
///
/// `from` is null or aligned, and points to `count` elements, which stay unchanged.
#[cfg(any(feature = "cuda", feature = "profile"))]
pub(crate) unsafe fn array<'a, T>(
    from: *const T,
    count: usize,
    most: usize,
    what: &'static str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(Failure::null(what));
    }
    if count > most || !from.is_aligned() {
        let given = u64::try_from(count).unwrap_or(u64::MAX);
        return Err(Failure::range(what, given, "an array of a reasonable length"));
    }
    // SAFETY: not null, aligned, and `count` elements by this function's contract.
    Ok(unsafe { core::slice::from_raw_parts(from, count) })
}

/// A text that the library returned. Immutable; free it with `gg_free`.
pub struct gg_text(CString);

impl gg_text {
    pub(crate) fn new(text: impl Into<Vec<u8>>) -> Self {
        Self(c_string(text))
    }
}

/// The text with its zero bytes, which end texts in C, left out.
pub(crate) fn c_string(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_else(|error| {
        let mut bytes = error.into_vec();
        bytes.retain(|byte| *byte != 0);
        CString::new(bytes).unwrap_or_default()
    })
}

/// The text in UTF-8, which ends with a zero byte; NULL for a wrong handle. It is valid until the
/// handle is freed.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_text_data(text: *const gg_text) -> *const c_char {
    // SAFETY: the caller does not free the handle meanwhile.
    let text = unsafe { handles::get(text, "text") };
    text.map_or(core::ptr::null(), |text| text.0.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A structure whose older version had only `old`.
    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Grown {
        struct_size: usize,
        old: u64,
        new: u64,
    }

    versioned!(Grown, 16);

    #[test]
    fn a_field_that_the_caller_does_not_know_is_zero() {
        let of_old_caller = Grown { struct_size: 16, old: 7, new: 8 };
        // SAFETY: it has at least its size.
        let known = unsafe { read(&raw const of_old_caller, "it") }.expect("an older size");
        assert_eq!(known, Grown { struct_size: 16, old: 7, new: 0 });
        let whole = Grown { struct_size: 24, ..of_old_caller };
        // SAFETY: it has at least its size.
        assert_eq!(unsafe { read(&raw const whole, "it") }.expect("the size"), whole);
    }

    #[test]
    fn a_field_that_the_caller_does_not_know_is_not_written() {
        let value = Grown { struct_size: 0, old: 1, new: 2 };
        let mut of_old_caller = Grown { struct_size: 16, old: 7, new: 8 };
        // SAFETY: it has at least its size.
        unsafe { write(&raw mut of_old_caller, &value, "it") }.expect("an older size");
        assert_eq!(of_old_caller, Grown { struct_size: 16, old: 1, new: 8 });
    }
}
