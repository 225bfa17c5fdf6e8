//! Types of indices.

use core::fmt;

/// The type of indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IndexType {
    /// 32 bits, signed.
    I32,
    /// 64 bits, signed.
    I64,
}

impl IndexType {
    /// All index types.
    pub const ALL: [Self; 2] = [Self::I32, Self::I64];

    /// The name: `i32` or `i64`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }

    /// Bytes of an index.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }

    /// The value of the macro `INDEX`, as the device code numbers it.
    pub(crate) const fn number(self) -> u64 {
        match self {
            Self::I32 => 0,
            Self::I64 => 1,
        }
    }
}

impl fmt::Display for IndexType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type that holds the number of a row.
pub trait Index: Copy + Send + Sync + 'static {
    /// Which one.
    const TYPE: IndexType;

    /// The number.
    fn widen(self) -> i64;
}

impl Index for i32 {
    const TYPE: IndexType = IndexType::I32;

    fn widen(self) -> i64 {
        self.into()
    }
}

impl Index for i64 {
    const TYPE: IndexType = IndexType::I64;

    fn widen(self) -> i64 {
        self
    }
}
