//! Operators for [candle](https://docs.rs/candle-core) that work with any batch size: short attention, RMS norm,
//! softmax and argsort, by the kernels of [`gridguard_kernels`]. With the feature `cuda`, `GuardedDevice` launches
//! your own kernels on candle's memory through the guard.
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use gridguard_candle::Attention;
//!
//! // With the feature `cuda` a GPU, else the host.
//! let device = Device::cuda_if_available(0)?;
//! // [items, heads, frames, head_dim]: every position of a feature map attends over its frames.
//! let [q, k, v] = [0, 1, 2].map(|_| Tensor::randn(0_f32, 1.0, (40, 5, 16, 64), &device));
//! let out = Attention::new(0.125).forward(&q?, &k?, &v?)?;
//! assert_eq!(out.dims(), [40, 5, 16, 64]);
//!
//! let scores = Tensor::randn(0_f32, 1.0, (8, 1000), &device)?;
//! let probabilities = gridguard_candle::softmax(&scores)?;
//! let order = gridguard_candle::argsort(&scores, false)?;
//! assert_eq!((probabilities.dtype(), order.dtype()), (DType::F32, DType::U32));
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! # On a device
//!
//! The kernels run on candle's memory, in its context and on its stream. A tensor is copied only if the kernel does
//! not support its layout. Attention supports all strides that are multiples of 16 bytes, if rows are contiguous and
//! the batch axes fold into items and heads. The others need contiguous rows that begin at a multiple of 16 bytes.
//! candle allocates outputs without clearing them.
//!
//! At the first call of a shape, NVRTC compiles the kernel in about a second, and stores it on disk. Later calls of the
//! shape reuse the prepared launch. Launches use the user's tuned profile, or the profile shipped for the GPU.
//! A stream that is being captured is refused, except within `gridguard::cuda::capture_launches`.
//!
//! # On the host
//!
//! The same calls run the kernels' references in f64, round once, and report the same errors of shapes and types.
//!
//! # Gradients
//!
//! The operators have no backward pass: candle's `backward` through one is
//! [`Error::BackwardNotSupported`](candle_core::Error::BackwardNotSupported).

mod attention;
#[cfg(feature = "cuda")]
mod device;
mod element;
mod rows;

pub use attention::Attention;
#[cfg(feature = "cuda")]
pub use device::GuardedDevice;
pub use rows::{argsort, rms_norm, softmax};

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
