//! Proof that a launch was validated.

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::limits::LaunchLimits;

/// A launch that obeys every rule that limits alone can decide, for one kernel on one device.
///
/// Made by [`validate`](crate::launch::validate()) and by plans only, so whoever holds one need not check again.
///
/// ```compile_fail
/// use gridguard::{Dim3, ValidLaunch};
/// // There is no way to a `ValidLaunch` around validation.
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
    /// Whether blocks run together, all of them or those of a cluster.
    together: bool,
    /// Runs none together, waits, and has no priority of its own: one look instead of five on the
    /// way of a launch.
    plain: bool,
    limits: u64,
}

impl ValidLaunch {
    /// Blocks of the grid along x, y, z.
    #[must_use]
    pub const fn grid(&self) -> [u32; 3] {
        self.grid
    }

    /// Threads of a block along x, y, z.
    #[must_use]
    pub const fn block(&self) -> [u32; 3] {
        self.block
    }

    /// Dynamic shared memory of a block in bytes.
    #[must_use]
    pub const fn dynamic_shared_bytes(&self) -> u32 {
        self.dynamic_shared_bytes
    }

    /// Blocks of a cluster along x, y, z, where the launch names one and the device has clusters.
    #[must_use]
    pub const fn cluster(&self) -> Option<[u32; 3]> {
        self.cluster
    }

    /// Whether the launch is cooperative.
    #[must_use]
    pub const fn is_cooperative(&self) -> bool {
        self.cooperative
    }

    /// The launch's own priority, where it has one.
    #[must_use]
    pub const fn priority(&self) -> Option<i32> {
        self.priority
    }

    /// Whether the launch may begin before the one before it in its stream has ended.
    #[must_use]
    pub const fn is_dependent(&self) -> bool {
        self.dependent
    }

    /// Whether nothing but grid, block and shared memory is to be looked at on the way.
    #[cfg(feature = "cuda")]
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether blocks run together: all of a cooperative launch, or those of a cluster, also of one
    /// that the kernel was compiled with.
    #[cfg(feature = "cuda")]
    pub(crate) const fn runs_together(&self) -> bool {
        self.together
    }

    /// The same launch, which waits for the one before it.
    pub(crate) const fn independent(mut self) -> Self {
        self.dependent = false;
        self.plain = !self.together && self.priority.is_none();
        self
    }

    /// Whether the launch was validated against `limits`, or a clone of them.
    #[must_use]
    pub const fn is_for(&self, limits: &LaunchLimits) -> bool {
        self.limits == limits.id()
    }

    /// The request again, with all that validation looks at but the bytes of parameters.
    #[cfg(feature = "cuda")]
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

    /// The same launch with fewer or as many blocks along `axis`: what is legal for a grid is
    /// legal for each part of it, clusters aside, which the planner keeps whole.
    pub(crate) const fn shortened(mut self, axis: Axis, blocks: u32) -> Self {
        match axis {
            Axis::X => self.grid[0] = blocks,
            Axis::Y => self.grid[1] = blocks,
            Axis::Z => self.grid[2] = blocks,
        }
        self
    }

    /// The launch, where it is plain and plainly legal: a short way for nearly all. Where it answers
    /// none the rules decide.
    #[inline]
    pub(super) fn plain(request: &LaunchRequest, limits: &LaunchLimits) -> Option<Self> {
        let most = limits.plain();
        let block = within(request.block, most.block)?;
        let [bx, by, bz] = block;
        // Two numbers of 32 bits never overflow one of 64.
        let threads = (u64::from(bx) * u64::from(by)).checked_mul(bz.into())?;
        let dynamic_shared_bytes = u32::try_from(request.dynamic_shared_bytes).ok()?;
        let legal = threads <= most.threads.into()
            && dynamic_shared_bytes <= most.dynamic_shared_bytes
            && request.parameter_bytes <= most.parameter_bytes.into()
            && request.cluster.is_none()
            && request.priority.is_none()
            && !request.cooperative
            && !request.dependent;
        legal.then_some(Self {
            grid: within(request.grid, most.grid)?,
            block,
            dynamic_shared_bytes,
            cluster: None,
            cooperative: false,
            dependent: false,
            priority: None,
            together: false,
            plain: true,
            limits: limits.id(),
        })
    }

    /// Only for requests that broke no rule.
    #[inline]
    pub(crate) fn unchecked(request: &LaunchRequest, limits: &LaunchLimits) -> Option<Self> {
        let cluster = match request.named_cluster() {
            // One block on a device without clusters: a launch like any other.
            Some(Dim3::ONE) if !limits.ceilings().cluster_launch => None,
            None => None,
            Some(cluster) => Some(cluster.narrow()?),
        };
        let LaunchRequest { cooperative, dependent, priority, .. } = *request;
        let own = limits.ceilings().required_cluster.is_some();
        let together = cooperative || cluster.is_some() || own;
        Some(Self {
            grid: request.grid.narrow()?,
            block: request.block.narrow()?,
            dynamic_shared_bytes: u32::try_from(request.dynamic_shared_bytes).ok()?,
            cluster,
            cooperative,
            dependent,
            priority,
            together,
            plain: !together && !dependent && priority.is_none(),
            limits: limits.id(),
        })
    }
}

/// `size` as the driver takes it, where it is at least 1 and at most `most` along each axis.
#[inline]
fn within(size: Dim3, most: [u32; 3]) -> Option<[u32; 3]> {
    let [x, y, z] = most.map(u64::from);
    let fits = |size: u64, most: u64| size.wrapping_sub(1) < most;
    let all = fits(size.x, x) & fits(size.y, y) & fits(size.z, z);
    if all { size.narrow() } else { None }
}
