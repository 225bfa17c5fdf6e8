//! `gridguard run --fix`: PTX is rewritten as it is loaded, so that forms of its kernels stand beside them,
//! and a launch whose grid is too large is made of one of its kernel's forms, in parts or flat on x.
//!
//! - `image`: the PTX of what is loaded, or why it is loaded as it is;
//! - `load`: the functions that load;
//! - `known`, `kernels`: what is known of modules, libraries and kernels, by their handles;
//! - `arguments`, `relaunch`: launches of forms.

mod arguments;
mod image;
pub(crate) mod kernels;
pub(crate) mod load;
pub(crate) mod relaunch;
