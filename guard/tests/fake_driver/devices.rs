//! Limits of devices, and the choice of one.

use gridguard::catalog;
use gridguard::cuda::{
    CudaError, CudaErrorKind, device_count, device_limits, driver_version, free_memory,
};
use gridguard::{DeviceLimits, Dim3, Guard, KernelLimits, LaunchRequest, Rule};
use gridguard_test_support::fake_driver::with_fake;

use crate::kernels::{context, guard, with_guard};

#[test]
fn the_limits_of_an_h200_are_those_of_its_catalogue_row() {
    with_fake(&[], || {
        let queried = device_limits(0).expect("a device");
        let row = &catalog::gpu("h200").expect("catalogued").limits;
        let apart = queried.memory_bytes.abs_diff(row.memory_bytes);
        let alike = DeviceLimits { memory_bytes: queried.memory_bytes, ..(**row).clone() };
        assert_eq!(*queried, alike);
        assert!(apart < row.memory_bytes / 20, "{}", queried.memory_bytes);
    });
}

#[test]
fn a_guard_has_the_limits_of_its_device() {
    with_fake(&[], || {
        let queried = device_limits(0).expect("a device");
        assert_eq!(guard().limits(), &*queried);
        assert_eq!(driver_version(), Ok(13_000));
    });
}

#[test]
fn a_driver_before_cuda_12_1_takes_4096_bytes_of_parameters() {
    with_guard(&[("GRIDGUARD_FAKE_DRIVER_VERSION", "12000")], |guard| {
        assert_eq!(guard.limits().max_parameter_bytes, 4096);
        let limits = guard.limits_for(KernelLimits::unknown("k"));
        let request = LaunchRequest::new(Dim3::ONE, Dim3::ONE);
        assert!(guard.validate(&request.parameter_bytes(4096), &limits).is_ok());
        let refused =
            guard.validate(&request.parameter_bytes(4097), &limits).expect_err("one byte too many");
        assert!(refused.contains(Rule::ParameterBytes));
    });
}

#[test]
fn an_ordinal_past_the_devices_is_refused_with_their_number() {
    with_fake(&[], || {
        for ordinal in [1, usize::MAX] {
            let missing = CudaError::from(CudaErrorKind::NoSuchDevice { ordinal, count: 1 });
            assert_eq!(Guard::cuda(ordinal).expect_err("one device"), missing);
            assert_eq!(device_limits(ordinal).expect_err("one device"), missing);
            assert_eq!(free_memory(ordinal).expect_err("one device"), missing);
        }
    });
}

#[test]
fn the_best_device_is_the_first_with_the_most_free_memory() {
    let settings = [
        ("GRIDGUARD_FAKE_DEVICES", "3"),
        ("GRIDGUARD_FAKE_FREE_0", "1000"),
        ("GRIDGUARD_FAKE_FREE_1", "2000"),
        ("GRIDGUARD_FAKE_FREE_2", "2000"),
    ];
    with_fake(&settings, || {
        assert_eq!(device_count(), Ok(3));
        assert_eq!(free_memory(1).expect("a device").0, 2000);
        let guard = Guard::best_or_host();
        assert!(guard.fallback().is_none());
        assert_eq!(context(&guard).ordinal(), 1);
    });
}

#[test]
fn a_hidden_device_is_not_counted_and_the_visible_one_is_number_0() {
    let settings = [
        ("GRIDGUARD_FAKE_DEVICES", "2"),
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("GRIDGUARD_FAKE_FREE_1", "77"),
    ];
    with_fake(&settings, || {
        assert_eq!(device_count(), Ok(1));
        assert_eq!(free_memory(0).expect("a device").0, 77);
        assert_eq!(context(&Guard::best_or_host()).ordinal(), 0);
    });
}
