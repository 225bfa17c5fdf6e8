//! What is wrong with a launch, in numbers and in words.

use core::fmt;

use crate::dim::{Axis, Dim3};
use crate::launch::rule::{Rule, Unit};

/// One broken rule: what was asked for, what the limit is, whose limit, and the way out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// The axis it was broken on, where the rule has one.
    pub axis: Option<Axis>,
    /// What was asked for, in the rule's unit; never wrapped.
    pub requested: u128,
    /// The limit, in the rule's unit.
    pub limit: u64,
    /// Whose limit it is.
    pub owner: Owner,
    /// The way out.
    pub remedy: Remedy,
}

impl Violation {
    /// What `requested` and `limit` count.
    #[must_use]
    pub const fn unit(&self) -> Unit {
        self.rule.unit()
    }
}

/// Whose limit a violation ran into.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owner {
    /// A device, by name.
    Device(String),
    /// A kernel, by name.
    Kernel(String),
    /// CUDA itself, on every device.
    Cuda,
    /// The cluster of the launch.
    Cluster(Dim3),
    /// The kernel's index arithmetic, of so many bits.
    IndexBits(u32),
    /// The memory that the caller allows for workspace.
    Memory,
    /// The batch that the caller declared.
    Batch,
    /// The barrier of a cooperative launch.
    CooperativeLaunch,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => f.write_str(name),
            Self::Kernel(name) => write!(f, "kernel {name}"),
            Self::Cuda => f.write_str("CUDA"),
            Self::Cluster(cluster) => write!(f, "cluster of {cluster}"),
            Self::IndexBits(bits) => write!(f, "{bits}-bit index"),
            Self::Memory => f.write_str("memory given for workspace"),
            Self::Batch => f.write_str("batch"),
            Self::CooperativeLaunch => f.write_str("cooperative launch"),
        }
    }
}

/// The way out of a violation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Split a grid axis into launches of at most so many blocks.
    SplitAxis {
        /// The axis to split.
        axis: Axis,
        /// How many launches it takes.
        launches: u64,
        /// Blocks of the largest one.
        blocks: u64,
        /// Whether folding the axis into x would fit as well.
        fold: bool,
    },
    /// Split the batch into launches of at most so many items.
    SplitItems {
        /// How many launches it takes.
        launches: u64,
        /// Items of the largest one.
        items: u64,
    },
    /// Nothing to do: do not launch.
    SkipLaunch,
    /// Give each axis at least one.
    AtLeastOne,
    /// Move threads to another axis of the block.
    MoveThreads,
    /// Use smaller blocks.
    SmallerBlocks {
        /// The most threads that fit.
        threads: u64,
    },
    /// Use smaller blocks, or compile for fewer registers.
    FewerRegisters {
        /// The most threads whose registers fit.
        threads: u64,
    },
    /// Ask for less dynamic shared memory.
    LessSharedMemory {
        /// Dynamic bytes that fit beside the static ones.
        dynamic_bytes: u64,
        /// Static bytes of the kernel.
        static_bytes: u64,
    },
    /// Opt in to large dynamic shared memory.
    OptIn {
        /// Dynamic bytes that the device allows the kernel after opting in.
        device_bytes: u64,
    },
    /// Launch without a cluster, or elsewhere.
    NoCluster,
    /// Use a smaller cluster, or allow non-portable sizes, as `Module::kernel_in_wide_clusters` of
    /// the feature `cuda` does.
    SmallerCluster {
        /// Whether allowing non-portable sizes would do.
        non_portable: bool,
    },
    /// Use a smaller cluster, or blocks that take less of a multiprocessor.
    LighterCluster,
    /// Pad the grid's axis to a multiple of the cluster.
    PadGrid {
        /// The next multiple, in blocks; saturated.
        blocks: u64,
    },
    /// Launch with the cluster that the kernel was compiled for.
    UseCluster {
        /// That cluster, or none where any will do.
        cluster: Option<Dim3>,
    },
    /// Launch without a grid-wide barrier.
    NotCooperative,
    /// Let the launch wait for the one before it.
    NotDependent,
    /// Pass the large part through a buffer.
    PassByPointer,
    /// Compile the kernel with 64-bit indices.
    WiderIndex,
    /// Give more memory, or use less workspace an item.
    MoreMemory,
    /// Make grid and batch agree.
    MatchBatch {
        /// The declared items.
        items: u64,
    },
    /// Keep the launch whole: shrink the grid.
    ShrinkGrid,
    /// Chunks can only be multiples of this.
    ChunkUnit {
        /// Items of the smallest chunk that keeps clusters and alignment whole.
        items: u64,
    },
    /// Give an item fewer blocks of the axis.
    FewerBlocksPerItem,
    /// Declare a flat layout, or choose another strategy.
    DeclareFold,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SplitAxis { axis, launches, blocks, fold } => {
                write!(f, "split axis {axis} into {launches} launches of {blocks}")?;
                if *fold {
                    f.write_str(", or fold it into x")?;
                }
                Ok(())
            }
            Self::SplitItems { launches, items } => {
                write!(f, "split the batch into {launches} launches of {items} items")
            }
            Self::SkipLaunch => {
                f.write_str("skip the launch when there is nothing to do, or declare a batch axis")
            }
            Self::AtLeastOne => f.write_str("give every axis at least one"),
            Self::MoveThreads => f.write_str("move threads to another axis of the block"),
            Self::SmallerBlocks { threads } => {
                write!(f, "use blocks of at most {threads} threads")
            }
            Self::FewerRegisters { threads: 0 } => {
                f.write_str("compile the kernel for fewer registers a thread")
            }
            Self::FewerRegisters { threads } => write!(
                f,
                "use blocks of at most {threads} threads, or compile the kernel for fewer \
                 registers a thread"
            ),
            Self::LessSharedMemory { dynamic_bytes: 0, static_bytes } => {
                write!(f, "shrink the {static_bytes} static bytes")
            }
            Self::LessSharedMemory { dynamic_bytes, static_bytes } => write!(
                f,
                "ask for at most {dynamic_bytes} dynamic bytes beside {static_bytes} static ones"
            ),
            Self::OptIn { device_bytes } => write!(
                f,
                "opt in with CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, the device allows \
                 {device_bytes}"
            ),
            Self::NoCluster => f.write_str(
                "launch without a cluster, or on a device of compute capability 9.0 or later",
            ),
            Self::SmallerCluster { non_portable: true } => f.write_str(
                "use a smaller cluster, or set \
                 CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED on the kernel",
            ),
            Self::SmallerCluster { non_portable: false } => f.write_str("use a smaller cluster"),
            Self::LighterCluster => f.write_str(
                "use a smaller cluster, or blocks of fewer threads or less shared memory",
            ),
            Self::PadGrid { blocks } => {
                write!(f, "pad the axis to {blocks}, or use a cluster that divides it")
            }
            Self::UseCluster { cluster: Some(cluster) } => {
                write!(f, "launch with the cluster of {cluster} that the kernel was compiled for")
            }
            Self::UseCluster { cluster: None } => f.write_str("name a cluster for the launch"),
            Self::NotCooperative => {
                f.write_str("launch without a grid-wide barrier, or on another device")
            }
            Self::NotDependent => f.write_str(
                "let it wait for the launch before it, or launch on a device of compute \
                 capability 9.0 or later",
            ),
            Self::PassByPointer => f.write_str("pass the large part through a buffer"),
            Self::WiderIndex => f.write_str("compile the kernel with 64-bit indices"),
            Self::MoreMemory => {
                f.write_str("give it more memory, or use less workspace for each item")
            }
            Self::MatchBatch { items } => {
                write!(f, "make the grid cover the {items} items that the batch declares")
            }
            Self::ShrinkGrid => f.write_str(
                "its barrier spans the whole grid, so use fewer blocks with a loop over the items",
            ),
            Self::ChunkUnit { items } => {
                write!(f, "a chunk must be a multiple of {items} items, raise the cap")
            }
            Self::FewerBlocksPerItem => f.write_str(
                "let an item take fewer blocks of the axis, or put some of them on another one",
            ),
            Self::DeclareFold => {
                f.write_str("declare the kernel's flat layout, or choose another strategy")
            }
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, axis, requested, limit, owner, remedy } = self;
        let axis = axis.map_or("", Axis::letter);
        let unit = rule.unit();
        match rule {
            Rule::GridDimX | Rule::GridDimY | Rule::GridDimZ => {
                write!(f, "grid.{axis} is {requested} {unit}, the limit is {limit} ({owner})")?;
            }
            Rule::BlockDimX | Rule::BlockDimY | Rule::BlockDimZ => {
                write!(f, "block.{axis} is {requested} {unit}, the limit is {limit} ({owner})")?;
            }
            Rule::GridDimZero => write!(f, "grid.{axis} is 0 blocks, the least is 1 ({owner})")?,
            Rule::BlockDimZero => write!(f, "block.{axis} is 0 threads, the least is 1 ({owner})")?,
            Rule::ThreadsPerBlock | Rule::KernelThreadsPerBlock => {
                write!(f, "a block is {requested} {unit}, the limit is {limit} ({owner})")?;
            }
            Rule::RegistersPerBlock => {
                write!(f, "a block takes {requested} {unit}, the limit is {limit} ({owner})")?;
            }
            Rule::SharedMemoryTotal => write!(
                f,
                "static and dynamic shared memory is {requested} {unit}, the limit is {limit} \
                 ({owner})"
            )?,
            Rule::DynamicSharedMemoryOptIn => write!(
                f,
                "dynamic shared memory is {requested} {unit}, the limit is {limit} ({owner})"
            )?,
            Rule::ClusterUnsupported => {
                write!(f, "a cluster is {requested} {unit}, there are none on {owner}")?;
            }
            Rule::ClusterSize if *requested == 0 => {
                write!(f, "cluster.{axis} is 0 blocks, the least is 1 ({owner})")?;
            }
            Rule::ClusterSize => {
                write!(f, "a cluster is {requested} {unit}, the limit is {limit} ({owner})")?;
            }
            Rule::ClusterDividesGrid => {
                write!(f, "grid.{axis} is {requested} {unit}, no multiple of {limit} ({owner})")?;
            }
            Rule::ClusterRequired if *requested == 0 => {
                write!(f, "the launch names no cluster, one is required ({owner})")?;
            }
            Rule::ClusterRequired => {
                write!(f, "cluster.{axis} is {requested} {unit}, required are {limit} ({owner})")?;
            }
            Rule::ClusterResidency => write!(
                f,
                "a cluster is {requested} such {unit}, together there is room for {limit} ({owner})"
            )?,
            Rule::CooperativeResidency => write!(
                f,
                "a cooperative grid is {requested} such {unit}, at once there is room for {limit} \
                 ({owner})"
            )?,
            Rule::CooperativeUnsupported => {
                write!(f, "the launch is cooperative, there is no such launch on {owner}")?;
            }
            Rule::DependentUnsupported => {
                write!(f, "the launch is dependent, there is no such launch on {owner}")?;
            }
            Rule::ParameterBytes => {
                write!(
                    f,
                    "kernel parameters are {requested} {unit}, the limit is {limit} ({owner})"
                )?;
            }
            Rule::IndexWidth => {
                write!(
                    f,
                    "the launch addresses {requested} {unit}, the limit is {limit} ({owner})"
                )?;
            }
            Rule::WorkspaceMemory => {
                write!(f, "workspace is {requested} {unit}, the limit is {limit} ({owner})")?;
            }
            Rule::BatchCoversGrid => {
                write!(f, "grid.{axis} is {requested} {unit}, expected are {limit} ({owner})")?;
            }
            Rule::SplitCooperative => {
                write!(f, "{requested} {unit} are needed, the limit is {limit} ({owner})")?;
            }
            Rule::SplitCluster | Rule::SplitAlignment => {
                write!(
                    f,
                    "the smallest chunk is {requested} {unit}, the limit is {limit} ({owner})"
                )?;
            }
            Rule::SplitItem => {
                write!(
                    f,
                    "one item is {requested} {unit} of {axis}, the limit is {limit} ({owner})"
                )?;
            }
            Rule::FoldUnavailable => {
                write!(f, "a folded launch was chosen, it cannot be folded into x ({owner})")?;
            }
        }
        write!(f, ": {remedy}")
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Violation {
    /// As `{"rule", "requested", "limit", "unit", "message"}`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut record = serializer.serialize_struct("Violation", 5)?;
        record.serialize_field("rule", self.rule.id())?;
        record.serialize_field("requested", &self.requested)?;
        record.serialize_field("limit", &self.limit)?;
        record.serialize_field("unit", &self.unit())?;
        record.serialize_field("message", &self.to_string())?;
        record.end()
    }
}

/// All rules that one launch breaks, never only the first. Not empty where it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations(Vec<Violation>);

impl Violations {
    /// Adds a violation in its place, after those of the same rule.
    pub(crate) fn push(&mut self, violation: Violation) {
        let place = self.0.partition_point(|other| other.rule <= violation.rule);
        self.0.insert(place, violation);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The violations, in the order of [`Rule::ALL`].
    pub fn iter(&self) -> core::slice::Iter<'_, Violation> {
        self.0.iter()
    }

    /// Whether `rule` is among the broken ones.
    #[must_use]
    pub fn contains(&self, rule: Rule) -> bool {
        self.0.iter().any(|violation| violation.rule == rule)
    }
}

impl<'a> IntoIterator for &'a Violations {
    type Item = &'a Violation;
    type IntoIter = core::slice::Iter<'a, Violation>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl IntoIterator for Violations {
    type Item = Violation;
    type IntoIter = std::vec::IntoIter<Violation>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl fmt::Display for Violations {
    /// One violation a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, violation) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{violation}")?;
        }
        Ok(())
    }
}

impl core::error::Error for Violations {}
