//! CUDA C++ kernels whose grids overflow in real life: their launch geometry, arguments, host
//! references and tolerances.
//!
//! The device code is in `cu/`, compiled at run time by NVRTC. Each module of this crate shows one
//! kernel; its public functions check shapes before anything is launched, and launch through the
//! guard.

#[cfg(feature = "cuda")]
mod device;
mod element;
mod error;
pub mod temporal_attention;

pub use element::{Element, ElementType};
pub use error::KernelError;
