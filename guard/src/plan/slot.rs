//! One kernel argument: a fixed value or address, or a value that follows the chunk.

#[cfg(feature = "cuda")]
use core::marker::PhantomData;

use crate::plan::chunks::Chunk;

/// A value that is passed directly: integers and floats of up to 8 bytes.
pub trait Scalar: sealed::Sealed + Copy + Send + Sync + 'static {}

/// One argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot<'a> {
    /// A device address, the same for every chunk.
    Address(u64),
    /// A value of up to 8 bytes, little endian. `may_be_items`: the value might be the number of items.
    Value { bits: u64, size: usize, may_be_items: bool },
    /// A value of any size, owned by the caller.
    Bytes(&'a [u8]),
    /// A value of the caller's at an address.
    #[cfg(feature = "cuda")]
    ByAddress(ByAddress<'a>),
    /// `base + chunk.start * stride_bytes`, where an item spans `span_bytes`, in a buffer of
    /// `reach_bytes` from `base` on.
    Items { base: u64, stride_bytes: u64, span_bytes: u64, reach_bytes: u64 },
    /// The chunk's first item.
    Offset { width: Width },
    /// The chunk's number of items.
    Length { width: Width },
    /// The chunk's items times `per_item`, as u64.
    Parts { per_item: u64 },
    /// The workspace that the launch allocates; its address is not known yet.
    Workspace,
}

/// The address and size of a value that is borrowed, and may have bytes that are not initialised.
#[cfg(feature = "cuda")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByAddress<'a> {
    /// Its provenance is exposed.
    pub(crate) address: usize,
    size: usize,
    value: PhantomData<&'a u8>,
}

#[cfg(feature = "cuda")]
impl ByAddress<'_> {
    pub(crate) const fn new(address: usize, size: usize) -> Self {
        Self { address, size, value: PhantomData }
    }
}

/// The type of an offset or a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    U64,
    U32,
    I32,
    /// As wide as the kernel's parameter, 4 or 8 bytes.
    Parameter,
}

/// A type of offsets and lengths: `u64`, `u32` or `i32`.
pub trait Count: sealed::Width + 'static {}

impl<T: sealed::Width + 'static> Count for T {}

impl Width {
    const fn size(self) -> usize {
        match self {
            Self::U64 | Self::Parameter => size_of::<u64>(),
            Self::U32 | Self::I32 => size_of::<u32>(),
        }
    }
}

impl Slot<'_> {
    pub(crate) const fn is_memory(&self) -> bool {
        matches!(self, Self::Address(_) | Self::Items { .. } | Self::Workspace)
    }

    /// The size in bytes that the kernel's parameter must have.
    pub(crate) const fn size(&self) -> usize {
        match self {
            Self::Address(_) | Self::Items { .. } | Self::Workspace | Self::Parts { .. } => {
                size_of::<u64>()
            }
            Self::Value { size, .. } => *size,
            Self::Offset { width } | Self::Length { width } => width.size(),
            Self::Bytes(bytes) => bytes.len(),
            #[cfg(feature = "cuda")]
            Self::ByAddress(value) => value.size,
        }
    }

    /// Whether it fits a parameter of `bytes`.
    pub(crate) const fn fits(&self, bytes: usize) -> bool {
        match self {
            Self::Offset { width: Width::Parameter } | Self::Length { width: Width::Parameter } => {
                bytes == size_of::<u64>() || bytes == size_of::<u32>()
            }
            _ => bytes == self.size(),
        }
    }

    /// The argument's bits for `chunk`, in little endian, so that a narrower parameter reads its part.
    #[inline]
    pub(crate) const fn bits(&self, chunk: &Chunk) -> u64 {
        match *self {
            Self::Value { bits, .. } | Self::Address(bits) => bits,
            // Checked for the whole batch before the first chunk.
            Self::Items { base, stride_bytes, .. } => {
                base.wrapping_add(chunk.start.wrapping_mul(stride_bytes))
            }
            Self::Offset { .. } => chunk.start,
            Self::Length { .. } => chunk.items,
            // Checked for the whole batch before the first chunk.
            Self::Parts { per_item } => chunk.items.wrapping_mul(per_item),
            // `with_workspace_at` replaces it before the launch.
            Self::Bytes(_) | Self::Workspace => 0,
            #[cfg(feature = "cuda")]
            Self::ByAddress(_) => 0,
        }
    }
}

mod sealed {
    pub trait Width {
        const WIDTH: super::Width;
    }

    impl Width for u64 {
        const WIDTH: super::Width = super::Width::U64;
    }

    impl Width for u32 {
        const WIDTH: super::Width = super::Width::U32;
    }

    impl Width for i32 {
        const WIDTH: super::Width = super::Width::I32;
    }

    pub trait Sealed {
        const IS_INTEGER: bool;

        fn bits(self) -> u64;
    }
}

macro_rules! scalars {
    ($is_integer:literal: $($type:ty),*) => {$(
        impl Scalar for $type {}
        impl sealed::Sealed for $type {
            const IS_INTEGER: bool = $is_integer;

            fn bits(self) -> u64 {
                let mut bytes = [0; 8];
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
                u64::from_le_bytes(bytes)
            }
        }
    )*};
}

scalars!(true: u8, i8, u16, i16, u32, i32, u64, i64, usize);
scalars!(false: f32, f64);
