//! The report of a search: a table, and data for programs.

use core::fmt;

use gridguard::profile::StopReason;
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::outcome::{LatencyOutcome, MeasuredCandidate, TuningOutcome};
use crate::stats::real;

/// An outcome as plain data.
///
/// Its `Display` is a table of the 15 fastest candidates, the choice and the default, followed by the
/// decision. `{:#}` shows every candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningReport {
    /// The problem and the device.
    pub problem: String,
    /// The default's time divided by the choice's.
    pub speedup: f64,
    /// The outcome, with the fastest candidates first.
    #[serde(flatten)]
    pub outcome: TuningOutcome,
}

impl TuningReport {
    /// A report on `problem`, for example `rms_norm f16 32768x4096 on NVIDIA H200`.
    #[must_use]
    pub fn new(problem: impl Into<String>, outcome: &TuningOutcome) -> Self {
        let mut outcome = outcome.clone();
        outcome.candidates.sort_by_key(|row| match row.summary.samples {
            0 => u64::MAX,
            _ => row.summary.median_ns,
        });
        let against_default = outcome.winner().and_then(|winner| winner.against_default);
        Self { problem: problem.into(), speedup: against_default.map_or(1.0, f64::recip), outcome }
    }

    /// The number of candidates that the short table omits.
    #[must_use]
    pub fn left_out(&self) -> usize {
        let rows = self.outcome.candidates.iter().enumerate();
        rows.filter(|(place, row)| !self.is_in_short_table(*place, row)).count()
    }

    fn is_in_short_table(&self, place: usize, row: &MeasuredCandidate) -> bool {
        let TuningOutcome { winner, default, .. } = &self.outcome;
        place < SHOWN || [winner, default].contains(&&row.candidate)
    }

    fn write_summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TuningOutcome { winner, candidates, evaluations, wall_time_s, .. } = &self.outcome;
        let stopped = match self.outcome.stopped {
            StopReason::Precise => "the wanted precision",
            StopReason::Noise => "persistent noise",
            StopReason::Ceiling => "the most samples",
            StopReason::Timeout => "the end of the budget",
        };
        if self.outcome.winner != self.outcome.default {
            writeln!(f, "choice: {winner}, {:.3} times as fast as the default", self.speedup)?;
        } else {
            writeln!(f, "choice: the default, {winner}")?;
        }
        self.outcome.latency.iter().try_for_each(|latency| latency.write(f))?;
        let timed = candidates.iter().filter(|row| row.summary.samples > 0).count();
        let failed = self.outcome.failures().count();
        let plural = if timed == 1 { "" } else { "s" };
        write!(f, "{timed} candidate{plural} timed, {failed} failed, ")?;
        writeln!(f, "{evaluations} samples in {wall_time_s:.1} s, stopped at {stopped}")?;
        if !self.outcome.complete {
            writeln!(f, "incomplete: the search was cut short")?;
        }
        if self.outcome.throttled {
            writeln!(f, "throttled: the device kept its clock lowered")?;
        }
        Ok(())
    }
}

impl fmt::Display for TuningReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.problem, self.outcome.objective)?;
        let shown = self.outcome.candidates.iter().enumerate();
        let shown =
            shown.filter(|(place, row)| f.alternate() || self.is_in_short_table(*place, row));
        let mut rows = vec![HEADINGS.map(str::to_owned)];
        rows.extend(shown.map(|(_, row)| cells(row)));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: [usize; COLUMNS] = core::array::from_fn(|column| width(column).unwrap_or(0));
        for row in &rows {
            let cells = row.iter().zip(widths).zip(IS_TEXT).map(|((cell, width), is_text)| {
                if is_text { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        match self.left_out() {
            0 => {}
            _ if f.alternate() => {}
            1 => writeln!(f, "... 1 more candidate")?,
            more => writeln!(f, "... {more} more candidates")?,
        }
        self.write_summary(f)
    }
}

impl LatencyOutcome {
    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [upper, bound] = [self.launch.high_ns, self.max_launch_ns].map(|ns| duration(real(ns)));
        let verdict = if self.met { "within" } else { "NOT within" };
        writeln!(f, "its largest launch takes up to {upper}, {verdict} the bound of {bound}")?;
        match self.failed_choices {
            0 => {}
            1 => writeln!(f, "1 better choice failed in the finals")?,
            several => writeln!(f, "{several} better choices failed in the finals")?,
        }
        if self.kept_default {
            writeln!(f, "no tried chunk runs, so the default is kept")?;
        }
        Ok(())
    }
}

fn cells(row: &MeasuredCandidate) -> [String; COLUMNS] {
    let MeasuredCandidate { candidate, summary, spread, against_default, verdict, failure } = row;
    let percent = |fraction: f64| format!("{:.1} %", fraction * 100.0);
    let change = |ratio: f64| {
        let sign = if ratio >= 1.0 { "+" } else { "" };
        format!("{sign}{}", percent(ratio - 1.0))
    };
    let median = (summary.samples > 0).then(|| duration(real(summary.median_ns)));
    let or_nothing = |cell: Option<String>| cell.unwrap_or_else(|| NOTHING.to_owned());
    [
        candidate.strategy.to_string(),
        candidate.largest_chunk.to_string(),
        candidate.launches.to_string(),
        parameters(candidate),
        or_nothing(median),
        or_nothing(spread.map(percent)),
        or_nothing(against_default.map(change)),
        match failure {
            Some(failure) => format!("failed: {}", failure.message.lines().next().unwrap_or("")),
            None => verdict.to_string(),
        },
    ]
}

/// `block 256, vector 4`.
pub(crate) fn parameters(candidate: &Candidate) -> String {
    let named = candidate.parameters.iter().map(|(name, value)| format!("{name} {value}"));
    let all: Vec<String> = named.collect();
    if all.is_empty() { NOTHING.to_owned() } else { all.join(", ") }
}

/// Formats nanoseconds with four digits and a unit: `102.4 us`.
#[must_use]
pub fn duration(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let Some((unit_ns, unit)) = units.into_iter().find(|(unit_ns, _)| ns >= *unit_ns) else {
        return format!("{ns:.0} ns");
    };
    let value = ns / unit_ns;
    let decimals = match value {
        100.0.. => 1,
        10.0.. => 2,
        _ => 3,
    };
    format!("{value:.decimals$} {unit}")
}

/// Candidates in the short table, besides the choice and the default.
const SHOWN: usize = 15;
const COLUMNS: usize = 8;
const HEADINGS: [&str; COLUMNS] =
    ["strategy", "chunk", "launches", "parameters", "median", "spread", "vs default", "verdict"];
/// Text is aligned to the left, numbers to the right.
const IS_TEXT: [bool; COLUMNS] = [true, false, false, true, false, false, false, true];
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
