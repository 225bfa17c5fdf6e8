//! Suspects of an error with several contexts, or with per-thread streams.

use cudarc::driver::{CudaStream, sys::CUresult};
use gridguard::cuda::{Args, CudaError, CudaErrorKind, DriverError, Image, Kernel, LaunchError};
use gridguard::{Dim3, Guard, LaunchRequest};
use gridguard_test_support::fake_driver::with_fake;

use crate::kernels::{PTX, context, guard, kernel, loaded, with_guard};
use crate::late_errors::FAULT;

const TWO_DEVICES: (&str, &str) = ("GRIDGUARD_FAKE_DEVICES", "2");

/// Launches a kernel that takes `values` numbers.
fn launch(
    guard: &Guard,
    kernel: &Kernel,
    stream: &CudaStream,
    values: usize,
) -> Result<u64, LaunchError> {
    let mut args = Args::new(stream);
    for _ in 0..values {
        args.value(0_u64);
    }
    let request = LaunchRequest::new(Dim3::ONE, Dim3::new(32, 1, 1));
    guard.launch(kernel, &request, args)
}

/// Guards of two devices. `idle` was launched on the first, `wide` on the second.
fn two_guards() -> (Guard, Guard) {
    let (first, second) = (guard(), Guard::cuda(1).expect("a second device"));
    let wide = kernel(&second, "wide");
    launch(&second, &wide, &context(&second).default_stream(), 0).expect("accepted");
    let idle = kernel(&first, "idle");
    launch(&first, &idle, &context(&first).default_stream(), 1).expect("accepted");
    (first, second)
}

fn driver_error<T: core::fmt::Debug>(result: Result<T, CudaError>) -> DriverError {
    match result.expect_err("a call failed").kind() {
        CudaErrorKind::Driver(error) => error.clone(),
        other => panic!("another error: {other:?}"),
    }
}

fn suspects(error: &DriverError) -> Vec<&str> {
    let suspects = error.suspects().expect("a sticky error");
    suspects.launches().iter().map(|launch| &*launch.kernel).collect()
}

#[test]
fn the_suspects_of_a_query_are_launches_in_the_queried_context() {
    with_fake(&[TWO_DEVICES, (FAULT, "0")], || {
        let (first, second) = two_guards();
        context(&first).bind_to_thread().expect("alive");
        let error = driver_error(second.free_memory());
        assert_eq!((error.call, error.code), ("cuMemGetInfo", 700));
        assert_eq!(suspects(&error), ["wide"]);
    });
}

#[test]
fn a_failure_that_cudarc_recorded_is_returned_once_with_its_suspects() {
    with_fake(&[TWO_DEVICES], || {
        let (first, second) = two_guards();
        let lost = cudarc::driver::DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        context(&second).record_err::<()>(Err(lost));
        context(&first).bind_to_thread().expect("alive");
        let error = driver_error(second.load(&Image::new(PTX).expect("PTX")));
        assert_eq!((error.call, error.code), ("an earlier call", 700));
        assert_eq!(suspects(&error), ["wide"]);
        let text = error.to_string();
        assert!(text.starts_with("an earlier call returned CUDA_ERROR_ILLEGAL_ADDRESS (700)"));
        second.load(&Image::new(PTX).expect("PTX")).expect("it is returned once");
    });
}

#[test]
fn synchronising_a_per_thread_stream_clears_no_launch_of_another_thread() {
    with_guard(&[(FAULT, "2")], |guard| {
        let (idle, wide) = (kernel(&guard, "idle"), kernel(&guard, "wide"));
        // One handle, and a stream of its own for each thread.
        let stream = context(&guard).per_thread_stream();
        launch(&guard, &idle, &stream, 1).expect("accepted");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| launch(&guard, &wide, &stream, 0));
            assert_eq!(other.join().expect("it launches"), Ok(1));
        });
        guard.synchronize(&stream).expect("so far all is well");
        launch(&guard, &idle, &stream, 1).expect("the fault comes later");
        let error = driver_error(guard.synchronize(&stream));
        assert_eq!(suspects(&error), ["wide", "idle"]);
    });
}

#[test]
fn launches_of_dropped_guards_and_kernels_are_not_on_record() {
    with_fake(&[], || {
        let context = {
            let (guard, kernel, _) = loaded("idle");
            launch(&guard, &kernel, &context(&guard).default_stream(), 1).expect("accepted");
            context(&guard).clone()
        };
        let lost = cudarc::driver::DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        let later = Guard::cuda(0).expect("the context is still there");
        context.record_err::<()>(Err(lost));
        let own = Guard::with_context(context).expect_err("the recorded failure");
        assert!(later.recent_launches().is_empty());
        let text = own.to_string();
        assert!(
            text.ends_with("; not caused by this call, but by a launch that is not on record"),
            "{text}"
        );
    });
}
