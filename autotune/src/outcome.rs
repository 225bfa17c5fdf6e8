//! The result of a search, and the profile entry made from it.

use core::fmt;

use gridguard::profile::{Entry, Key, Named, Objective, Provenance, StopReason, Summary};
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::control::Stage;
use crate::failure::MeasureFailure;
use crate::stats::count;

/// A search's verdict on a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CandidateVerdict {
    /// The candidate that runs untuned.
    Default,
    /// The choice, unless it is the default.
    Winner,
    /// At most 2 % slower than the fastest, but later than the choice in the order of ties.
    Tie,
    /// Clearly slower than the fastest, after a full comparison.
    Slower,
    /// Whether it is faster than the default, or than the fastest, stays open after the most samples.
    Undecided,
    /// Too slow for more samples.
    Eliminated {
        /// The stage that eliminated it.
        stage: Stage,
    },
    /// The candidate is wrong, rejected, or crashed its process.
    Failed,
    /// The search ended first, or did not need it.
    Unmeasured,
}

impl fmt::Display for CandidateVerdict {
    /// `eliminated (coarse)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eliminated { stage } => write!(f, "eliminated ({stage})"),
            _ => self.serialize(f),
        }
    }
}

/// The measurements of one candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCandidate {
    /// The candidate.
    pub candidate: Candidate,
    /// Its times; zero samples if not timed.
    pub summary: Summary,
    /// The spread of the times: [`crate::Samples::spread`].
    pub spread: Option<f64>,
    /// Its time divided by the default's: the median over the rounds with both.
    pub against_default: Option<f64>,
    /// The ends of the 95 % confidence interval of this ratio; `None` with too few rounds.
    #[serde(default)]
    pub against_default_interval: Option<[f64; 2]>,
    /// The verdict.
    pub verdict: CandidateVerdict,
    /// Its failure.
    pub failure: Option<MeasureFailure>,
}

/// The choice for an objective of latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyOutcome {
    /// The limit in nanoseconds.
    pub max_launch_ns: u64,
    /// Times of the choice's largest launch alone.
    pub launch: Summary,
    /// Whether the upper end of their confidence interval is within the limit. If not, the choice is the
    /// smallest possible chunk, or the default.
    pub met: bool,
    /// Choices with a larger chunk that failed in the comparison with the default.
    #[serde(default)]
    pub failed_choices: u64,
    /// Whether the default is the choice because no tried chunk runs.
    #[serde(default)]
    pub kept_default: bool,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct TuningOutcome {
    /// The objective.
    pub objective: Objective,
    /// The choice: the default, unless another candidate is clearly faster.
    pub winner: Candidate,
    /// The candidate that runs untuned.
    #[serde(rename = "default_candidate")]
    pub default: Candidate,
    /// Times of the choice.
    pub chosen: Summary,
    /// Times of the default.
    #[serde(rename = "default")]
    pub baseline: Summary,
    /// Every candidate, the default first.
    #[serde(rename = "rows")]
    pub candidates: Vec<MeasuredCandidate>,
    /// For an objective of latency, how the choice compares with the limit.
    pub latency: Option<LatencyOutcome>,
    /// Samples of all candidates, including dropped ones.
    pub evaluations: u64,
    /// Why the last sampling ended.
    pub stopped: StopReason,
    /// Whether the search finished.
    pub complete: bool,
    /// Whether some samples were taken at a throttled clock.
    pub throttled: bool,
    /// Samples that were discarded: the clock was lowered, or other processes held the processor.
    #[serde(default)]
    pub discarded: u64,
    /// Whether a candidate seemed faster than the default, but other processes disturbed too many samples for a choice.
    /// The winner is then the default, and nothing should be stored.
    #[serde(default)]
    pub undecided: bool,
    /// The most items of one legal launch of the default's parameters, if fewer than the batch has.
    #[serde(default)]
    pub largest_legal_chunk: Option<u64>,
    /// How long the search took, in seconds.
    pub wall_time_s: f64,
}

impl TuningOutcome {
    /// The measurements of the choice.
    #[must_use]
    pub fn winner(&self) -> Option<&MeasuredCandidate> {
        self.candidates.iter().find(|measured| measured.candidate == self.winner)
    }

    /// Whether the choice may be stored: the search finished, and other processes did not decide it.
    #[must_use]
    pub const fn is_decided(&self) -> bool {
        self.complete && !self.undecided
    }

    /// The candidates that failed, and how.
    pub fn failures(&self) -> impl Iterator<Item = (&Candidate, &MeasureFailure)> {
        self.candidates.iter().filter_map(|one| Some((&one.candidate, one.failure.as_ref()?)))
    }

    /// The profile entry. `found` supplies date, driver, compiler and tuner; the outcome supplies the figures
    /// and the objective of the key.
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
                failed: count(self.failures().count()),
                samples: self.evaluations,
                stopped: self.stopped,
                ..found
            },
        }
    }
}
