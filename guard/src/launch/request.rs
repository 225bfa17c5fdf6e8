//! A launch as the caller wishes it, before anyone checked it.

use crate::dim::Dim3;
use crate::limits::KernelLimits;

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
#[non_exhaustive]
pub struct LaunchRequest {
    /// Blocks of the grid.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory of a block in bytes.
    pub dynamic_shared_bytes: u64,
    /// Blocks of a cluster, where the launch names one: see [`LaunchRequest::named_cluster`].
    pub cluster: Option<Dim3>,
    /// Whether the launch is cooperative: the whole grid is resident and can synchronize.
    pub cooperative: bool,
    /// Bytes of kernel parameters; 0 where not known.
    pub parameter_bytes: u64,
    /// The launch's priority, in place of its stream's.
    #[cfg_attr(feature = "serde", serde(default))]
    pub priority: Option<i32>,
    /// Whether the launch may begin before the one before it in its stream has ended.
    #[cfg_attr(feature = "serde", serde(default))]
    pub dependent: bool,
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
            priority: None,
            dependent: false,
        }
    }

    /// Asks for a grid of `blocks` instead.
    pub const fn grid(mut self, blocks: Dim3) -> Self {
        self.grid = blocks;
        self
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

    /// The cluster that the launch names. One of 0 x 0 x 0 is none, as it is to the driver (H200);
    /// one with zeros along some axes only is a wrong one.
    ///
    /// ```
    /// use gridguard::{Dim3, LaunchRequest};
    /// let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE).cluster(Dim3::new(0, 0, 0));
    /// assert_eq!(request.named_cluster(), None);
    /// ```
    #[must_use]
    pub const fn named_cluster(&self) -> Option<Dim3> {
        match self.cluster {
            Some(Dim3 { x: 0, y: 0, z: 0 }) => None,
            cluster => cluster,
        }
    }

    /// The cluster that the launch runs with: its own, or the one that `kernel` was compiled with.
    pub(crate) fn cluster_with(&self, kernel: &KernelLimits) -> Option<Dim3> {
        self.named_cluster().or(kernel.required_cluster)
    }

    /// Asks for a cooperative launch.
    pub const fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// Asks for a priority in place of the stream's; lower numbers go first, 0 is the default.
    ///
    /// Each chunk of a split launch has it. A priority outside the device's range breaks no rule:
    /// the driver documents for streams that it takes the nearest one. The feature `cuda` has
    /// `Guard::priorities` for the range.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Lets the launch begin before the one before it in its stream has ended: programmatic
    /// dependent launch, for kernels that wait for it themselves.
    ///
    /// Of a split launch this is the first chunk; the others follow the chunk before, which they
    /// overlap only where the kernel allows that of its chunks.
    pub const fn dependent(mut self) -> Self {
        self.dependent = true;
        self
    }

    /// States the bytes of all kernel parameters.
    pub const fn parameter_bytes(mut self, bytes: u64) -> Self {
        self.parameter_bytes = bytes;
        self
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn data_from_before_there_were_attributes_still_parses() {
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        let mut data = serde_json::to_value(request).expect("data");
        let fields = data.as_object_mut().expect("fields");
        assert!(fields.remove("priority").is_some() && fields.remove("dependent").is_some());
        assert_eq!(serde_json::from_value::<LaunchRequest>(data).expect("parses"), request);
        let both = request.priority(-1).dependent();
        let text = serde_json::to_string(&both).expect("data");
        assert_eq!(serde_json::from_str::<LaunchRequest>(&text).expect("parses"), both);
    }
}
