//! How large a profile and its parts may be: what a hostile file runs into.

use super::entry::{Entry, Named};

/// Bytes of a file, beyond which it is refused unread.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// Entries of a file; the good and the bad ones count.
pub const MAX_ENTRIES: usize = 200_000;
/// Bytes of a name, hash or date in an entry. A SHA-256 in hexadecimal digits has as many.
pub const MAX_NAME_BYTES: usize = 64;
/// Sizes of a shape, and parameters of an entry.
pub const MAX_SIZES: usize = 16;

/// Bytes of a device's name: as many as `cuDeviceGetName` is ever asked for.
pub(super) const MAX_DEVICE_NAME_BYTES: usize = 256;
/// Other devices that a file is declared to serve.
pub(super) const MAX_ALIASES: usize = 64;

/// Why an entry cannot be part of a profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryFault {
    /// A text is too long.
    #[error("{field} has {bytes} bytes, at most {MAX_NAME_BYTES} are taken: shorten it")]
    LongName {
        /// Where it stands.
        field: &'static str,
        /// Its length.
        bytes: usize,
    },
    /// A kernel without a name.
    #[error("kernel is empty: name it")]
    NoKernel,
    /// Too many sizes or parameters.
    #[error("{field} has {count} values, at most {MAX_SIZES} are taken: leave some out")]
    TooMany {
        /// `shape` or `parameters`.
        field: &'static str,
        /// How many there are.
        count: usize,
    },
    /// A shape without sizes.
    #[error("shape has no sizes: name at least one")]
    NoSizes,
    /// No items: nothing is launched. The sizes behind the first may be 0.
    #[error("size {name:?} is 0: the first size counts the items, which begin at 1")]
    ZeroSize {
        /// The name of the size.
        name: String,
    },
    /// A name that stands twice in a shape, or twice among the parameters.
    #[error("{field} names {name:?} twice: remove one")]
    NamedTwice {
        /// `shape` or `parameters`.
        field: &'static str,
        /// The name.
        name: String,
    },
    /// Another entry is about the same.
    #[error("an entry of this kernel and shape stands before it: remove one")]
    Duplicate,
}

impl Entry {
    /// Checks names, sizes and parameters against the bounds of a profile.
    ///
    /// # Errors
    ///
    /// The first bound that is not kept.
    pub fn check(&self) -> Result<(), EntryFault> {
        let Self { key, shape, parameters, found, .. } = self;
        if key.kernel.is_empty() {
            return Err(EntryFault::NoKernel);
        }
        for (field, text) in [
            ("kernel", &key.kernel),
            ("source", &key.source),
            ("variant", &key.variant),
            ("dtypes", &key.dtypes),
            ("date", &found.date),
            ("driver", &found.driver),
            ("compiler", &found.compiler),
            ("tuner", &found.tuner),
        ] {
            check_name(field, text)?;
        }
        check_shape(shape)?;
        check_named("parameters", parameters)
    }
}

/// Checks the sizes of a shape: one at least, and the first, which counts the items, not zero.
pub(super) fn check_shape(shape: &Named) -> Result<(), EntryFault> {
    check_named("shape", shape)?;
    match shape.first() {
        None => Err(EntryFault::NoSizes),
        Some((name, 0)) => Err(EntryFault::ZeroSize { name: name.clone() }),
        Some(_) => Ok(()),
    }
}

pub(super) fn check_name(field: &'static str, text: &str) -> Result<(), EntryFault> {
    if text.len() > MAX_NAME_BYTES {
        return Err(EntryFault::LongName { field, bytes: text.len() });
    }
    Ok(())
}

fn check_named(field: &'static str, named: &Named) -> Result<(), EntryFault> {
    if named.len() > MAX_SIZES {
        return Err(EntryFault::TooMany { field, count: named.len() });
    }
    for (place, (name, _)) in named.iter().enumerate() {
        check_name(field, name)?;
        if named.iter().take(place).any(|(earlier, _)| earlier == name) {
            return Err(EntryFault::NamedTwice { field, name: name.clone() });
        }
    }
    Ok(())
}
