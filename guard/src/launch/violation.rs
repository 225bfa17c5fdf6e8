//! Violations of a launch: the broken rule, the requested value, the limit, its owner and the remedy.

use derive_more::{Display, IntoIterator};

use crate::dim::{Axis, Dim3};
use crate::launch::request::LaunchRequest;
use crate::launch::rule::Rule;

/// One broken rule: the requested value, the limit, whose limit it is, and a remedy.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[display("{}: {remedy}", self.problem())]
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
    /// The message without its remedy: the value, the limit and its owner.
    pub fn problem(&self) -> String {
        let Self { rule, axis, requested, limit, owner, remedy: _ } = self;
        let message = match rule {
            Rule::ClusterSize if *requested == 0 => {
                "cluster.{axis} is 0 {unit}, the minimum is 1 ({owner})"
            }
            Rule::ClusterRequired if *requested == 0 => {
                "{owner} requires a cluster, the launch has none"
            }
            Rule::IndexWrap if axis.is_some() => {
                "a 32-bit index reaches {requested}, the limit is {limit} ({owner})"
            }
            _ => rule.message(),
        };
        let units = rule.unit().to_string();
        let unit = if *requested == 1 { units.trim_end_matches('s') } else { &units };
        // The owner's name comes last, since it may contain anything.
        message
            .replace("{exceeds}", "{requested} {unit}, the limit is {limit} ({owner})")
            .replace("{axis}", axis.map_or("", Axis::letter))
            .replace("{requested}", &requested.to_string())
            .replace("{unit}", unit)
            .replace("{limit}", &limit.to_string())
            .replace("{owner}", &owner.to_string())
    }
}

/// What sets the limit that a violation exceeds.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owner {
    /// A device, by name.
    Device(String),
    /// A kernel, by name.
    #[display("kernel {_0}")]
    Kernel(String),
    /// CUDA itself, on every device.
    #[display("CUDA")]
    Cuda,
    /// The cluster of the launch.
    #[display("cluster of {_0}")]
    Cluster(Dim3),
    /// The kernel's index arithmetic, with its width in bits.
    #[display("{_0}-bit indices")]
    IndexBits(u32),
    /// The memory available for workspace.
    #[display("memory available for workspace")]
    Memory,
    /// The batch that the caller declared.
    #[display("batch")]
    Batch,
    /// The grid-wide synchronization of a cooperative launch.
    #[display("cooperative launch")]
    CooperativeLaunch,
}

/// How to make a rejected launch legal.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Split a grid axis into several launches. In each launch `blockIdx` begins at 0 along the axis, and
    /// `gridDim` is the size of that launch: see `BatchAxis`.
    #[display(
        "split axis {axis} into {launches} launches of {blocks}{}",
        if *fold { ", or fold it into x" } else { "" }
    )]
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
    #[display("split the batch into {launches} launches of {}", count(*items, "item"))]
    SplitItems {
        /// The number of launches.
        launches: u64,
        /// Items of the largest launch.
        items: u64,
    },
    /// Do not launch: there is nothing to do.
    #[display("skip the launch if there is nothing to do, or declare a batch axis")]
    SkipLaunch,
    /// Make each axis at least 1.
    #[display("make every axis at least 1")]
    AtLeastOne,
    /// Move threads to another axis of the block.
    #[display("move threads to another axis of the block")]
    MoveThreads,
    /// Use smaller blocks.
    #[display("use blocks of at most {}", count(*threads, "thread"))]
    SmallerBlocks {
        /// The most threads that fit.
        threads: u64,
    },
    /// Launch with the block that the kernel was compiled for.
    #[display("launch with the block of {block} that the kernel was compiled for")]
    UseBlock {
        /// The block size.
        block: Dim3,
    },
    /// Use smaller blocks, or compile for fewer registers.
    #[display(
        "{}compile the kernel for fewer registers per thread",
        match threads {
            0 => String::new(),
            _ => format!("use blocks of at most {}, or ", count(*threads, "thread")),
        }
    )]
    FewerRegisters {
        /// The most threads whose registers fit.
        threads: u64,
    },
    /// Use less local memory.
    #[display(
        "use smaller arrays per thread, or keep them in device memory{}",
        resident_threads.map_or_else(String::new, |threads| {
            format!(": the driver reserves them for all {threads} resident threads")
        })
    )]
    LessLocalMemory {
        /// The resident threads that the driver reserves local memory for, if the device's memory sets the
        /// limit.
        resident_threads: Option<u64>,
    },
    /// Request less dynamic shared memory.
    #[display(
        "{}",
        match dynamic_bytes {
            0 => format!("reduce the {static_bytes} bytes of static shared memory"),
            bytes => format!("request at most {bytes} bytes of dynamic shared memory")
                + &match static_bytes {
                    0 => String::new(),
                    _ => format!(", since {static_bytes} bytes are static"),
                },
        }
    )]
    LessSharedMemory {
        /// Dynamic bytes that fit beside the static bytes.
        dynamic_bytes: u64,
        /// Static bytes of the kernel.
        static_bytes: u64,
    },
    /// Opt in to large dynamic shared memory.
    #[display(
        "set CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, up to {device_bytes} on this device"
    )]
    OptIn {
        /// Dynamic bytes available to the kernel after opting in.
        device_bytes: u64,
    },
    /// Launch without a cluster, or on another device.
    #[display("launch without a cluster, or on a device of compute capability 9.0 or later")]
    NoCluster,
    /// Use a smaller cluster, or allow non-portable sizes with `Module::kernel_in_wide_clusters` of the
    /// feature `cuda`.
    #[display(
        "use a smaller cluster{}",
        match non_portable {
            true => ", or set CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED on the kernel",
            false => "",
        }
    )]
    SmallerCluster {
        /// Whether allowing non-portable sizes is enough.
        non_portable: bool,
    },
    /// Use a smaller cluster, or blocks that need less of a multiprocessor.
    #[display("use a smaller cluster, or blocks with fewer threads or less shared memory")]
    LighterCluster,
    /// Pad the grid's axis to a multiple of the cluster.
    #[display("pad the axis to {}, or use a cluster that divides it", count(*blocks, "block"))]
    PadGrid {
        /// The next multiple, in blocks; saturated.
        blocks: u64,
    },
    /// Launch with the cluster that the kernel was compiled for.
    #[display(
        "{}",
        cluster.map_or_else(|| "specify a cluster size for the launch".to_owned(), |cluster| {
            format!("launch with the cluster of {cluster} that the kernel was compiled for")
        })
    )]
    UseCluster {
        /// The cluster size, or `None` if any size is accepted.
        cluster: Option<Dim3>,
    },
    /// Launch without grid-wide synchronization.
    #[display("launch without grid-wide synchronization, or on another device")]
    NotCooperative,
    /// Launch without programmatic dependent launch.
    #[display("launch without the dependence, or on a device of compute capability 9.0 or later")]
    NotDependent,
    /// Pass large parameters through device memory.
    #[display("pass large parameters through device memory")]
    PassByPointer,
    /// Launch fewer blocks at once, with pointers to their own items, or compile the kernel with 64-bit indices. Parts
    /// of a rewritten kernel's grid keep the indices of the whole grid, and wrap too.
    #[display(
        "declare a batch along {axis}, whose chunks have at most {} and pointers to their own items, or compile the \
         kernel with 64-bit indices; parts of a rewritten kernel's grid wrap too",
        count(*blocks, "block")
    )]
    RebasePointers {
        /// The axis.
        axis: Axis,
        /// The most blocks along it.
        blocks: u64,
    },
    /// Compile the kernel with 64-bit indices.
    #[display("compile the kernel with 64-bit indices")]
    WiderIndex,
    /// Provide more memory, or use less workspace per item.
    #[display("provide more memory, or use less workspace per item")]
    MoreMemory,
    /// Make grid and batch agree.
    #[display("make the grid cover the {} of the batch", count(*items, "item"))]
    MatchBatch {
        /// The declared items.
        items: u64,
    },
    /// Use fewer blocks in a launch that cannot be split.
    #[display("use fewer blocks, each looping over several items")]
    ShrinkGrid,
    /// Allow larger chunks.
    #[display("allow chunks of at least {}", count(*items, "item"))]
    ChunkUnit {
        /// Items of the smallest chunk that respects clusters and alignment.
        items: u64,
    },
    /// Use fewer blocks per item along the axis.
    #[display("use fewer blocks per item along this axis, or move some to another axis")]
    FewerBlocksPerItem,
    /// Declare the batch foldable, or choose another strategy.
    #[display("declare the batch foldable, or choose another strategy")]
    DeclareFold,
    /// Load the kernel with `Guard::load_ptx` of the feature `ptx`, which rewrites it, and launch it without
    /// clusters.
    #[display(
        "load the kernel with Guard::load_ptx and launch it without clusters, or choose another \
         strategy"
    )]
    LoadRewritten,
}

/// `1 block`, `2 launches`, `3 entries`: all messages of the workspace.
pub fn count<N: core::fmt::Display + PartialEq + From<u8>>(number: N, noun: &str) -> String {
    match noun.strip_suffix("ry") {
        _ if number == N::from(1) => format!("{number} {noun}"),
        Some(stem) => format!("{number} {stem}ries"),
        None if noun.ends_with("ch") => format!("{number} {noun}es"),
        None => format!("{number} {noun}s"),
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
        fields.serialize_field("unit", &self.rule.unit())?;
        fields.serialize_field("message", &self.to_string())?;
        fields.end()
    }
}

/// All violations of one launch, displayed one per line, each with the id of its rule at the end. An error has at least
/// one violation.
#[derive(Clone, Debug, Default, Display, IntoIterator, PartialEq, Eq)]
#[display("{}", list.iter().map(|one| format!("{one} [{}]", one.rule)).collect::<Vec<_>>().join("\n"))]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Violations {
    #[into_iterator(owned, ref)]
    list: Vec<Violation>,
    /// Whether the launch is cooperative. The driver then checks in another order.
    #[cfg_attr(feature = "serde", serde(skip))]
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

    /// Replaces the remedy for `rule`.
    pub(crate) fn set_remedy(&mut self, rule: Rule, remedy: &Remedy) {
        for violation in self.list.iter_mut().filter(|violation| violation.rule == rule) {
            violation.remedy = remedy.clone();
        }
    }

    /// The number of violations.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The violations, in the order of [`Rule::ALL`].
    pub fn iter(&self) -> core::slice::Iter<'_, Violation> {
        self.list.iter()
    }

    /// Whether `rule` is broken.
    pub fn contains(&self, rule: Rule) -> bool {
        self.list.iter().any(|violation| violation.rule == rule)
    }
}

impl core::error::Error for Violations {}
