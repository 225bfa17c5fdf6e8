//! Takes the images that a program loads and its oversized launches, and returns modules with forms of their kernels and
//! launches in parts (`gridguard run --fix`).
//!
//! - `image`: the PTX of an image;
//! - `load`: the functions that load images;
//! - `kernels`: the records of modules, libraries and kernels;
//! - `arguments`, `relaunch`: launches of forms.

pub(crate) mod arguments;
mod image;
pub(crate) mod kernels;
pub(crate) mod load;
pub(crate) mod relaunch;
