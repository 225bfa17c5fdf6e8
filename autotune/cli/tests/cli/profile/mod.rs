//! `gridguard profile`: show, merge, diff, prune, explain and verify.

mod entries;
mod explain;
mod files;
mod verify;
