//! What a diagnosis is about.

use core::fmt;

use super::codes::{self, UNLISTED_CUDA, UNLISTED_XID};
use super::failure::{Failure, Origin};

/// A failure with its number; also one that the table does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    failure: &'static Failure,
    number: Option<i32>,
}

impl Subject {
    /// What the table says of it; a row that says so where it is not listed.
    #[must_use]
    pub const fn failure(&self) -> &'static Failure {
        self.failure
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> Option<i32> {
        self.number
    }

    /// The failure of this `CUresult` or `cudaError_t`, listed or not. The two agree on every
    /// number that both have; one that only the runtime before CUDA 10.1 had is taken for what that
    /// meant, and gets the number of today.
    #[must_use]
    pub fn of_code(code: i32) -> Self {
        let failure = codes::by_number(code).unwrap_or(&UNLISTED_CUDA);
        Self { failure, number: failure.number.or(Some(code)) }
    }

    /// The failure of this Xid, listed or not.
    #[must_use]
    pub fn of_xid(number: i32) -> Self {
        let failure = codes::by_xid(number).unwrap_or(&UNLISTED_XID);
        Self { failure, number: Some(number) }
    }

    /// The failure of this name, such as `CUDA_ERROR_INVALID_VALUE`, `cudaErrorInvalidValue` or
    /// `CUBLAS_STATUS_ALLOC_FAILED`, in whatever case.
    ///
    /// ```
    /// use gridguard::diagnose::Subject;
    /// let subject = Subject::of_name("cudaErrorInvalidConfiguration").expect("it is listed");
    /// assert_eq!(subject.number(), Some(9));
    /// ```
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        codes::by_name(name).map(Self::from)
    }

    /// Failures in whose name or messages `text` stands, as when it is half remembered.
    ///
    /// ```
    /// use gridguard::diagnose::Subject;
    /// let similar = Subject::similar("illegal memory access");
    /// assert_eq!(similar[0].number(), Some(700));
    /// ```
    #[must_use]
    pub fn similar(text: &str) -> Vec<Self> {
        super::parse::similar(text)
    }

    pub(crate) const fn is_cuda(&self) -> bool {
        matches!(self.failure.origin, Origin::Driver | Origin::Runtime)
    }
}

impl From<&'static Failure> for Subject {
    fn from(failure: &'static Failure) -> Self {
        Self { failure, number: failure.number }
    }
}

impl fmt::Display for Subject {
    /// As `CUDA_ERROR_INVALID_VALUE (1)` or `Xid 31`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.failure.name)?;
        match (self.number, self.failure.origin) {
            (Some(number), Origin::Xid) => write!(f, " {number}"),
            (Some(number), _) => write!(f, " ({number})"),
            (None, _) => Ok(()),
        }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Subject {
    /// As `{"origin", "name", "number", "runtime_name", "wording"}`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut record = serializer.serialize_struct("Subject", 5)?;
        record.serialize_field("origin", &self.failure.origin)?;
        record.serialize_field("name", self.failure.name)?;
        record.serialize_field("number", &self.number)?;
        record.serialize_field("runtime_name", &self.failure.runtime_name)?;
        record.serialize_field("wording", &self.failure.wordings.first())?;
        record.end()
    }
}
