//! What is to come of a fault, what came, and whether that is right.

use serde::{Deserialize, Serialize};

use crate::naming::Told;

/// What is to come of a fault.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
    /// How the outcome may begin.
    pub(crate) outcomes: Vec<String>,
    /// The codes that it may have; any where there is none.
    pub(crate) codes: Vec<i32>,
    /// A kernel that must be among those blamed, and the item at fault.
    pub(crate) guilty: Option<(&'static str, u64)>,
    /// Whether nothing else may be blamed.
    pub(crate) guilty_alone: bool,
    /// A kernel that was proven innocent.
    pub(crate) innocent: Option<&'static str>,
    /// Whether CUDA has no name for it, and so no diagnosis.
    pub(crate) none_of_cudas: bool,
}

impl Expected {
    pub(crate) fn one_of<T: Into<String>>(outcomes: impl IntoIterator<Item = T>) -> Self {
        Self { outcomes: outcomes.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// An error that only the guard knows.
    pub(crate) fn only_ours(mut self) -> Self {
        self.none_of_cudas = true;
        self
    }
}

/// What came of a fault.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Observed {
    pub(crate) told: Told,
    /// What is wrong whatever the error.
    pub(crate) complaints: Vec<String>,
    /// Profiles that lost an entry which was acknowledged.
    pub(crate) lost_profiles: u64,
    /// Whether an entry for this fault was published afterwards, by the same process.
    pub(crate) published: bool,
}

impl Observed {
    pub(crate) fn new(told: Told) -> Self {
        Self { told, ..Self::default() }
    }

    pub(crate) fn complain(&mut self, complaint: impl Into<String>) {
        self.complaints.push(complaint.into());
    }

    pub(crate) fn require(&mut self, holds: bool, complaint: impl FnOnce() -> String) {
        if !holds {
            self.complain(complaint());
        }
    }

    /// What is wrong, nothing where it is as expected.
    pub(crate) fn judge(&self, expected: &Expected) -> Vec<String> {
        let Told { outcome, code, diagnosed, blamed, .. } = &self.told;
        let mut wrong = self.complaints.clone();
        if !expected.outcomes.iter().any(|one| outcome.starts_with(one)) {
            wrong.push(format!("it came to {outcome}, expected was {:?}", expected.outcomes));
        }
        if !expected.codes.is_empty() && !code.is_some_and(|code| expected.codes.contains(&code)) {
            wrong.push(format!("it has the code {code:?}, expected was {:?}", expected.codes));
        }
        match (code, diagnosed) {
            (Some(code), Some(told)) if *told != code.to_string() => {
                wrong.push(format!("{code} is diagnosed as {told}"));
            }
            (None, None) if !expected.none_of_cudas && self.told.is_error => {
                wrong.push("it has no diagnosis".into());
            }
            (Some(code), None) => wrong.push(format!("{code} has no diagnosis")),
            _ => {}
        }
        if let Some((kernel, item)) = expected.guilty {
            let guilty = blamed.iter().any(|one| one.kernel == kernel && one.holds(item));
            if !guilty || (expected.guilty_alone && blamed.len() > 1) {
                wrong.push(format!("{kernel} at item {item} is at fault, blamed are {blamed:?}"));
            }
        }
        if let Some(kernel) = expected.innocent
            && blamed.iter().any(|one| one.kernel == kernel)
        {
            wrong.push(format!("{kernel} was proven innocent, blamed are {blamed:?}"));
        }
        if !self.published {
            wrong.push("the process could not publish a profile afterwards".into());
        }
        wrong
    }
}
