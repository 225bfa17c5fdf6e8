//! Row indices, and the report of those outside their table.

use derive_more::Display;

use crate::element::Plain;
#[cfg(feature = "cuda")]
use crate::{element::to_u64, error::KernelError};
#[cfg(feature = "cuda")]
use {
    cudarc::driver::{CudaSlice, CudaStream},
    gridguard::cuda::Memory,
    std::sync::Arc,
};

/// The type of indices.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[display("{}", self.name())]
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
    pub const fn name(self) -> &'static str {
        match self {
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }

    /// Bytes of an index.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::I32 => 4,
            Self::I64 => 8,
        }
    }
}

/// A Rust type of row indices: `i32` or `i64`.
///
/// Sealed: device code relies on each type's size.
#[allow(private_bounds, reason = "sealed")]
pub trait Index: Plain + Into<i64> {
    /// Which one.
    const TYPE: IndexType;
}

impl Index for i32 {
    const TYPE: IndexType = IndexType::I32;
}

impl Index for i64 {
    const TYPE: IndexType = IndexType::I64;
}

/// Device memory where launches record the first index outside the table.
///
/// One report serves any number of launches. Launches between two calls of [`check`](Self::check)
/// share it: it then holds the lowest position of any of them.
#[cfg(feature = "cuda")]
#[derive(Debug)]
pub struct IndexReport {
    /// The lowest position of a bad index.
    pub(crate) first: CudaSlice<u64>,
    /// Rows of the last launch's table.
    pub(crate) table_rows: u64,
}

#[cfg(feature = "cuda")]
impl IndexReport {
    /// An empty report on the device of `stream`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Memory`] if the driver reports an error.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, KernelError> {
        Ok(Self { first: stream.clone_htod(&[NO_POSITION])?, table_rows: 0 })
    }

    /// Waits for the work on `stream` and returns an error if an index was outside the table. `index`
    /// is the memory that the launch was given. Resets the report.
    ///
    /// # Errors
    ///
    /// [`KernelError::Index`] with the first bad index, [`KernelError::Memory`] if the driver reports
    /// an error, [`KernelError::Length`] if `index` is shorter than the launch's.
    pub fn check<I: Index, S: Memory<I>>(
        &mut self,
        stream: &Arc<CudaStream>,
        index: &S,
    ) -> Result<(), KernelError> {
        let mut first = [NO_POSITION];
        stream.memcpy_dtoh(&self.first, &mut first)?;
        stream.synchronize()?;
        let [position] = first;
        if position == NO_POSITION {
            return Ok(());
        }
        stream.memcpy_htod(&[NO_POSITION], &mut self.first)?;
        // Copies all indices: errors are rare.
        let indices = stream.clone_dtoh(index)?;
        stream.synchronize()?;
        let value = usize::try_from(position).ok().and_then(|at| indices.get(at));
        let Some(value) = value else {
            let (given, expected) = (to_u64(indices.len()), u128::from(position) + 1);
            let shape = vec![position.saturating_add(1)];
            return Err(KernelError::Length { tensor: "index", shape, expected, given });
        };
        Err(KernelError::Index { position, value: (*value).into(), rows: self.table_rows })
    }
}

/// The value on the device while no index was bad.
#[cfg(feature = "cuda")]
const NO_POSITION: u64 = u64::MAX;
