//! Signed profiles for fleets of GPUs, through OCI registries and object stores.
//!
//! A release is a small signed statement with the digests of profiles. [`Channel::push`] signs it and writes it to a
//! repository, [`Puller`] verifies it and keeps the last good profiles in a folder, where
//! [`Layers`](gridguard::profile::Layers) loads them.
//!
//! ```no_run
//! use gridguard_fleet::{Channel, Location, Puller, Store, TrustedKeys};
//!
//! # async fn pull() -> Result<(), gridguard_fleet::FleetError> {
//! let location: Location = "oci://registry.example/gpu/profiles:stable".parse()?;
//! let keys = TrustedKeys::read("keys.pem".as_ref())?;
//! let channel = Channel::new(Store::open(&location)?, location, None, keys);
//! let puller = Puller { channel, folder: "profiles".into(), node: "node7".into() };
//! let pulled = puller.pull().await?;
//! println!("serial {}", pulled.installed.serial);
//! # Ok(())
//! # }
//! ```

mod credentials;
mod digest;
mod error;
mod folder;
mod keys;
mod location;
mod manifest;
mod pull;
mod push;
mod registry;
mod release;
mod store;
mod wire;

pub use digest::Digest;
pub use error::FleetError;
pub use folder::Installed;
pub use keys::{SigningKey, TrustedKeys};
pub use location::Location;
pub use pull::{Channel, Pulled, Puller, pause};
pub use push::Change;
pub use release::{ProfileFile, Release, Staged};
pub use store::Store;
pub use wire::Network;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
