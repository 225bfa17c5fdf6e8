//! Finds the largest chunk whose launch is within a time limit.

use std::collections::{BTreeMap, BTreeSet};

use gridguard::profile::Named;

use crate::candidate::chunked;
use crate::control::Stage;
use crate::measure::Portion;
use crate::outcome::LatencyOutcome;
use crate::search::elimination::FINE_FACTOR;
use crate::search::finals;
use crate::search::state::{DEFAULT, Halt, Search};
use crate::space::Space;
use crate::stats::{Samples, count, real};

/// Finds the largest chunk for each promising set of parameters, then compares its whole sequence with the
/// default's. If that fails, the next best chunk follows; after the last, the default stays.
pub(crate) fn run(
    search: &mut Search<'_>,
    space: &mut Space,
    max_launch_us: u64,
) -> Result<(), Halt> {
    // This also shows whether samples are slow.
    search.round(&[DEFAULT])?;
    let bound_ns = max_launch_us.saturating_mul(NS_PER_US);
    let launches = BTreeMap::new();
    let mut bisection = Bisection { search, space, bound_ns, launches, failed_choices: 0 };
    let sets = bisection.promising()?;
    for _ in 0..MAX_CHOICES {
        let Some(place) = bisection.choose(&sets)? else { break };
        finals::run(bisection.search, &[DEFAULT, place])?;
        if bisection.search.is_open(place) {
            return Ok(());
        }
        bisection.failed_choices += 1;
    }
    bisection.search.result.bounded = None;
    let met = bisection.meets(DEFAULT)?;
    let default = bisection.outcome(DEFAULT, met);
    let kept = |(place, latency)| (place, LatencyOutcome { kept_default: true, ..latency });
    search.result.bounded = default.map(kept);
    finals::run(search, &[DEFAULT])
}

struct Bisection<'r, 'a> {
    search: &'r mut Search<'a>,
    space: &'r mut Space,
    bound_ns: u64,
    /// Times of each candidate's largest launch.
    launches: BTreeMap<usize, Vec<f64>>,
    /// Chunks within the limit that failed in the finals.
    failed_choices: u64,
}

impl Bisection<'_, '_> {
    /// The largest chunk of these sets of parameters within the limit, or else the fastest. Reuses earlier
    /// times.
    fn choose(&mut self, sets: &[Named]) -> Result<Option<usize>, Halt> {
        self.search.result.bounded = None;
        for parameters in sets {
            let Some(new) = self.largest(parameters)? else { continue };
            if self.search.result.bounded.is_none_or(|best| self.is_better(new, best)) {
                self.search.result.bounded = Some(new);
            }
        }
        Ok(self.search.result.bounded.map(|(place, _)| place))
    }

    fn is_better(&self, one: (usize, LatencyOutcome), other: (usize, LatencyOutcome)) -> bool {
        let items = |place: usize| self.search.series[place].candidate.largest_chunk;
        match (one.1.met, other.1.met) {
            (true, true) => items(one.0) > items(other.0),
            (false, false) => one.1.launch.median_ns < other.1.launch.median_ns,
            (met, _) => met,
        }
    }

    /// The default's parameters, and sets with nearly the best time per item.
    fn promising(&mut self) -> Result<Vec<Named>, Halt> {
        let mut seen = BTreeSet::new();
        let all = self.space.candidates().iter().map(|candidate| &candidate.parameters);
        let sets: Vec<Named> = all.filter(|set| seen.insert(*set)).cloned().collect();
        if sets.len() == 1 {
            return Ok(sets);
        }
        self.search.enter(Stage::Bisection, count(sets.len()) * (GLANCES + 1));
        let mut rated = Vec::new();
        for parameters in sets {
            let ladder = self.ladder(&parameters);
            let Some((_, place)) = ladder.get(ladder.len() / 2).copied() else { continue };
            let taken = |this: &Self| this.samples(place).map_or(0, |samples| samples.count());
            while self.search.is_open(place) && taken(self) < GLANCES {
                self.take(place)?;
            }
            if let Some(samples) = self.samples(place) {
                let items = self.search.series[place].candidate.items_at_once();
                rated.push((samples.median() / real(items.max(1)), parameters));
            }
        }
        let best = rated.iter().map(|(cost, _)| *cost).fold(f64::INFINITY, f64::min);
        let default = self.space.default().map(|default| default.parameters.clone());
        let is_default = |set: &Named| Some(set) == default.as_ref();
        rated.retain(|(cost, set)| *cost <= FINE_FACTOR * best || is_default(set));
        // The default's first: others must be better.
        rated.sort_by(|(one, set), (other, other_set)| {
            is_default(other_set).cmp(&is_default(set)).then_with(|| one.total_cmp(other))
        });
        Ok(rated.into_iter().map(|(_, set)| set).take(MAX_SETS).collect())
    }

    /// The largest chunk with these parameters within the limit, or the smallest.
    fn largest(&mut self, parameters: &Named) -> Result<Option<(usize, LatencyOutcome)>, Halt> {
        let ladder = self.ladder(parameters);
        let most = count(ladder.len()) * self.search.effort.min_samples;
        self.search.enter(Stage::Bisection, most);
        let Some((_, top)) = ladder.last().copied() else { return Ok(None) };
        if self.meets(top)? {
            return Ok(self.outcome(top, true));
        }
        let (mut low, mut high) = (0, ladder.len() - 1);
        while low < high {
            let middle = low.midpoint(high);
            if self.meets(ladder[middle].1)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let meets = match low.checked_sub(1) {
            Some(below) => ladder[below],
            None => {
                // The smallest possible chunk if legal, or else the lowest known one.
                let unit = chunked(self.space.unit(parameters));
                let smallest = self.space.add(parameters, unit);
                let (items, smallest) =
                    smallest.map_or(ladder[0], |one| (one.largest_chunk, self.search.track(&one)));
                if !self.meets(smallest)? {
                    return Ok(self.outcome(smallest, false));
                }
                (items, smallest)
            }
        };
        let place = self.refine(parameters, meets, ladder[low].0)?;
        Ok(self.outcome(place, true))
    }

    /// Bisects between a chunk within the limit and a size beyond it.
    fn refine(
        &mut self,
        parameters: &Named,
        (mut meets_items, mut meets): (u64, usize),
        mut fails_items: u64,
    ) -> Result<usize, Halt> {
        let unit = self.space.unit(parameters);
        while fails_items.saturating_sub(meets_items) > unit.max(meets_items / GRANULARITY) {
            // The geometric mean over several octaves, else the arithmetic mean.
            let times = fails_items / meets_items.max(1);
            let middle = match times >= FAR_APART {
                true => meets_items.saturating_mul(times.isqrt()),
                false => meets_items.midpoint(fails_items),
            };
            let middle = (middle / unit).saturating_mul(unit).max(meets_items + unit);
            let candidate = self.space.add(parameters, chunked(middle));
            match candidate.map(|candidate| self.search.track(&candidate)) {
                // The planner balances this size to the known one.
                Some(place) if place == meets => meets_items = middle,
                Some(place) if self.meets(place)? => (meets_items, meets) = (middle, place),
                _ => fails_items = middle.min(fails_items - 1),
            }
        }
        Ok(meets)
    }

    /// Whether the upper end of the confidence interval is within the limit.
    fn meets(&mut self, place: usize) -> Result<bool, Halt> {
        let (effort, bound_ns) = (self.search.effort, real(self.bound_ns));
        while self.search.is_open(place) {
            if let Some(samples) = self.samples(place) {
                let is_hopeless = samples.least() > HOPELESS_FACTOR * bound_ns;
                if is_hopeless && samples.count() >= GLANCES {
                    return Ok(false);
                }
                if effort.stop_reason(&self.launches[&place]).is_some() {
                    return Ok(samples.median_interval()[1] <= bound_ns);
                }
            }
            self.take(place)?;
        }
        Ok(false)
    }

    /// Times the largest launch once. Drops the first time of a candidate.
    fn take(&mut self, place: usize) -> Result<(), Halt> {
        self.search.check(&[place])?;
        if !self.search.is_open(place) {
            return Ok(());
        }
        let time = self.search.sample(place, Portion::LargestLaunch)?;
        match self.launches.get_mut(&place) {
            Some(times) => times.extend(time),
            None => drop(self.launches.insert(place, Vec::new())),
        }
        Ok(())
    }

    fn samples(&self, place: usize) -> Option<Samples> {
        Samples::new(self.launches.get(&place)?.iter().copied())
    }

    fn outcome(&self, place: usize, met: bool) -> Option<(usize, LatencyOutcome)> {
        let latency = LatencyOutcome {
            max_launch_ns: self.bound_ns,
            launch: self.samples(place)?.summary(),
            met,
            failed_choices: self.failed_choices,
            kept_default: false,
        };
        Some((place, latency))
    }

    /// The distinct chunk sizes of the open candidates with these parameters, ascending, and their places.
    fn ladder(&mut self, parameters: &Named) -> Vec<(u64, usize)> {
        let same = self.space.candidates().iter().filter(|one| one.parameters == *parameters);
        let mut ladder: Vec<(u64, usize)> =
            same.map(|one| (one.largest_chunk, self.search.track(one))).collect();
        ladder.retain(|(_, place)| self.search.is_open(*place));
        ladder.sort_by_key(|(items, _)| *items);
        ladder.dedup_by_key(|(items, _)| *items);
        ladder
    }
}

const NS_PER_US: u64 = 1000;
/// Samples for a first estimate.
const GLANCES: u64 = 3;
/// More samples do not help if the least of the first exceeds the limit by this factor.
const HOPELESS_FACTOR: f64 = 1.05;
/// Chunk sizes within a sixteenth count as equal.
const GRANULARITY: u64 = 16;
/// Sizes with at least this ratio are bisected by their geometric mean.
const FAR_APART: u64 = 4;
const MAX_SETS: usize = 3;
/// Choices that are compared with the default. A kernel that fails more often should not run in chunks.
const MAX_CHOICES: u64 = 3;
