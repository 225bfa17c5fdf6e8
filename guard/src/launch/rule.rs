//! The rules that a launch must obey, each with a stable id.
//!
//! `DA` stands for `CU_DEVICE_ATTRIBUTE_`, `FA` for `CU_FUNC_ATTRIBUTE_`. What the driver returns was
//! measured on an NVIDIA H200 with driver 580.159.04 where a rule says so; `RULES.md` lists all.

use core::fmt;

use crate::dim::Axis;

macro_rules! rules {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $unit:ident, $code:expr;)*) => {
        /// A constraint on launches, with a stable id.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Rule {
            $(
                $(#[$doc])*
                #[cfg_attr(feature = "serde", serde(rename = $id))]
                $variant,
            )*
        }

        impl Rule {
            /// Every rule, in the order in which violations are reported.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The stable id, in kebab case.
            #[must_use]
            pub const fn id(self) -> &'static str {
                match self { $(Self::$variant => $id,)* }
            }

            /// The unit of `requested` and `limit` in this rule's violations.
            #[must_use]
            pub const fn unit(self) -> Unit {
                match self { $(Self::$variant => Unit::$unit,)* }
            }

            /// The `CUresult` that the driver returns for a launch that breaks only this rule and is not
            /// cooperative; for [`Rule::CooperativeResidency`], for one that is.
            ///
            /// `None` where no result was measured, and for rules that the driver does not check at the
            /// launch: those of plans, and [`Rule::ParameterBytes`], which compilers enforce.
            /// [`Violations::driver_code`](crate::Violations::driver_code) predicts the result where several
            /// rules are broken or the launch is cooperative.
            ///
            /// ```
            /// use gridguard::Rule;
            /// assert_eq!(Rule::GridDimY.driver_code(), Some(1)); // CUDA_ERROR_INVALID_VALUE
            /// assert_eq!(Rule::CooperativeResidency.driver_code(), Some(720));
            /// assert_eq!(Rule::IndexWidth.driver_code(), None); // the index wraps silently
            /// ```
            #[must_use]
            pub const fn driver_code(self) -> Option<i32> {
                match self { $(Self::$variant => $code,)* }
            }
        }
    };
}

rules! {
    /// Blocks along x of the grid, `DA MAX_GRID_DIM_X`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 2^31).
    GridDimX = "grid-dim-x", Blocks, Some(INVALID_VALUE);
    /// Blocks along y of the grid, `DA MAX_GRID_DIM_Y`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 65,536).
    GridDimY = "grid-dim-y", Blocks, Some(INVALID_VALUE);
    /// Blocks along z of the grid, `DA MAX_GRID_DIM_Z`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 65,536).
    GridDimZ = "grid-dim-z", Blocks, Some(INVALID_VALUE);
    /// An axis of the grid without blocks. The driver returns `CUDA_ERROR_INVALID_VALUE` (H200).
    GridDimZero = "grid-dim-zero", Blocks, Some(INVALID_VALUE);
    /// Threads along x of a block, `DA MAX_BLOCK_DIM_X`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 1,025).
    BlockDimX = "block-dim-x", Threads, Some(INVALID_VALUE);
    /// Threads along y of a block, `DA MAX_BLOCK_DIM_Y`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 1,025).
    BlockDimY = "block-dim-y", Threads, Some(INVALID_VALUE);
    /// Threads along z of a block, `DA MAX_BLOCK_DIM_Z`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 65).
    BlockDimZ = "block-dim-z", Threads, Some(INVALID_VALUE);
    /// An axis of the block without threads. The driver returns `CUDA_ERROR_INVALID_VALUE` (H200).
    BlockDimZero = "block-dim-zero", Threads, Some(INVALID_VALUE);
    /// Threads of a block, `DA MAX_THREADS_PER_BLOCK`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 32 x 33).
    ThreadsPerBlock = "threads-per-block", Threads, Some(INVALID_VALUE);
    /// Threads of a block of this kernel, `FA MAX_THREADS_PER_BLOCK`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 129 threads under `__launch_bounds__(128)`).
    KernelThreadsPerBlock = "kernel-threads-per-block", Threads, Some(INVALID_VALUE);
    /// The only block that a kernel compiled with `.reqntid` may be launched with. No driver attribute
    /// states it; images do, see `KernelAttributes` of the feature `image`. PTX calls other launches errors.
    RequiredBlock = "required-block", Threads, None;
    /// Registers of a block: `FA NUM_REGS`, rounded up as they are allocated, against
    /// `DA MAX_REGISTERS_PER_BLOCK`. The driver returns `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES`
    /// (H200: 257 threads of 210 registers).
    RegistersPerBlock = "registers-per-block", Registers, Some(LAUNCH_OUT_OF_RESOURCES);
    /// Local memory of a thread, `FA LOCAL_SIZE_BYTES`: at most
    /// [`LOCAL_BYTES_PER_THREAD`](crate::LOCAL_BYTES_PER_THREAD), and the device's memory must hold that of
    /// all threads that can be resident, see
    /// [`DeviceLimits::max_local_bytes_per_thread`](crate::DeviceLimits::max_local_bytes_per_thread).
    /// Such a kernel loads, but no launch of it succeeds. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 523,728 bytes).
    LocalMemory = "local-memory", Bytes, Some(INVALID_VALUE);
    /// Static plus dynamic shared memory, `FA SHARED_SIZE_BYTES` against
    /// `DA MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`. `cuFuncSetAttribute` returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 232,449 bytes).
    SharedMemoryTotal = "shared-memory-total", Bytes, Some(INVALID_VALUE);
    /// Dynamic shared memory beyond what the kernel opted in to,
    /// `FA MAX_DYNAMIC_SHARED_SIZE_BYTES`. The driver returns `CUDA_ERROR_INVALID_VALUE`
    /// (H200: 49,153 bytes without opt-in).
    DynamicSharedMemoryOptIn = "dynamic-shared-memory-opt-in", Bytes, Some(INVALID_VALUE);
    /// A cluster on a device without cluster support, `DA CLUSTER_LAUNCH`.
    ClusterUnsupported = "cluster-unsupported", Blocks, None;
    /// Blocks of a cluster: at most 8, or 16 if the kernel sets
    /// `FA NON_PORTABLE_CLUSTER_SIZE_ALLOWED`, also for a cluster size that was compiled in. No axis
    /// may be zero, unless all are, which means no cluster. The driver returns
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE` (H200).
    ClusterSize = "cluster-size", Blocks, Some(INVALID_CLUSTER_SIZE);
    /// Each axis of the grid must be a multiple of the cluster's, also for a cluster size that was
    /// compiled in. The driver returns `CUDA_ERROR_INVALID_CLUSTER_SIZE` (H200: 9 by 8).
    ClusterDividesGrid = "cluster-divides-grid", Blocks, Some(INVALID_CLUSTER_SIZE);
    /// A kernel compiled with `__cluster_dims__` accepts only that cluster, and one with
    /// `FA CLUSTER_SIZE_MUST_BE_SET` requires one. The driver returns
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE` (H200, another size).
    ClusterRequired = "cluster-required", Blocks, Some(INVALID_CLUSTER_SIZE);
    /// Blocks of a cluster that can be co-resident with this block size and shared memory:
    /// `cuOccupancyMaxPotentialClusterSize` and `cuOccupancyMaxActiveClusters`. Checked where they
    /// are known, see [`OccupancyLimits`](crate::OccupancyLimits). The driver returns
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE` (never seen on an H200, which fits all sizes).
    ClusterResidency = "cluster-residency", Blocks, Some(INVALID_CLUSTER_SIZE);
    /// A cooperative launch on a device without support, `DA COOPERATIVE_LAUNCH`.
    CooperativeUnsupported = "cooperative-unsupported", Launches, None;
    /// Blocks of a cooperative grid, which must all be co-resident:
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor` times the multiprocessors that the context and its
    /// stream can use, which are fewer than `DA MULTIPROCESSOR_COUNT` in a green context or under execution
    /// affinity, or the blocks of `cuOccupancyMaxActiveClusters` if these are fewer. Without a driver it is
    /// calculated by the same rules, see
    /// [`LaunchLimits::co_resident_blocks`](crate::LaunchLimits::co_resident_blocks).
    /// The driver returns `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE` (H200: 265 blocks of 1,024
    /// threads, or 236 in clusters of 5).
    CooperativeResidency = "cooperative-residency", Blocks, Some(COOPERATIVE_LAUNCH_TOO_LARGE);
    /// Programmatic dependent launch on a device before compute capability 9.0.
    DependentUnsupported = "dependent-unsupported", Launches, None;
    /// Bytes of kernel parameters: 4,096, or 32,764 from compute capability 7.0 on with a driver
    /// of CUDA 12.1 or later. Compilers enforce it: NVRTC rejects 32,765, and PTX with as many does
    /// not load, `CUDA_ERROR_INVALID_PTX` (H200).
    ParameterBytes = "parameter-bytes", Bytes, None;
    /// Elements that one launch of a kernel with 32-bit indices addresses, at most 2^31 - 1. The
    /// driver does not check: the index wraps silently.
    IndexWidth = "index-width", Elements, None;
    /// Workspace of one launch against the memory available for it. The allocation returns
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    WorkspaceMemory = "workspace-memory", Bytes, None;
    /// The grid must have as many blocks along the batch axis as the declared items need. The driver
    /// cannot check: missing blocks leave output unwritten.
    BatchCoversGrid = "batch-covers-grid", Blocks, None;
    /// A cooperative launch cannot be split: it synchronizes the whole grid.
    SplitCooperative = "split-cooperative", Launches, None;
    /// A launch cannot be split if every chunk would cut a cluster.
    SplitCluster = "split-cluster", Items, None;
    /// A launch cannot be split into chunks smaller than one unit of the batch's alignment.
    SplitAlignment = "split-alignment", Items, None;
    /// A launch cannot be split if one item alone needs more blocks than the axis allows.
    SplitItem = "split-item", Blocks, None;
    /// Folding was chosen, but the batch is not declared foldable, or already on x, or a cluster lies
    /// along the axis; and the kernel was not rewritten, or its grid has more than 2^31 blocks.
    FoldUnavailable = "fold-unavailable", Launches, None;
    /// Shifting was chosen, but the kernel was not rewritten, or is launched in clusters.
    ShiftUnavailable = "shift-unavailable", Launches, None;
}

/// A [`RuleSet`] has one bit per rule.
const _: () = assert!(Rule::ALL.len() <= 64);

/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) const INVALID_VALUE: i32 = 1;
/// `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES`.
pub(crate) const LAUNCH_OUT_OF_RESOURCES: i32 = 701;
/// `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE`.
pub(crate) const COOPERATIVE_LAUNCH_TOO_LARGE: i32 = 720;
/// `CUDA_ERROR_INVALID_CLUSTER_SIZE`.
pub(crate) const INVALID_CLUSTER_SIZE: i32 = 912;

impl Rule {
    /// The rule's index in [`Rule::ALL`].
    #[allow(clippy::as_conversions, reason = "the discriminant of a field-less `repr(u8)` enum")]
    pub(crate) const fn index(self) -> usize {
        self as usize
    }

    const fn bit(self) -> u64 {
        1 << self.index()
    }

    pub(crate) const fn grid_dim(axis: Axis) -> Self {
        match axis {
            Axis::X => Self::GridDimX,
            Axis::Y => Self::GridDimY,
            Axis::Z => Self::GridDimZ,
        }
    }

    /// Whether it limits the blocks along an axis of the grid.
    #[cfg(all(feature = "cuda", feature = "ptx"))]
    pub(crate) const fn is_grid_dim(self) -> bool {
        matches!(self, Self::GridDimX | Self::GridDimY | Self::GridDimZ)
    }

    pub(crate) const fn block_dim(axis: Axis) -> Self {
        match axis {
            Axis::X => Self::BlockDimX,
            Axis::Y => Self::BlockDimY,
            Axis::Z => Self::BlockDimZ,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// The unit of a violation's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Unit {
    /// Blocks of a grid or a cluster.
    Blocks,
    /// Threads of a block.
    Threads,
    /// 32-bit registers.
    Registers,
    /// Bytes.
    Bytes,
    /// Elements of the addressed tensors.
    Elements,
    /// Independent items of a batch.
    Items,
    /// Launches.
    Launches,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blocks => "blocks",
            Self::Threads => "threads",
            Self::Registers => "registers",
            Self::Bytes => "bytes",
            Self::Elements => "elements",
            Self::Items => "items",
            Self::Launches => "launches",
        })
    }
}

/// A set of rules without allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RuleSet(u64);

impl RuleSet {
    pub(crate) const EMPTY: Self = Self(0);

    pub(crate) const fn of(rule: Rule) -> Self {
        Self(rule.bit())
    }

    pub(crate) const fn without(self, rule: Rule) -> Self {
        Self(self.0 & !rule.bit())
    }

    /// Adds `rule` if `broken`.
    #[inline]
    pub(crate) const fn add(&mut self, rule: Rule, broken: bool) {
        if broken {
            self.0 |= rule.bit();
        }
    }

    pub(crate) const fn contains(self, rule: Rule) -> bool {
        self.0 & rule.bit() != 0
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_kebab_case() {
        let ids: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.id()).collect();
        assert_eq!(ids.len(), Rule::ALL.len());
        for id in ids {
            assert!(id.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{id}");
        }
    }

    #[test]
    fn the_table_of_rules_has_every_rule_with_its_code() {
        let table = include_str!("../../RULES.md");
        let rows: Vec<Vec<&str>> = table
            .lines()
            .filter(|line| line.starts_with("| `"))
            .map(|line| line.split('|').map(str::trim).collect())
            .collect();
        assert_eq!(rows.len(), Rule::ALL.len());
        for (row, rule) in rows.iter().zip(Rule::ALL) {
            assert_eq!(row[1], format!("`{rule}`"));
            let code = row[3].split_whitespace().next().and_then(|code| code.parse().ok());
            assert_eq!(rule.driver_code(), code, "{rule}");
        }
    }

    #[test]
    fn every_rule_has_its_index_and_its_bit() {
        for (place, rule) in Rule::ALL.iter().enumerate() {
            assert_eq!(rule.index(), place);
            let mut broken = RuleSet::EMPTY;
            broken.add(*rule, true);
            assert!(broken.contains(*rule));
            assert!(broken.without(*rule).is_empty());
        }
    }
}
