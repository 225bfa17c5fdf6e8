//! Launch requests, the rules that they must obey, and their validation against the limits of device and
//! kernel. No function here calls a driver.

pub mod abi;
mod check;
pub(crate) mod explain;
pub(crate) mod predicted;
pub(crate) mod request;
pub(crate) mod rule;
pub(crate) mod valid;
pub(crate) mod validate;
pub(crate) mod violation;
