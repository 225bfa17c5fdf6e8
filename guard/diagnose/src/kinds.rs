//! The kinds by which rows and causes are sorted.

/// An enumeration whose names are stable.
macro_rules! kinds {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $kind:ident => $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
        #[non_exhaustive]
        pub enum $name { $($(#[$doc])* $kind,)* }

        impl $name {
            /// Its name in a row.
            #[allow(dead_code, reason = "the build script reads rows")]
            pub(crate) fn from_row(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($kind) => Some(Self::$kind),)*
                    _ => None,
                }
            }

            /// Its stable name in kebab-case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $text,)*
                }
            }
        }
    };
}

kinds! {
    /// The platform that a message belongs to.
    Platform {
        /// NVIDIA's CUDA.
        Cuda => "cuda",
        /// AMD's HIP and ROCm.
        Hip => "hip",
        /// Vulkan.
        Vulkan => "vulkan",
        /// WebGPU, also as wgpu and Dawn.
        WebGpu => "web-gpu",
        /// Direct3D 12 and DXGI.
        D3d12 => "d3d12",
        /// Apple's Metal.
        Metal => "metal",
        /// SYCL, oneAPI and Level Zero.
        Sycl => "sycl",
        /// OpenCL.
        OpenCl => "open-cl",
        /// No platform of GPUs, or every one.
        Any => "any",
    }
}

kinds! {
    /// How much a line tells, the most first.
    Confidence {
        /// A line names need and limit, or a relation proves the cause.
        Constraint => "constraint",
        /// A component states its own reason in words.
        Reason => "reason",
        /// The failing call with its result decides.
        Call => "call",
        /// A library's status in its place.
        Status => "status",
        /// A code that has many causes.
        Generic => "generic",
        /// A word that only suggests.
        Word => "word",
        /// Nothing: the log does not say.
        Unknown => "unknown",
        /// A fact that no failure is.
        Fact => "fact",
        /// A line that no failure is.
        Harmless => "harmless",
    }
}

kinds! {
    /// Whose fault a failure is.
    Fault {
        /// A launch that exceeds a limit.
        Launch => "launch",
        /// The program's code.
        Program => "program",
        /// Versions, drivers, settings and machines.
        Environment => "environment",
        /// A device, its power or its links.
        Hardware => "hardware",
        /// Another process.
        AnotherProcess => "another-process",
        /// Not decided.
        Unknown => "unknown",
    }
}

kinds! {
    /// The memory that ran out.
    Memory {
        /// The device's.
        Device => "device",
        /// Page-locked memory of the host.
        Pinned => "pinned",
        /// The host's.
        Host => "host",
        /// Address space of the host or the device.
        AddressSpace => "address-space",
        /// A pool that an allocator reserved.
        Pool => "pool",
        /// Shared memory of a block.
        Shared => "shared",
        /// A file of shared memory, as in /dev/shm.
        SharedMemoryFile => "shared-memory-file",
    }
}
