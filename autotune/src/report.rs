//! The report of a search: a table, and data for programs.

use core::cmp::Ordering;
use core::fmt;

use gridguard::profile::StopReason;
use gridguard::{Strategy, count};
use serde::{Deserialize, Serialize};

use crate::candidate::Candidate;
use crate::control::Stage;
use crate::outcome::{CandidateVerdict, LatencyOutcome, MeasuredCandidate, TuningOutcome};
use crate::search::eliminating_factor;
use crate::stats::real;

/// An outcome as plain data.
///
/// Its `Display` is a table of the choice, the default and the 15 best of the others, followed by the decision. `{:#}`
/// shows every candidate. `{:40}` is for 40 columns instead of 80; a table that is wider becomes a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningReport {
    /// The problem and the device.
    pub problem: String,
    /// The default's time divided by the choice's.
    pub speedup: f64,
    /// The outcome, with the candidates in the order of the table: the choice, the others of the finals by their time
    /// relative to the default's, the eliminated ones from the last stage to the first, those not measured, and failures.
    #[serde(flatten)]
    pub outcome: TuningOutcome,
}

impl TuningReport {
    /// A report on `problem`, for example `rms_norm f16 32768x4096 on NVIDIA H200`.
    #[must_use]
    pub fn new(problem: impl Into<String>, outcome: &TuningOutcome) -> Self {
        let mut outcome = outcome.clone();
        let against_default = outcome.winner().and_then(|winner| winner.against_default);
        let winner = outcome.winner.clone();
        outcome.candidates.sort_by(|one, other| {
            let is_winner = |one: &MeasuredCandidate| one.candidate == winner;
            is_winner(other).cmp(&is_winner(one)).then_with(|| table_order(one, other))
        });
        Self { problem: problem.into(), speedup: against_default.map_or(1.0, f64::recip), outcome }
    }

    /// The number of candidates that the short table omits.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.outcome.candidates.len() - self.shown(false).len()
    }

    fn shown(&self, all: bool) -> Vec<&MeasuredCandidate> {
        let TuningOutcome { winner, default, candidates, .. } = &self.outcome;
        let is_shown = |place: usize, row: &MeasuredCandidate| {
            all || place < SHOWN || [winner, default].contains(&&row.candidate)
        };
        let rows = candidates.iter().enumerate();
        rows.filter(|(place, row)| is_shown(*place, row)).map(|(_, row)| row).collect()
    }

    fn write_summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TuningOutcome { winner, candidates, evaluations, wall_time_s, .. } = &self.outcome;
        let stopped = match self.outcome.stopped {
            StopReason::Precise => "the wanted precision",
            StopReason::Noise => "persistent noise",
            StopReason::Ceiling => "the most samples",
            StopReason::Timeout => "the end of the budget",
        };
        if *winner == self.outcome.default {
            write_wrapped(f, &format!("choice: the default, {winner}"))?;
        } else {
            write_wrapped(f, &format!("choice: {winner}"))?;
            writeln!(f, "{:.3} times as fast as the default", self.speedup)?;
        }
        self.outcome.latency.iter().try_for_each(|latency| latency.write(f))?;
        let timed = candidates.iter().filter(|row| row.summary.samples > 0).count();
        let failed = self.outcome.failures().count();
        let counts = format!(
            "{} timed, {failed} failed, {evaluations} samples in {wall_time_s:.1} s, \
             stopped at {stopped}",
            count(timed, "candidate")
        );
        write_wrapped(f, &counts)?;
        if !self.outcome.complete {
            writeln!(f, "incomplete: the search was cut short")?;
        }
        if self.outcome.throttled {
            writeln!(f, "throttled: the device kept its clock lowered")?;
        }
        let discarded = real(self.outcome.discarded) / real((*evaluations).max(1));
        if discarded >= NOISY {
            let percent = discarded * 100.0;
            let why = "a lowered clock, or other processes on the processor";
            write_wrapped(f, &format!("noise: {percent:.0} % of the samples discarded: {why}"))?;
        }
        if self.outcome.undecided {
            writeln!(
                f,
                "undecided: too noisy to tell whether a candidate is faster than the default"
            )?;
            writeln!(f, "nothing is stored: tune again when the machine is idle")?;
        }
        Ok(())
    }
}

impl fmt::Display for TuningReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.problem, self.outcome.objective)?;
        let shown = self.shown(f.alternate());
        Table::new(&self.outcome, &shown).write(f, &shown)?;
        match self.outcome.candidates.len() - shown.len() {
            0 => {}
            more => writeln!(f, "... {}", count(more, "more candidate"))?,
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
            failed => writeln!(f, "{} failed in the finals", count(failed, "better choice"))?,
        }
        if self.kept_default {
            writeln!(f, "no tried chunk runs, so the default is kept")?;
        }
        Ok(())
    }
}

/// The order of the table, below the choice.
fn table_order(one: &MeasuredCandidate, other: &MeasuredCandidate) -> Ordering {
    let group = |one: &MeasuredCandidate| match one.verdict {
        CandidateVerdict::Eliminated { stage: Stage::Coarse } => 2,
        CandidateVerdict::Eliminated { .. } => 1,
        CandidateVerdict::Unmeasured => 3,
        CandidateVerdict::Failed => 4,
        _ => 0,
    };
    let ratio = |one: &MeasuredCandidate| match one.verdict {
        CandidateVerdict::Default => 1.0,
        _ => one.against_default.unwrap_or(f64::INFINITY),
    };
    let by_time = || ratio(one).total_cmp(&ratio(other));
    let by_median = || one.summary.median_ns.cmp(&other.summary.median_ns);
    group(one).cmp(&group(other)).then_with(by_time).then_with(by_median)
}

/// The columns of a table: chunks and parameters only where candidates differ, and one unit for all medians.
struct Table<'a> {
    has_chunks: bool,
    names: Vec<&'a str>,
    unit: (f64, &'static str),
    decimals: usize,
}

impl<'a> Table<'a> {
    fn new(outcome: &'a TuningOutcome, shown: &[&MeasuredCandidate]) -> Self {
        let all = || outcome.candidates.iter().map(|row| &row.candidate);
        let differ = |of: &dyn Fn(&Candidate) -> Option<u64>| {
            all().any(|one| of(one) != of(&outcome.default))
        };
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in all().flat_map(|one| &one.parameters) {
            if !names.contains(&name.as_str()) && differ(&|one| value(one, name)) {
                names.push(name);
            }
        }
        let medians = shown.iter().map(|row| row.summary.median_ns).filter(|ns| *ns > 0);
        let (unit, decimals) = unit_of(medians.min().map_or(0.0, real));
        let has_chunks =
            all().any(|one| chunks(one) != chunks(&outcome.default)) || names.is_empty();
        Self { has_chunks, names, unit, decimals }
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, shown: &[&MeasuredCandidate]) -> fmt::Result {
        let timed = shown.iter().filter(|row| row.failure.is_none());
        let mut rows = vec![self.header(&self.names)];
        rows.extend(timed.map(|row| self.cells(row)));
        let widths = |rows: &[Vec<String>]| -> Vec<usize> {
            let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
            (0..rows[0].len()).map(|column| width(column).unwrap_or(0)).collect()
        };
        let columns = f.width().unwrap_or(WIDTH) + 2;
        let is_wide =
            |rows: &[_]| widths(rows).iter().map(|width| width + 2).sum::<usize>() > columns;
        let titles = rows[0].clone();
        if is_wide(&rows) {
            // Each parameter has the shortest name that no other one begins with.
            let short: Vec<&str> =
                self.names.iter().map(|name| prefix(name, &self.names)).collect();
            rows[0] = self.header(&short);
            if !is_wide(&rows) {
                let legend =
                    short.iter().zip(&self.names).map(|(short, name)| format!("{short} {name}"));
                write_wrapped(f, &format!("columns: {}", legend.collect::<Vec<_>>().join(", ")))?;
            }
        }
        let is_list = is_wide(&rows);
        let widths = widths(&rows);
        let title_width = titles.iter().map(|title| title.chars().count()).max().unwrap_or(0);
        let mut rows = rows.iter().skip(usize::from(is_list));
        let mut write_row = |f: &mut fmt::Formatter<'_>| {
            let row = rows.next();
            if let Some([label, cells @ ..]) = row.map(Vec::as_slice).filter(|_| is_list) {
                writeln!(f, "{label}")?;
                let mut cells = titles.iter().skip(1).zip(cells).filter(|cell| cell.1 != NOTHING);
                return cells
                    .try_for_each(|(title, cell)| writeln!(f, "  {title:title_width$}  {cell}"));
            }
            let cells = row.into_iter().flatten().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| match column {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        if !is_list {
            write_row(f)?;
        }
        let mut eliminated = None;
        for row in shown {
            if let CandidateVerdict::Eliminated { stage } = row.verdict
                && eliminated.replace(stage) != Some(stage)
            {
                let factor = eliminating_factor(stage);
                writeln!(
                    f,
                    "eliminated ({stage}): each sample over {factor} times the fastest median"
                )?;
            }
            match &row.failure {
                Some(failure) => {
                    let message = failure.message.lines().next().unwrap_or_default();
                    write_wrapped(f, &format!("failed: {}: {message}", row.candidate))?;
                }
                None => write_row(f)?,
            }
        }
        Ok(())
    }

    fn header(&self, names: &[&str]) -> Vec<String> {
        let chunks = self.has_chunks.then_some("chunks");
        let median = format!("median {}", self.unit.1);
        let first = [""].into_iter().chain(chunks).chain(names.iter().copied());
        first.chain([&*median, "vs default", "95 % interval"]).map(str::to_owned).collect()
    }

    fn cells(&self, row: &MeasuredCandidate) -> Vec<String> {
        let MeasuredCandidate { candidate, summary, against_default, verdict, .. } = row;
        let label = match (verdict, summary.samples) {
            (CandidateVerdict::Eliminated { .. }, 1) => "1 sample".to_owned(),
            (CandidateVerdict::Eliminated { .. }, samples) => format!("{samples} samples"),
            _ => verdict.to_string(),
        };
        let median = real(summary.median_ns) / self.unit.0;
        let median = (summary.samples > 0).then(|| format!("{median:.*}", self.decimals));
        let interval = row.against_default_interval.map(|ends| {
            let [low, high] = ends.map(|ratio| format!("{:+.1}", (ratio - 1.0) * 100.0));
            format!("{low} to {high} %")
        });
        let change = against_default.map(|ratio| format!("{:+.1} %", (ratio - 1.0) * 100.0));
        let parameters =
            self.names.iter().map(|name| value(candidate, name).map(|it| it.to_string()));
        let chunks = self.has_chunks.then(|| Some(chunks(candidate)));
        let cells = [Some(label)].into_iter().chain(chunks).chain(parameters);
        let cells = cells.chain([median, change, interval]);
        cells.map(|cell| cell.unwrap_or_else(|| NOTHING.to_owned())).collect()
    }
}

/// `58 x 160`: launches and items of the largest; `2 x 7680 folded`.
fn chunks(candidate: &Candidate) -> String {
    let Candidate { strategy, launches, largest_chunk, .. } = candidate;
    match strategy {
        Strategy::Whole | Strategy::Chunked => format!("{launches} x {largest_chunk}"),
        form => format!("{launches} x {largest_chunk} {form}"),
    }
}

fn value(candidate: &Candidate, name: &str) -> Option<u64> {
    candidate.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

/// The shortest start of `name` with which none of the other `names` begins.
fn prefix<'a>(name: &'a str, names: &[&str]) -> &'a str {
    let others = || names.iter().filter(|other| **other != name);
    let ends = name.char_indices().map(|(place, letter)| place + letter.len_utf8());
    let mut starts = ends.map(|end| &name[..end]);
    starts.find(|start| others().all(|other| !other.starts_with(start))).unwrap_or(name)
}

/// Writes a line, broken between words.
fn write_wrapped(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let mut column = 0;
    for word in text.split_whitespace() {
        let letters = word.chars().count();
        let separator = match column {
            0 => "",
            _ if column + 1 + letters > f.width().unwrap_or(WIDTH) => "\n  ",
            _ => " ",
        };
        column = if separator == "\n  " { 2 } else { column + separator.len() } + letters;
        write!(f, "{separator}{word}")?;
    }
    writeln!(f)
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
    let ((unit_ns, unit), decimals) = unit_of(ns);
    format!("{:.decimals$} {unit}", ns / unit_ns)
}

/// The largest unit of a time with its nanoseconds, and the decimals for four digits.
fn unit_of(ns: f64) -> ((f64, &'static str), usize) {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let Some(unit) = units.into_iter().find(|(unit_ns, _)| ns >= *unit_ns) else {
        return ((1.0, "ns"), 0);
    };
    let decimals = match ns / unit.0 {
        100.0.. => 1,
        10.0.. => 2,
        _ => 3,
    };
    (unit, decimals)
}

/// Candidates in the short table, besides the choice and the default.
const SHOWN: usize = 15;
const WIDTH: usize = 80;
/// The share of discarded samples from which a machine is noisy.
const NOISY: f64 = 0.05;
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
