//! Cooperative launches in a green context, which has a share of the multiprocessors.
#![allow(unsafe_code, reason = "cudarc has no green contexts")]

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::null_mut;

use gridguard::cuda::RawLaunch;
use gridguard::{Dim3, Guard, LaunchRequest, RawArgs, Rule};

use super::support::{alone, context, guard};

const PTX: &core::ffi::CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry k() { ret; }
";
/// Multiprocessors that the green context asks for; it may get more.
const WANTED: c_uint = 16;
/// `CU_DEV_RESOURCE_TYPE_SM`.
const MULTIPROCESSORS: c_int = 1;
/// `CU_GREEN_CTX_DEFAULT_STREAM`.
const WITH_DEFAULT_STREAM: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`, which streams of green contexts must be.
const NON_BLOCKING: c_uint = 1;
const TOO_LARGE: c_int = 720;

type Handle = *mut c_void;

/// `CUdevResource`, with room for later versions.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Resource {
    kind: c_int,
    padding: [u8; 92],
    multiprocessors: c_uint,
    rest: [u8; 156],
}

const NONE: Resource = Resource { kind: 0, padding: [0; 92], multiprocessors: 0, rest: [0; 156] };

/// Calls a function of the driver with arguments of the types of its header.
macro_rules! call {
    ($library:expr, $symbol:literal($($argument:expr => $type:ty),* $(,)?)) => {{
        // SAFETY: the types are those that the driver's header declares for the symbol.
        let function = unsafe {
            $library.get::<unsafe extern "C" fn($($type),*) -> c_int>($symbol.as_bytes())
        };
        // SAFETY: pointers are to live values, and handles were returned by the driver.
        unsafe { function.expect($symbol)($($argument),*) }
    }};
}

/// A green context as a context, with a stream of it and the kernel `k` loaded in it.
struct Green {
    library: libloading::Library,
    context: Handle,
    stream: Handle,
    function: Handle,
    multiprocessors: u64,
}

impl Green {
    /// The green context is current afterwards, until the process ends.
    fn new() -> Self {
        context().bind_to_thread().expect("the primary context");
        // SAFETY: the driver is loaded already.
        let library = unsafe { libloading::Library::new("libcuda.so.1") }.expect("the driver");
        let (mut all, mut some, mut rest) = (NONE, NONE, NONE);
        let (mut groups, mut description, mut green) = (1, null_mut(), null_mut());
        let ok = |status: c_int| assert_eq!(status, 0);
        ok(call!(library, "cuDeviceGetDevResource"(
            0 => c_int, &raw mut all => *mut Resource, MULTIPROCESSORS => c_int)));
        ok(call!(library, "cuDevSmResourceSplitByCount"(
            &raw mut some => *mut Resource, &raw mut groups => *mut c_uint,
            &raw const all => *const Resource, &raw mut rest => *mut Resource, 0 => c_uint,
            WANTED => c_uint)));
        ok(call!(library, "cuDevResourceGenerateDesc"(
            &raw mut description => *mut Handle, &raw mut some => *mut Resource, 1 => c_uint)));
        ok(call!(library, "cuGreenCtxCreate"(
            &raw mut green => *mut Handle, description => Handle, 0 => c_int,
            WITH_DEFAULT_STREAM => c_uint)));
        let (mut context, mut stream) = (null_mut(), null_mut());
        ok(call!(library, "cuCtxFromGreenCtx"(
            &raw mut context => *mut Handle, green => Handle)));
        ok(call!(library, "cuGreenCtxStreamCreate"(
            &raw mut stream => *mut Handle, green => Handle, NON_BLOCKING => c_uint, 0 => c_int)));
        ok(call!(library, "cuCtxSetCurrent"(context => Handle)));
        let function = load(&library);
        let multiprocessors = some.multiprocessors.into();
        Self { library, context, stream, function, multiprocessors }
    }

    /// The driver's result of a cooperative launch.
    fn launch(&self, function: Handle, stream: Handle, blocks: u64, threads: u64) -> c_int {
        let [blocks, threads] = [blocks, threads].map(|size| c_uint::try_from(size).expect("few"));
        let launched = call!(self.library, "cuLaunchCooperativeKernel"(
            function => Handle, blocks => c_uint, 1 => c_uint, 1 => c_uint, threads => c_uint,
            1 => c_uint, 1 => c_uint, 0 => c_uint, stream => Handle, null_mut() => *mut Handle));
        let synchronized = call!(self.library, "cuCtxSynchronize"());
        assert_eq!(synchronized, 0, "{blocks} blocks of {threads}");
        launched
    }
}

/// The kernel, loaded in the current context.
fn load(library: &libloading::Library) -> Handle {
    let (mut module, mut function) = (null_mut(), null_mut());
    let image = PTX.as_ptr().cast::<c_void>();
    let loaded =
        call!(library, "cuModuleLoadData"(&raw mut module => *mut Handle, image => *const c_void));
    assert_eq!(loaded, 0);
    let name = c"k".as_ptr().cast::<c_void>();
    let found = call!(library, "cuModuleGetFunction"(
        &raw mut function => *mut Handle, module => Handle, name => *const c_void));
    assert_eq!(found, 0);
    function
}

fn cooperative(blocks: u64, threads: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(blocks, 1, 1), Dim3::new(threads, 1, 1)).cooperative()
}

/// Asserts that guard and driver take the same largest grid on `stream`.
fn agree(green: &Green, context: Handle, function: Handle, stream: Handle, what: &str) {
    // SAFETY: the driver returned both handles, which live until the process ends.
    let green_guard = unsafe { Guard::with_raw_context(context) }.expect("its limits");
    // SAFETY: as above.
    let kernel = unsafe { green_guard.raw_kernel(function, Some("k")) }.expect("its limits");
    let limits = guard().limits();
    for threads in [32, 256, 1024] {
        let each = limits.max_threads_per_multiprocessor / threads;
        let most = each.min(limits.max_blocks_per_multiprocessor) * green.multiprocessors;
        println!("{what}: {most} blocks of {threads}");
        let driver = [most, most + 1].map(|blocks| green.launch(function, stream, blocks, threads));
        assert_eq!(driver, [0, TOO_LARGE], "{what}: {most} blocks of {threads}");
        let launch = |blocks| {
            let (request, args) = (cooperative(blocks, threads), RawArgs::new());
            // SAFETY: the stream is of the context, and the kernel takes nothing.
            unsafe {
                green_guard.launch_raw(&kernel, stream, RawLaunch::Request(&request, None, &args))
            }
        };
        assert_eq!(launch(most), Ok(1), "{what}");
        let error = launch(most + 1).expect_err("one block too many");
        let violations = error.violations().expect("a rule");
        assert!(violations.contains(Rule::CooperativeResidency), "{what}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn guard_and_driver_agree_on_cooperative_grids_in_a_green_context() {
    let test = "green_contexts::guard_and_driver_agree_on_cooperative_grids_in_a_green_context";
    alone(test, || {
        let green = Green::new();
        assert!(green.multiprocessors >= WANTED.into());
        assert!(green.multiprocessors < guard().limits().multiprocessors, "a share");
        agree(&green, green.context, green.function, green.stream, "a stream of the context");
        agree(&green, green.context, green.function, null_mut(), "its default stream");
        // A function of the primary context on a stream of the green one, if the driver takes it.
        context().bind_to_thread().expect("the primary context");
        let (primary, function) = (context().cu_ctx().cast(), load(&green.library));
        match green.launch(function, green.stream, 1, 32) {
            0 => agree(&green, primary, function, green.stream, "a function of another context"),
            refused => println!("a function of another context is refused: {refused}"),
        }
    });
}
