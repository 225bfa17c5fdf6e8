//! CUDA C++ kernels whose grids overflow in real life: their launch geometry, arguments, host
//! references and tolerances.
//!
//! The device code is in `cu/`, compiled at run time by NVRTC. Each module of this crate shows one
//! kernel; its public functions check shapes before anything is launched, and launch through the
//! guard.

pub mod argsort;
pub mod batched_gemm;
#[cfg(feature = "profile")]
pub mod bench;
pub mod compare;
#[cfg(feature = "cuda")]
mod cubin_cache;
mod deviation;
#[cfg(feature = "cuda")]
mod device;
mod element;
mod error;
pub mod get_rows;
mod index;
#[cfg(feature = "cuda")]
mod kernels;
mod operation;
pub mod reflection_pad1d;
pub mod rms_norm;
mod rows;
mod size;
pub mod softmax;
mod span;
pub mod temporal_attention;
#[cfg(feature = "cuda")]
mod tensor;
#[cfg(feature = "profile")]
mod tunable;
#[cfg(all(feature = "profile", feature = "cuda"))]
mod tuned;
pub mod upsample_nearest2d;

#[cfg(feature = "cuda")]
pub use cubin_cache::{CubinCache, CubinCacheError, CubinFault, CubinKey};
pub use deviation::Deviation;
pub use element::{Element, ElementType};
pub use error::KernelError;
pub use index::{Index, IndexType};
#[cfg(feature = "cuda")]
pub use kernels::{CodeCounts, Kernels, Prepared};
pub use operation::{Code, Operation};
#[cfg(feature = "cuda")]
pub use tensor::{Extent, Tensor, TensorMut};
#[cfg(feature = "profile")]
pub use tunable::Tunable;
#[cfg(all(feature = "profile", feature = "cuda"))]
pub use tuned::TunedKernel;
