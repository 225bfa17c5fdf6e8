//! The driver's own log of rejected launches, as errors and `gridguard explain` read it.
#![allow(unsafe_code, reason = "launches around the guard")]

use std::process::Command;

use cudarc::driver::LaunchConfig;
use cudarc::driver::sys::CUfunction_attribute_enum;
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{CompileOptions, Compiler, driver_version};
use gridguard_diagnose::{Fault, Known, LogScanner};

use super::support::{context, guard, stream};

/// The launch of the child process: grid and block.
const LAUNCH: &str = "GRIDGUARD_TEST_LAUNCH";
const SOURCE: &str = "extern \"C\" __global__ void nothing() {}";

#[test]
#[ignore = "needs a CUDA GPU"]
fn sizes_that_the_driver_logs_are_read() {
    if let Ok(launch) = std::env::var(LAUNCH) {
        return reject(&launch);
    }
    let keeps_a_log = driver_version().expect("a driver") >= 12_090;
    for (launch, grid) in [
        ("1 65536 1 32 1 1", Some([1, 65_536, 1])),
        ("1 1 65536 32 1 1", Some([1, 1, 65_536])),
        // Its message about blocks is quoted, whatever it says.
        ("1 1 1 1025 1 1", None),
        ("1 1 1 1 1 65", None),
    ] {
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args(["driver_log::sizes_that_the_driver_logs_are_read", "--exact", "--ignored"])
            .args(["--nocapture", "--test-threads=1"])
            .env(LAUNCH, launch)
            .env("CUDA_LOG_FILE", "stderr")
            .output()
            .expect("this program runs again");
        let text = String::from_utf8_lossy(&output.stderr);
        println!("{launch}:\n{text}");
        assert!(output.status.success(), "{text}");
        let mut log = LogScanner::new();
        log.read(text.as_bytes()).expect("memory can be read");
        let diagnosis = log.diagnosis(&Known::default());
        let first = diagnosis.failures.first();
        let is_decided =
            first.is_some_and(|it| it.fault == Fault::Launch && diagnosis.is_decided());
        assert!(!keeps_a_log || grid.is_none() || is_decided, "{text}");
        let need = first.and_then(|it| it.captures.get("need"));
        if let Some(grid) = grid.filter(|_| keeps_a_log) {
            let largest = grid.iter().max().expect("three").to_string();
            assert_eq!(need, Some(&largest), "{text}");
        }
    }
}

/// Makes a launch that the driver rejects.
fn reject(launch: &str) {
    let sizes: Vec<u32> = launch.split(' ').map(|size| size.parse().expect("a number")).collect();
    let [grid_x, grid_y, grid_z, block_x, block_y, block_z] = sizes[..] else {
        panic!("{launch}: six numbers");
    };
    let options = CompileOptions::new("driver_log.cu", guard().limits().compute_capability);
    let compiled = Compiler::find().expect("NVRTC").compile(SOURCE, &options).expect("compiles");
    let image = Ptx::from_binary(compiled.image.bytes().to_vec());
    let module = context().load_module(image).expect("loads");
    let function = module.load_function("nothing").expect("a function");
    let grid_dim = (grid_x, grid_y, grid_z);
    let block_dim = (block_x, block_y, block_z);
    let config = LaunchConfig { grid_dim, block_dim, shared_mem_bytes: 0 };
    // SAFETY: the function takes nothing and does nothing, and the driver rejects the launch.
    unsafe { stream().launch_builder(&function).launch(config) }.expect_err("too large");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_driver_explains_a_refusal_where_it_keeps_a_log() {
    let options = CompileOptions::new("driver_log.cu", guard().limits().compute_capability);
    let compiled = Compiler::find().expect("NVRTC").compile(SOURCE, &options);
    let image = Ptx::from_binary(compiled.expect("compiles").image.bytes().to_vec());
    let module = context().load_module(image).expect("loads");
    let function = module.load_function("nothing").expect("a function");
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
    let stopped = launch().expect_err("the driver holds the limit");
    let error = stopped.driver().expect("its error");
    println!("{error}");
    assert_eq!((error.code, error.suspects()), (1, None), "it is the launch's own error");
    let keeps_a_log = driver_version().expect("a driver") >= 12_090;
    assert_eq!(error.driver_log().is_some(), keeps_a_log, "{error}");
}
