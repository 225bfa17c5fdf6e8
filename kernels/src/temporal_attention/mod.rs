//! Temporal attention: `softmax(scale * q k^T + bias) v` over the frames of each item and head, and its gradients.
//!
//! Video diffusion attends over time at every position of the feature map: batch x height x width
//! items, each of a few heads, each a short sequence of frames. With items x heads on grid y, a
//! 40 x 64 map with 5 heads and batch 6 needs 76,800 blocks, but y allows 65,535.

mod backward;
#[cfg(feature = "cuda")]
mod device;
mod flash;
mod folded;
mod group_sum;
mod host;
mod operation;
mod parameters;
mod reference;
mod shape;
mod slices;
mod variant;

pub use backward::AttentionBackward;
#[cfg(feature = "cuda")]
pub(crate) use device::stride_bytes;
pub use folded::{Folded, NotFolded, StridedView};
pub use group_sum::GroupSum;
pub use host::run_on_host;
pub use operation::{Layout, TemporalAttention};
#[cfg(feature = "cuda")]
pub(crate) use operation::{STRIDES_BYTES, narrow};
pub use reference::{reference, reference_gradients, tolerance};
pub use shape::{MAX_HEAD_DIM, MAX_LONG_FRAMES, Shape};
pub use variant::{MAX_FRAMES, Variant, WIDE_HEAD_DIM};
