//! Violations of a launch: the broken rule, the requested value, the limit, its owner and the remedy.

use core::fmt;

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::launch::rule::{Rule, Unit};

/// One broken rule: the requested value, the limit, whose limit it is, and a remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The broken rule.
    pub rule: Rule,
    /// The axis, if the rule is about one.
    pub axis: Option<Axis>,
    /// The requested value, in the rule's unit; never wrapped.
    pub requested: u128,
    /// The limit, in the rule's unit.
    pub limit: u64,
    /// The owner of the limit.
    pub owner: Owner,
    /// How to make the launch legal.
    pub remedy: Remedy,
}

impl Violation {
    /// The unit of `requested` and `limit`.
    #[must_use]
    pub const fn unit(&self) -> Unit {
        self.rule.unit()
    }

    /// The message without its remedy: the value, the limit and its owner.
    pub(crate) fn problem(&self) -> String {
        let Self { rule, axis, requested, limit, owner, remedy: _ } = self;
        let message = match rule {
            Rule::ClusterSize if *requested == 0 => {
                "cluster.{axis} is 0 {unit}, the minimum is 1 ({owner})"
            }
            Rule::ClusterRequired if *requested == 0 => {
                "{owner} requires a cluster, the launch has none"
            }
            _ => rule.message(),
        };
        // The owner's name comes last, since it may contain anything.
        message
            .replace("{exceeds}", "{requested} {unit}, the limit is {limit} ({owner})")
            .replace("{axis}", axis.map_or("", Axis::letter))
            .replace("{requested}", &requested.to_string())
            .replace("{unit}", &rule.unit().to_string())
            .replace("{limit}", &limit.to_string())
            .replace("{owner}", &owner.to_string())
    }
}

/// What sets the limit that a violation exceeds.
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
    /// The kernel's index arithmetic, with its width in bits.
    IndexBits(u32),
    /// The memory available for workspace.
    Memory,
    /// The batch that the caller declared.
    Batch,
    /// The grid-wide synchronization of a cooperative launch.
    CooperativeLaunch,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => f.write_str(name),
            Self::Kernel(name) => write!(f, "kernel {name}"),
            Self::Cuda => f.write_str("CUDA"),
            Self::Cluster(cluster) => write!(f, "cluster of {cluster}"),
            Self::IndexBits(bits) => write!(f, "{bits}-bit indices"),
            Self::Memory => f.write_str("memory available for workspace"),
            Self::Batch => f.write_str("batch"),
            Self::CooperativeLaunch => f.write_str("cooperative launch"),
        }
    }
}

/// How to make a rejected launch legal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Split a grid axis into several launches. In each launch `blockIdx` begins at 0 along the axis, and
    /// `gridDim` is the size of that launch: see `BatchAxis`.
    SplitAxis {
        /// The axis to split.
        axis: Axis,
        /// The number of launches.
        launches: u64,
        /// Blocks of the largest launch.
        blocks: u64,
        /// Whether the axis could also be folded into x.
        fold: bool,
    },
    /// Split the batch into several launches.
    SplitItems {
        /// The number of launches.
        launches: u64,
        /// Items of the largest launch.
        items: u64,
    },
    /// Do not launch: there is nothing to do.
    SkipLaunch,
    /// Make each axis at least 1.
    AtLeastOne,
    /// Move threads to another axis of the block.
    MoveThreads,
    /// Use smaller blocks.
    SmallerBlocks {
        /// The most threads that fit.
        threads: u64,
    },
    /// Launch with the block that the kernel was compiled for.
    UseBlock {
        /// The block size.
        block: Dim3,
    },
    /// Use smaller blocks, or compile for fewer registers.
    FewerRegisters {
        /// The most threads whose registers fit.
        threads: u64,
    },
    /// Use less local memory.
    LessLocalMemory {
        /// The resident threads that the driver reserves local memory for, if the device's memory sets the
        /// limit.
        resident_threads: Option<u64>,
    },
    /// Request less dynamic shared memory.
    LessSharedMemory {
        /// Dynamic bytes that fit beside the static bytes.
        dynamic_bytes: u64,
        /// Static bytes of the kernel.
        static_bytes: u64,
    },
    /// Opt in to large dynamic shared memory.
    OptIn {
        /// Dynamic bytes available to the kernel after opting in.
        device_bytes: u64,
    },
    /// Launch without a cluster, or on another device.
    NoCluster,
    /// Use a smaller cluster, or allow non-portable sizes with `Module::kernel_in_wide_clusters` of the
    /// feature `cuda`.
    SmallerCluster {
        /// Whether allowing non-portable sizes is enough.
        non_portable: bool,
    },
    /// Use a smaller cluster, or blocks that need less of a multiprocessor.
    LighterCluster,
    /// Pad the grid's axis to a multiple of the cluster.
    PadGrid {
        /// The next multiple, in blocks; saturated.
        blocks: u64,
    },
    /// Launch with the cluster that the kernel was compiled for.
    UseCluster {
        /// The cluster size, or `None` if any size is accepted.
        cluster: Option<Dim3>,
    },
    /// Launch without grid-wide synchronization.
    NotCooperative,
    /// Launch without programmatic dependent launch.
    NotDependent,
    /// Pass large parameters through device memory.
    PassByPointer,
    /// Compile the kernel with 64-bit indices.
    WiderIndex,
    /// Provide more memory, or use less workspace per item.
    MoreMemory,
    /// Make grid and batch agree.
    MatchBatch {
        /// The declared items.
        items: u64,
    },
    /// Use fewer blocks in a launch that cannot be split.
    ShrinkGrid,
    /// Allow larger chunks.
    ChunkUnit {
        /// Items of the smallest chunk that respects clusters and alignment.
        items: u64,
    },
    /// Use fewer blocks per item along the axis.
    FewerBlocksPerItem,
    /// Declare the batch foldable, or choose another strategy.
    DeclareFold,
    /// Load the kernel with `Guard::load_ptx` of the feature `ptx`, which rewrites it, and launch it without
    /// clusters.
    LoadRewritten,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::SplitAxis { axis, launches, blocks, fold } => {
                let fold = if *fold { ", or fold it into x" } else { "" };
                format!("split axis {axis} into {launches} launches of {blocks}{fold}")
            }
            Self::SplitItems { launches, items } => {
                format!("split the batch into {launches} launches of {items} items")
            }
            Self::SmallerBlocks { threads } => format!("use blocks of at most {threads} threads"),
            Self::UseBlock { block } => {
                format!("launch with the block of {block} that the kernel was compiled for")
            }
            Self::FewerRegisters { threads: 0 } => {
                "compile the kernel for fewer registers per thread".into()
            }
            Self::FewerRegisters { threads } => format!(
                "use blocks of at most {threads} threads, or compile the kernel for fewer \
                 registers per thread"
            ),
            Self::LessLocalMemory { resident_threads } => {
                let why = resident_threads.map_or_else(String::new, |threads| {
                    format!(": the driver reserves them for all {threads} resident threads")
                });
                format!("use smaller arrays per thread, or keep them in device memory{why}")
            }
            Self::LessSharedMemory { dynamic_bytes: 0, static_bytes } => {
                format!("reduce the {static_bytes} bytes of static shared memory")
            }
            Self::LessSharedMemory { dynamic_bytes, static_bytes } => format!(
                "request at most {dynamic_bytes} bytes of dynamic shared memory, since \
                 {static_bytes} bytes are static"
            ),
            Self::OptIn { device_bytes } => format!(
                "set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, up to {device_bytes} on this \
                 device"
            ),
            Self::PadGrid { blocks } => {
                format!("pad the axis to {blocks} blocks, or use a cluster that divides it")
            }
            Self::UseCluster { cluster: Some(cluster) } => {
                format!("launch with the cluster of {cluster} that the kernel was compiled for")
            }
            Self::UseCluster { cluster: None } => "specify a cluster size for the launch".into(),
            Self::MatchBatch { items } => {
                format!("make the grid cover the {items} items of the batch")
            }
            Self::ChunkUnit { items } => format!("allow chunks of at least {items} items"),
            Self::SkipLaunch => {
                "skip the launch if there is nothing to do, or declare a batch axis".into()
            }
            Self::AtLeastOne => "make every axis at least 1".into(),
            Self::MoveThreads => "move threads to another axis of the block".into(),
            Self::NoCluster => {
                "launch without a cluster, or on a device of compute capability 9.0 or later".into()
            }
            Self::SmallerCluster { non_portable: true } => "use a smaller cluster, or set \
                 CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED on the kernel"
                .into(),
            Self::SmallerCluster { non_portable: false } => "use a smaller cluster".into(),
            Self::LighterCluster => {
                "use a smaller cluster, or blocks with fewer threads or less shared memory".into()
            }
            Self::NotCooperative => {
                "launch without grid-wide synchronization, or on another device".into()
            }
            Self::NotDependent => {
                "launch without the dependence, or on a device of compute capability 9.0 or later"
                    .into()
            }
            Self::PassByPointer => "pass large parameters through device memory".into(),
            Self::WiderIndex => "compile the kernel with 64-bit indices".into(),
            Self::MoreMemory => "provide more memory, or use less workspace per item".into(),
            Self::ShrinkGrid => "use fewer blocks, each looping over several items".into(),
            Self::FewerBlocksPerItem => {
                "use fewer blocks per item along this axis, or move some to another axis".into()
            }
            Self::DeclareFold => "declare the batch foldable, or choose another strategy".into(),
            Self::LoadRewritten => {
                "load the kernel with Guard::load_ptx and launch it without clusters, or choose \
                 another strategy"
                    .into()
            }
        };
        f.write_str(&text)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.remedy)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for Violation {
    /// Serializes as `{"rule", "requested", "limit", "unit", "message"}`.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Violation", 5)?;
        fields.serialize_field("rule", self.rule.id())?;
        fields.serialize_field("requested", &self.requested)?;
        fields.serialize_field("limit", &self.limit)?;
        fields.serialize_field("unit", &self.unit())?;
        fields.serialize_field("message", &self.to_string())?;
        fields.end()
    }
}

/// All violations of one launch. As an error it has at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Violations {
    list: Vec<Violation>,
    /// Whether the launch is cooperative. The driver then checks in another order.
    pub(crate) cooperative: bool,
}

impl Violations {
    /// No violations yet of `request`.
    pub(crate) const fn of_request(request: &LaunchRequest) -> Self {
        Self { list: Vec::new(), cooperative: request.cooperative }
    }

    /// Inserts a violation in the order of rules.
    pub(crate) fn push(&mut self, violation: Violation) {
        let place = self.list.partition_point(|other| other.rule <= violation.rule);
        self.list.insert(place, violation);
    }

    /// The number of violations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The violations, in the order of [`Rule::ALL`].
    pub fn iter(&self) -> core::slice::Iter<'_, Violation> {
        self.list.iter()
    }

    /// Whether `rule` is broken.
    #[must_use]
    pub fn contains(&self, rule: Rule) -> bool {
        self.list.iter().any(|violation| violation.rule == rule)
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
        self.list.into_iter()
    }
}

impl fmt::Display for Violations {
    /// One violation per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, violation) in self.list.iter().enumerate() {
            if place > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{violation}")?;
        }
        Ok(())
    }
}

impl core::error::Error for Violations {}

#[cfg(feature = "serde")]
impl serde::Serialize for Violations {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self)
    }
}
