//! Kernel nodes of graphs, in the layouts of the driver's functions.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;

use crate::driver::abi::Handle;
use crate::driver::functions::FUNCTIONS;
use crate::driver::request::Launch;

/// `CUDA_KERNEL_NODE_PARAMS` up to CUDA 11.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct OldKernelNode {
    function: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
}

/// `CUDA_KERNEL_NODE_PARAMS` since CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelNode {
    old: OldKernelNode,
    /// A `CUkernel`, for a null function.
    kernel: Handle,
    context: Handle,
}

/// `CUgraphNodeParams`, up to the end of a kernel.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Node {
    kind: c_int,
    reserved: [c_int; 3],
    kernel: KernelNode,
}

/// `CUlaunchAttributeValue`.
pub(crate) type AttributeValue = [c_uint; 16];

/// The launch of a kernel node.
///
/// # Safety
///
/// `parameters` is null or points to parameters of the kind that the function takes.
pub(crate) unsafe fn of_kernel(
    through: (usize, usize),
    parameters: *const OldKernelNode,
) -> Option<Launch> {
    let is_new = FUNCTIONS[through.0].symbol.to_bytes().ends_with(b"_v2");
    // SAFETY: by this function's contract; functions of the second version take the newer kind.
    unsafe {
        match is_new {
            true => parameters.cast::<KernelNode>().as_ref().map(|node| node.launch(through)),
            false => parameters.as_ref().map(|node| node.launch(through)),
        }
    }
}

/// The launch of a node, if it is a kernel node.
///
/// # Safety
///
/// `parameters` is null or points to parameters of a node.
pub(crate) unsafe fn of_any_kind(
    through: (usize, usize),
    parameters: *const Node,
) -> Option<Launch> {
    // SAFETY: by this function's contract. The rest is read as a kernel only if the kind says kernel.
    unsafe {
        let is_kernel = !parameters.is_null() && (&raw const (*parameters).kind).read() == KERNEL;
        is_kernel.then(|| (&raw const (*parameters).kernel).read().launch(through))
    }
}

impl OldKernelNode {
    fn launch(&self, through: (usize, usize)) -> Launch {
        let &Self { function, grid, block, shared_bytes, .. } = self;
        let none = ptr::null_mut();
        Launch { node: true, ..Launch::plain(through, function, grid, block, (shared_bytes, none)) }
    }
}

impl KernelNode {
    // SAFETY: numbers may be zero and pointers null.
    pub(crate) const NONE: Self = unsafe { core::mem::zeroed() };

    /// The node's launch, without attributes.
    pub(crate) fn launch(&self, through: (usize, usize)) -> Launch {
        let launch = self.old.launch(through);
        let kernel = if launch.kernel.is_null() { self.kernel } else { launch.kernel };
        Launch { kernel, ..launch }
    }
}

/// `CU_GRAPH_NODE_TYPE_KERNEL`.
pub(crate) const KERNEL: c_int = 0;

const _: () = assert!(size_of::<OldKernelNode>() == 56 && size_of::<KernelNode>() == 72);
