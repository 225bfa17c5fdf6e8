//! The temporal transformer block of a motion module: two times attention over frames, then a feed-forward,
//! as a pipeline that runs chunk by chunk within a memory budget.
//!
//! On `[items, frames, channels]`, where items are the positions of a feature map:
//!
//! ```text
//! x = x + out(attention(q, k, v of layer_norm(x)))      twice, q, k and v without bias, out with bias
//! x = x + down(value * gelu(gate)), [value, gate] = up(layer_norm(x))
//! ```
//!
//! Norms and attention are this crate's kernels, the products cuBLASLt's, with bias and residual added by
//! them. q, k and v are the rows of one product, which attention reads in place. The output holds the result of each
//! attention, so that scratch holds no copy of x.
//!
//! [`TemporalBlock`] holds weights on a device and makes pipelines for any number of items; [`host_pipeline`]
//! does the same on the host, and [`BlockReference`] computes single items.

#[cfg(feature = "cuda")]
mod device;
mod error;
mod host;
mod item;
#[cfg(feature = "cuda")]
mod raw;
mod shape;
mod stages;
mod weights;
#[cfg(feature = "safetensors")]
mod weights_file;

#[cfg(feature = "cuda")]
pub use device::{BlockMemory, TemporalBlock};
pub use error::BlockError;
pub use host::host_pipeline;
pub use item::{BlockReference, tolerance};
#[cfg(feature = "cuda")]
pub use raw::BlockAddresses;
pub use shape::BlockShape;
pub use weights::{BLOCK_TENSORS, BlockWeights, WeightTensor};
#[cfg(feature = "safetensors")]
pub use weights_file::{WeightsError, WeightsFile};
