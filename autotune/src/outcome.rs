//! What a search came to.

use core::time::Duration;

use gridguard::profile::{Entry, Key, Named, Objective, Provenance, StopReason, Summary};
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::measurer::MeasureFailure;
use crate::number::count;
use crate::observer::Stage;
use crate::stats::PairedRatio;

/// What a search says of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CandidateVerdict {
    /// What runs where nothing was tuned.
    Default,
    /// The choice, where it is not the default.
    Winner,
    /// As good as the best by all that can be told, and behind the choice in the order of ties.
    Tie,
    /// Clearly slower than the best, after a full comparison.
    Slower,
    /// Not worth more samples.
    Eliminated {
        /// From which stage on.
        stage: Stage,
    },
    /// Wrong, refused, or fatal to its process.
    Failed,
    /// The search ended before its turn, or never needed it.
    Unmeasured,
}

/// What is known of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct MeasuredCandidate {
    /// Which.
    pub candidate: Candidate,
    /// Its samples; none where it has none.
    pub summary: Summary,
    /// Its [`crate::Samples::spread`].
    pub spread: Option<f64>,
    /// Its time over the default's, from rounds that have both.
    pub against_default: Option<PairedRatio>,
    /// What the search says of it.
    pub verdict: CandidateVerdict,
}

/// How a bound on the time of a launch was kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyOutcome {
    /// The bound in nanoseconds.
    pub max_launch_ns: u64,
    /// Times of the choice's largest launch alone.
    pub launch: Summary,
    /// Whether the upper end of their confidence interval is within the bound. If not, the choice is
    /// the smallest chunk there is, or the default that stands in.
    pub met: bool,
    /// Better choices that failed when their whole sequence was compared with the default's.
    #[serde(default)]
    pub failed_choices: u64,
    /// Whether no chunk that was looked for runs, and the default is the choice for want of one.
    #[serde(default)]
    pub stands_in: bool,
}

/// What a search came to.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct TuningOutcome {
    /// What the choice is good at.
    pub objective: Objective,
    /// The choice; the default, where that is not clearly beaten.
    pub winner: Candidate,
    /// What runs where nothing was tuned.
    pub default: Candidate,
    /// Times of the choice.
    pub chosen: Summary,
    /// Times of the default.
    pub baseline: Summary,
    /// Every candidate, the default first.
    pub candidates: Vec<MeasuredCandidate>,
    /// Those that failed, and how.
    pub failures: Vec<(Candidate, MeasureFailure)>,
    /// How a bound on the time of a launch was kept, where there was one.
    pub latency: Option<LatencyOutcome>,
    /// Samples of all candidates, dropped ones included.
    pub evaluations: u64,
    /// Why the last sampling ended.
    pub stopped: StopReason,
    /// Whether the search came to its end, and was not cut short.
    pub complete: bool,
    /// Whether some samples had to be taken at a lowered clock.
    pub throttled: bool,
    /// How long it took.
    pub wall_time: Duration,
}

impl TuningOutcome {
    /// Whether the choice is not the default.
    #[must_use]
    pub fn beats_default(&self) -> bool {
        self.winner != self.default
    }

    /// What is known of the choice.
    #[must_use]
    pub fn winner(&self) -> Option<&MeasuredCandidate> {
        self.candidates.iter().find(|measured| measured.candidate == self.winner)
    }

    /// The outcome as a profile stores it. `found` brings date, driver, compiler and tuner; the
    /// figures are filled in here, as is the key's objective.
    #[must_use]
    pub fn entry(&self, key: Key, shape: Named, found: Provenance) -> Entry {
        let timed = self.candidates.iter().filter(|one| one.summary.samples > 0);
        Entry {
            key: Key { objective: self.objective, ..key },
            shape,
            choice: self.winner.choice,
            parameters: self.winner.parameters.clone(),
            launches: self.winner.launches,
            chosen: self.chosen,
            default: self.baseline,
            found: Provenance {
                candidates: count(timed.count()),
                failed: count(self.failures.len()),
                samples: self.evaluations,
                stopped: self.stopped,
                ..found
            },
        }
    }
}
