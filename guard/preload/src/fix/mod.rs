//! `gridguard run --fix`: adds forms of the kernels to the images that a program loads, and makes oversized launches in
//! parts.
//!
//! - `fatbin`: the PTX of a fat binary's machine code;
//! - `image`: the PTX of an image, or the origin of its machine code;
//! - `pair`: the PTX that machine code was compiled from;
//! - `store`, `compilers`: PTX of NVRTC and of nvJitLink in the process;
//! - `assembler`, `caches`: PTX of a `ptxas` of the run, and of the caches of Triton and CuPy;
//! - `sidecar`: modules with forms beside modules of machine code;
//! - `load`: the functions that load images;
//! - `kernels`: the records of modules, libraries and kernels;
//! - `index`: launches whose 32-bit indices wrap (`--index`);
//! - `arguments`, `relaunch`: launches of forms;
//! - `opt_in`: attributes that a kernel lacks.

pub(crate) mod arguments;
pub(crate) mod assembler;
pub(crate) mod caches;
pub(crate) mod compilers;
mod fatbin;
pub(crate) mod image;
pub(crate) mod index;
pub(crate) mod kernels;
pub(crate) mod load;
pub(crate) mod opt_in;
mod pair;
mod program;
pub(crate) mod relaunch;
pub(crate) mod sidecar;
pub(crate) mod store;
