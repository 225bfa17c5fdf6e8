//! The guard without a driver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod corpus;
#[cfg(feature = "cuda")]
mod images;
#[cfg(feature = "image")]
mod kernel_images;
#[cfg(all(feature = "cuda", feature = "host", feature = "profile"))]
mod messages;
#[cfg(all(feature = "host", feature = "profile"))]
mod no_allocation;
#[cfg(feature = "profile")]
mod profile_layers;
#[cfg(feature = "profile")]
mod profile_schema;
#[cfg(feature = "profile")]
mod profile_store;
#[cfg(feature = "profile")]
mod profiles;
mod properties;

use gridguard_test_support::allocator::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;
