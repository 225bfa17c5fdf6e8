//! Facts about a failure that its log does not have.

use core::fmt;

use crate::pattern::Capture;
use crate::value::Kind;

/// What is known besides the log.
///
/// ```
/// use gridguard_diagnose::{Known, diagnose};
///
/// let known = Known::default().number("devices", 0);
/// let failure = diagnose("CUDA_ERROR_NO_DEVICE", &known).failures.remove(0);
/// assert_eq!(failure.id, "no-visible-device");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pub(crate) facts: Vec<Capture>,
    pub(crate) remarks: Vec<String>,
    pub(crate) rules: Option<Vec<ViolatedRule>>,
}

/// A rule that a launch violates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViolatedRule {
    /// The rule's id.
    pub id: String,
    /// The violation.
    pub what: String,
    /// How to fix it.
    pub remedy: String,
    /// The codes that CUDA may return for it.
    pub codes: &'static [i32],
}

impl Known {
    /// Adds a number, for example `devices` or `total`, in bytes.
    #[must_use]
    pub fn number(self, name: &str, number: u64) -> Self {
        self.fact(name, Kind::Int, number.to_string())
    }

    /// Adds a version or a compute capability, for example `12.8` or `sm_90`.
    #[must_use]
    pub fn version(self, name: &str, version: impl fmt::Display) -> Self {
        let text = version.to_string();
        let kind = if text.starts_with("sm_") { Kind::Cc } else { Kind::Version };
        self.fact(name, kind, text)
    }

    /// Adds a text, for example `gpu`.
    #[must_use]
    pub fn text(self, name: &str, text: &str) -> Self {
        self.fact(name, Kind::Text, text.to_owned())
    }

    /// Adds evidence that no row reads, such as the driver's own log.
    #[must_use]
    pub fn remark(mut self, remark: impl Into<String>) -> Self {
        self.remarks.push(remark.into());
        self
    }

    /// Adds the rules that the failed launch violates; none if it is legal.
    #[must_use]
    pub fn rules(self, rules: Vec<ViolatedRule>) -> Self {
        Self { rules: Some(rules), ..self }
    }

    fn fact(mut self, name: &str, kind: Kind, text: String) -> Self {
        self.facts.push(Capture { name: name.to_owned(), kind, text });
        self
    }
}

/// A version of CUDA as the driver counts it: 12080 is 12.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub i32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}
