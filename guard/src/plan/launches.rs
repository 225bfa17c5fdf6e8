//! A plan: the validated launches of a request.

use crate::dim::Axis;
use crate::launch::valid::ValidLaunch;
use crate::limits::launch::LaunchLimits;
use crate::plan::batch::Share;
use crate::plan::choice::Strategy;
use crate::plan::chunks::{Chunk, Chunks};

/// One launch of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedLaunch {
    /// The items it works on.
    pub chunk: Chunk,
    /// The validated launch.
    pub launch: ValidLaunch,
}

/// The launches of a request, each validated. Allocates nothing.
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
    /// The batch axis; `None` for a request without one.
    pub(crate) axis: Option<Axis>,
    pub(crate) strategy: Strategy,
}

impl Plan {
    /// How the request is launched.
    #[must_use]
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The number of launches; 0 for a batch of zero items.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.chunks.launches()
    }

    /// Whether there are no launches.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items of the whole batch; 1 for a request without a batch axis.
    #[must_use]
    pub const fn items(&self) -> u64 {
        self.chunks.items()
    }

    /// Items of the batch; `None` for a request without one.
    #[cfg(feature = "cuda")]
    pub(crate) fn batch_items(&self) -> Option<u64> {
        self.axis.map(|_| self.items())
    }

    /// Whether a block works on several items, and the last one of a chunk possibly on fewer.
    #[cfg(feature = "cuda")]
    pub(crate) const fn shares_blocks(&self) -> bool {
        self.share.shares_blocks() && !self.is_empty()
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

    /// The launch at `index`, from 0.
    #[must_use]
    pub fn at(&self, index: u64) -> Option<PlannedLaunch> {
        self.chunks.at(index).map(|chunk| self.launch_of(chunk))
    }

    /// The largest launch, which has all that chunks have in common.
    #[cfg(feature = "cuda")]
    pub(crate) const fn largest_launch(&self) -> &ValidLaunch {
        &self.launch
    }

    /// The chunks alone, in order.
    pub const fn chunks(&self) -> Chunks {
        self.chunks
    }

    #[inline]
    pub(crate) fn launch_of(&self, chunk: Chunk) -> PlannedLaunch {
        let (Strategy::Chunked, Some(axis)) = (self.strategy, self.axis) else {
            return PlannedLaunch { chunk, launch: self.launch };
        };
        // The largest chunk was validated, so a smaller one fits 32 bits.
        let blocks = self.share.blocks(chunk.items).and_then(|blocks| u32::try_from(blocks).ok());
        let launch = blocks.map_or(self.launch, |blocks| self.launch.shortened(axis, blocks));
        // Dependence on the previous launch applies to the first chunk.
        let launch = if chunk.index > 0 { launch.independent() } else { launch };
        PlannedLaunch { chunk, launch }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Plan {
    /// Serializes as `{"strategy", "launches": [{"start", "items", "grid"}, ...]}`. Of more than
    /// 4,096 launches the rest is only counted, as `omitted_launches`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        #[derive(serde::Serialize)]
        struct ListedLaunch {
            start: u64,
            items: u64,
            grid: [u32; 3],
        }
        let listed = |planned: PlannedLaunch| {
            let Chunk { start, items, .. } = planned.chunk;
            ListedLaunch { start, items, grid: planned.launch.grid() }
        };
        let launches: Vec<_> = self.launches().take(LISTED_LAUNCHES).map(listed).collect();
        let omitted = self.launches().len() - launches.len();
        let mut fields = serializer.serialize_struct("Plan", 3)?;
        fields.serialize_field("strategy", &self.strategy)?;
        fields.serialize_field("launches", &launches)?;
        if omitted > 0 {
            fields.serialize_field("omitted_launches", &omitted)?;
        }
        fields.end()
    }
}

/// Launches that a serialized plan lists, so that an absurd request does not exhaust memory.
#[cfg(feature = "serde")]
const LISTED_LAUNCHES: usize = 4096;

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
