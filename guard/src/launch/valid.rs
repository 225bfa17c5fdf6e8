//! Launches that passed validation.

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::limits::launch::LaunchLimits;

/// A launch that was validated against the limits of one kernel on one device.
///
/// Only [`validate`](crate::validate()) and [`Plan`](crate::Plan) create it, so it need not be checked again.
///
/// ```compile_fail
/// use gridguard::{Dim3, ValidLaunch};
/// // A `ValidLaunch` cannot be made without validation.
/// let launch = ValidLaunch { grid: [1, 1, 1], block: [1, 1, 1] };
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct ValidLaunch {
    grid: [u32; 3],
    block: [u32; 3],
    dynamic_shared_bytes: u32,
    cluster: Option<[u32; 3]>,
    cooperative: bool,
    dependent: bool,
    priority: Option<i32>,
    /// Whether all blocks, or the blocks of each cluster, must be co-resident.
    co_resident: bool,
    /// Not co-resident, not dependent and without a priority: one test on the hot path instead of five.
    plain: bool,
    limits: u64,
}

impl ValidLaunch {
    /// Blocks of the grid along x, y, z.
    pub const fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Threads of a block along x, y, z.
    pub const fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Dynamic shared memory of a block in bytes.
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        self.dynamic_shared_bytes
    }

    /// Blocks of a cluster along x, y, z, if the launch specifies a cluster and the device supports
    /// clusters.
    pub const fn cluster(&self) -> Option<[u32; 3]> {
        self.cluster
    }

    /// Whether the launch is cooperative.
    pub const fn is_cooperative(&self) -> bool {
        self.cooperative
    }

    /// The launch's own priority, if it has one.
    pub const fn priority(&self) -> Option<i32> {
        self.priority
    }

    /// Whether the launch may start before the previous launch in its stream has ended.
    pub(crate) const fn is_dependent(&self) -> bool {
        self.dependent
    }

    /// Whether the launch has only grid, block and shared memory.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether blocks must be co-resident: all blocks of a cooperative launch, or the blocks of each cluster,
    /// also of a compiled-in cluster.
    pub(crate) const fn is_co_resident(&self) -> bool {
        self.co_resident
    }

    /// The same launch without dependence on the previous launch.
    pub(crate) const fn independent(mut self) -> Self {
        self.dependent = false;
        self.plain = !self.co_resident && self.priority.is_none();
        self
    }

    /// Whether the launch was validated against `limits`, or a clone of them.
    pub const fn is_for(&self, limits: &LaunchLimits) -> bool {
        self.limits == limits.id()
    }

    /// The launch as a request, without its parameter bytes.
    pub(crate) fn request(&self) -> LaunchRequest {
        LaunchRequest {
            grid: self.grid.into(),
            block: self.block.into(),
            dynamic_shared_bytes: self.dynamic_shared_bytes.into(),
            cluster: self.cluster.map(Dim3::from),
            cooperative: self.cooperative,
            parameter_bytes: 0,
            priority: self.priority,
            dependent: self.dependent,
        }
    }

    /// The same launch with fewer blocks along `axis`. Each part of a legal grid is legal, as long as the
    /// planner keeps clusters whole.
    pub(crate) const fn shortened(mut self, axis: Axis, blocks: u32) -> Self {
        match axis {
            Axis::X => self.grid[0] = blocks,
            Axis::Y => self.grid[1] = blocks,
            Axis::Z => self.grid[2] = blocks,
        }
        self
    }

    /// The fast path for nearly all launches: the validated launch, if it is plain and legal. If `None`, the rules
    /// decide.
    #[inline]
    pub(crate) fn plain(request: &LaunchRequest, limits: &LaunchLimits) -> Option<Self> {
        Self::plain_with_grid(request.grid, request, limits)
    }

    /// As [`Self::plain`], with another grid.
    #[inline]
    pub(crate) fn plain_with_grid(
        grid: Dim3,
        request: &LaunchRequest,
        limits: &LaunchLimits,
    ) -> Option<Self> {
        let limit = limits.plain();
        let block = within(request.block, limit.block)?;
        let [bx, by, bz] = block;
        // The product of two 32-bit numbers fits 64 bits.
        let threads = (u64::from(bx) * u64::from(by)).checked_mul(bz.into())?;
        let dynamic_shared_bytes = u32::try_from(request.dynamic_shared_bytes).ok()?;
        let legal = threads <= limit.threads.into()
            && dynamic_shared_bytes <= limit.dynamic_shared_bytes
            && request.parameter_bytes <= limit.parameter_bytes.into()
            && request.cluster.is_none()
            && request.priority.is_none()
            && !request.cooperative
            && !request.dependent;
        legal.then_some(Self {
            grid: within(grid, limit.grid)?,
            block,
            dynamic_shared_bytes,
            cluster: None,
            cooperative: false,
            dependent: false,
            priority: None,
            co_resident: false,
            plain: true,
            limits: limits.id(),
        })
    }

    /// The launch of a request that breaks no rule.
    #[inline]
    pub(crate) fn unchecked(request: &LaunchRequest, limits: &LaunchLimits) -> Option<Self> {
        let cluster = match request.named_cluster() {
            // A cluster of one block on a device without clusters is a plain launch.
            Some(Dim3::ONE) if !limits.device().cluster_launch => None,
            None => None,
            Some(cluster) => Some(cluster.narrow()?),
        };
        let LaunchRequest { cooperative, dependent, priority, .. } = *request;
        let compiled_in = limits.kernel().required_cluster.is_some();
        let co_resident = cooperative || cluster.is_some() || compiled_in;
        Some(Self {
            grid: request.grid.narrow()?,
            block: request.block.narrow()?,
            dynamic_shared_bytes: u32::try_from(request.dynamic_shared_bytes).ok()?,
            cluster,
            cooperative,
            dependent,
            priority,
            co_resident,
            plain: !co_resident && !dependent && priority.is_none(),
            limits: limits.id(),
        })
    }
}

/// `size` in 32 bits, if it is from 1 to `most` along each axis.
#[inline]
fn within(size: Dim3, most: [u32; 3]) -> Option<[u32; 3]> {
    let [x, y, z] = most.map(u64::from);
    let fits = |size: u64, most: u64| size.wrapping_sub(1) < most;
    let all = fits(size.x, x) & fits(size.y, y) & fits(size.z, z);
    if all { size.narrow() } else { None }
}
