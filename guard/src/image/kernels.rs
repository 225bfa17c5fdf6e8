//! The attributes of a kernel that its image states.

use crate::dim::Dim3;
use crate::launch::rule::Rule;
use crate::limits::KernelLimits;

/// The attributes of a kernel that its image states. An attribute is `None` if the image does not state it. PTX
/// states neither registers nor memory, and linking a relocatable cubin may increase them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct KernelAttributes {
    /// The kernel's name in the module. C++ names are mangled.
    pub name: String,
    /// Registers per thread.
    pub registers_per_thread: Option<u64>,
    /// Static shared memory in bytes, without the driver's reserved part.
    pub static_shared_bytes: Option<u64>,
    /// Local memory per thread in bytes: the stack of the kernel and of the functions that it calls. With
    /// recursion or calls through pointers the compiler does not know it. Cubins of some versions then state
    /// nothing, and others too little.
    pub local_bytes_per_thread: Option<u64>,
    /// Bytes of all parameters.
    pub parameter_bytes: Option<u64>,
    /// Maximum threads of a block, by `__launch_bounds__` or the required block.
    pub max_threads_per_block: Option<u64>,
    /// The only block that the kernel may be launched with, by `.reqntid`.
    pub required_block: Option<Dim3>,
    /// The cluster set by `__cluster_dims__`.
    pub required_cluster: Option<Dim3>,
    /// Whether a launch must have a cluster.
    pub cluster_must_be_set: bool,
}

impl KernelAttributes {
    /// The kernel's limits, with unknown attributes as no limits.
    pub fn limits(&self) -> KernelLimits {
        KernelLimits {
            name: self.name.clone(),
            max_threads_per_block: self.max_threads_per_block,
            required_block: self.required_block,
            registers_per_thread: self.registers_per_thread.unwrap_or(0),
            static_shared_bytes: self.static_shared_bytes.unwrap_or(0),
            local_bytes_per_thread: self.local_bytes_per_thread.unwrap_or(0),
            required_cluster: self.required_cluster,
            cluster_must_be_set: self.cluster_must_be_set,
            ..KernelLimits::default()
        }
    }

    /// The rules that cannot be checked against [`Self::limits`], because the image lacks an attribute.
    pub fn unchecked_rules(&self) -> Vec<Rule> {
        let shared: &[Rule] = &[Rule::SharedMemoryTotal, Rule::DynamicSharedMemoryOptIn];
        [
            (self.registers_per_thread, &[Rule::RegistersPerBlock][..]),
            (self.local_bytes_per_thread, &[Rule::LocalMemory]),
            (self.static_shared_bytes, shared),
            (self.parameter_bytes, &[Rule::ParameterBytes]),
        ]
        .into_iter()
        .filter(|(attribute, _)| attribute.is_none())
        .flat_map(|(_, rules)| rules.iter().copied())
        .collect()
    }
}
