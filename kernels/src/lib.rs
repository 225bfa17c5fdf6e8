//! CUDA C++ kernels whose grids overflow in practice, launched through the guard.
//!
//! Video diffusion attends over time at every position of a feature map, language models sort and normalise every token:
//! more rows than the 65,535 blocks of a grid's y and z. Each kernel here takes any number of items. A launch that is too
//! large runs in legal chunks, which write straight into the output.
//!
//! Each public module is one kernel: a type that checks the sizes and describes the launch ([`Operation`]), `launch` on its
//! `Prepared` form, an f64 `reference`, and a `tolerance` unless [`ElementType::rounding_error`] is one. NVRTC compiles
//! the device code for the shape and the device at the first use. `Kernels` keeps it in memory and on disk.
//!
//! ```
//! use gridguard::DeviceLimits;
//! use gridguard_kernels::softmax::Softmax;
//! use gridguard_kernels::{ElementType, Operation};
//!
//! let softmax = Softmax::new(200_000, 4096, ElementType::F16)?;
//! assert_eq!(softmax.request().grid.y, 200_000); // more than the 65,535 blocks allowed on y
//! assert_eq!(softmax.batch().items(), 200_000); // but the rows are independent
//! # Ok::<(), gridguard_kernels::KernelError>(())
//! ```
//!
//! The README launches it on a device.
//!
//! # Where next
//!
//! | you look for | see |
//! |---|---|
//! | a launch with a plan of your own, or the choice of a tuned profile | `Kernels::prepare`, `Kernels::prepare_tuned` |
//! | attention with a mask, a bias or strides, and its gradients | [`temporal_attention`] |
//! | a whole transformer block within a memory budget | [`temporal_block`] |
//! | the comparison of two outputs on the device | [`compare`] |
//! | problems to tune and measure | the package `gridguard-problems` |
//!
//! # The CUDA version
//!
//! cudarc's bindings have the CUDA version of the installed nvcc, or the newest version without nvcc. Your own manifest can
//! choose another: `cudarc = { version = "0.19.10", features = ["cuda-12080"] }`.

pub mod argsort;
mod blocks;
pub mod compare;
#[cfg(feature = "cuda")]
mod cubin_cache;
mod deviation;
#[cfg(feature = "cuda")]
mod device;
mod element;
mod error;
mod extent;
pub mod gated_product;
pub mod geglu;
#[cfg(feature = "cuda")]
mod kernels;
#[cfg(feature = "cuda")]
mod launch;
pub mod layer_norm;
mod operation;
pub mod residual_norm;
pub mod rms_norm;
pub mod softmax;
mod synthetic;
pub mod temporal_attention;
pub mod temporal_block;
#[cfg(feature = "cuda")]
mod tensor;

#[cfg(feature = "cuda")]
pub use cubin_cache::{CubinCache, CubinCacheError, CubinFault};
pub use deviation::Deviation;
pub use element::{Element, ElementType, Multiplied, Plain};
pub use error::KernelError;
pub use extent::Extent;
#[cfg(feature = "cuda")]
pub use kernels::{CodeCounts, Kernels, MAX_KEPT_KERNELS, Prepared, TunedLaunch};
pub use operation::{Code, Operation};
pub use synthetic::synthetic;
#[cfg(feature = "cuda")]
pub use tensor::{Tensor, TensorMut};

/// Compiles the README's example.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../README.md")]
struct Readme;
