//! What a log says, as plain data.

use std::collections::BTreeMap;

use crate::kinds::{Confidence, Fault, Memory, Platform};

/// What a log says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Answer {
    /// The platform that wrote the log.
    pub platform: Platform,
    /// The number of lines.
    pub lines: u64,
    /// The failures, the deciding one first.
    pub findings: Vec<Finding>,
}

/// A failure that the log reports, and its cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Finding {
    /// The stable id of the cause.
    pub id: &'static str,
    /// The failure's name, or nothing.
    pub title: &'static str,
    /// The library, program or tool whose message it is.
    pub owner: &'static str,
    /// The platform of the message.
    pub platform: Platform,
    /// How much the line tells.
    pub confidence: Confidence,
    /// Whose fault it is.
    pub fault: Fault,
    /// The memory that ran out.
    pub memory: Option<Memory>,
    /// Whether the context is lost: every later call returns an error.
    pub is_sticky: bool,
    /// Whether a later call may have reported it.
    pub is_late: bool,
    /// The cause.
    pub cause: String,
    /// What helps.
    pub remedy: String,
    /// A command that tells more.
    pub command: Option<String>,
    /// The line that reports it, counted from 1.
    pub line: u64,
    /// Its text, at most 400 bytes.
    pub text: String,
    /// The number of lines that report it.
    pub times: u64,
    /// What the line says.
    pub captures: BTreeMap<String, String>,
    /// Failures that are consequences of this one.
    pub consequences: Vec<Consequence>,
    /// Possible causes, if the log does not decide.
    pub may: Vec<Cause>,
    /// Where the meaning is documented.
    pub source: &'static str,
}

/// A failure that another one explains.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Consequence {
    /// The stable id of the cause.
    pub id: &'static str,
    /// The first line that reports it.
    pub line: u64,
    /// Its text.
    pub text: String,
}

/// A possible cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Cause {
    /// Its stable id.
    pub id: &'static str,
    /// The cause.
    pub cause: String,
    /// What helps.
    pub remedy: String,
}
