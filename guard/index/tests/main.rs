//! 32-bit indices that wrap: the corpus, hostile texts, and verdicts beside an interpreter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod cases;
mod corpus;
mod hostile;
mod interpreter;
mod launches;
mod oracle;
mod projects;
