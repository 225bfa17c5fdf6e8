//! The rules that a launch must obey: one table with each rule's stable id, unit, error codes and message.
//!
//! `DA` stands for `CU_DEVICE_ATTRIBUTE_`, `FA` for `CU_FUNC_ATTRIBUTE_`. "H200" marks
//! measurements on an NVIDIA H200 with driver 580.159.04. `RULES.md` lists all measurements.

use derive_more::Display;

use crate::dim::Axis;

/// Declares the rules from rows of `Variant = id, unit, codes, message`.
///
/// `Returns[..]` means that the driver returns the first code (measured), `May[..]` that no code was
/// measured or that the driver does not check the rule at the launch. The other codes are results that may
/// follow from breaking the rule. Messages are filled in by [`Violation`](crate::Violation).
macro_rules! rules {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $unit:ident, $kind:ident[$($code:expr),*], $message:expr;)*) => {
        /// A constraint on launches, with a stable id.
        #[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[display("{}", self.id())]
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
            /// Every rule, in the order of reported violations.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            const ROWS: &'static [Row] = &[
                $(Row { id: $id, unit: Unit::$unit, codes: Codes::$kind(&[$($code),*]), message: $message },)*
            ];
        }
    };
}

/// What the table says about a rule.
struct Row {
    id: &'static str,
    unit: Unit,
    codes: Codes,
    message: &'static str,
}

/// Results of the driver for a launch that breaks a rule.
enum Codes {
    Returns(&'static [i32]),
    May(&'static [i32]),
}

rules! {
    /// Blocks along x of the grid, `DA MAX_GRID_DIM_X`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 2^31).
    GridDimX = "grid-dim-x", Blocks, Returns[INVALID_VALUE, 9], "grid.{axis} is {exceeds}";
    /// Blocks along y of the grid, `DA MAX_GRID_DIM_Y`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 65,536).
    GridDimY = "grid-dim-y", Blocks, Returns[INVALID_VALUE, 9], "grid.{axis} is {exceeds}";
    /// Blocks along z of the grid, `DA MAX_GRID_DIM_Z`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 65,536).
    GridDimZ = "grid-dim-z", Blocks, Returns[INVALID_VALUE, 9], "grid.{axis} is {exceeds}";
    /// An axis of the grid has no blocks. The driver returns `CUDA_ERROR_INVALID_VALUE` (H200).
    GridDimZero = "grid-dim-zero", Blocks, Returns[INVALID_VALUE, 9],
        "grid.{axis} is 0 {unit}, the minimum is 1 ({owner})";
    /// Threads along x of a block, `DA MAX_BLOCK_DIM_X`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 1,025).
    BlockDimX = "block-dim-x", Threads, Returns[INVALID_VALUE, 9], "block.{axis} is {exceeds}";
    /// Threads along y of a block, `DA MAX_BLOCK_DIM_Y`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 1,025).
    BlockDimY = "block-dim-y", Threads, Returns[INVALID_VALUE, 9], "block.{axis} is {exceeds}";
    /// Threads along z of a block, `DA MAX_BLOCK_DIM_Z`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 65).
    BlockDimZ = "block-dim-z", Threads, Returns[INVALID_VALUE, 9], "block.{axis} is {exceeds}";
    /// An axis of the block has no threads. The driver returns `CUDA_ERROR_INVALID_VALUE` (H200).
    BlockDimZero = "block-dim-zero", Threads, Returns[INVALID_VALUE, 9],
        "block.{axis} is 0 {unit}, the minimum is 1 ({owner})";
    /// Threads of a block, `DA MAX_THREADS_PER_BLOCK`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 32 x 33).
    ThreadsPerBlock = "threads-per-block", Threads, Returns[INVALID_VALUE, 9], "block has {exceeds}";
    /// Threads of a block of this kernel, `FA MAX_THREADS_PER_BLOCK`. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 129 threads under `__launch_bounds__(128)`).
    KernelThreadsPerBlock = "kernel-threads-per-block", Threads, Returns[INVALID_VALUE, 9],
        "block has {exceeds}";
    /// The block size that a kernel was compiled for with `.reqntid`. No driver attribute states it. Images
    /// do: see `KernelAttributes` of the feature `image`.
    RequiredBlock = "required-block", Threads, May[INVALID_VALUE, 9],
        "block.{axis} is {requested} {unit}, {owner} requires {limit}";
    /// Registers of a block: `FA NUM_REGS`, rounded up to the allocation unit, against
    /// `DA MAX_REGISTERS_PER_BLOCK`. The driver returns `CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES`
    /// (H200: 257 threads of 210 registers).
    RegistersPerBlock = "registers-per-block", Registers, Returns[LAUNCH_OUT_OF_RESOURCES, 720],
        "block needs {exceeds}";
    /// Local memory per thread, `FA LOCAL_SIZE_BYTES`, against
    /// [`DeviceLimits::max_local_bytes_per_thread`](crate::DeviceLimits::max_local_bytes_per_thread). A
    /// kernel above the limit loads, but cannot be launched. The driver returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 523,728 bytes).
    LocalMemory = "local-memory", Bytes, Returns[INVALID_VALUE, 2], "local memory per thread is {exceeds}";
    /// Static plus dynamic shared memory, `FA SHARED_SIZE_BYTES` against
    /// `DA MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`. `cuFuncSetAttribute` returns
    /// `CUDA_ERROR_INVALID_VALUE` (H200: 232,449 bytes).
    SharedMemoryTotal = "shared-memory-total", Bytes, Returns[INVALID_VALUE, 9, 720],
        "static and dynamic shared memory is {exceeds}";
    /// Dynamic shared memory above the kernel's opt-in,
    /// `FA MAX_DYNAMIC_SHARED_SIZE_BYTES`. The driver returns `CUDA_ERROR_INVALID_VALUE`
    /// (H200: 49,153 bytes without opt-in).
    DynamicSharedMemoryOptIn = "dynamic-shared-memory-opt-in", Bytes, Returns[INVALID_VALUE, 9, 720],
        "dynamic shared memory is {exceeds}";
    /// A cluster on a device without cluster support, `DA CLUSTER_LAUNCH`.
    ClusterUnsupported = "cluster-unsupported", Blocks, May[801, 1, 9, 912],
        "cluster has {requested} {unit}, {owner} does not support clusters";
    /// Blocks of a cluster: at most 8, or 16 if the kernel sets `FA NON_PORTABLE_CLUSTER_SIZE_ALLOWED`. It
    /// also holds for a compiled-in cluster. Either all axes are zero (no cluster) or none. The driver returns
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE` (H200).
    ClusterSize = "cluster-size", Blocks, Returns[INVALID_CLUSTER_SIZE, 1, 9], "cluster has {exceeds}";
    /// Each axis of the grid must be a multiple of the cluster's axis, also with a compiled-in cluster. The
    /// driver returns `CUDA_ERROR_INVALID_CLUSTER_SIZE` (H200: 9 by 8).
    ClusterDividesGrid = "cluster-divides-grid", Blocks, Returns[INVALID_CLUSTER_SIZE, 1, 9],
        "grid.{axis} ({requested}) is not a multiple of the cluster size ({limit})";
    /// A kernel compiled with `__cluster_dims__` accepts only that cluster, and one with
    /// `FA CLUSTER_SIZE_MUST_BE_SET` requires one. The driver returns
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE` (H200, another size).
    ClusterRequired = "cluster-required", Blocks, Returns[INVALID_CLUSTER_SIZE, 1, 9],
        "cluster.{axis} is {requested} {unit}, {owner} requires {limit}";
    /// Blocks of a cluster that can be co-resident with this block size and shared memory:
    /// `cuOccupancyMaxPotentialClusterSize` and `cuOccupancyMaxActiveClusters`. It is checked if
    /// [`OccupancyLimits`](crate::OccupancyLimits) has them. The driver returns
    /// `CUDA_ERROR_INVALID_CLUSTER_SIZE` (never seen on an H200, which fits all sizes).
    ClusterResidency = "cluster-residency", Blocks, Returns[INVALID_CLUSTER_SIZE],
        "cluster has {requested} {unit}, only {limit} can be co-resident ({owner})";
    /// A cooperative launch on a device without support, `DA COOPERATIVE_LAUNCH`.
    CooperativeUnsupported = "cooperative-unsupported", Launches, May[801, 1, 9, 912],
        "{owner} does not support cooperative launch";
    /// All blocks of a cooperative grid must be co-resident. The limit is
    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor` times the multiprocessors that the stream can use, or
    /// the blocks of `cuOccupancyMaxActiveClusters` if these are fewer. Green contexts and execution affinity
    /// reduce the multiprocessors. Without a driver, see
    /// [`LaunchLimits::co_resident_blocks`](crate::LaunchLimits::co_resident_blocks).
    /// The driver returns `CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE` (H200: 265 blocks of 1,024
    /// threads, or 236 in clusters of 5).
    CooperativeResidency = "cooperative-residency", Blocks, Returns[COOPERATIVE_LAUNCH_TOO_LARGE],
        "cooperative grid has {requested} {unit}, only {limit} can be co-resident ({owner})";
    /// Programmatic dependent launch on a device before compute capability 9.0.
    DependentUnsupported = "dependent-unsupported", Launches, May[801, 1, 9],
        "{owner} does not support programmatic dependent launch";
    /// Bytes of kernel parameters: 4,096, or 32,764 from compute capability 7.0 on with a driver
    /// of CUDA 12.1 or later. Compilers enforce it: NVRTC rejects 32,765 bytes, and PTX with 32,765 fails to
    /// load with `CUDA_ERROR_INVALID_PTX` (H200).
    ParameterBytes = "parameter-bytes", Bytes, May[1, 701], "kernel parameters are {exceeds}";
    /// The largest index that a launch computes in 32 bits: by the kernel's [`IndexLimit`](crate::IndexLimit), which is
    /// found in its PTX, or by the elements that the caller's [`BatchAxis`](crate::BatchAxis) declares. The driver does
    /// not check it: the index wraps silently.
    IndexWrap = "index-wrap", Elements, May[700, 719], "the launch addresses {exceeds}";
    /// Workspace of one launch against the available memory. The allocation returns
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    WorkspaceMemory = "workspace-memory", Bytes, May[2], "workspace is {exceeds}";
    /// The grid must have the blocks along the batch axis that the declared items need. The driver cannot
    /// check it: missing blocks leave output unwritten.
    BatchCoversGrid = "batch-covers-grid", Blocks, May[],
        "grid.{axis} is {requested} {unit}, the batch needs {limit}";
    /// A cooperative launch synchronizes the whole grid, so it cannot be split.
    SplitCooperative = "split-cooperative", Launches, May[],
        "{requested} {unit} are needed, but a cooperative launch cannot be split";
    /// A launch cannot be split if every chunk would cut a cluster.
    SplitCluster = "split-cluster", Items, May[], "the smallest possible chunk is {exceeds}";
    /// A launch cannot be split into chunks smaller than one unit of the batch's alignment.
    SplitAlignment = "split-alignment", Items, May[], "the smallest possible chunk is {exceeds}";
    /// A launch cannot be split if one item alone needs more blocks than the axis allows.
    SplitItem = "split-item", Blocks, May[],
        "one item needs {requested} {unit} along {axis}, the limit is {limit} ({owner})";
    /// Folding was chosen, but is not possible. The batch is not declared foldable, is already on x, or has a cluster
    /// along the axis; and there is no rewritten kernel, or its grid has 2^31 blocks or more.
    FoldUnavailable = "fold-unavailable", Launches, May[],
        "folding was chosen, but the grid cannot be folded into x";
    /// Shifting was chosen, but the kernel was not rewritten, or is launched in clusters.
    ShiftUnavailable = "shift-unavailable", Launches, May[],
        "shifting was chosen, but {owner} was not rewritten or has clusters";
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
    const fn row(self) -> &'static Row {
        &Self::ROWS[self.index()]
    }

    /// The stable id, in kebab case.
    pub const fn id(self) -> &'static str {
        self.row().id
    }

    /// The unit of `requested` and `limit` in this rule's violations.
    pub const fn unit(self) -> Unit {
        self.row().unit
    }

    /// The text of a violation without its remedy, with names in braces for its values.
    pub(crate) const fn message(self) -> &'static str {
        self.row().message
    }

    /// The `CUresult` that the driver returns for a launch that breaks only this rule and is not
    /// cooperative. For [`Rule::CooperativeResidency`] the launch is cooperative.
    ///
    /// `None` if no result was measured, or the driver does not check the rule at the launch. The latter are the rules
    /// of plans, and [`Rule::ParameterBytes`], which compilers enforce.
    /// [`Violations::driver_code`](crate::Violations::driver_code) predicts the result for several broken rules and for
    /// cooperative launches.
    ///
    /// ```
    /// use gridguard::Rule;
    /// assert_eq!(Rule::GridDimY.driver_code(), Some(1)); // CUDA_ERROR_INVALID_VALUE
    /// assert_eq!(Rule::CooperativeResidency.driver_code(), Some(720));
    /// assert_eq!(Rule::IndexWrap.driver_code(), None); // the index wraps silently
    /// ```
    pub const fn driver_code(self) -> Option<i32> {
        match self.row().codes {
            Codes::Returns([code, ..]) => Some(*code),
            _ => None,
        }
    }

    /// The codes that a launch that breaks this rule can fail with, the driver's own first. Empty if CUDA
    /// does not check the rule.
    pub const fn possible_codes(self) -> &'static [i32] {
        match self.row().codes {
            Codes::Returns(codes) | Codes::May(codes) => codes,
        }
    }

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

    /// Whether the rule limits the blocks along an axis of the grid.
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

/// The unit of a violation's numbers.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[display(rename_all = "lowercase")]
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

    #[inline]
    pub(crate) const fn add(&mut self, rule: Rule) {
        self.0 |= rule.bit();
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
            broken.add(*rule);
            assert!(broken.contains(*rule));
            assert!(broken.without(*rule).is_empty());
        }
    }
}
