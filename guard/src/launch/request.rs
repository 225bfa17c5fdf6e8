//! Launch configurations before validation.

use crate::dim::Dim3;
use crate::limits::kernel::KernelLimits;

/// A launch configuration before validation, with sizes in u64.
///
/// ```
/// use gridguard::{Dim3, LaunchRequest};
/// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1))
///     .dynamic_shared_bytes(16_384);
/// assert_eq!(request.grid.y, 76_800);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(deny_unknown_fields))]
#[must_use]
#[non_exhaustive]
pub struct LaunchRequest {
    /// Blocks of the grid.
    pub grid: Dim3,
    /// Threads of a block.
    pub block: Dim3,
    /// Dynamic shared memory per block in bytes.
    #[cfg_attr(feature = "serde", serde(default))]
    pub dynamic_shared_bytes: u64,
    /// Blocks per cluster, if the launch specifies one: see [`LaunchRequest::named_cluster`].
    pub cluster: Option<Dim3>,
    /// Whether the launch is cooperative: all blocks are co-resident and can synchronize.
    #[cfg_attr(feature = "serde", serde(default))]
    pub cooperative: bool,
    /// Bytes of kernel parameters; 0 if unknown.
    #[cfg_attr(feature = "serde", serde(default))]
    pub parameter_bytes: u64,
    /// The launch's priority, instead of its stream's.
    pub priority: Option<i32>,
    /// Whether the launch may start before the previous launch in its stream has ended.
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

    /// The same request with a grid of `blocks`.
    pub const fn grid(mut self, blocks: Dim3) -> Self {
        self.grid = blocks;
        self
    }

    /// Requests `bytes` of dynamic shared memory per block.
    pub const fn dynamic_shared_bytes(mut self, bytes: u64) -> Self {
        self.dynamic_shared_bytes = bytes;
        self
    }

    /// Requests clusters of `cluster` blocks.
    pub const fn cluster(mut self, cluster: Dim3) -> Self {
        self.cluster = Some(cluster);
        self
    }

    /// The cluster that the launch specifies. The driver treats 0 x 0 x 0 as no cluster (H200), and
    /// rejects a cluster with zeros along some of its axes.
    ///
    /// ```
    /// use gridguard::{Dim3, LaunchRequest};
    /// let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE).cluster(Dim3::new(0, 0, 0));
    /// assert_eq!(request.named_cluster(), None);
    /// ```
    pub const fn named_cluster(&self) -> Option<Dim3> {
        match self.cluster {
            Some(Dim3 { x: 0, y: 0, z: 0 }) => None,
            cluster => cluster,
        }
    }

    /// The cluster that the launch runs with: the specified cluster, or the compiled-in cluster of `kernel`,
    /// which also applies to a plain launch (H200).
    pub(crate) fn cluster_with(&self, kernel: &KernelLimits) -> Option<Dim3> {
        self.named_cluster().or(kernel.required_cluster)
    }

    /// Requests a cooperative launch.
    pub const fn cooperative(mut self) -> Self {
        self.cooperative = true;
        self
    }

    /// Requests a priority instead of the stream's; lower numbers run first, 0 is the default.
    ///
    /// It applies to each chunk of a split launch. A priority outside the device's range breaks no rule,
    /// since the driver documents that it clamps the priorities of streams. `Guard::priorities` of the
    /// feature `cuda` returns the range.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Requests programmatic dependent launch: the launch may start before the previous launch in its
    /// stream has ended. The kernel must wait for the previous launch itself.
    ///
    /// In a split launch it applies to the first chunk. Later chunks overlap the chunk before them only if
    /// the kernel was declared to allow it.
    pub const fn dependent(mut self) -> Self {
        self.dependent = true;
        self
    }

    /// Declares the bytes of all kernel parameters.
    pub const fn parameter_bytes(mut self, bytes: u64) -> Self {
        self.parameter_bytes = bytes;
        self
    }
}

#[cfg(all(test, feature = "serde"))]
mod tests {
    use super::*;

    #[test]
    fn everything_but_grid_and_block_has_a_default() {
        let request = LaunchRequest::new(Dim3::new(1, 2, 3), Dim3::ONE);
        let parse = serde_json::from_str::<LaunchRequest>;
        let text = r#"{"grid": [1, 2, 3], "block": [1, 1, 1]}"#;
        assert_eq!(parse(text).expect("a request"), request);
        let all = request.priority(-1).dependent().cluster(Dim3::ONE).parameter_bytes(8);
        let text = serde_json::to_string(&all).expect("JSON");
        assert_eq!(parse(&text).expect("a request"), all);
        assert!(parse(r#"{"grid": [1, 2, 3]}"#).is_err());
        assert!(parse(r#"{"grid": [1, 2, 3], "block": [1, 1, 1], "blok": 3}"#).is_err());
    }
}
