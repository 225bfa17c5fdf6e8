//! The driver's structures of a launch, as `cuda.h` declares them.

use core::ffi::{c_uint, c_void};

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LaunchConfig {
    /// Blocks along x, y, z.
    pub grid: [c_uint; 3],
    /// Threads of a block along x, y, z.
    pub block: [c_uint; 3],
    /// Dynamic shared memory of a block in bytes.
    pub shared_bytes: c_uint,
    /// The `CUstream`.
    pub stream: *mut c_void,
    /// The first attribute, which may be null if there are none.
    pub attributes: *const LaunchAttribute,
    /// The number of attributes.
    pub attribute_count: c_uint,
}

/// `CUlaunchAttribute`: an id and a union of 64 bytes.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub struct LaunchAttribute {
    /// The `CUlaunchAttributeID`.
    pub id: c_uint,
    /// Not read.
    pub padding: [u8; 4],
    /// The value, in its first bytes.
    pub value: [c_uint; 16],
}

impl LaunchAttribute {
    /// An unused array element.
    pub const NONE: Self = Self { id: 0, padding: [0; 4], value: [0; 16] };

    /// The attribute `id` with the first 12 bytes of its value.
    pub const fn new(id: c_uint, [x, y, z]: [c_uint; 3]) -> Self {
        let mut attribute = Self { id, ..Self::NONE };
        (attribute.value[0], attribute.value[1], attribute.value[2]) = (x, y, z);
        attribute
    }
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
pub const COOPERATIVE: c_uint = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
pub const CLUSTER_DIMENSION: c_uint = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`: the launch may start before the one before has ended.
pub const DEPENDENT: c_uint = 6;
/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
pub const PRIORITY: c_uint = 8;

/// Sizes and offsets that a C compiler reports with the headers of CUDA 12.0 to 13.5.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use core::mem::offset_of;

    assert!(size_of::<LaunchAttribute>() == 72 && align_of::<LaunchAttribute>() == 8);
    assert!(offset_of!(LaunchAttribute, id) == 0 && offset_of!(LaunchAttribute, value) == 8);
    assert!(size_of::<LaunchConfig>() == 56 && align_of::<LaunchConfig>() == 8);
    assert!(offset_of!(LaunchConfig, grid) == 0 && offset_of!(LaunchConfig, block) == 12);
    assert!(offset_of!(LaunchConfig, shared_bytes) == 24 && offset_of!(LaunchConfig, stream) == 32);
    assert!(offset_of!(LaunchConfig, attributes) == 40);
    assert!(offset_of!(LaunchConfig, attribute_count) == 48);
};
