//! The device memory that the process held, over time: its peak in each of equal steps. The steps become longer as the
//! program runs, so that their number is bounded.

use std::sync::Mutex;

use gridguard_report::MemoryTimeline;

use crate::watch::memory::clock::now_ns;

/// Steps of a timeline, before each two become one.
const STEPS: usize = 256;
/// Devices with a timeline.
const DEVICES: usize = 8;
const FIRST_STEP_MS: u64 = 10;

static TIMELINE: Mutex<Option<Box<Timeline>>> = Mutex::new(None);

struct Timeline {
    begun_ms: u64,
    step_ms: u64,
    devices: [[Step; STEPS]; DEVICES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    peak: u64,
    last: u64,
    /// Whether anything was allocated or freed.
    is_known: bool,
}

impl Step {
    fn note(&mut self, bytes: u64) {
        *self = Self { peak: self.peak.max(bytes), last: bytes, is_known: true };
    }

    fn merged(self, next: Self) -> Self {
        let Self { peak, last, is_known } = next;
        let last = if is_known { last } else { self.last };
        Self { peak: peak.max(self.peak), last, is_known: is_known || self.is_known }
    }
}

/// Notes the bytes that a device holds from now on. If another thread notes some at this moment, these are left out.
pub(super) fn note(device: u8, bytes: u64) {
    let device = usize::from(device);
    if device < DEVICES
        && let Ok(mut timeline) = TIMELINE.try_lock()
    {
        let timeline = timeline.get_or_insert_with(Timeline::begin);
        let since_ms = now_ms().saturating_sub(timeline.begun_ms);
        timeline.note(device, since_ms, bytes);
    }
}

/// The timeline of a device up to now.
pub(crate) fn of(device: u32) -> MemoryTimeline {
    // Another thread holds it for a moment only; after a fork, perhaps for ever.
    let timeline = (0..1000).find_map(|_| TIMELINE.try_lock().ok());
    let timeline = timeline.as_ref().and_then(|timeline| timeline.as_ref());
    timeline.and_then(|timeline| timeline.of(device)).unwrap_or_default()
}

/// Forgets everything, in a child process.
pub(super) fn reset() {
    if let Ok(mut timeline) = TIMELINE.try_lock() {
        *timeline = None;
    }
}

impl Timeline {
    fn begin() -> Box<Self> {
        let devices = [[Step::default(); STEPS]; DEVICES];
        Box::new(Self { begun_ms: now_ms(), step_ms: FIRST_STEP_MS, devices })
    }

    fn note(&mut self, device: usize, since_ms: u64, bytes: u64) {
        let place = loop {
            let place = usize::try_from(since_ms / self.step_ms).unwrap_or(usize::MAX);
            if place < STEPS {
                break place;
            }
            self.step_ms = self.step_ms.saturating_mul(2);
            self.devices.iter_mut().for_each(halve);
        };
        self.devices[device][place].note(bytes);
    }

    fn of(&self, device: u32) -> Option<MemoryTimeline> {
        let steps = self.devices.get(usize::try_from(device).ok()?)?;
        let count = steps.iter().rposition(|step| step.is_known)? + 1;
        let mut before = 0;
        let peaks = steps.iter().take(count).map(|step| {
            // What was held at the end of the step before is held at its begin.
            let peak = step.peak.max(before);
            before = if step.is_known { step.last } else { before };
            peak
        });
        Some(MemoryTimeline { step_ms: self.step_ms, peaks: peaks.collect() })
    }
}

fn now_ms() -> u64 {
    now_ns(libc::CLOCK_MONOTONIC_COARSE) / 1_000_000
}

/// Makes one step of each two.
fn halve(steps: &mut [Step; STEPS]) {
    for place in 0..STEPS {
        let pair = steps.get(2 * place).zip(steps.get(2 * place + 1));
        steps[place] = pair.map_or_else(Step::default, |(one, next)| one.merged(*next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_the_peak_of_each_step() {
        let mut timeline = Timeline::begin();
        for (since_ms, bytes) in [(0, 5), (9, 2), (31, 7), (32, 3), (55, 4)] {
            timeline.note(1, since_ms, bytes);
        }
        let peaks = |timeline: &Timeline| timeline.of(1).expect("known").peaks;
        assert_eq!(peaks(&timeline), [5, 2, 2, 7, 3, 4]);
        assert_eq!(timeline.of(0), None);
        timeline.note(0, 10 * 256, 1);
        assert_eq!((timeline.step_ms, peaks(&timeline)), (20, vec![5, 7, 4]));
        // An hour later.
        timeline.note(1, 3_600_000, 9);
        let MemoryTimeline { step_ms, peaks } = timeline.of(1).expect("known");
        assert_eq!((step_ms, peaks[0], peaks[1]), (20_480, 7, 4));
        assert_eq!((peaks.len(), peaks.last()), (176, Some(&9)));
    }
}
