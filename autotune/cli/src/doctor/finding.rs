//! Findings of checks, and remedies for known errors.

use std::borrow::Cow;
use std::fmt::{self, Display};

use gridguard_diagnose::{Diagnosis, Known, diagnose};
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Good,
    /// It works with restrictions.
    Warning,
    Unknown,
    Bad,
}

impl Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finding {
    pub(super) subject: String,
    pub(super) level: Level,
    pub(super) what: String,
    /// The remedy; `None` for a good finding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

/// The subject of a finding, for example `driver` or `device 0`.
pub(super) struct Subject(Cow<'static, str>);

impl Subject {
    pub(super) const fn new(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }

    pub(super) fn numbered(kind: &str, number: impl Display) -> Self {
        Self(format!("{kind} {number}").into())
    }

    pub(super) fn is_of(&self, finding: &Finding) -> bool {
        self.0 == finding.subject
    }

    pub(super) fn good(&self, what: impl Into<String>) -> Finding {
        Finding { subject: self.0.to_string(), level: Level::Good, what: what.into(), remedy: None }
    }

    pub(super) fn warning(&self, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Warning, remedy: Some(remedy.into()), ..self.good(what) }
    }

    pub(super) fn unknown(&self, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Unknown, ..self.warning(what, remedy) }
    }

    pub(super) fn bad(&self, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { level: Level::Bad, ..self.warning(what, remedy) }
    }
}

/// The most likely cause of an error, and its remedy.
pub(super) fn remedy(diagnosis: Option<Diagnosis>) -> String {
    let failure = diagnosis.and_then(|diagnosis| diagnosis.failures.into_iter().next());
    let told = failure.map(|it| match it.may.into_iter().next() {
        Some(cause) => format!("{} {}", cause.cause, cause.remedy),
        None => format!("{} {}", it.cause, it.remedy),
    });
    told.unwrap_or_else(|| "gridguard explain says more about the message".to_owned())
}

/// The same for a message; `None` if the message is not known.
pub(super) fn remedy_of_message(message: &str) -> Option<String> {
    let diagnosis = diagnose(&message.replace('\n', " "), &Known::default());
    (!diagnosis.failures.is_empty()).then(|| remedy(Some(diagnosis)))
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
