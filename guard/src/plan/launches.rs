//! The launches that serve a request.

use crate::dim::Axis;
use crate::launch::validate::ValidLaunch;
use crate::limits::LaunchLimits;
use crate::plan::batch::Share;
use crate::plan::choice::Strategy;
use crate::plan::chunk::{Chunk, Chunks};

/// One launch of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedLaunch {
    /// The items it works on.
    pub chunk: Chunk,
    /// The launch, already validated.
    pub launch: ValidLaunch,
}

/// The launches that serve a request, each already valid. Allocates nothing.
///
/// ```
/// use gridguard::{
///     Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest, Plan,
/// };
///
/// let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("attention"));
/// let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));
/// let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);
/// let plan = Plan::new(&request, Some(&batch), &limits, Choice::AUTOMATIC)?;
/// let grids: Vec<[u32; 3]> = plan.launches().map(|one| one.launch.grid()).collect();
/// assert_eq!(grids, [[1, 38_400, 1], [1, 38_400, 1]]);
/// # Ok::<(), gridguard::Violations>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Plan {
    pub(crate) chunks: Chunks,
    /// The largest launch; the others of a chunked plan are shorter along `axis`.
    pub(crate) launch: ValidLaunch,
    pub(crate) share: Share,
    pub(crate) axis: Axis,
    pub(crate) strategy: Strategy,
}

impl Plan {
    /// How the request is served.
    #[must_use]
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// How many launches there are; 0 for a batch of zero items.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.chunks.launches()
    }

    /// Whether there is nothing to launch.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items of the whole batch; 1 for a request without a batch axis.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.chunks.items()
    }

    /// Items of the largest launch.
    #[must_use]
    pub fn largest_chunk(&self) -> u64 {
        self.chunks.largest()
    }

    /// Whether the plan was made for `limits`, or a clone of them.
    #[must_use]
    pub const fn is_for(&self, limits: &LaunchLimits) -> bool {
        self.launch.is_for(limits)
    }

    /// The launches, in order.
    pub const fn launches(&self) -> Launches<'_> {
        Launches { plan: self, chunks: self.chunks }
    }

    /// The largest launch, which stands for all in what chunks have in common.
    #[cfg(feature = "cuda")]
    pub(crate) const fn largest_launch(&self) -> &ValidLaunch {
        &self.launch
    }

    /// The chunks alone, in order.
    pub const fn chunks(&self) -> Chunks {
        self.chunks
    }

    #[inline]
    fn launch_of(&self, chunk: Chunk) -> PlannedLaunch {
        if self.strategy != Strategy::Chunked {
            return PlannedLaunch { chunk, launch: self.launch };
        }
        // The largest chunk was validated, so a smaller one fits 32 bits.
        let blocks = self.share.blocks(chunk.items).and_then(|blocks| u32::try_from(blocks).ok());
        let launch = blocks.map_or(self.launch, |blocks| self.launch.shortened(self.axis, blocks));
        // What the request says of the launch before it is about the first chunk.
        let launch = if chunk.index > 0 { launch.independent() } else { launch };
        PlannedLaunch { chunk, launch }
    }
}

/// The launches of a [`Plan`], in order.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Launches<'a> {
    plan: &'a Plan,
    chunks: Chunks,
}

impl Iterator for Launches<'_> {
    type Item = PlannedLaunch;

    #[inline]
    fn next(&mut self) -> Option<PlannedLaunch> {
        self.chunks.next().map(|chunk| self.plan.launch_of(chunk))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.chunks.size_hint()
    }
}

/// Exact wherever `usize` has 64 bits.
impl ExactSizeIterator for Launches<'_> {}
impl core::iter::FusedIterator for Launches<'_> {}
