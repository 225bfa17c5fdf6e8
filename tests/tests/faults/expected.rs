//! The expected and the observed result of a fault.

use serde::{Deserialize, Serialize};

use crate::observed_error::ObservedError;

/// The expected result of a fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// Allowed beginnings of the outcome.
    pub(crate) outcomes: Vec<String>,
    /// Allowed codes; any if empty.
    pub(crate) codes: Vec<i32>,
    /// The faulting kernel and item, which must be among the suspects.
    pub(crate) faulting: Option<(&'static str, u64)>,
    /// Whether it must be the only suspect.
    pub(crate) only_suspect: bool,
    /// A kernel that must not be a suspect.
    pub(crate) innocent: Option<&'static str>,
    /// Whether CUDA has no code for it, and so no diagnosis.
    pub(crate) without_diagnosis: bool,
}

impl Expected {
    pub(crate) fn one_of<T: Into<String>>(outcomes: impl IntoIterator<Item = T>) -> Self {
        Self { outcomes: outcomes.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// For an error of the guard, which has no diagnosis.
    pub(crate) fn guards_own(mut self) -> Self {
        self.without_diagnosis = true;
        self
    }
}

/// The observed result of a fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observed {
    pub(crate) error: ObservedError,
    /// Problems apart from the error.
    pub(crate) complaints: Vec<String>,
    /// Profiles that lost an acknowledged entry.
    pub(crate) lost_profiles: u64,
    /// Whether the process wrote a profile entry afterwards.
    pub(crate) published: bool,
}

impl Observed {
    pub(crate) fn new(error: ObservedError) -> Self {
        Self { error, ..Self::default() }
    }

    pub(crate) fn complain(&mut self, complaint: impl Into<String>) {
        self.complaints.push(complaint.into());
    }

    pub(crate) fn require(&mut self, holds: bool, complaint: impl FnOnce() -> String) {
        if !holds {
            self.complain(complaint());
        }
    }

    /// The differences from `expected`.
    pub(crate) fn differences(&self, expected: &Expected) -> Vec<String> {
        let ObservedError { outcome, code, diagnosed, blamed, .. } = &self.error;
        let mut wrong = self.complaints.clone();
        if !expected.outcomes.iter().any(|one| outcome.starts_with(one)) {
            wrong.push(format!("the outcome is {outcome}, expected {:?}", expected.outcomes));
        }
        if !expected.codes.is_empty() && !code.is_some_and(|code| expected.codes.contains(&code)) {
            wrong.push(format!("the code is {code:?}, expected {:?}", expected.codes));
        }
        match (code, diagnosed) {
            (Some(code), Some(described)) if *described != code.to_string() => {
                wrong.push(format!("{code} is diagnosed as {described}"));
            }
            (None, None) if !expected.without_diagnosis && self.error.is_error => {
                wrong.push("it has no diagnosis".into());
            }
            (Some(code), None) => wrong.push(format!("{code} has no diagnosis")),
            _ => {}
        }
        if let Some((kernel, item)) = expected.faulting {
            let faulting = blamed.iter().any(|one| one.kernel == kernel && one.holds(item));
            if !faulting || (expected.only_suspect && blamed.len() > 1) {
                wrong.push(format!("{kernel} at item {item} faults, suspects are {blamed:?}"));
            }
        }
        if let Some(kernel) = expected.innocent
            && blamed.iter().any(|one| one.kernel == kernel)
        {
            wrong.push(format!("{kernel} is not at fault, suspects are {blamed:?}"));
        }
        if !self.published {
            wrong.push("the process could not write a profile afterwards".into());
        }
        wrong
    }
}
