//! Compares the guard with the driver of a real device on random launches.
//!
//! Launches of a family of kernels, dense around every limit, go to the driver without the guard.
//! Each result is compared with the guard's verdict and with the error code that it predicts.
//! `PROPTEST_RNG_SEED` repeats a run, `GRIDGUARD_CONFORMANCE_LAUNCHES` sets its length, and `GRIDGUARD_RESULTS` names the folder for
//! `conformance.json` and `facts.json`.

mod facts;
mod kernels;
mod report;

use gridguard::{Dim3, KernelLimits, LaunchLimits, LaunchRequest};
use gridguard_test_support::conformance::compare::Tally;
use gridguard_test_support::conformance::raw::{LaunchCall, RawDriver, RawLaunch};
use gridguard_test_support::conformance::session;
use gridguard_tests::figures::from_suite;

use self::kernels::{Family, has_memory};
use self::report::{Kernel, Report};
use super::support::{context, guard};

/// Launches of a run, unless the environment names another number.
const LAUNCHES: u64 = 250_000;

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_guard_agrees_with_the_driver_on_every_launch() {
    let guard = guard();
    context().bind_to_thread().expect("a context");
    let seed = number("PROPTEST_RNG_SEED").unwrap_or_else(|| {
        let since = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("after 1970");
        since.as_secs() ^ u64::from(since.subsec_nanos())
    });
    println!("seed {seed}");
    let driver = RawDriver::open();
    let mut family = Family::new(&driver);
    family.kernels.retain(|kernel| {
        let launched = has_memory(kernel);
        if !launched {
            println!("{} has too little free memory to be launched", kernel.name);
        }
        launched
    });
    let launches = number("GRIDGUARD_CONFORMANCE_LAUNCHES").unwrap_or(LAUNCHES);
    let mut outcome = session::run(&driver, &family.kernels, launches, seed);
    if outcome.sticky.is_none() {
        longest_grid(&driver, &family, &mut outcome.tally);
    }
    let report = Report {
        device: &guard.limits().name,
        driver: from_suite("GRIDGUARD_DRIVER"),
        seed,
        kernels: family.kernels.iter().map(Kernel::new).collect(),
        left_out: &family.left_out,
        outcome: &outcome,
    };
    report.publish();
    report::assert_agreement(&outcome);
    let queried = family.kernels.iter().all(|kernel| kernel.failed_queries.borrow().is_empty());
    assert!(queried, "failed occupancy queries");
    assert!(family.left_out.is_empty(), "left out: {:?}", family.left_out);
}

/// Compares the occupancy that `gridguard check` estimates without a device with the driver's, for every
/// block of one to 1,024 threads and nine sizes of dynamic shared memory.
#[test]
#[ignore = "needs a CUDA GPU"]
fn the_guard_agrees_with_the_driver_on_occupancy() {
    let device = guard().limits().clone();
    let family = Family::new(&RawDriver::open());
    let mut compared = 0_u64;
    // Without a cluster some have no occupancy, and those with too much local memory never have one.
    let has_none = |kernel: &KernelLimits| {
        let too_much_memory = kernel.local_bytes_per_thread > device.max_local_bytes_per_thread();
        kernel.cluster_must_be_set || kernel.required_cluster.is_some() || too_much_memory
    };
    let whole = family.kernels.iter().filter(|kernel| !has_none(kernel.limits.kernel()));
    for kernel in whole {
        let estimate = LaunchLimits::new(device.clone(), kernel.limits.kernel().clone());
        let most = estimate.max_dynamic_shared_bytes();
        for threads in 1..=estimate.kernel().max_threads_per_block.expect("queried") {
            for eighths in 0..=8 {
                let (block, shared) = (Dim3::new(threads, 1, 1), most * eighths / 8);
                let request =
                    LaunchRequest::new(Dim3::ONE, block).dynamic_shared_bytes(shared).cooperative();
                let driver = kernel.occupancy(&request).blocks.filter(|blocks| *blocks > 0);
                assert_eq!(
                    estimate.co_resident_blocks(block, shared),
                    driver,
                    "{}: {threads} threads, {shared} bytes",
                    kernel.name,
                );
                compared += 1;
            }
        }
    }
    println!("{compared} occupancies compared");
    assert!(compared > 100_000, "too few");
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok())
}

/// Launches 2^31 - 1 blocks of one thread along x, which takes seconds.
fn longest_grid(driver: &RawDriver, family: &Family, tally: &mut Tally) {
    let kernel = &family.kernels[0];
    let most = kernel.limits.device().max_grid.x;
    let request = LaunchRequest::new(Dim3::new(most, 1, 1), Dim3::ONE)
        .parameter_bytes(kernel.parameter_bytes);
    let launch = RawLaunch::new(&request).expect("32 bits");
    let result = driver.launch(kernel.function, &launch, LaunchCall::Oldest);
    tally.record(kernel, &request, LaunchCall::Oldest, Some(result));
    assert_eq!(driver.synchronize(), 0, "2^31 - 1 blocks");
}
