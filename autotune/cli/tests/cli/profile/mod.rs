//! `gridguard profile`: show, merge, diff, prune, explain and verify.

pub(crate) mod entries;
mod explain;
mod files;
