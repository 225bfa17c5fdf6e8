//! Failures by code, Xid or name.

use core::fmt;

use super::codes;
use super::failure::{KnownFailure, Origin};

/// A failure and its number, listed in the tables or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureId {
    entry: &'static KnownFailure,
    number: Option<i32>,
}

impl FailureId {
    /// The failure of this `CUresult` or `cudaError_t`, listed or not.
    ///
    /// Driver and runtime agree on every number that both use. A number that only the runtime before CUDA 10.1
    /// used is replaced by the current number of the same failure.
    #[must_use]
    pub fn from_code(code: i32) -> Self {
        let entry = codes::by_number(code).unwrap_or(&codes::UNLISTED_CODE);
        Self { entry, number: entry.number.or(Some(code)) }
    }

    /// The failure of this Xid, listed or not.
    #[must_use]
    pub fn from_xid(number: i32) -> Self {
        let entry = codes::by_xid(number).unwrap_or(&codes::UNLISTED_XID);
        Self { entry, number: Some(number) }
    }

    /// The failure of this name, such as `CUDA_ERROR_INVALID_VALUE`, `cudaErrorInvalidValue` or
    /// `CUBLAS_STATUS_ALLOC_FAILED`, in any case.
    ///
    /// ```
    /// use gridguard_diagnose::FailureId;
    ///
    /// let failure = FailureId::from_name("cudaErrorInvalidConfiguration").expect("listed");
    /// assert_eq!(failure.number(), Some(9));
    /// ```
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        codes::by_name(name).map(Self::from)
    }

    /// Its entry in the tables, or a generic entry if it is not listed.
    pub const fn entry(&self) -> &'static KnownFailure {
        self.entry
    }

    /// Its number.
    pub const fn number(&self) -> Option<i32> {
        self.number
    }

    pub(super) const fn is_cuda(&self) -> bool {
        self.entry.origin.is_cuda()
    }
}

impl From<&'static KnownFailure> for FailureId {
    fn from(entry: &'static KnownFailure) -> Self {
        Self { entry, number: entry.number }
    }
}

impl fmt::Display for FailureId {
    /// As `CUDA_ERROR_INVALID_VALUE (1)` or `Xid 31`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.entry.name)?;
        match (self.number, self.entry.origin) {
            (Some(number), Origin::Xid) => write!(f, " {number}"),
            (Some(number), _) => write!(f, " ({number})"),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for FailureId {
    /// As `{"origin", "name", "number", "runtime_name", "message"}`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("FailureId", 5)?;
        fields.serialize_field("origin", &self.entry.origin)?;
        fields.serialize_field("name", self.entry.name)?;
        fields.serialize_field("number", &self.number)?;
        fields.serialize_field("runtime_name", &self.entry.runtime_name)?;
        fields.serialize_field("message", &self.entry.messages().first())?;
        fields.end()
    }
}
