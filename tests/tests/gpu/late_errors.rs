//! Errors of a launch that surface at a later call, on a real device.
//!
//! A fault takes the context with it, so each test runs in a process of its own.
#![allow(unsafe_code, reason = "a kernel that breaks its promise on purpose")]

use cudarc::driver::LaunchConfig;
use cudarc::driver::sys::CUfunction_attribute_enum;
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{
    Args, CompileOptions, Compiler, CudaError, CudaErrorKind, DriverError, FaultSuspects,
    LaunchError, driver_version,
};
use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, LaunchRequest, Parameter};

use super::support::{alone, context, guard, stream};

/// Items of three chunks of a thousand.
const ITEMS: u64 = 3000;
/// An item of chunk 1.
const FAULTY: u64 = 1500;
/// Some 50 ms: long enough for all chunks to be submitted before the fault.
const CYCLES: u64 = 100_000_000;

const SOURCE: &str = r#"
typedef unsigned long long u64;

// Counts from `first` on, one block of y an item. At item `faulty` it waits for `cycles` clock cycles, and then writes
// to an address without memory.
extern "C" __global__ void count_or_fault(u64 *out, u64 first, u64 faulty, u64 cycles) {
    out[blockIdx.y] = first + blockIdx.y;
    if (first + blockIdx.y != faulty) return;
    long long start = clock64();
    while (u64(clock64() - start) < cycles) {}
    *reinterpret_cast<volatile u64 *>(16) = 1;
}
"#;

const SHARED: &str = r#"
extern "C" __global__ void shared() {}
"#;

/// Launches three chunks, and chunk 1 faults. Returns the results of the launch and of synchronising.
fn launch_faulty(guard: &Guard) -> (Result<u64, LaunchError>, Result<(), CudaError>) {
    let module = guard.compile("late_errors.cu", SOURCE).expect("compiles");
    let number = Parameter::of::<u64>();
    let parameters = [Parameter::Memory, number, number, number];
    // SAFETY: this kernel breaks its contract at one item. The device keeps such a write from all
    // memory, and this process ends without using the context again.
    let kernel = unsafe { module.kernel("count_or_fault", &parameters) }.expect("a kernel");
    let request = LaunchRequest::new(Dim3::new(1, ITEMS, 1), Dim3::ONE);
    let batch = BatchAxis::new(Axis::Y, ITEMS);
    let choice = Choice::at_most(1000);
    let plan = guard.plan(&request, Some(&batch), kernel.limits(), choice).expect("a plan");
    let stream = context().new_stream().expect("a stream");
    let mut out = stream.alloc_zeros::<u64>(usize::try_from(ITEMS).expect("few")).expect("memory");
    stream.synchronize().expect("no fault yet");
    let mut args = Args::new(&stream);
    args.write_items(&mut out, 1).offset().value(FAULTY).value(CYCLES);
    (guard.launch(&kernel, &plan, args), guard.synchronize(&stream))
}

/// The chunks that `error` suspects, the newest last.
fn suspects(error: &DriverError) -> Vec<u64> {
    let blame = error.suspects().expect("an earlier launch is suspected");
    let launches = blame.launches();
    assert!(launches.iter().all(|launch| &*launch.kernel == "count_or_fault"), "{blame}");
    launches.iter().map(|launch| launch.chunk.index).collect()
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn an_illegal_access_surfaces_late_and_is_blamed_on_the_chunks_under_way() {
    alone(
        "late_errors::an_illegal_access_surfaces_late_and_is_blamed_on_the_chunks_under_way",
        || {
            let guard = Guard::with_context(context()).expect("a guard");
            let (launched, waited) = launch_faulty(&guard);
            assert_eq!(launched, Ok(3), "the fault comes later");
            let waited = waited.expect_err("the fault surfaces here");
            let CudaErrorKind::Driver(error) = waited.kind() else {
                panic!("another error: {waited:?}");
            };
            println!("{error}");
            assert_eq!((error.call, error.code), ("cuStreamSynchronize", 700));
            assert_eq!(suspects(error), [0, 1, 2]);
            let later = guard.compile("late_errors.cu", SOURCE).expect_err("the context is lost");
            println!("{later}");
            let (CudaErrorKind::Driver(later) | CudaErrorKind::Refused { error: later, .. }) =
                later.kind()
            else {
                panic!("another error: {later:?}");
            };
            assert_eq!(suspects(later), [0, 1, 2]);
        },
    );
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn checked_launches_name_the_chunk_that_accesses_illegally() {
    alone("late_errors::checked_launches_name_the_chunk_that_accesses_illegally", || {
        let guard = Guard::with_context(context()).expect("a guard").with_checked_launches(true);
        let (launched, _) = launch_faulty(&guard);
        let Err(LaunchError::Stopped(stopped)) = launched else {
            panic!("the fault surfaces at once: {launched:?}");
        };
        println!("{stopped}");
        assert_eq!((stopped.chunk, stopped.items_done, stopped.source.code), (1, 1000, 700));
        let Some(FaultSuspects::Launch(launch)) = stopped.source.suspects() else {
            panic!("{:?}", stopped.source.suspects());
        };
        assert_eq!((launch.chunk.index, launch.chunk.start, launch.launches), (1, 1000, 3));
        assert_eq!(launch.call_site.file(), file!());
        assert_eq!(guard.counts().checked, 1, "chunk 0");
    });
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_driver_explains_a_refusal_where_it_keeps_a_log() {
    alone("late_errors::the_driver_explains_a_refusal_where_it_keeps_a_log", || {
        let options = CompileOptions::new("late_errors.cu", guard().limits().compute_capability);
        let compiled = Compiler::find().expect("NVRTC").compile(SHARED, &options);
        let image = Ptx::from_binary(compiled.expect("compiles").image.bytes().to_vec());
        let module = context().load_module(image).expect("loads");
        let function = module.load_function("shared").expect("a function");
        let stream = stream();
        let config =
            LaunchConfig { grid_dim: (1, 1, 1), block_dim: (32, 1, 1), shared_mem_bytes: 60_000 };
        let launch = || {
            let mut launch = guard().builder(&stream, &function);
            // SAFETY: the function takes nothing and does nothing.
            unsafe { launch.launch(config) }.map(drop)
        };
        launch().expect("the guard opts in");
        // What the guard foresees it does not launch, so the limit is lowered behind its back.
        let most = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(most, 0).expect("lowered");
        let Err(LaunchError::Stopped(stopped)) = launch() else {
            panic!("the driver holds the limit");
        };
        let error = stopped.source;
        println!("{error}");
        assert_eq!((error.code, error.suspects()), (1, None), "it is the launch's own error");
        let keeps_a_log = driver_version().expect("a driver") >= 12_090;
        assert_eq!(error.driver_log().is_some(), keeps_a_log, "{error}");
    });
}
