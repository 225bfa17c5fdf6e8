//! What came of a fault, and how it differs from what must.

use core::ops::Range;

use gridguard::cuda::{CudaError, DriverError, LaunchError};
use gridguard_diagnose::Diagnosis;
use gridguard_report::Diagnose;
use serde::{Deserialize, Serialize};

/// What came of a fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observed {
    /// The path of the error through its types, with the driver's code; or a sentence.
    pub(crate) outcome: String,
    /// The message of the error, and what was drawn.
    pub(crate) details: Vec<String>,
    /// Everything that is wrong.
    pub(crate) wrong: Vec<String>,
}

/// What must come of a fault.
#[derive(Default)]
pub(crate) struct Expected<'a> {
    /// Allowed beginnings of the outcome.
    pub(crate) outcomes: &'a [&'a str],
    /// Part of the message.
    pub(crate) message: &'a str,
    /// Allowed codes of the driver; any if empty.
    pub(crate) codes: &'a [i32],
    /// Whether CUDA has no code for it, and so no diagnosis.
    pub(crate) without_diagnosis: bool,
}

impl Observed {
    pub(crate) fn new(drawn: String, seen: &Seen, expected: &Expected<'_>) -> Self {
        let Seen { outcome, message, code, diagnosed, is_error, .. } = seen;
        let Expected { outcomes, message: part, codes, without_diagnosis } = expected;
        let details = vec![message.clone(), drawn];
        let mut observed = Self { outcome: outcome.clone(), details, ..Self::default() };
        let is_expected = outcomes.iter().any(|start| outcome.starts_with(start))
            && message.contains(part)
            && (codes.is_empty() || code.is_some_and(|code| codes.contains(&code)));
        observed.require(is_expected, || format!("expected {outcomes:?} {part:?} {codes:?}"));
        let is_diagnosed = match (code, diagnosed) {
            (Some(code), Some(diagnosed)) => *diagnosed == code.to_string(),
            (Some(_), None) => false,
            (None, Some(_)) => true,
            (None, None) => *without_diagnosis || !is_error,
        };
        observed.require(is_diagnosed, || format!("{code:?} is diagnosed as {diagnosed:?}"));
        observed
    }

    /// Notes what is wrong unless `holds`.
    pub(crate) fn require(&mut self, holds: bool, wrong: impl FnOnce() -> String) {
        if !holds {
            self.wrong.push(wrong());
        }
    }
}

/// The result of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) outcome: String,
    pub(crate) message: String,
    pub(crate) is_error: bool,
    pub(crate) code: Option<i32>,
    /// The number or name that the diagnosis is for.
    pub(crate) diagnosed: Option<String>,
    /// The suspected launches: kernels and items.
    pub(crate) blamed: Vec<(String, Range<u64>)>,
}

impl Seen {
    pub(crate) fn outcome(outcome: impl Into<String>) -> Self {
        Self { outcome: outcome.into(), ..Self::default() }
    }

    pub(crate) fn of<T, E: Failure>(result: &Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::outcome("Ok"),
            Err(error) => Self::failure(error),
        }
    }

    pub(crate) fn failure<E: Failure>(error: &E) -> Self {
        let (code, diagnosis) = (error.code(), error.diagnosed());
        let mut outcome = error.path();
        let first = diagnosis.and_then(|diagnosis| diagnosis.failures.into_iter().next());
        let name = first.as_ref().map(|failure| failure.title);
        if let (Some(code), Some(name)) = (code, name) {
            outcome += &format!("/{code} {name}");
        }
        let diagnosed = first.map(|failure| match failure.code {
            Some(number) => number.to_string(),
            None => failure.title.to_owned(),
        });
        let suspects = error.driver().and_then(DriverError::suspects);
        let launches = suspects.map(|suspects| suspects.launches().iter()).into_iter().flatten();
        let blamed = launches.map(|launch| {
            // A launch without a batch has one item with several blocks.
            let (start, items) = match launch.chunk.items {
                1 => (launch.chunk.start, launch.grid[1].into()),
                items => (launch.chunk.start, items),
            };
            (launch.kernel.to_string(), start..start + items)
        });
        let (blamed, message) = (blamed.collect(), error.to_string());
        Self { outcome, message, is_error: true, code, diagnosed, blamed }
    }
}

/// An error, whatever its type.
pub(crate) trait Failure: std::error::Error {
    /// The variants around the first one that is no tuple: `CudaError::Image/Truncated`.
    fn path(&self) -> String {
        let of = core::any::type_name::<Self>().rsplit("::").next().unwrap_or_default();
        let debug = format!("{self:?}");
        let end = debug.find(|letter: char| !letter.is_alphanumeric() && letter != '(');
        let variants = debug[..end.unwrap_or(debug.len())].split('(');
        let variants: Vec<_> = variants.filter(|name| *name != "DriverError").collect();
        if variants.is_empty() { of.into() } else { format!("{of}::{}", variants.join("/")) }
    }

    fn diagnosed(&self) -> Option<Diagnosis>;

    fn code(&self) -> Option<i32> {
        self.driver().map(|error| error.code)
    }

    /// The error of the driver behind it.
    fn driver(&self) -> Option<&DriverError> {
        None
    }
}

impl Failure for CudaError {
    fn diagnosed(&self) -> Option<Diagnosis> {
        self.diagnosis()
    }

    fn driver(&self) -> Option<&DriverError> {
        self.driver()
    }
}

impl Failure for LaunchError {
    fn diagnosed(&self) -> Option<Diagnosis> {
        self.diagnosis()
    }

    fn driver(&self) -> Option<&DriverError> {
        self.driver()
    }
}

impl Failure for DriverError {
    fn diagnosed(&self) -> Option<Diagnosis> {
        self.diagnosis()
    }

    fn driver(&self) -> Option<&DriverError> {
        Some(self)
    }
}
