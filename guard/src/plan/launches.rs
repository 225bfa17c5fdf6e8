//! A plan: the validated launches of a request.

use crate::dim::{Axis, Dim3, saturated};
use crate::launch::valid::ValidLaunch;
use crate::limits::launch::{Forms, LaunchLimits};
use crate::plan::batch::BlockRatio;
use crate::plan::choice::Strategy;
use crate::plan::chunks::{Chunk, Chunks};
use crate::plan::parts::{GridPart, GridParts};

/// One launch of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedLaunch {
    /// Range of batch items; for a rewritten kernel, range of linear block indices.
    pub chunk: Chunk,
    /// The validated launch.
    pub launch: ValidLaunch,
    /// For a rewritten kernel, the launch's first block in the whole grid, or in the flat grid if it is folded.
    pub first_block: [u32; 3],
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
    /// The largest launch. The other launches of a chunked plan are shorter along `axis`.
    pub(crate) launch: ValidLaunch,
    pub(crate) share: BlockRatio,
    /// The batch axis; `None` for a request without one.
    pub(crate) axis: Option<Axis>,
    pub(crate) strategy: Strategy,
    /// The whole grid of a rewritten kernel, if a form is launched on each part of the grid. `chunks` is then one chunk
    /// of the whole batch.
    pub(crate) whole: Option<WholeGrid>,
}

/// The grid of a rewritten kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WholeGrid {
    pub(crate) grid: [u32; 3],
    /// The cluster size, which parts keep whole.
    pub(crate) cluster: [u32; 3],
}

impl Plan {
    /// How the request is launched.
    pub const fn strategy(&self) -> Strategy {
        self.strategy
    }

    /// The number of launches; 0 for a batch of zero items.
    #[inline]
    pub fn len(&self) -> u64 {
        self.parts().map_or(self.chunks.launches(), |parts| parts.count())
    }

    /// Whether there are no launches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items of the whole batch; 1 for a request without a batch axis. For a rewritten kernel, blocks of the grid.
    #[inline]
    pub fn items(&self) -> u64 {
        self.parts().map_or(self.chunks.items(), |parts| parts.blocks())
    }

    /// Items of the batch; `None` for a request without one.
    #[cfg(feature = "cuda")]
    pub(crate) fn batch_items(&self) -> Option<u64> {
        self.axis.map(|_| self.chunks.items())
    }

    /// Whether a block works on several items. The last block of a chunk may then have fewer.
    #[cfg(feature = "cuda")]
    pub(crate) fn shares_blocks(&self) -> bool {
        self.share.shares_blocks() && !self.is_empty()
    }

    /// Items of the largest launch; for a rewritten kernel, its blocks.
    #[inline]
    pub fn largest_chunk(&self) -> u64 {
        self.parts()
            .map_or_else(|| self.chunks.largest(), |parts| saturated(parts.largest().volume()))
    }

    /// Whether the plan was made for `limits`, or a clone of them.
    pub fn is_for(&self, limits: &LaunchLimits) -> bool {
        let is_form =
            |forms: &Forms| self.launch.is_for(&forms.shifted) || self.launch.is_for(&forms.folded);
        self.launch.is_for(limits) || limits.forms().is_some_and(is_form)
    }

    /// The launches, in order.
    #[inline]
    pub fn launches(&self) -> impl Iterator<Item = PlannedLaunch> {
        (0..self.len()).map_while(|index| self.at(index))
    }

    /// The launch at `index`, from 0.
    #[inline(always)]
    pub fn at(&self, index: u64) -> Option<PlannedLaunch> {
        match self.parts() {
            None => self.chunks.at(index).map(|chunk| self.launch_of(chunk)),
            Some(parts) => parts.at(index).map(|part| self.launch_of_part(part)),
        }
    }

    /// The largest launch. Everything but its grid is common to all chunks.
    #[cfg(feature = "cuda")]
    pub(crate) const fn largest_launch(&self) -> &ValidLaunch {
        &self.launch
    }

    /// The chunks alone, in order; for a rewritten kernel, the whole batch.
    pub fn chunks(&self) -> impl Iterator<Item = Chunk> + use<> {
        self.chunks.iter()
    }

    #[inline(always)]
    pub(crate) fn launch_of(&self, chunk: Chunk) -> PlannedLaunch {
        let mut launch = self.launch;
        if let (Strategy::Chunked, Some(axis)) = (self.strategy, self.axis) {
            // The largest chunk was validated, so a smaller one fits 32 bits.
            if let Some(Ok(blocks)) = self.share.blocks(chunk.items).map(u32::try_from) {
                launch = launch.shortened(axis, blocks);
            }
            // Dependence on the previous launch applies to the first chunk.
            if chunk.index > 0 {
                launch = launch.independent();
            }
        }
        PlannedLaunch { chunk, launch, first_block: [0; 3] }
    }

    /// The parts of the grid of a rewritten kernel.
    #[inline(always)]
    fn parts(&self) -> Option<GridParts> {
        let WholeGrid { grid, cluster } = self.whole?;
        let (whole, cluster) = (Dim3::from(grid), Dim3::from(cluster));
        let grid = match self.strategy {
            Strategy::Folded => Dim3::new(saturated(whole.volume()), 1, 1),
            _ => whole,
        };
        Some(GridParts::new(grid, self.launch.grid().into(), cluster))
    }

    #[inline(never)]
    fn launch_of_part(&self, part: GridPart) -> PlannedLaunch {
        let [x, y, z] = part.size;
        let launch = self.launch.shortened(Axis::X, x).shortened(Axis::Y, y).shortened(Axis::Z, z);
        let launch = if part.blocks.index > 0 { launch.independent() } else { launch };
        PlannedLaunch { chunk: part.blocks, launch, first_block: part.first }
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Plan {
    /// Serializes as `{"strategy", "launches": [{"start", "items", "grid"}, ...]}`, each launch of a
    /// rewritten kernel with its `first_block`. Launches past the first 4,096 are only counted, as
    /// `omitted_launches`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        #[derive(serde::Serialize)]
        struct ListedLaunch {
            start: u64,
            items: u64,
            grid: [u32; 3],
            #[serde(skip_serializing_if = "Option::is_none")]
            first_block: Option<[u32; 3]>,
        }
        let listed = |planned: PlannedLaunch| {
            let PlannedLaunch { chunk: Chunk { start, items, .. }, launch, first_block } = planned;
            let first_block = self.whole.map(|_| first_block);
            ListedLaunch { start, items, grid: launch.grid(), first_block }
        };
        let launches = self.launches().take_while(|one| one.chunk.index < LISTED_LAUNCHES);
        let launches: Vec<_> = launches.map(listed).collect();
        let omitted = self.len().saturating_sub(LISTED_LAUNCHES);
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
const LISTED_LAUNCHES: u64 = 4096;
