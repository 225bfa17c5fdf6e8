//! Journals of unfinished searches.

use std::time::Duration;

use gridguard::profile::{Named, Objective};
use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, KernelLimits, LaunchLimits, LaunchRequest};
use gridguard_autotune::{
    Budget, Candidate, Error, Journal, LaunchConfig, MeasureFailure, Measurer, Observer, Portion,
    Resumed, Sample, Space, TuningOutcome, tune,
};

/// Any bytes are a journal or an error. A journal is read again as it was written. A search that continues from it ends
/// with a candidate that did not fail, the same one each time.
pub(super) fn check(bytes: &[u8]) {
    let Ok(journal) = Journal::read_lines(bytes) else { return };
    let mut lines = Vec::new();
    journal.write_lines(&mut lines).expect("data");
    assert_eq!(Journal::read_lines(lines.as_slice()).expect("its own lines"), journal);
    for objective in [Objective::Throughput, Objective::Latency { max_launch_us: 60 }] {
        let (first, full) = searched(objective, journal.clone());
        assert_eq!(&full.records[..journal.records.len()], journal.records);
        let (second, _) = searched(objective, full);
        match (first, second) {
            (Ok(first), Ok(second)) => {
                assert_eq!(first.winner, second.winner);
                assert!(!first.failures().any(|(failed, _)| *failed == first.winner));
            }
            (first, second) => assert_eq!(first.err(), second.err()),
        }
    }
}

/// A search from `journal` on, and its own journal.
fn searched(objective: Objective, journal: Journal) -> (Result<TuningOutcome, Error>, Journal) {
    let mut space = space();
    let mut measurer = Resumed::new(ByTheBook, journal);
    let budget = Budget { evaluations: Some(EVALUATIONS), ..Budget::default() };
    let outcome = tune(&mut measurer, &mut space, objective, &budget, &mut Impatient);
    (outcome, measurer.into_parts().1)
}

/// Does not wait for a device that lowered its clock.
struct Impatient;

impl Observer for Impatient {
    fn throttled(&mut self, _: Duration) {}
}

/// A few hundred would do.
const EVALUATIONS: u64 = 2000;

fn space() -> Space {
    let limits = LaunchLimits::new(DeviceLimits::any_device(), KernelLimits::unknown("k"));
    let request = LaunchRequest::new(Dim3::new(1, 70_000, 1), Dim3::new(128, 1, 1));
    let batch = Some(BatchAxis::new(Axis::Y, 70_000).align(10_000));
    Space::new(vec![LaunchConfig { parameters: Named::new(), request, batch, limits }])
}

/// A launch takes 3 us, an item a nanosecond.
struct ByTheBook;

impl Measurer for ByTheBook {
    fn check(&mut self, _: &Candidate) -> Result<(), MeasureFailure> {
        Ok(())
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<Sample, MeasureFailure> {
        let launches = match portion {
            Portion::Sequence => candidate.launches,
            Portion::LargestLaunch => 1,
        };
        let real = |number: u64| f64::from(u32::try_from(number).expect("few"));
        let time_ns = real(launches) * (3000.0 + real(candidate.largest_chunk));
        Ok(Sample { time_ns, clock_mhz: Some(1980.0), disturbed: false })
    }
}
