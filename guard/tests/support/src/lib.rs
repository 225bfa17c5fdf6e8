//! Shared by the tests of gridguard: a fake CUDA driver, generators with their invariants, the launch
//! corpus, and the comparison of the guard with a driver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

pub mod allocator;
pub mod conformance;
mod corpus;
pub mod fake_driver;
pub mod fake_library;
pub mod invariants;
mod limits;
mod messages;
pub mod process;
mod race;
mod random;

pub use corpus::{CorpusRow, Expected, corpus, parse_corpus};
pub use limits::are_one;
pub use messages::{Section, check_messages, texts};
pub use process::assert_passed;
pub use race::{THREADS, race};
pub use random::Random;
