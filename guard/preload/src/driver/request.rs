//! The configuration of a launch, and its conversion to a `LaunchRequest`.

use core::ffi::c_uint;
use core::ptr;

use gridguard::abi::{
    CLUSTER_DIMENSION, COOPERATIVE, DEPENDENT, LaunchAttribute, LaunchConfig, PRIORITY,
};
use gridguard::{Dim3, LaunchRequest};

use crate::driver::abi::{ALLOW_NON_PORTABLE, Handle, PORTABLE_CLUSTER_SIZE_MODE};

/// A launch of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    /// The hook and slot that it came through.
    pub(crate) through: (usize, usize),
    /// The `CUfunction` or `CUkernel`.
    pub(crate) kernel: Handle,
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: Handle,
    pub(crate) cluster: Option<[c_uint; 3]>,
    pub(crate) cooperative: bool,
    pub(crate) dependent: bool,
    pub(crate) priority: Option<i32>,
    /// Whether an attribute of the launch allows a cluster above the portable size.
    pub(crate) non_portable_cluster: bool,
    /// Whether it is a kernel node of a graph.
    pub(crate) node: bool,
    /// Whether `kernel` is a host function, because the runtime does not tell the handle.
    pub(crate) host: bool,
}

impl Launch {
    /// A launch without attributes.
    pub(crate) const fn plain(
        through: (usize, usize),
        kernel: Handle,
        grid: [c_uint; 3],
        block: [c_uint; 3],
        (shared_bytes, stream): (c_uint, Handle),
    ) -> Self {
        Self {
            through,
            kernel,
            grid,
            block,
            shared_bytes,
            stream,
            cluster: None,
            cooperative: false,
            dependent: false,
            priority: None,
            non_portable_cluster: false,
            node: false,
            host: false,
        }
    }

    /// The grid along x, y and z, the threads of a block, and its dynamic shared memory in bytes.
    #[inline(always)]
    pub(crate) fn sizes(&self) -> [u32; 5] {
        let [x, y, z] = self.grid;
        let threads = self.block.into_iter().fold(1, u32::wrapping_mul);
        [x, y, z, threads, self.shared_bytes]
    }

    /// Threads of a block.
    pub(crate) fn threads(&self) -> u32 {
        self.block.iter().fold(1, |all, one| all.saturating_mul(*one))
    }

    /// The launch as the guard's rules take it.
    pub(crate) fn request(&self) -> LaunchRequest {
        let size = |[x, y, z]: [c_uint; 3]| Dim3::new(x.into(), y.into(), z.into());
        let mut request = LaunchRequest::new(size(self.grid), size(self.block))
            .dynamic_shared_bytes(self.shared_bytes.into());
        request.cluster = self.cluster.map(size);
        request.cooperative = self.cooperative;
        request.dependent = self.dependent;
        request.priority = self.priority;
        request
    }

    /// The launch in words: `grid 1 x 70000 x 1, block 128 x 1 x 1, ...`.
    pub(crate) fn describe(&self) -> String {
        let size = |[x, y, z]: [c_uint; 3]| format!("{x} x {y} x {z}");
        let mut text = format!("grid {}, block {}", size(self.grid), size(self.block));
        text += &format!(", {} bytes of dynamic shared memory", self.shared_bytes);
        if let Some(cluster) = self.cluster {
            text += &format!(", cluster {}", size(cluster));
        }
        for (applies, what) in [
            (self.cooperative, ", cooperative"),
            (self.dependent, ", programmatic dependent"),
            (self.node, ", kernel node of a graph"),
        ] {
            text += if applies { what } else { "" };
        }
        text
    }
}

/// A launch of nothing on the default stream.
pub(crate) const NO_ATTRIBUTES: LaunchConfig = LaunchConfig {
    grid: [0; 3],
    block: [0; 3],
    shared_bytes: 0,
    stream: ptr::null_mut(),
    attributes: ptr::null(),
    attribute_count: 0,
};

/// The launch that `config` describes.
///
/// # Safety
///
/// `config` has as many attributes as it says.
#[inline(always)]
pub(crate) unsafe fn configured(
    through: (usize, usize),
    function: Handle,
    config: &LaunchConfig,
) -> Launch {
    let &LaunchConfig { grid, block, shared_bytes, stream, .. } = config;
    let mut launch = Launch::plain(through, function, grid, block, (shared_bytes, stream));
    // SAFETY: by this function's contract.
    for LaunchAttribute { id, value: [x, y, z, ..], .. } in unsafe { attributes(config) } {
        match *id {
            COOPERATIVE => launch.cooperative = *x != 0,
            CLUSTER_DIMENSION => launch.cluster = Some([*x, *y, *z]),
            DEPENDENT => launch.dependent = *x != 0,
            PORTABLE_CLUSTER_SIZE_MODE => launch.non_portable_cluster = *x == ALLOW_NON_PORTABLE,
            PRIORITY => launch.priority = Some(x.cast_signed()),
            _ => {}
        }
    }
    launch
}

/// The attributes of a launch.
///
/// # Safety
///
/// `config` has as many attributes as it says.
#[inline]
pub(crate) unsafe fn attributes(config: &LaunchConfig) -> &[LaunchAttribute] {
    let &LaunchConfig { attributes, attribute_count, .. } = config;
    if attributes.is_null() {
        return &[];
    }
    let count = usize::try_from(attribute_count.min(MAX_ATTRIBUTES)).unwrap_or(0);
    // SAFETY: as many attributes by this function's contract.
    unsafe { core::slice::from_raw_parts(attributes, count) }
}

/// More than the driver knows.
const MAX_ATTRIBUTES: c_uint = 64;

/// Whether every device refuses a grid of this size.
#[inline(always)]
pub(crate) const fn is_oversized([x, y, z]: [c_uint; 3]) -> bool {
    x > MAX_X || y > MAX_OTHER || z > MAX_OTHER
}

/// The largest grids of all devices.
const MAX_X: c_uint = 0x7fff_ffff;
pub(crate) const MAX_OTHER: c_uint = 65_535;
/// The most threads of a block on any device.
pub(crate) const MAX_THREADS: c_uint = 1024;

#[cfg(test)]
mod tests {
    use gridguard::{Axis, DeviceLimits};

    use super::*;

    #[test]
    fn a_grid_is_oversized_beyond_the_limits_of_any_device() {
        let most = DeviceLimits::any_device().max_grid;
        let most = Axis::ALL.map(|axis| u32::try_from(most.along(axis)).unwrap());
        assert!(!is_oversized(most));
        for axis in 0..3 {
            let mut grid = [1; 3];
            grid[axis] = most[axis] + 1;
            assert!(is_oversized(grid));
        }
    }
}
