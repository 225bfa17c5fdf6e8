//! CUDA C++ kernels whose grids overflow in practice: launch geometry, launches through the guard,
//! host references and tolerances.
//!
//! The device code is in `cu/` and compiled at run time by NVRTC, for the shape and the device. Each
//! public module is one kernel: a type that checks the sizes and describes the launch, `launch` on its
//! `Prepared` form, an f64 `reference`, and a `tolerance` unless [`ElementType::rounding_error`] is one.
//! `Kernels` compiles and caches the code.
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
pub use element::{Element, ElementType};
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
