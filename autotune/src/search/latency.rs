//! The largest chunk whose single launch stays within a bound.

use std::collections::BTreeMap;

use gridguard::profile::Named;

use crate::number::{count, real};
use crate::observer::Stage;
use crate::sample::Portion;
use crate::search::finals;
use crate::search::run::{DEFAULT, Halt, Search};
use crate::search::{FINE_FACTOR, Findings};
use crate::space::{Space, chunked};
use crate::stats::Samples;

/// The candidate that a bound on the time of a launch leads to.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) place: usize,
    /// Times of its largest launch alone, in nanoseconds.
    pub(crate) launch: Samples,
    /// Whether even the upper end of their confidence interval is within the bound.
    pub(crate) met: bool,
}

/// Closes in on the largest chunk with each promising set of parameters, then compares whole
/// sequences with the default's. Where a chunk that met the bound fails there, the next best is
/// compared; where none is left, the default stands in.
pub(crate) fn search(
    run: &mut Search<'_>,
    space: &mut Space,
    max_launch_us: u64,
    findings: &mut Findings,
) -> Result<(), Halt> {
    // Learns whether samples are slow, too.
    run.round(&[DEFAULT])?;
    let bound_ns = real(max_launch_us.saturating_mul(NANOSECONDS_OF_A_MICROSECOND));
    let mut bisection = Bisection { run, space, bound_ns, launches: BTreeMap::new() };
    let sets = bisection.promising()?;
    for _ in 0..MOST_CHOICES {
        let Some(place) = bisection.choose(&sets, findings)? else { break };
        finals::play(bisection.run, &[DEFAULT, place], findings)?;
        if bisection.run.is_open(place) {
            return Ok(());
        }
        findings.failed_choices += 1;
    }
    findings.latency = None;
    let met = bisection.meets(DEFAULT)?;
    findings.latency = bisection.found(DEFAULT, met);
    findings.stands_in = true;
    finals::play(run, &[DEFAULT], findings)
}

/// The largest chunk among those that meet the bound, the smallest where none does.
fn is_better(run: &Search<'_>, one: &Found, other: &Found) -> bool {
    let items = |found: &Found| {
        run.series.get(found.place).map_or(0, |series| series.candidate.largest_chunk)
    };
    match (one.met, other.met) {
        (true, true) => items(one) > items(other),
        (false, false) => one.launch.median() < other.launch.median(),
        (met, _) => met,
    }
}

struct Bisection<'r, 'a> {
    run: &'r mut Search<'a>,
    space: &'r mut Space,
    bound_ns: f64,
    launches: BTreeMap<usize, Vec<f64>>,
}

/// A chunk that meets the bound, and a number of items that does not.
struct Bracket {
    meets: usize,
    meets_items: u64,
    fails_items: u64,
}

impl Bisection<'_, '_> {
    /// The best chunk that these sets of parameters lead to. What was timed before is not timed
    /// again.
    fn choose(&mut self, sets: &[Named], findings: &mut Findings) -> Result<Option<usize>, Halt> {
        findings.latency = None;
        for parameters in sets {
            let Some(found) = self.largest(parameters)? else { continue };
            let best = findings.latency.as_ref();
            if best.is_none_or(|best| is_better(self.run, &found, best)) {
                findings.latency = Some(found);
            }
        }
        Ok(findings.latency.as_ref().map(|found| found.place))
    }

    /// The default's parameters, and those that take less or little more time an item.
    fn promising(&mut self) -> Result<Vec<Named>, Halt> {
        let mut sets: Vec<Named> = Vec::new();
        for candidate in self.space.candidates() {
            if !sets.contains(&candidate.parameters) {
                sets.push(candidate.parameters.clone());
            }
        }
        if sets.len() == 1 {
            return Ok(sets);
        }
        self.run.enter(Stage::Bisection, count(sets.len()) * (GLANCES + 1));
        let mut rated = Vec::new();
        for parameters in sets {
            let ladder = self.ladder(&parameters);
            let Some((items, place)) = ladder.get(ladder.len() / 2).copied() else { continue };
            while self.run.is_open(place) && self.taken(place) < GLANCES {
                self.take(place)?;
            }
            if let Some(samples) = self.samples(place) {
                rated.push((samples.median() / real(items.max(1)), parameters));
            }
        }
        let best = rated.iter().map(|(cost, _)| *cost).fold(f64::INFINITY, f64::min);
        let default = self.space.default().map(|default| default.parameters.clone());
        rated.retain(|(cost, set)| *cost <= FINE_FACTOR * best || Some(set) == default.as_ref());
        // The default's first: it stays where another is not better.
        rated.sort_by(|(one, set), (other, other_set)| {
            let foreign = |set: &Named| Some(set) != default.as_ref();
            foreign(set).cmp(&foreign(other_set)).then_with(|| one.total_cmp(other))
        });
        Ok(rated.into_iter().map(|(_, set)| set).take(MOST_SETS).collect())
    }

    /// The largest chunk with these parameters that meets the bound, or the smallest.
    fn largest(&mut self, parameters: &Named) -> Result<Option<Found>, Halt> {
        let ladder = self.ladder(parameters);
        self.run.enter(Stage::Bisection, count(ladder.len()) * self.run.effort.rule.floor);
        let Some((_, top)) = ladder.last().copied() else { return Ok(None) };
        if self.meets(top)? {
            return Ok(self.found(top, true));
        }
        let (mut low, mut high) = (0, ladder.len() - 1);
        while low < high {
            let middle = low.midpoint(high);
            match ladder.get(middle) {
                Some((_, place)) if self.meets(*place)? => low = middle + 1,
                _ => high = middle,
            }
        }
        let fails_items = ladder.get(low).map_or(0, |(items, _)| *items);
        let met = low.checked_sub(1).and_then(|below| ladder.get(below).copied());
        let (meets_items, meets) = match met {
            Some(met) => met,
            None => {
                let Some(smallest) = self.smallest(parameters, &ladder) else { return Ok(None) };
                if !self.meets(smallest.1)? {
                    return Ok(self.found(smallest.1, false));
                }
                smallest
            }
        };
        let place = self.refine(parameters, Bracket { meets, meets_items, fails_items })?;
        Ok(self.found(place, true))
    }

    /// Between two sizes, by halves, until they are as near as matters.
    fn refine(&mut self, parameters: &Named, mut at: Bracket) -> Result<usize, Halt> {
        let unit = self.unit(parameters);
        loop {
            let gap = at.fails_items.saturating_sub(at.meets_items);
            if gap <= unit.max(at.meets_items / GRANULARITY) {
                return Ok(at.meets);
            }
            // Over several octaves by the geometric mean.
            let times = at.fails_items / at.meets_items.max(1);
            let middle = match times >= FAR_APART {
                true => at.meets_items.saturating_mul(times.isqrt()),
                false => at.meets_items.midpoint(at.fails_items),
            };
            let middle = (middle / unit).saturating_mul(unit).max(at.meets_items + unit);
            let Some(candidate) = self.space.add(parameters, chunked(middle)) else {
                at.fails_items = middle.min(at.fails_items - 1);
                continue;
            };
            let place = self.run.track(&candidate);
            if place == at.meets {
                // The planner balances this size to the one that is known.
                at.meets_items = middle;
            } else if self.meets(place)? {
                (at.meets, at.meets_items) = (place, middle);
            } else {
                at.fails_items = middle.min(at.fails_items - 1);
            }
        }
    }

    /// Whether the upper end of the confidence interval stays within the bound.
    fn meets(&mut self, place: usize) -> Result<bool, Halt> {
        self.run.check(&[place])?;
        let rule = self.run.effort.rule;
        while self.run.is_open(place) {
            let times = self.launches.get(&place).cloned().unwrap_or_default();
            if let Some(samples) = Samples::new(times.iter().copied()) {
                let hopeless = samples.least() > HOPELESS_FACTOR * self.bound_ns;
                if hopeless && samples.count() >= GLANCES {
                    return Ok(false);
                }
                if rule.judge(&times).is_some() {
                    return Ok(samples.median_interval().high <= self.bound_ns);
                }
            }
            self.take(place)?;
        }
        Ok(false)
    }

    /// One time of the largest launch; the first of a candidate is dropped.
    fn take(&mut self, place: usize) -> Result<(), Halt> {
        self.run.check(&[place])?;
        if !self.run.is_open(place) {
            return Ok(());
        }
        let time = self.run.sample(place, Portion::LargestLaunch)?;
        match self.launches.get_mut(&place) {
            Some(times) => times.extend(time),
            None => drop(self.launches.insert(place, Vec::new())),
        }
        Ok(())
    }

    fn taken(&self, place: usize) -> u64 {
        self.launches.get(&place).map_or(0, |times| count(times.len()))
    }

    fn samples(&self, place: usize) -> Option<Samples> {
        Samples::new(self.launches.get(&place)?.iter().copied())
    }

    fn found(&self, place: usize, met: bool) -> Option<Found> {
        Some(Found { place, launch: self.samples(place)?, met })
    }

    /// Chunk sizes and their candidates, ascending; of plans with the same size the first.
    fn ladder(&mut self, parameters: &Named) -> Vec<(u64, usize)> {
        let of_set = self.space.candidates().iter().filter(|one| one.parameters == *parameters);
        let mut ladder: Vec<(u64, usize)> =
            of_set.map(|one| (one.largest_chunk, self.run.track(one))).collect();
        ladder.retain(|(_, place)| {
            let series = self.run.series.get(*place);
            series.is_some_and(|series| series.standing == crate::search::run::Standing::Open)
        });
        ladder.sort_by_key(|(items, _)| *items);
        ladder.dedup_by_key(|(items, _)| *items);
        ladder
    }

    /// The smallest chunk there is.
    fn smallest(&mut self, parameters: &Named, ladder: &[(u64, usize)]) -> Option<(u64, usize)> {
        let unit = self.unit(parameters);
        let added = self.space.add(parameters, chunked(unit));
        match added {
            Some(one) => Some((one.largest_chunk, self.run.track(&one))),
            None => ladder.first().copied(),
        }
    }

    fn unit(&self, parameters: &Named) -> u64 {
        let configuration = self.space.configuration(parameters);
        configuration.and_then(|one| one.batch.unit()).unwrap_or(1).max(1)
    }
}

pub(crate) const NANOSECONDS_OF_A_MICROSECOND: u64 = 1000;
/// Samples for a first impression.
const GLANCES: u64 = 3;
/// If none of the first samples comes nearer to the bound than this, more will not help.
const HOPELESS_FACTOR: f64 = 1.05;
/// Chunks closer than a sixteenth are as good as equal.
const GRANULARITY: u64 = 16;
/// From this ratio on two sizes are halved by their ratio and not by their difference.
const FAR_APART: u64 = 4;
/// Sets of parameters that are followed to the end.
const MOST_SETS: usize = 3;
/// Choices that are compared with the default, each because the one before failed there. A kernel
/// that fails so often is not to be run in chunks at all.
const MOST_CHOICES: u64 = 3;

#[cfg(test)]
mod tests;
