//! What one check came to.

use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Good,
    /// It works, but not as well as it could, or not everything does.
    Warning,
    /// It could not be found out.
    Unknown,
    Bad,
}

/// What one check came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) subject: String,
    pub(super) level: Level,
    pub(super) what: String,
    /// The way out, where one is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
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
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Bad => "bad",
        }
    }
}
