//! The result of one check, and remedies for known errors.

use gridguard::diagnose::{Diagnosis, LogScanner, diagnose};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Good,
    /// It works, but not as well as it could, or not all of it.
    Warning,
    /// It could not be determined.
    Unknown,
    Bad,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CheckResult {
    pub(super) subject: String,
    pub(super) level: Level,
    pub(super) what: String,
    /// What to do about it; `None` if it is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl CheckResult {
    pub(super) fn good(subject: impl Into<String>, what: impl Into<String>) -> Self {
        Self { subject: subject.into(), level: Level::Good, what: what.into(), remedy: None }
    }

    pub(super) fn warning(
        subject: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Warning, remedy: Some(remedy.into()), ..Self::good(subject, what) }
    }

    pub(super) fn unknown(
        subject: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Unknown, ..Self::warning(subject, what, remedy) }
    }

    pub(super) fn bad(
        subject: impl Into<String>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level: Level::Bad, ..Self::warning(subject, what, remedy) }
    }
}

impl Level {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Bad => "bad",
        }
    }
}

/// The most likely cause of an error, and its remedy.
pub(super) fn remedy(diagnosis: Option<Diagnosis>) -> String {
    let cause = diagnosis.and_then(|diagnosis| diagnosis.causes.into_iter().next());
    cause.map_or_else(
        || "gridguard explain says more about the message".to_owned(),
        |cause| format!("{}: {}", cause.what, cause.remedy),
    )
}

/// The same for a message; `None` if the message is not known.
pub(super) fn remedy_of_message(message: &str) -> Option<String> {
    let mut log = LogScanner::for_question();
    message.lines().for_each(|line| log.line(line));
    let found = log.findings().into_iter().next()?;
    Some(remedy(Some(diagnose(&found.failure, &found.evidence))))
}

/// The beginning of a text that may be long, on one line.
pub(super) fn shorten(text: &str) -> String {
    const MOST_CHARS: usize = 200;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => line.get(..end).unwrap_or_default().to_owned() + " ...",
        None => line,
    }
}
