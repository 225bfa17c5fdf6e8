//! 32-bit indices that wrap: the corpus, hostile texts, and verdicts beside an interpreter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod cases;
mod corpus;
mod hostile;
mod interpreter;
mod launches;
mod opcodes;
mod oracle;
mod projects;

/// Why a verdict is unknown, if it is.
fn reason(verdict: &gridguard_index::Verdict) -> Option<gridguard_index::Reason> {
    if let gridguard_index::Verdict::Unknown(doubt) = verdict { Some(doubt.reason) } else { None }
}
