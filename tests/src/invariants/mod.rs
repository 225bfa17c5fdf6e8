//! The invariants of every fuzz target, which must hold for any input.
//!
//! A [`Target`] takes bytes. Parsers read them as they come; the other targets make their numbers
//! from them, with the generators of the property tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod catalog;
mod description;
pub mod image;
mod journal;
mod log;
mod profile;
mod protocol;
mod ptx;
mod requests;
mod shapes;

use gridguard_test_support::invariants::{backoff, plans, validation};

/// An invariant that must hold for any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the fuzz target, of its folder of seeds and of its dictionary.
    pub name: &'static str,
    /// Panics where it does not hold.
    pub check: fn(&[u8]),
}

/// Every target.
pub const TARGETS: [Target; 12] = [
    Target { name: "corpus", check: catalog::check },
    Target { name: "image", check: image::check },
    Target { name: "journal", check: journal::check },
    Target { name: "log", check: log::check },
    Target { name: "plan", check: plans::check },
    Target { name: "profile", check: profile::check },
    Target { name: "protocol", check: protocol::check },
    Target { name: "ptx", check: ptx::check },
    Target { name: "requests", check: requests::check },
    Target { name: "backoff", check: backoff::check },
    Target { name: "shapes", check: shapes::check },
    Target { name: "validate", check: validation::check },
];

/// Checks `bytes` against the target `name`.
///
/// # Panics
///
/// If there is no such target, or the invariant does not hold.
pub fn check(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    (target.check)(bytes);
}
