//! `gridguard run --fix`: adds forms of the kernels to the images that a program loads, and makes oversized launches in
//! parts.
//!
//! - `image`: the PTX of an image, or the origin of its machine code;
//! - `store`, `link`, `program`: PTX for machine code, of compilers and of nvJitLink in the process;
//! - `assembler`, `triton`: PTX for machine code, of a `ptxas` of the run, and of Triton's caches;
//! - `cupy`: machine code from CuPy's cache, which has no PTX;
//! - `sidecar`: modules with forms beside modules of machine code;
//! - `load`: the functions that load images;
//! - `kernels`: the records of modules, libraries and kernels;
//! - `index`: launches whose 32-bit indices wrap (`--index`);
//! - `arguments`, `relaunch`: launches of forms.

pub(crate) mod arguments;
pub(crate) mod assembler;
mod cupy;
pub(crate) mod image;
pub(crate) mod index;
pub(crate) mod kernels;
pub(crate) mod link;
pub(crate) mod load;
mod program;
pub(crate) mod relaunch;
pub(crate) mod sidecar;
pub(crate) mod store;
mod triton;
