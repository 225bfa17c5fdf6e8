//! What holds whatever comes in, for property tests and for fuzzing alike.
//!
//! A [`Target`] takes bytes. Where it reads text or an image they are that. Where it takes numbers
//! these are made of them, by the same generators that property tests give random bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

pub mod backoff;
mod bytes;
mod case;
mod catalog;
mod description;
mod generate;
pub mod image;
mod journal;
mod log;
mod oracle;
pub mod plans;
mod profile;
mod protocol;
mod requests;
mod shapes;
pub mod validation;

use proptest::strategy::BoxedStrategy;

/// Something that must hold for any bytes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of the fuzz target, of its seeds and of its dictionary.
    pub name: &'static str,
    /// Panics where it does not hold.
    pub check: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 11] = [
    Target { name: "corpus", check: catalog::check },
    Target { name: "image", check: image::check },
    Target { name: "journal", check: journal::check },
    Target { name: "log", check: log::check },
    Target { name: "plan", check: plans::check },
    Target { name: "profile", check: profile::check },
    Target { name: "protocol", check: protocol::check },
    Target { name: "requests", check: requests::check },
    Target { name: "backoff", check: backoff::check },
    Target { name: "shapes", check: shapes::check },
    Target { name: "validate", check: validation::check },
];

/// Checks `bytes` against the target `name`.
///
/// # Panics
///
/// Where there is no such target, and where something does not hold.
pub fn check(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    (target.check)(bytes);
}

/// Any size: small, at the limits, at the end of u64.
pub fn size() -> BoxedStrategy<u64> {
    bytes::out_of_bytes(generate::size)
}
