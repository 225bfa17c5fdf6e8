//! Whose launches an error is blamed on, where there are several contexts, or threads with streams
//! of their own.

use cudarc::driver::{CudaStream, sys::CUresult};
use gridguard::cuda::{Args, CudaError, DriverError, Image, Kernel, LaunchError};
use gridguard::{Dim3, Guard, LaunchRequest};
use gridguard_test_support::fake_driver::with_fake;

use crate::kernels::{PTX, context, guard, kernel};

const TWO_DEVICES: (&str, &str) = ("GRIDGUARD_FAKE_DEVICES", "2");
const FAULT: &str = "GRIDGUARD_FAKE_FAULT_LAUNCH";

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
    guard.plan_and_launch(kernel, &request, None, args)
}

/// Guards of two devices, on each of which a kernel was launched: `idle` on the first, `wide` on the
/// second.
fn two_guards() -> (Guard, Guard) {
    let (first, second) = (guard(), Guard::cuda(1).expect("a second device"));
    let wide = kernel(&second, "wide");
    launch(&second, &wide, &context(&second).default_stream(), 0).expect("accepted");
    let idle = kernel(&first, "idle");
    launch(&first, &idle, &context(&first).default_stream(), 1).expect("accepted");
    (first, second)
}

fn driver_error<T: core::fmt::Debug>(answer: Result<T, CudaError>) -> DriverError {
    match answer {
        Err(CudaError::Driver(error)) => error,
        other => panic!("another answer: {other:?}"),
    }
}

fn suspects(error: &DriverError) -> Vec<&str> {
    let blame = error.suspects().expect("a launch is to blame");
    blame.launches().iter().map(|launch| &*launch.kernel).collect()
}

#[test]
fn a_question_about_another_context_is_blamed_on_the_launches_there() {
    with_fake(&[TWO_DEVICES, (FAULT, "0")], || {
        let (first, second) = two_guards();
        context(&first).bind_to_thread().expect("alive");
        let error = driver_error(second.free_memory());
        assert_eq!((error.call, error.code), ("cuMemGetInfo", 700));
        assert_eq!(suspects(&error), ["wide"]);
    });
}

#[test]
fn what_cudarc_recorded_is_told_as_an_earlier_call_of_its_context() {
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
        second.load(&Image::new(PTX).expect("PTX")).expect("it is told once");
    });
}

#[test]
fn a_thread_that_waits_for_its_own_stream_clears_no_launch_of_another_thread() {
    with_fake(&[(FAULT, "2")], || {
        let guard = guard();
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
fn launches_whose_guard_and_kernels_are_gone_are_not_said_to_have_gone_around_the_guard() {
    with_fake(&[], || {
        let context = {
            let guard = guard();
            let kernel = kernel(&guard, "idle");
            launch(&guard, &kernel, &context(&guard).default_stream(), 1).expect("accepted");
            context(&guard).clone()
        };
        let lost = cudarc::driver::DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        let later = Guard::cuda(0).expect("the context is still there");
        context.record_err::<()>(Err(lost));
        let own = Guard::with_context(context).expect_err("what was recorded is told");
        assert!(later.recent_launches().is_empty());
        let text = own.to_string();
        assert!(
            text.ends_with("; not caused by this call, but by a launch that is not on record"),
            "{text}"
        );
    });
}
