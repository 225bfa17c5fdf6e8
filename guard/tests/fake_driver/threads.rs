//! One guard, many threads.

use gridguard::{Axis, Dim3, LaunchRequest, Rule};
use gridguard_test_support::fake_driver::launches;

use crate::kernels::{context, iota_launches, plan_along, with_kernel};

/// Threads that launch concurrently.
const THREADS: u64 = 8;
/// Plans of each thread.
const ROUNDS: u64 = 5;

#[test]
fn eight_threads_launch_concurrently_and_every_result_and_count_is_correct() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let start = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (guard, kernel, start) = (&guard, &kernel, &start);
                scope.spawn(move || {
                    // Sizes on both sides of the limit, another for each thread.
                    let items = 65_532 + thread;
                    let expected = if items > 65_535 { 2 } else { 1 };
                    let stream = context(guard).new_stream().expect("a stream");
                    let plan = plan_along(kernel, Axis::Y, items);
                    start.wait();
                    for _ in 0..ROUNDS {
                        let launched = iota_launches(guard, kernel, &plan, &stream, items);
                        assert_eq!(launched, expected);
                    }
                });
            }
        });
        let counts = guard.counts();
        assert_eq!(counts.plans, THREADS * ROUNDS);
        assert_eq!(counts.split, THREADS / 2 * ROUNDS);
        assert_eq!(counts.launches, (4 + 2 * 4) * ROUNDS);
        assert_eq!(counts.refused_by_driver, 0);
        assert_eq!(launches().len(), 60);
    });
}

#[test]
fn rejections_of_many_threads_are_all_counted() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let request = LaunchRequest::new(Dim3::new(1, 65_536, 65_536), Dim3::ONE);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        guard.validate(&request, kernel.limits()).expect_err("two axes overflow");
                    }
                });
            }
        });
        assert_eq!(guard.counts().rejections, [(Rule::GridDimY, 8000), (Rule::GridDimZ, 8000)]);
    });
}
