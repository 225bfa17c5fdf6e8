//! Does the guard agree with the driver on every launch?
//!
//! Random launches of a family of kernels, dense around every limit, go to the driver without the
//! guard; its verdict on each is held against the driver's answer. `PROPTEST_RNG_SEED` repeats a run,
//! `GRIDGUARD_CONFORMANCE_LAUNCHES` sets its length, and `GRIDGUARD_RESULTS` names the folder for
//! `conformance.json` and `facts.json`.

mod compare;
mod draw;
mod draw_tests;
mod facts;
mod kernels;
mod random;
mod raw;
mod report;
mod session;
mod subject;

use gridguard::{Dim3, LaunchRequest};

use self::compare::Tally;
use self::kernels::Family;
use self::raw::{RawDriver, RawLaunch, Way};
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
    let family = Family::new(&driver);
    let launches = number("GRIDGUARD_CONFORMANCE_LAUNCHES").unwrap_or(LAUNCHES);
    let mut outcome = session::run(&driver, &family.subjects, launches, seed);
    if outcome.sticky.is_none() {
        longest_grid(&driver, &family, &mut outcome.tally);
    }
    let report = Report {
        device: &guard.limits().name,
        driver: std::env::var("GRIDGUARD_DRIVER").unwrap_or_else(|_| "unknown".into()),
        seed,
        kernels: family.subjects.iter().map(Kernel::new).collect(),
        left_out: &family.left_out,
        outcome: &outcome,
    };
    report.publish();
    outcome.assert_agreement();
    let answered = family.subjects.iter().all(|subject| subject.unanswered.borrow().is_empty());
    assert!(answered, "questions about residency without an answer");
    assert!(family.left_out.is_empty(), "left out: {:?}", family.left_out);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok())
}

/// 2^31 - 1 blocks of a thread along x, which take seconds to begin and end.
fn longest_grid(driver: &RawDriver, family: &Family, tally: &mut Tally) {
    let subject = &family.subjects[0];
    let most = subject.limits.device().max_grid.x;
    let request = LaunchRequest::new(Dim3::new(most, 1, 1), Dim3::ONE)
        .parameter_bytes(subject.parameter_bytes);
    let launch = RawLaunch::new(&request).expect("32 bits");
    let answer = driver.launch(subject.function, &launch, Way::Oldest);
    tally.judge(subject, &request, Way::Oldest, Some(answer));
    assert_eq!(driver.synchronize(), 0, "2^31 - 1 blocks");
}
