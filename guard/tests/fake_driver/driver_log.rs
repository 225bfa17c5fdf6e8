//! Messages of the driver's log in errors, and the threads that they are about.
#![allow(unsafe_code, reason = "a launch around the guard")]

use expect_test::expect;
use gridguard::{Dim3, LaunchRequest};
use gridguard_test_support::fake_driver::{Driver, with_driver};

use crate::kernels::{config, context, function, kernel, loaded, with_guard, with_kernel};
use crate::late_errors::{FAIL, idle, stopped};

/// What the fake driver's log then says.
const SAYS: &str = "GRIDGUARD_FAKE_DRIVER_LOG";

#[test]
fn an_error_quotes_what_the_driver_logged() {
    let settings = [(FAIL, "0"), ("GRIDGUARD_FAKE_FAIL_CODE", "1"), (SAYS, "gridDimY is 65536")];
    with_kernel(&settings, "idle", |guard, kernel, stream| {
        let (_, error) = stopped(idle(&guard, &kernel, &stream).expect_err("refused"));
        let log = error.driver_log().expect("the driver explains itself");
        assert_eq!((log.text.as_str(), log.may_be_of_another_thread), ("gridDimY is 65536", false));
        expect![
            "cuLaunchKernel returned CUDA_ERROR_INVALID_VALUE (1): invalid argument; driver log: \
             gridDimY is 65536"
        ]
        .assert_eq(&error.to_string());
    });
}

#[test]
fn log_lines_of_other_threads_are_marked() {
    let settings = [
        (FAIL, "0"),
        ("GRIDGUARD_FAKE_FAIL_CODE", "1"),
        (SAYS, "gridDimY is 65536"),
        ("GRIDGUARD_FAKE_DRIVER_LOG_THREAD", "1"),
    ];
    with_kernel(&settings, "idle", |guard, kernel, stream| {
        let text = idle(&guard, &kernel, &stream).expect_err("refused").to_string();
        let end = "; driver log (maybe of another thread): gridDimY is 65536";
        assert!(text.ends_with(end), "{text}");
    });
}

#[test]
fn log_lines_from_before_a_query_are_not_quoted() {
    let settings = [
        (FAIL, "0"),
        ("GRIDGUARD_FAKE_FAIL_CODE", "1"),
        (SAYS, "gridDimY is 65536"),
        ("GRIDGUARD_FAKE_FAIL_OCCUPANCY", "999"),
    ];
    with_guard(&settings, |guard| {
        let context = context(&guard);
        let function = function(context, "wide");
        let stream = context.default_stream();
        // SAFETY: the function takes nothing.
        let refused = unsafe { stream.launch_builder(&function).launch(config((1, 1, 1), 32)) };
        assert!(refused.is_err(), "the driver refuses it, and says why");
        let request = LaunchRequest::new(Dim3::ONE, Dim3::new(32, 1, 1)).cooperative();
        let error = kernel(&guard, "idle").occupancy(&request).expect_err("the query fails");
        assert_eq!((error.code, error.driver_log()), (999, None));
    });
}

#[test]
fn without_a_driver_log_the_error_quotes_nothing() {
    let settings = [(FAIL, "0"), ("GRIDGUARD_FAKE_FAIL_CODE", "1"), (SAYS, "gridDimY is 65536")];
    with_driver(Driver::Old, &settings, || {
        let (guard, kernel, stream) = loaded("idle");
        let (_, error) = stopped(idle(&guard, &kernel, &stream).expect_err("refused"));
        assert_eq!(error.driver_log(), None);
    });
}
