//! An outcome as a table for people and as data for programs.

use core::fmt;

use gridguard::profile::{Objective, StopReason, Summary};
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::measurer::MeasureFailure;
use crate::number::{count, real};
use crate::outcome::{CandidateVerdict, LatencyOutcome, MeasuredCandidate, TuningOutcome};

/// An outcome with nothing but data in it. Displays as a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningReport {
    /// What was tuned, and where.
    pub problem: String,
    /// What the choice is good at.
    pub objective: Objective,
    /// The choice.
    pub winner: Candidate,
    /// Times of the choice.
    pub chosen: Summary,
    /// Times of the default.
    pub default: Summary,
    /// The default's time over the choice's: above one where the choice is faster.
    pub speedup: f64,
    /// How a bound on the time of a launch was kept, where there was one.
    pub latency: Option<LatencyOutcome>,
    /// What was measured, the fastest first; the rest in the order of the space.
    pub rows: Vec<ReportRow>,
    /// Samples of all candidates, dropped ones included.
    pub evaluations: u64,
    /// Why the last sampling ended.
    pub stopped: StopReason,
    /// Whether the search came to its end.
    pub complete: bool,
    /// Whether some samples had to be taken at a lowered clock.
    pub throttled: bool,
    /// How long it took, in seconds.
    pub wall_time_s: f64,
}

/// A candidate in a report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReportRow {
    /// Which.
    pub candidate: Candidate,
    /// Its samples.
    pub summary: Summary,
    /// The standard deviation of the bulk over the median.
    pub spread: Option<f64>,
    /// Its time over the default's.
    pub against_default: Option<f64>,
    /// What the search says of it.
    pub verdict: CandidateVerdict,
    /// How it failed, if it did.
    pub failure: Option<MeasureFailure>,
}

impl TuningReport {
    /// The report of `outcome` on `problem`, such as `rms_norm 32768 x 4096 f16 on NVIDIA H200`.
    #[must_use]
    pub fn new(problem: impl Into<String>, outcome: &TuningOutcome) -> Self {
        let mut rows: Vec<ReportRow> =
            outcome.candidates.iter().map(|measured| ReportRow::new(measured, outcome)).collect();
        rows.sort_by_key(|row| match row.summary.samples {
            0 => u64::MAX,
            _ => row.summary.median_ns,
        });
        Self {
            problem: problem.into(),
            objective: outcome.objective,
            winner: outcome.winner.clone(),
            chosen: outcome.chosen,
            default: outcome.baseline,
            speedup: speedup(outcome),
            latency: outcome.latency,
            rows,
            evaluations: outcome.evaluations,
            stopped: outcome.stopped,
            complete: outcome.complete,
            throttled: outcome.throttled,
            wall_time_s: outcome.wall_time.as_secs_f64(),
        }
    }
}

impl ReportRow {
    fn new(measured: &MeasuredCandidate, outcome: &TuningOutcome) -> Self {
        let failed = outcome.failures.iter().find(|(failed, _)| *failed == measured.candidate);
        Self {
            candidate: measured.candidate.clone(),
            summary: measured.summary,
            spread: measured.spread,
            against_default: measured.against_default.map(|ratio| ratio.median),
            verdict: measured.verdict,
            failure: failed.map(|(_, failure)| failure.clone()),
        }
    }

    fn cells(&self) -> [String; COLUMNS] {
        let Self { candidate, summary, .. } = self;
        let timed = summary.samples > 0;
        let verdict = match &self.failure {
            Some(failure) => format!("failed: {}", failure.message.lines().next().unwrap_or("")),
            None => self.verdict.to_string(),
        };
        [
            candidate.strategy.to_string(),
            candidate.largest_chunk.to_string(),
            candidate.launches.to_string(),
            parameters(candidate),
            if timed { duration(real(summary.median_ns)) } else { NOTHING.to_owned() },
            self.spread.map_or_else(|| NOTHING.to_owned(), |spread| percent(spread, "")),
            self.against_default.map_or_else(
                || NOTHING.to_owned(),
                |ratio| percent(ratio - 1.0, if ratio >= 1.0 { "+" } else { "" }),
            ),
            verdict,
        ]
    }
}

impl fmt::Display for CandidateVerdict {
    /// `eliminated (coarse)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Winner => f.write_str("winner"),
            Self::Tie => f.write_str("tie"),
            Self::Slower => f.write_str("slower"),
            Self::Eliminated { stage } => write!(f, "eliminated ({stage})"),
            Self::Failed => f.write_str("failed"),
            Self::Unmeasured => f.write_str("unmeasured"),
        }
    }
}

impl fmt::Display for TuningReport {
    /// A headline, a table, and what it comes to.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.problem, self.objective)?;
        let heads = HEADS.map(str::to_owned);
        let rows: Vec<_> =
            core::iter::once(heads).chain(self.rows.iter().map(ReportRow::cells)).collect();
        let width = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
        for row in &rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(widths.iter().copied()).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                line += &match LEFT.contains(&column) {
                    true => format!("{gap}{cell:<width$}"),
                    false => format!("{gap}{cell:>width$}"),
                };
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        self.footer(f)
    }
}

impl TuningReport {
    fn footer(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = self.rows.iter().find(|row| row.verdict == CandidateVerdict::Default);
        match default.is_some_and(|row| row.candidate == self.winner) {
            true => writeln!(f, "the default stays: {}", self.winner)?,
            false => writeln!(
                f,
                "choice: {}, {:.3} times as fast as the default",
                self.winner, self.speedup
            )?,
        }
        if let Some(latency) = self.latency {
            let (upper, bound) = (latency.launch.high_ns, latency.max_launch_ns);
            let held = if latency.met { "within" } else { "NOT within" };
            let (upper, bound) = (duration(real(upper)), duration(real(bound)));
            writeln!(f, "its largest launch takes up to {upper}, {held} {bound}")?;
            latency.write_failed(f)?;
        }
        let timed = count(self.rows.iter().filter(|row| row.summary.samples > 0).count());
        let failed = count(self.rows.iter().filter(|row| row.failure.is_some()).count());
        let stopped = match self.stopped {
            StopReason::Precise => "precise",
            StopReason::Noise => "noise",
            StopReason::Ceiling => "ceiling",
            StopReason::Timeout => "timeout",
        };
        writeln!(
            f,
            "{timed} candidate{} timed, {failed} failed, {} samples in {:.1} s, stopped by {stopped}",
            if timed == 1 { "" } else { "s" },
            self.evaluations,
            self.wall_time_s
        )?;
        if !self.complete {
            writeln!(f, "cut short: what is known so far")?;
        }
        if self.throttled {
            writeln!(f, "the device had lowered its clock and kept it low")?;
        }
        Ok(())
    }
}

impl LatencyOutcome {
    /// Why the choice is not the one that the bound led to.
    fn write_failed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.failed_choices {
            0 => {}
            1 => writeln!(f, "1 better choice failed in the finals")?,
            several => writeln!(f, "{several} better choices failed in the finals")?,
        }
        if self.stands_in {
            writeln!(f, "no chunk that was tried runs: the default stands in")?;
        }
        Ok(())
    }
}

fn speedup(outcome: &TuningOutcome) -> f64 {
    let ratio = outcome.winner().and_then(|winner| winner.against_default);
    ratio.map_or(1.0, |ratio| ratio.median.recip())
}

/// `block 256, vector 4`.
pub(crate) fn parameters(candidate: &Candidate) -> String {
    let named = candidate.parameters.iter().map(|(name, value)| format!("{name} {value}"));
    let all: Vec<String> = named.collect();
    if all.is_empty() { NOTHING.to_owned() } else { all.join(", ") }
}

/// A time in nanoseconds with four digits, in the unit that fits: `102.4 us`.
#[must_use]
pub fn duration(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let fits = units.into_iter().find(|(unit_ns, _)| ns >= *unit_ns);
    let (value, unit) = fits.map_or((ns, "ns"), |(unit_ns, unit)| (ns / unit_ns, unit));
    match value {
        _ if unit == "ns" => format!("{value:.0} ns"),
        _ if value >= 100.0 => format!("{value:.1} {unit}"),
        _ if value >= 10.0 => format!("{value:.2} {unit}"),
        _ => format!("{value:.3} {unit}"),
    }
}

fn percent(fraction: f64, sign: &str) -> String {
    format!("{sign}{:.1} %", fraction * 100.0)
}

const COLUMNS: usize = 8;
const HEADS: [&str; COLUMNS] =
    ["strategy", "chunk", "launches", "parameters", "median", "spread", "vs default", "verdict"];
/// Columns of text.
const LEFT: [usize; 3] = [0, 3, 7];
/// Stands where there is no figure.
const NOTHING: &str = "-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_four_digits_and_a_unit() {
        let shown = [850.0, 6080.0, 52_512.0, 102_400.0, 2_500_000.0, 1.25e10].map(duration);
        assert_eq!(shown, ["850 ns", "6.080 us", "52.51 us", "102.4 us", "2.500 ms", "12.50 s"]);
    }
}
