//! Contexts that another part of the program destroys while a guard uses them.
#![allow(unsafe_code, reason = "calls of the driver that nobody guards")]

use core::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gridguard::Guard;
use gridguard::cuda::{Kernel, LaunchError};
use gridguard_test_support::Random;
use libloading::Library;

use crate::observed::{Expected, Observed, Seen};
use crate::setup::{Setup, along_y, context, kernel, launch_iota, launch_spill, poisoned};

/// How the context is destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The primary context is reset.
    Reset,
    /// The primary context is released once too often.
    Release,
    /// A context of the program, by another thread, while it is current on this one.
    Destroy,
}

/// A call to the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Launch,
    /// Launches continue while another thread destroys the context.
    LaunchMeanwhile,
    LaunchWithWorkspace,
    Synchronize,
    Load,
    FreeMemory,
    Priorities,
    Occupancy,
}

const CALLS: [Call; 8] = [
    Call::Launch,
    Call::LaunchWithWorkspace,
    Call::Synchronize,
    Call::Load,
    Call::FreeMemory,
    Call::Priorities,
    Call::Occupancy,
    Call::LaunchMeanwhile,
];
/// Codes of a destroyed context: deinitialised, invalid, destroyed, or unknown handles.
const GONE: [i32; 4] = [4, 201, 709, 400];
/// How long launches are repeated at most.
const LONGEST: Duration = Duration::from_secs(10);

/// What the guard has in the context.
struct Scene<'a> {
    setup: &'a Setup,
    guard: Guard,
    stream: Arc<CudaStream>,
    iota: Kernel,
    spiller: Kernel,
    out: CudaSlice<u64>,
    items: u64,
}

pub(crate) fn inject(setup: &Setup, number: u64, random: &mut Random) -> Observed {
    let (how, elsewhere) = match number % 4 {
        0 => (How::Reset, false),
        1 => (How::Reset, true),
        2 => (How::Release, false),
        _ => (How::Destroy, true),
    };
    let first = CALLS[usize::try_from(number / 4 % 8).expect("few")];
    let (items, under_way) = (1 + random.below(100_000), random.below(5));
    let after = Duration::from_micros(random.below(3000));
    let guard = match how {
        How::Destroy => Guard::with_context(new_context()).expect("a guard"),
        _ => setup.guard(),
    };
    let stream = context(&guard).default_stream();
    // The kernels alone keep their module, so that it goes with them.
    let (iota, spiller) = {
        let module = setup.module(&guard);
        (kernel(&module, "iota_y"), kernel(&module, "spill_y"))
    };
    let out = poisoned(&stream, items);
    let mut scene = Scene { setup, guard, stream, iota, spiller, out, items };
    for _ in 0..under_way {
        scene.launch().expect("the context is alive");
    }
    let owner = Arc::clone(context(&scene.guard));
    let seen = if first == Call::LaunchMeanwhile {
        scene.launch_until_error(after, || destroy(how, &owner))
    } else {
        let destroy = || destroy(how, &owner);
        let status = match elsewhere {
            true => std::thread::scope(|scope| scope.spawn(destroy).join().expect("no panic")),
            false => destroy(),
        };
        assert_eq!(status, 0, "the context was alive");
        scene.call(first)
    };
    let outcomes: &[&str] = match first {
        Call::Launch | Call::LaunchWithWorkspace | Call::LaunchMeanwhile => &["LaunchError::"],
        Call::Occupancy => &["DriverError/"],
        _ => &["CudaError::Driver/", "CudaError::Refused/"],
    };
    let drawn = format!(
        "{how:?}, elsewhere {elsewhere}, {first:?}, {items} items, {under_way} under way, {after:?}"
    );
    let expected = Expected { outcomes, codes: &GONE, ..Expected::default() };
    let mut observed = Observed::new(drawn, &seen, &expected);
    for call in CALLS {
        let Seen { code, outcome, .. } = scene.call(call);
        let gone = code.is_some_and(|code| GONE.contains(&code));
        observed.require(gone, || format!("afterwards {call:?} came to {outcome}"));
    }
    // The old context is gone completely before a new one is created.
    drop((scene, owner));
    let renewed = Guard::cuda(0).map_err(|error| error.to_string());
    let renewed = renewed.and_then(|guard| setup.check_launch(&guard));
    // A race in the driver can leave an error that is not the guard's (H200: 719).
    let is_race = first == Call::LaunchMeanwhile;
    observed.require(is_race || renewed.is_ok(), || format!("a new guard: {renewed:?}"));
    observed
}

impl Scene<'_> {
    fn launch(&mut self) -> Result<u64, LaunchError> {
        launch_iota(&self.guard, &self.iota, &self.stream, &mut self.out, self.items)
    }

    fn call(&mut self, call: Call) -> Seen {
        let Self { setup, guard, stream, iota, spiller, out, items } = self;
        match call {
            Call::Launch | Call::LaunchMeanwhile => Seen::of(&self.launch()),
            Call::LaunchWithWorkspace => {
                Seen::of(&launch_spill(guard, spiller, stream, out, *items, 256))
            }
            Call::Synchronize => Seen::of(&guard.synchronize(stream)),
            Call::Load => Seen::of(&guard.load(&setup.image())),
            Call::FreeMemory => Seen::of(&guard.free_memory()),
            Call::Priorities => Seen::of(&guard.priorities()),
            Call::Occupancy => Seen::of(&iota.occupancy(&along_y(1).0.cooperative())),
        }
    }

    /// Launches until an error, while another thread destroys the context.
    fn launch_until_error(&mut self, after: Duration, destroy: impl Fn() -> i32 + Sync) -> Seen {
        let is_destroyed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(after);
                assert_eq!(destroy(), 0, "the context was alive");
                is_destroyed.store(true, Ordering::SeqCst);
            });
            let begun = Instant::now();
            while begun.elapsed() < LONGEST {
                let was_destroyed = is_destroyed.load(Ordering::SeqCst);
                let seen = Seen::of(&self.launch());
                if seen.is_error || was_destroyed {
                    return seen;
                }
            }
            Seen::outcome("nothing interrupted the launches")
        })
    }
}

/// The driver, loaded already by the guard.
fn driver() -> Library {
    // SAFETY: the library is loaded already, so nothing runs.
    unsafe { Library::new("libcuda.so.1") }.expect("the driver")
}

/// A context beside the primary one, current on this thread.
fn new_context() -> Arc<CudaContext> {
    type Create = unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int;
    // Initialises the driver if nothing else did.
    gridguard::cuda::device_count().expect("a device");
    let (library, mut context) = (driver(), core::ptr::null_mut());
    // SAFETY: the pointer is to a live handle, and there is a device 0.
    let status = unsafe {
        library.get::<Create>("cuCtxCreate_v2").expect("a symbol")(&raw mut context, 0, 0)
    };
    assert_eq!(status, 0, "a second context");
    // SAFETY: created above, and owned by the result.
    unsafe { CudaContext::from_raw_context(0, 0, context.cast()) }.expect("its device answers")
}

/// Destroys a context, even if it is in use. Its owner does not destroy it again.
fn destroy(how: How, context: &Arc<CudaContext>) -> i32 {
    let library = driver();
    if how == How::Destroy {
        type OfHandle = unsafe extern "C" fn(*mut c_void) -> c_int;
        core::mem::forget(Arc::clone(context));
        let name = "cuCtxDestroy_v2";
        // SAFETY: it was alive until now; the test uses it afterwards.
        return unsafe {
            library.get::<OfHandle>(name).expect("a symbol")(context.cu_ctx().cast())
        };
    }
    type OfDevice = unsafe extern "C" fn(c_int) -> c_int;
    let reset = how == How::Reset;
    let name = if reset { "cuDevicePrimaryCtxReset_v2" } else { "cuDevicePrimaryCtxRelease_v2" };
    // SAFETY: the signature of both functions; device 0 exists.
    unsafe { library.get::<OfDevice>(name).expect("a symbol")(0) }
}
