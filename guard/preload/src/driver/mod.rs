//! Queries a driver library, found by the hook and slot of a call, about kernels, devices and errors.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use gridguard::abi::LaunchConfig;
use gridguard::{ComputeCapability, DeviceLimits, KernelLimits, OccupancyLimits};

use self::abi::{Handle, LogCallback, POOL_RESERVED, POOL_USED, SUCCESS, Status};
use self::functions::{FUNCTIONS, SETTABLE, SLOTS};
use self::node::{AttributeValue, KernelNode, OldKernelNode};
use self::request::{Launch, NO_ATTRIBUTES};
use crate::process;
use crate::process::elf;

pub(crate) mod abi;
pub(crate) mod functions;
pub(crate) mod node;
pub(crate) mod request;

/// Declares the queried functions. A driver may lack any of them.
macro_rules! questions {
    ($($name:ident = $symbol:literal: fn($($arg:ty),*);)*) => {
        /// The functions of one driver library.
        #[derive(Debug)]
        pub(crate) struct Driver {
            $(pub(crate) $name: Option<unsafe extern "C-unwind" fn($($arg),*) -> Status>,)*
        }

        impl Driver {
            /// No functions.
            pub(crate) const NONE: Self = Self { $($name: None,)* };

            /// The functions in the library of `original`, or in the next library that has them.
            fn resolve(original: *mut c_void) -> Self {
                let find = |name| {
                    let found = elf::beside(original, name);
                    if found.is_null() { elf::next(name) } else { found }
                };
                Self {
                    $($name: {
                        let found = find($symbol);
                        // SAFETY: NVIDIA's header declares this signature for the symbol.
                        (!found.is_null()).then(|| unsafe { mem::transmute(found) })
                    },)*
                }
            }
        }
    };
}

questions! {
    driver_version = c"cuDriverGetVersion": fn(*mut c_int);
    error_name = c"cuGetErrorName": fn(Status, *mut *const c_char);
    error_text = c"cuGetErrorString": fn(Status, *mut *const c_char);
    current_device = c"cuCtxGetDevice": fn(*mut c_int);
    device_count = c"cuDeviceGetCount": fn(*mut c_int);
    device_name = c"cuDeviceGetName": fn(*mut c_char, c_int, c_int);
    device_memory = c"cuDeviceTotalMem_v2": fn(*mut usize, c_int);
    memory_info = c"cuMemGetInfo_v2": fn(*mut usize, *mut usize);
    device_pool = c"cuDeviceGetMemPool": fn(*mut Handle, c_int);
    pool_attribute = c"cuMemPoolGetAttribute": fn(Handle, c_int, *mut u64);
    device_attribute = c"cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
    function_name = c"cuFuncGetName": fn(*mut *const c_char, Handle);
    kernel_name = c"cuKernelGetName": fn(*mut *const c_char, Handle);
    kernel_function = c"cuKernelGetFunction": fn(*mut Handle, Handle);
    function_module = c"cuFuncGetModule": fn(*mut Handle, Handle);
    find_function = c"cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char);
    module_variable = c"cuModuleGetGlobal_v2": fn(*mut u64, *mut usize, Handle, *const c_char);
    parameter = c"cuFuncGetParamInfo": fn(Handle, usize, *mut usize, *mut usize);
    context_id = c"cuCtxGetId": fn(Handle, *mut u64);
    unload_module = c"cuModuleUnload": fn(Handle);
    capture_mode = c"cuThreadExchangeStreamCaptureMode": fn(*mut c_int);
    copy = c"cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, Handle);
    copy_in_thread = c"cuMemcpyDtoDAsync_v2_ptsz": fn(u64, u64, usize, Handle);
    kernel_library = c"cuKernelGetLibrary": fn(*mut Handle, Handle);
    function_attribute = c"cuFuncGetAttribute": fn(*mut c_int, c_int, Handle);
    set_function_attribute = c"cuFuncSetAttribute": fn(Handle, c_int, c_int);
    load_module = c"cuModuleLoadData": fn(*mut Handle, *const c_void);
    load_library = c"cuLibraryLoadData": fn(*mut Handle, *const c_void, *mut c_int, *mut *mut c_void, c_uint, *mut c_int, *mut *mut c_void, c_uint);
    resident_blocks = c"cuOccupancyMaxActiveBlocksPerMultiprocessor": fn(*mut c_int, Handle, c_int, usize);
    largest_cluster = c"cuOccupancyMaxPotentialClusterSize": fn(*mut c_int, Handle, *const LaunchConfig);
    register_log = c"cuLogsRegisterCallback": fn(LogCallback, *mut c_void, *mut Handle);
    stream_capturing = c"cuStreamIsCapturing": fn(Handle, *mut c_int);
    synchronize_stream = c"cuStreamSynchronize": fn(Handle);
    synchronize_thread_stream = c"cuStreamSynchronize_ptsz": fn(Handle);
    graph_nodes = c"cuGraphGetNodes": fn(Handle, *mut Handle, *mut usize);
    node_kind = c"cuGraphNodeGetType": fn(Handle, *mut c_int);
    child_graph = c"cuGraphChildGraphNodeGetGraph": fn(Handle, *mut Handle);
    kernel_node = c"cuGraphKernelNodeGetParams_v2": fn(Handle, *mut KernelNode);
    old_kernel_node = c"cuGraphKernelNodeGetParams": fn(Handle, *mut OldKernelNode);
    kernel_node_attribute = c"cuGraphKernelNodeGetAttribute": fn(Handle, c_uint, *mut AttributeValue);
}

/// Drivers by the hook and slot of a launch.
static KNOWN: [AtomicPtr<Driver>; FUNCTIONS.len() * SLOTS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; FUNCTIONS.len() * SLOTS];
/// The limits of each device, by number.
static DEVICES: [AtomicPtr<DeviceLimits>; MAX_DEVICES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MAX_DEVICES];
const MAX_DEVICES: usize = 64;

impl Driver {
    /// The driver that this hook and slot call.
    pub(crate) fn of(through: (usize, usize)) -> &'static Self {
        static NONE: Driver = Driver::NONE;
        let Some(known) = KNOWN.get(through.0 * SLOTS + through.1) else { return &NONE };
        get_or_publish(known, || {
            let found = Self::resolve(functions::original_address(through));
            // A runtime may refuse a launch before it loads the driver: the next call searches again.
            found.driver_version.is_some().then_some(found)
        })
        .unwrap_or(&NONE)
    }

    /// Whether the driver has names of kernels: since CUDA 12.3.
    pub(crate) fn has_names(&self) -> bool {
        self.function_name.is_some() && self.kernel_name.is_some()
    }

    /// The name of a `CUfunction`, or of a `CUkernel` that is launched as one.
    ///
    /// # Safety
    ///
    /// `kernel` is loaded.
    pub(crate) unsafe fn name_of(&self, kernel: Handle) -> Option<&'static CStr> {
        [self.function_name, self.kernel_name].into_iter().flatten().find_map(|ask| {
            // SAFETY: the kernel is loaded; for the other kind of handle the driver returns an error.
            let name = written(ptr::null(), |name| Some(unsafe { ask(name, kernel) }))?;
            // SAFETY: a string that lives as long as the kernel; callers copy it at once.
            unsafe { process::text(name) }
        })
    }

    /// The module or library of a `CUfunction`, or of a `CUkernel` that is launched as one; null if the driver does
    /// not tell.
    ///
    /// # Safety
    ///
    /// `kernel` is loaded.
    pub(crate) unsafe fn container_of(&self, kernel: Handle) -> Handle {
        let found =
            [self.function_module, self.kernel_library].into_iter().flatten().find_map(|ask| {
                // SAFETY: the kernel is loaded; for the other kind of handle the driver returns an error.
                written(ptr::null_mut(), |container| Some(unsafe { ask(container, kernel) }))
            });
        found.unwrap_or(ptr::null_mut())
    }

    /// `CUDA_ERROR_INVALID_VALUE (1), invalid argument`.
    pub(crate) fn error(&self, status: Status) -> String {
        type Question = unsafe extern "C-unwind" fn(Status, *mut *const c_char) -> Status;
        let ask = |question: Option<Question>| {
            // SAFETY: the driver writes a pointer to a static string, or null for an unknown code.
            let text = written(ptr::null(), |text| Some(unsafe { question?(status, text) }))?;
            // SAFETY: null or a static string.
            unsafe { process::text(text) }
        };
        let name = ask(self.error_name).map_or("error".into(), CStr::to_string_lossy);
        match ask(self.error_text) {
            Some(text) => format!("{name} ({status}), {}", text.to_string_lossy()),
            None => format!("{name} ({status})"),
        }
    }

    /// The limits of the current context's device, asked once for each device.
    pub(crate) fn device_limits(&self) -> Option<&'static DeviceLimits> {
        let device = self.device_number()?;
        let known = DEVICES.get(usize::try_from(device).ok()?)?;
        get_or_publish(known, || self.query_device(device))
    }

    /// The number of the current context's device.
    pub(crate) fn device_number(&self) -> Option<c_int> {
        // SAFETY: the pointer is to a live integer; without a context the driver returns an error.
        written(0, |device| Some(unsafe { self.current_device?(device) }))
    }

    /// The number of devices of the process.
    pub(crate) fn count_devices(&self) -> Option<c_int> {
        // SAFETY: the pointer is to a live integer.
        written(0, |count| Some(unsafe { self.device_count?(count) }))
    }

    /// Free and total bytes of the current context's device.
    pub(crate) fn free_memory(&self) -> Option<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to live integers. It is no work of a stream, so no capture minds it.
        let status = unsafe { self.memory_info?(&raw mut free, &raw mut total) };
        let both = (u64::try_from(free).ok()?, u64::try_from(total).ok()?);
        (status == SUCCESS).then_some(both)
    }

    /// Bytes that the device's memory pool keeps, but that belong to no allocation.
    pub(crate) fn unused_of_pool(&self, device: c_int) -> Option<u64> {
        // SAFETY: the pointer is to a live handle; for another device it is an error.
        let pool =
            written(ptr::null_mut(), |pool| Some(unsafe { self.device_pool?(pool, device) }))?;
        let [reserved, used] = [POOL_RESERVED, POOL_USED].map(|attribute| {
            // SAFETY: the driver returned the pool; both attributes have 64 bits.
            written(0, |bytes| Some(unsafe { self.pool_attribute?(pool, attribute, bytes) }))
        });
        reserved?.checked_sub(used?)
    }

    fn query_device(&self, device: c_int) -> Option<DeviceLimits> {
        let (mut name, mut memory, mut driver_version) = ([0_u8; 256], 0, 0);
        // SAFETY: the driver returned the device; the buffer has the size that is passed, and the other
        // pointers are to live integers.
        let asked = unsafe {
            self.device_name?(name.as_mut_ptr().cast(), 255, device) == SUCCESS
                && self.device_memory?(&raw mut memory, device) == SUCCESS
                && self.driver_version?(&raw mut driver_version) == SUCCESS
        };
        let name = asked.then(|| CStr::from_bytes_until_nul(&name).ok()).flatten()?;
        let memory_bytes = u64::try_from(memory).unwrap_or(u64::MAX);
        let attribute = |number| self.attribute_of(device, number).ok_or(());
        let name = name.to_string_lossy();
        DeviceLimits::from_attributes(name, memory_bytes, driver_version, attribute).ok()
    }

    /// An attribute of a device, if the driver knows both.
    fn attribute_of(&self, device: c_int, number: c_int) -> Option<c_int> {
        // SAFETY: the pointer is to a live integer; an unknown attribute or device is an error.
        written(0, |value| Some(unsafe { self.device_attribute?(value, number, device) }))
    }

    /// The compute capabilities of all devices of the process; none if the driver does not tell.
    pub(crate) fn capabilities(&self) -> Vec<ComputeCapability> {
        /// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `..._MINOR`.
        const CAPABILITY: [c_int; 2] = [75, 76];
        let of_device = |device| {
            let number = |attribute| u32::try_from(self.attribute_of(device, attribute)?).ok();
            Some(ComputeCapability::new(number(CAPABILITY[0])?, number(CAPABILITY[1])?))
        };
        let count = self.count_devices().unwrap_or(0);
        let all: Option<Vec<_>> = (0..count).map(of_device).collect();
        all.unwrap_or_default()
    }

    /// Copies the attributes that the program has set for `kernel` to `form`. An attribute that the driver refuses
    /// keeps its default.
    ///
    /// # Safety
    ///
    /// Both are loaded.
    pub(crate) unsafe fn copy_attributes(&self, kernel: Handle, form: Handle) {
        let (Some(ask), Some(set)) = (self.function_attribute, self.set_function_attribute) else {
            return;
        };
        // SAFETY: by this function's contract.
        let [kernel, form] = unsafe { [self.function_of(kernel), self.function_of(form)] };
        // SAFETY: the pointer is to a live integer.
        let version = written(0, |version| Some(unsafe { self.driver_version?(version) }));
        let known = |(_, since): &&(c_int, c_int)| version.is_some_and(|version| *since <= version);
        for &(attribute, _) in SETTABLE.iter().filter(known) {
            let [wanted, known] = [kernel, form].map(|function| {
                // SAFETY: the functions are loaded, the pointer is to a live integer.
                written(0, |value| Some(unsafe { ask(value, attribute, function) }))
            });
            if let Some(wanted) = wanted.filter(|_| known.is_some() && wanted != known) {
                // SAFETY: the function is loaded.
                unsafe { set(form, attribute, wanted) };
            }
        }
    }

    /// The limits of the kernel, as far as the driver knows them.
    ///
    /// # Safety
    ///
    /// `kernel` is loaded.
    unsafe fn kernel_limits(&self, kernel: Handle, name: &str) -> KernelLimits {
        // SAFETY: by this function's contract.
        let function = unsafe { self.function_of(kernel) };
        let ask = |number| {
            // SAFETY: the function is loaded; the pointer is to a live integer.
            written(0, |value| Some(unsafe { self.function_attribute?(value, number, function) }))
        };
        KernelLimits::from_attributes(name, |number| ask(number).ok_or(()))
            .unwrap_or_else(|_| KernelLimits::unknown(name))
    }

    /// The limits of the launch's kernel, with what the launch itself allows.
    ///
    /// # Safety
    ///
    /// The kernel is loaded.
    pub(crate) unsafe fn limits_for(&self, launch: &Launch, name: &str) -> KernelLimits {
        // SAFETY: by this function's contract.
        let mut limits = unsafe { self.kernel_limits(launch.kernel, name) };
        limits.non_portable_cluster_allowed |= launch.non_portable_cluster;
        limits
    }

    /// What the driver says about the occupancy of a cooperative launch or one in clusters.
    ///
    /// # Safety
    ///
    /// The launch's kernel is loaded.
    pub(crate) unsafe fn occupancy(
        &self,
        launch: &Launch,
        device: &DeviceLimits,
    ) -> OccupancyLimits {
        // SAFETY: by this function's contract.
        let function = unsafe { self.function_of(launch.kernel) };
        let threads = c_int::try_from(launch.threads()).unwrap_or(0);
        let shared = usize::try_from(launch.shared_bytes).unwrap_or(usize::MAX);
        let per_multiprocessor = self.resident_blocks.filter(|_| launch.cooperative && threads > 0);
        let blocks = per_multiprocessor.and_then(|ask| {
            // SAFETY: the function is loaded; the pointer is to a live integer.
            let most = written(0, |most| Some(unsafe { ask(most, function, threads, shared) }))?;
            u64::try_from(most).ok()?.checked_mul(device.multiprocessors)
        });
        let cluster_blocks = self.largest_cluster.filter(|_| launch.cluster.is_some());
        let cluster_blocks = cluster_blocks.and_then(|ask| {
            let &Launch { grid, block, shared_bytes, .. } = launch;
            let config = LaunchConfig { grid, block, shared_bytes, ..NO_ATTRIBUTES };
            // SAFETY: the function is loaded; both pointers are to live values.
            let most = written(0, |most| Some(unsafe { ask(most, function, &raw const config) }))?;
            u64::try_from(most).ok()
        });
        OccupancyLimits { blocks, cluster_blocks }
    }

    /// Waits for `stream`, unless a graph is captured from it.
    pub(crate) fn wait(&self, stream: Handle, per_thread: bool) -> Option<Status> {
        // SAFETY: the program launched on the stream just now; the pointer is to a live integer.
        let capturing = written(0, |state| Some(unsafe { self.stream_capturing?(stream, state) }));
        let of_thread = self.synchronize_thread_stream.filter(|_| per_thread);
        let synchronize = of_thread.or(self.synchronize_stream)?;
        // SAFETY: the program launched on the stream just now, so it is alive.
        (capturing == Some(0)).then(|| unsafe { synchronize(stream) })
    }

    /// The function behind a `CUkernel` that is launched as a function. A `CUfunction` is returned unchanged.
    ///
    /// # Safety
    ///
    /// `kernel` is loaded.
    pub(crate) unsafe fn function_of(&self, kernel: Handle) -> Handle {
        // SAFETY: the kernel is loaded; for a `CUfunction` the driver returns an error.
        written(kernel, |function| Some(unsafe { self.kernel_function?(function, kernel) }))
            .unwrap_or(kernel)
    }
}

/// The value that `ask` writes through its pointer, if it succeeds. `ask` returns `None` if the driver lacks the
/// function.
pub(crate) fn written<T>(initial: T, ask: impl FnOnce(*mut T) -> Option<Status>) -> Option<T> {
    let mut value = initial;
    (ask(&raw mut value)? == SUCCESS).then_some(value)
}

/// The limits of all devices that were queried.
pub(crate) fn known_devices() -> impl Iterator<Item = &'static DeviceLimits> {
    // SAFETY: null, or limits that are never freed nor changed.
    DEVICES.iter().filter_map(|known| unsafe { known.load(Ordering::Acquire).as_ref() })
}

/// Lock-free get-or-init, since a child process could inherit a locked lock. If two threads race, one value is leaked.
fn get_or_publish<T>(known: &AtomicPtr<T>, make: impl FnOnce() -> Option<T>) -> Option<&'static T> {
    // SAFETY: null, or a value that is never freed nor changed.
    if let Some(value) = unsafe { known.load(Ordering::Acquire).as_ref() } {
        return Some(value);
    }
    let value = Box::into_raw(Box::new(make()?));
    known.store(value, Ordering::Release);
    // SAFETY: made above, never freed.
    unsafe { value.as_ref() }
}
