//! Launch requests, the rules they must obey, and validation against the limits of device and kernel.
//!
//! Everything here is pure: it takes requests and limits as data and never calls a driver.

pub(crate) mod explain;
pub(crate) mod predicted;
pub(crate) mod request;
pub(crate) mod rule;
pub(crate) mod valid;
pub(crate) mod validate;
pub(crate) mod violation;
