//! Calls the driver without the guard and without cudarc. Results are integers, because a driver may
//! return codes that no binding knows. Signatures and structures are declared again on purpose: a
//! mistake in the guard's own would otherwise go unnoticed.
#![allow(unsafe_code, reason = "launches that nobody validated")]
#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "a handle is never dereferenced here, and the driver checks it"
)]

use core::ffi::{c_int, c_uint, c_void};

use gridguard::LaunchRequest;

/// A function, context or stream of the driver.
pub type Handle = *mut c_void;

type LaunchKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut Handle,
    *mut Handle,
) -> c_int;
type LaunchCooperativeKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut Handle,
) -> c_int;
type LaunchKernelEx =
    unsafe extern "C" fn(*const Config, Handle, *mut Handle, *mut Handle) -> c_int;

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: *const Attribute,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Attribute {
    id: c_uint,
    padding: c_uint,
    value: [c_uint; 16],
}

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`.
const COOPERATIVE: c_uint = 2;
/// `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION`.
const CLUSTER_DIMENSION: c_uint = 4;
/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
const DEPENDENT: c_uint = 6;
/// `CU_LAUNCH_ATTRIBUTE_PRIORITY`.
const PRIORITY: c_uint = 8;
/// Zeros for the one parameter that a kernel of the tests may take.
static ZEROS: [u64; 1 << 12] = [0; 1 << 12];

/// A launch in the driver's 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawLaunch {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads along each axis.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Blocks of a cluster along each axis.
    pub cluster: Option<[u32; 3]>,
    /// Whether all blocks must be co-resident.
    pub cooperative: bool,
    /// Whether the launch may start before the one before it has ended.
    pub dependent: bool,
    /// The priority of the launch.
    pub priority: Option<i32>,
}

impl RawLaunch {
    /// `None` if a number does not fit 32 bits.
    #[must_use]
    pub fn new(request: &LaunchRequest) -> Option<Self> {
        let narrow = |dim: gridguard::Dim3| {
            let axis = |size: u64| u32::try_from(size).ok();
            Some([axis(dim.x)?, axis(dim.y)?, axis(dim.z)?])
        };
        let cluster = match request.cluster {
            None => None,
            Some(cluster) => Some(narrow(cluster)?),
        };
        Some(Self {
            grid: narrow(request.grid)?,
            block: narrow(request.block)?,
            shared_bytes: u32::try_from(request.dynamic_shared_bytes).ok()?,
            cluster,
            cooperative: request.cooperative,
            dependent: request.dependent,
            priority: request.priority,
        })
    }

    /// Whether only `cuLaunchKernelEx` can make the launch.
    fn has_attributes(&self) -> bool {
        self.cluster.is_some() || self.dependent || self.priority.is_some()
    }
}

/// The driver call that makes a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchCall {
    /// `cuLaunchKernel` or `cuLaunchCooperativeKernel`; `cuLaunchKernelEx` where these lack an
    /// attribute of the launch.
    Oldest,
    /// `cuLaunchKernelEx`.
    Extended,
}

/// The driver functions that the tests call.
#[derive(Debug)]
pub struct RawDriver {
    launch_kernel: LaunchKernel,
    launch_cooperative_kernel: LaunchCooperativeKernel,
    launch_kernel_ex: LaunchKernelEx,
    set_attribute: unsafe extern "C" fn(Handle, c_int, c_int) -> c_int,
    get_attribute: unsafe extern "C" fn(*mut c_int, c_int, Handle) -> c_int,
    active_blocks: unsafe extern "C" fn(*mut c_int, Handle, c_int, usize) -> c_int,
    synchronize: unsafe extern "C" fn() -> c_int,
    mem_alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    mem_free: unsafe extern "C" fn(u64) -> c_int,
    _library: libloading::Library,
}

impl RawDriver {
    /// Opens `libcuda.so.1`.
    ///
    /// # Panics
    ///
    /// If there is no driver, or one without these functions.
    pub fn open() -> Self {
        // SAFETY: the driver is loaded already; the signatures match its header, and the table
        // holds the library.
        unsafe {
            let library = libloading::Library::new("libcuda.so.1").expect("the driver");
            Self {
                launch_kernel: *library.get(b"cuLaunchKernel").expect("a symbol"),
                launch_cooperative_kernel: *library
                    .get(b"cuLaunchCooperativeKernel")
                    .expect("a symbol"),
                launch_kernel_ex: *library.get(b"cuLaunchKernelEx").expect("a symbol"),
                set_attribute: *library.get(b"cuFuncSetAttribute").expect("a symbol"),
                get_attribute: *library.get(b"cuFuncGetAttribute").expect("a symbol"),
                active_blocks: *library
                    .get(b"cuOccupancyMaxActiveBlocksPerMultiprocessor")
                    .expect("a symbol"),
                synchronize: *library.get(b"cuCtxSynchronize").expect("a symbol"),
                mem_alloc: *library.get(b"cuMemAlloc_v2").expect("a symbol"),
                mem_free: *library.get(b"cuMemFree_v2").expect("a symbol"),
                _library: library,
            }
        }
    }

    /// The driver's result of `launch` of `function` on the default stream of the current context.
    ///
    /// `function` is loaded in that context, takes at most one parameter, of at most 32,768 bytes,
    /// and touches no memory where that is zero.
    pub fn launch(&self, function: Handle, launch: &RawLaunch, call: LaunchCall) -> i32 {
        let zeros = ZEROS.as_ptr().cast_mut().cast::<c_void>();
        let mut parameters = [zeros];
        let parameters = parameters.as_mut_ptr();
        let RawLaunch { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes: shared, .. } =
            *launch;
        let none = core::ptr::null_mut();
        if call == LaunchCall::Extended || launch.has_attributes() {
            return self.launch_extended(function, launch, parameters);
        }
        if launch.cooperative {
            let call = self.launch_cooperative_kernel;
            // SAFETY: the contract above; the driver reads one parameter at the most.
            return unsafe { call(function, gx, gy, gz, bx, by, bz, shared, none, parameters) };
        }
        let call = self.launch_kernel;
        // SAFETY: as above; a null stream is the default one.
        unsafe { call(function, gx, gy, gz, bx, by, bz, shared, none, parameters, none.cast()) }
    }

    fn launch_extended(
        &self,
        function: Handle,
        launch: &RawLaunch,
        parameters: *mut Handle,
    ) -> i32 {
        let mut attributes = Vec::with_capacity(4);
        let mut add = |id, words: [u32; 3]| {
            let mut value = [0; 16];
            value[..3].copy_from_slice(&words);
            attributes.push(Attribute { id, padding: 0, value });
        };
        if let Some(cluster) = launch.cluster {
            add(CLUSTER_DIMENSION, cluster);
        }
        if launch.cooperative {
            add(COOPERATIVE, [1, 0, 0]);
        }
        if launch.dependent {
            add(DEPENDENT, [1, 0, 0]);
        }
        if let Some(priority) = launch.priority {
            add(PRIORITY, [priority.cast_unsigned(), 0, 0]);
        }
        let config = Config {
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            stream: core::ptr::null_mut(),
            attributes: attributes.as_ptr(),
            attribute_count: u32::try_from(attributes.len()).expect("four at the most"),
        };
        let call = self.launch_kernel_ex;
        // SAFETY: as in `launch`; configuration and attributes live through the call.
        unsafe { call(&raw const config, function, parameters, core::ptr::null_mut()) }
    }

    /// Sets an attribute of a loaded function.
    pub fn set_attribute(&self, function: Handle, attribute: i32, value: i32) -> i32 {
        // SAFETY: the function is loaded; the driver checks attribute and value.
        unsafe { (self.set_attribute)(function, attribute, value) }
    }

    /// An attribute of a loaded function.
    ///
    /// # Errors
    ///
    /// The driver's error code.
    pub fn attribute(&self, function: Handle, attribute: i32) -> Result<i32, i32> {
        let mut value = 0;
        // SAFETY: the function is loaded; the pointer is to a live integer.
        let status = unsafe { (self.get_attribute)(&raw mut value, attribute, function) };
        if status == 0 { Ok(value) } else { Err(status) }
    }

    /// `cuOccupancyMaxActiveBlocksPerMultiprocessor`.
    ///
    /// # Errors
    ///
    /// The driver's error code.
    pub fn active_blocks(&self, function: Handle, threads: i32, bytes: usize) -> Result<i32, i32> {
        let mut blocks = 0;
        // SAFETY: the function is loaded; the pointer is to a live integer.
        let status = unsafe { (self.active_blocks)(&raw mut blocks, function, threads, bytes) };
        if status == 0 { Ok(blocks) } else { Err(status) }
    }

    /// Waits for all launches and returns their result.
    pub fn synchronize(&self) -> i32 {
        // SAFETY: takes nothing.
        unsafe { (self.synchronize)() }
    }

    /// Runs `body` while `bytes` of device memory are allocated.
    ///
    /// # Errors
    ///
    /// The error code of allocating or freeing them.
    pub fn with_memory_taken<T>(&self, bytes: usize, body: impl FnOnce() -> T) -> Result<T, i32> {
        let mut at = 0;
        // SAFETY: the pointer is to a live integer.
        let status = unsafe { (self.mem_alloc)(&raw mut at, bytes) };
        if status != 0 {
            return Err(status);
        }
        let answer = body();
        // SAFETY: allocated above, and used by nobody.
        let status = unsafe { (self.mem_free)(at) };
        if status == 0 { Ok(answer) } else { Err(status) }
    }
}
