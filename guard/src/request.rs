//! A launch as the caller wishes it, before anyone checked it.

use crate::dim::Dim3;

/// A wish to launch a kernel: sizes in u64, unchecked.
///
/// ```
/// use gridguard::{Dim3, LaunchRequest};
/// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1))
///     .dynamic_shared_bytes(16_384);
/// assert_eq!(request.grid.y, 76_800);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use]
pub struct LaunchRequest {
    /// Blocks of the grid.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory of a block in bytes.
    pub dynamic_shared_bytes: u64,
    /// Blocks of a cluster, where the launch names one.
    pub cluster: Option<Dim3>,
    /// Whether the launch is cooperative: the whole grid is resident and can synchronize.
    pub cooperative: bool,
    /// Bytes of kernel parameters; 0 where not known.
    pub parameter_bytes: u64,
}

impl LaunchRequest {
    /// A plain launch of `grid` blocks of `block` threads.
    pub const fn new(grid: Dim3, block: Dim3) -> Self {
        Self {
            grid,
            block,
            dynamic_shared_bytes: 0,
            cluster: None,
            cooperative: false,
            parameter_bytes: 0,
        }
    }

    /// Asks for `bytes` of dynamic shared memory a block.
    pub const fn dynamic_shared_bytes(mut self, bytes: u64) -> Self {
        self.dynamic_shared_bytes = bytes;
        self
    }

    /// Asks for clusters of `cluster` blocks.
    pub const fn cluster(mut self, cluster: Dim3) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// Asks for a cooperative launch.
    pub const fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// States the bytes of all kernel parameters.
    pub const fn parameter_bytes(mut self, bytes: u64) -> Self {
        self.parameter_bytes = bytes;
        self
    }
}
