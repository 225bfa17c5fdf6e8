//! Launch configurations and batches, as callers describe them.

use core::ffi::c_void;

use gridguard::{Axis, BatchAxis, Choice, Dim3, LaunchRequest, Strategy};

use crate::failure::Failure;
use crate::memory::versioned;

/// Three sizes in 64 bits. A size beyond 32 bits is reported, not truncated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_dim3 {
    /// Along x.
    pub x: u64,
    /// Along y.
    pub y: u64,
    /// Along z.
    pub z: u64,
}

/// A launch configuration.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_config {
    /// Set it to `sizeof(gg_config)`.
    pub struct_size: usize,
    /// Blocks of the grid.
    pub grid: gg_dim3,
    /// Threads of a block.
    pub block: gg_dim3,
    /// Blocks of a cluster; zeros for none.
    pub cluster: gg_dim3,
    /// Dynamic shared memory of a block, in bytes.
    pub dynamic_shared_bytes: u64,
    /// Bytes of all parameters; 0 if unknown.
    pub parameter_bytes: u64,
    /// The `CUstream` that `gg_launch` launches on; NULL for the default one. Other functions ignore it.
    pub stream: *mut c_void,
    /// The launch's priority, with `GG_HAS_PRIORITY`.
    pub priority: i32,
    /// The sum of some of `GG_COOPERATIVE`, `GG_DEPENDENT` and `GG_HAS_PRIORITY`.
    pub flags: u32,
}

versioned!(gg_config, 112);

/// All blocks are co-resident and can synchronize.
pub const GG_COOPERATIVE: u32 = 1;
/// The launch may start before the previous one in its stream has ended (programmatic dependent launch).
/// Every thread of the kernel must execute `griddepcontrol.wait` before it accesses memory that earlier
/// launches access, and in any case before it ends.
pub const GG_DEPENDENT: u32 = 2;
/// `gg_config.priority` applies, instead of the stream's.
pub const GG_HAS_PRIORITY: u32 = 4;

/// A declaration that the blocks along one axis of the grid work on independent items, so that the
/// launch may be split there.
///
/// Each chunk is a launch of its own: along the axis, `blockIdx` begins at 0 and `gridDim` is the
/// chunk's. The kernel must find its items by its parameters alone: see `gg_following`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_batch {
    /// Set it to `sizeof(gg_batch)`.
    pub struct_size: usize,
    /// Independent items.
    pub items: u64,
    /// Every `items_per_block` items need `blocks_per_item` blocks along the axis. Both default to 1.
    pub blocks_per_item: u64,
    /// See `blocks_per_item`. Where several items share a block, the last block of a chunk may have
    /// fewer: the kernel must take their number from a `GG_LENGTH` parameter.
    pub items_per_block: u64,
    /// Chunks start at multiples of this number of items. Defaults to 1.
    pub align: u64,
    /// For a kernel that computes offsets in signed 32-bit integers: the elements of an item, so that a
    /// chunk has at most 2^31 - 1 elements. 0 for 64-bit offsets.
    pub elements_per_item: u64,
    /// Workspace of an item in bytes, out of `memory_bytes`; 0 for none.
    pub workspace_bytes_per_item: u64,
    /// Memory available for workspace in bytes.
    pub memory_bytes: u64,
    /// The most items of a chunk; 0 for as many as are legal.
    pub max_items: u64,
    /// `GG_STRATEGY_AUTOMATIC`, `_WHOLE`, `_CHUNKED`, `_FOLDED` or `_SHIFTED`.
    pub strategy: u32,
    /// The axis of the items: `GG_AXIS_X`, `GG_AXIS_Y` or `GG_AXIS_Z`.
    pub axis: u32,
    /// The sum of some of `GG_FOLDABLE` and `GG_PREFERENCE`.
    pub flags: u32,
    /// The number of `following`.
    pub following_count: u32,
    /// The parameters that change from chunk to chunk, for `gg_launch`. Other functions ignore them.
    pub following: *const gg_following,
}

versioned!(gg_batch, 96);

/// How one parameter changes from chunk to chunk. This structure never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_following {
    /// The parameter, from 0.
    pub parameter: u32,
    /// `GG_ITEMS`, `GG_OFFSET`, `GG_LENGTH` or `GG_CONSTANT`.
    pub kind: u32,
    /// For `GG_ITEMS`: bytes from one item to the next.
    pub stride_bytes: u64,
    /// For `GG_ITEMS`: bytes that one item spans; 0 for `stride_bytes`.
    pub span_bytes: u64,
    /// For `GG_ITEMS`: bytes of the memory from the pointer on, beyond which a launch is refused; 0 if
    /// unknown.
    pub reach_bytes: u64,
}

/// The items are along x.
pub const GG_AXIS_X: u32 = 0;
/// The items are along y.
pub const GG_AXIS_Y: u32 = 1;
/// The items are along z.
pub const GG_AXIS_Z: u32 = 2;

/// Unsplit if legal, else folded if declared, else the fewest chunks.
pub const GG_STRATEGY_AUTOMATIC: u32 = 0;
/// One launch, as requested.
pub const GG_STRATEGY_WHOLE: u32 = 1;
/// One launch for each chunk.
pub const GG_STRATEGY_CHUNKED: u32 = 2;
/// One launch with the axis moved to x.
pub const GG_STRATEGY_FOLDED: u32 = 3;
/// A choice of profiles for kernels that the Rust library rewrote; not legal for others.
pub const GG_STRATEGY_SHIFTED: u32 = 4;

/// The kernel computes a flat block index, so that its result is the same with the axis moved to x.
pub const GG_FOLDABLE: u32 = 1;
/// `strategy` and `max_items` are a preference, for example a profile's: if they are not legal, the launch
/// is planned automatically.
pub const GG_PREFERENCE: u32 = 2;

/// The parameter is a pointer to the items: each chunk gets a pointer to its first item.
pub const GG_ITEMS: u32 = 1;
/// The parameter is the chunk's first item, in 32 or 64 bits. The value that is passed is ignored.
pub const GG_OFFSET: u32 = 2;
/// The parameter is the chunk's number of items, in 32 or 64 bits. The value that is passed is ignored.
pub const GG_LENGTH: u32 = 3;
/// The parameter is the same in every chunk, also if it equals the number of items of the batch.
///
/// If blocks share items, a split launch is refused when another parameter of 4 or 8 bytes equals this number. A
/// kernel that compares an item's index with it would run past the end of its chunk.
pub const GG_CONSTANT: u32 = 4;

impl From<gg_dim3> for Dim3 {
    fn from(gg_dim3 { x, y, z }: gg_dim3) -> Self {
        Self::new(x, y, z)
    }
}

impl From<Dim3> for gg_dim3 {
    fn from(Dim3 { x, y, z }: Dim3) -> Self {
        Self { x, y, z }
    }
}

impl gg_config {
    #[inline(always)]
    pub(crate) fn request(&self) -> Result<LaunchRequest, Failure> {
        known_flags(self.flags, GG_COOPERATIVE | GG_DEPENDENT | GG_HAS_PRIORITY, "config.flags")?;
        let mut request = LaunchRequest::new(self.grid.into(), self.block.into())
            .dynamic_shared_bytes(self.dynamic_shared_bytes)
            .parameter_bytes(self.parameter_bytes);
        let cluster = Dim3::from(self.cluster);
        request.cluster = (cluster != Dim3::new(0, 0, 0)).then_some(cluster);
        request.cooperative = self.flags & GG_COOPERATIVE != 0;
        request.dependent = self.flags & GG_DEPENDENT != 0;
        request.priority = (self.flags & GG_HAS_PRIORITY != 0).then_some(self.priority);
        Ok(request)
    }
}

impl gg_batch {
    #[inline(always)]
    pub(crate) fn declared(&self) -> Result<BatchAxis, Failure> {
        known_flags(self.flags, GG_FOLDABLE | GG_PREFERENCE, "batch.flags")?;
        let axis = match self.axis {
            GG_AXIS_X => Axis::X,
            GG_AXIS_Y => Axis::Y,
            GG_AXIS_Z => Axis::Z,
            other => {
                return Err(Failure::range(
                    "batch.axis",
                    other,
                    "GG_AXIS_X, GG_AXIS_Y or GG_AXIS_Z",
                ));
            }
        };
        let mut batch = BatchAxis::new(axis, self.items)
            .blocks_per_items(self.blocks_per_item, self.items_per_block)
            .align(self.align);
        if self.elements_per_item > 0 {
            batch = batch.index_32_bits(self.elements_per_item);
        }
        if self.workspace_bytes_per_item > 0 {
            batch = batch.workspace(self.workspace_bytes_per_item, self.memory_bytes);
        }
        Ok(if self.flags & GG_FOLDABLE != 0 { batch.foldable() } else { batch })
    }

    #[inline(always)]
    pub(crate) fn choice(&self) -> Result<Choice, Failure> {
        let choice = Choice::at_most(self.max_items);
        Ok(match self.strategy {
            GG_STRATEGY_AUTOMATIC => choice,
            GG_STRATEGY_WHOLE => choice.strategy(Strategy::Whole),
            GG_STRATEGY_CHUNKED => choice.strategy(Strategy::Chunked),
            GG_STRATEGY_FOLDED => choice.strategy(Strategy::Folded),
            GG_STRATEGY_SHIFTED => choice.strategy(Strategy::Shifted),
            other => return Err(Failure::range("batch.strategy", other, "0 to 4")),
        })
    }

    /// Whether the launch is planned automatically if the caller's choice is not legal.
    pub(crate) const fn is_preference(&self) -> bool {
        self.flags & GG_PREFERENCE != 0
    }
}

/// The number of a strategy.
pub(crate) const fn strategy_number(strategy: Strategy) -> u32 {
    match strategy {
        Strategy::Whole => GG_STRATEGY_WHOLE,
        Strategy::Chunked => GG_STRATEGY_CHUNKED,
        Strategy::Folded => GG_STRATEGY_FOLDED,
        Strategy::Shifted => GG_STRATEGY_SHIFTED,
        // The planner knows no other.
        _ => GG_STRATEGY_AUTOMATIC,
    }
}

/// Flags that a later version adds are not ignored.
#[inline(always)]
pub(crate) fn known_flags(given: u32, all: u32, what: &'static str) -> Result<(), Failure> {
    if given & !all == 0 { Ok(()) } else { Err(Failure::range(what, given, "a sum of its flags")) }
}
