//! Takes the images that a program loads and its oversized launches, and returns modules with forms of their kernels and
//! launches in parts (`gridguard run --fix`).
//!
//! - `image`: the PTX of an image, or where its machine code is from;
//! - `store`, `triton`: PTX for machine code: of compilers in the process, and of Triton's caches;
//! - `beside`: modules with forms beside modules of machine code;
//! - `load`: the functions that load images;
//! - `kernels`: the records of modules, libraries and kernels;
//! - `index`: launches whose 32-bit indices wrap (`--index`);
//! - `arguments`, `relaunch`: launches of forms.

pub(crate) mod arguments;
pub(crate) mod beside;
mod image;
pub(crate) mod index;
pub(crate) mod kernels;
pub(crate) mod load;
pub(crate) mod relaunch;
pub(crate) mod store;
mod triton;
