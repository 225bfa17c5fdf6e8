//! A device whose true times are known: what the search makes of noise, drift and failures.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use gridguard::profile::Objective;
use gridguard::{Axis, BatchAxis, Dim3, KernelLimits, LaunchLimits, LaunchRequest, catalog};

use crate::budget::Budget;
use crate::candidate::{Candidate, LaunchConfig};
use crate::measurer::{FailureKind, MeasureFailure, Measurer};
use crate::outcome::TuningOutcome;
use crate::sample::{Portion, Sample};
use crate::space::Space;
use crate::tune::tune;

/// Pseudo-random numbers: the same in every run (SplitMix64).
#[derive(Clone, Debug)]
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d).wrapping_add(0x9e37_79b9))
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Between 0 and 1.
    fn uniform(&mut self) -> f64 {
        let high = u32::try_from(self.bits() >> 32).expect("32 bits");
        (f64::from(high) + 0.5) / 4_294_967_296.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    fn normal(&mut self) -> f64 {
        let (radius, angle) = (self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (core::f64::consts::TAU * angle).cos()
    }
}

/// What a kernel on a device does.
#[derive(Clone, Debug)]
pub(crate) struct Nature {
    /// Lognormal noise of one sample.
    pub(crate) noise: f64,
    /// How often a sample takes one and a half to four times as long.
    pub(crate) outliers: f64,
    /// How much everything slows down with each sample.
    pub(crate) drift: f64,
    /// How much longer a candidate's first sample takes.
    pub(crate) first: f64,
    /// True times in nanoseconds.
    pub(crate) times_ns: BTreeMap<Candidate, f64>,
    /// Candidates that fail, and how.
    pub(crate) failing: BTreeMap<Candidate, FailureKind>,
}

/// Measures by the book of nature.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    nature: Nature,
    chance: Chance,
    seen: BTreeSet<Candidate>,
    taken: u32,
    checked: BTreeSet<Candidate>,
}

impl Simulated {
    pub(crate) fn new(nature: Nature, seed: u64) -> Self {
        Self {
            nature,
            chance: Chance::new(seed),
            seen: BTreeSet::new(),
            taken: 0,
            checked: BTreeSet::new(),
        }
    }
}

impl Nature {
    /// The true time; what a search proposes by itself takes 10 ns an item and 3 us a launch.
    pub(crate) fn time_ns(&self, candidate: &Candidate, portion: Portion) -> f64 {
        let whole = self.times_ns.get(candidate).copied().unwrap_or_else(|| {
            let launches = crate::number::real(candidate.launches);
            launches * (10.0 * crate::number::real(candidate.largest_chunk) + 3000.0)
        });
        match portion {
            Portion::Sequence => whole,
            Portion::LargestLaunch => whole / crate::number::real(candidate.launches.max(1)),
        }
    }

    pub(crate) fn best_ns(&self) -> f64 {
        let sound = self.times_ns.iter().filter(|(one, _)| !self.failing.contains_key(one));
        sound.map(|(_, time)| *time).fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn regret(&self, candidate: &Candidate) -> f64 {
        self.time_ns(candidate, Portion::Sequence) / self.best_ns() - 1.0
    }
}

impl Measurer for Simulated {
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.checked.insert(candidate.clone());
        match self.nature.failing.get(candidate) {
            Some(kind) if *kind != FailureKind::Crash => Err(failure(*kind)),
            _ => Ok(()),
        }
    }

    fn sample(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
        count: u32,
    ) -> Result<Vec<Sample>, MeasureFailure> {
        assert!(self.checked.contains(candidate), "{candidate} was not checked");
        if let Some(kind) = self.nature.failing.get(candidate) {
            return Err(failure(*kind));
        }
        let truth = self.nature.time_ns(candidate, portion);
        let times = (0..count).map(|_| {
            self.taken += 1;
            let mut time = truth * (self.nature.noise * self.chance.normal()).exp();
            time *= 1.0 + self.nature.drift * f64::from(self.taken);
            if self.chance.uniform() < self.nature.outliers {
                time *= 1.5 + 2.5 * self.chance.uniform();
            }
            if self.seen.insert(candidate.clone()) {
                time *= 1.0 + self.nature.first;
            }
            Sample { time_ns: time, clock_mhz: None }
        });
        Ok(times.collect())
    }
}

fn failure(kind: FailureKind) -> MeasureFailure {
    MeasureFailure { kind, message: format!("{kind:?} as told") }
}

/// A launch on an H200 with `sets` block sizes over `items` items.
pub(crate) fn configurations(items: u64, sets: u64, foldable: bool) -> Vec<LaunchConfig> {
    let device = catalog::gpu("h200").expect("in the catalogue").limits.clone();
    let batch = BatchAxis::new(Axis::Y, items);
    let batch = if foldable { batch.foldable() } else { batch };
    let one = |set: u64| {
        let threads = 64 << (set % 4);
        LaunchConfig {
            parameters: vec![("block".to_owned(), threads), ("unroll".to_owned(), 1 << (set / 4))],
            request: LaunchRequest::new(Dim3::new(1, items, 1), Dim3::new(threads, 1, 1)),
            batch,
            limits: LaunchLimits::new(device.clone(), KernelLimits::unknown("k")),
        }
    };
    // The default is neither the smallest nor the largest.
    let mut sets: Vec<u64> = (0..sets).collect();
    let middle = sets.len() / 2;
    sets.swap(0, middle);
    sets.into_iter().map(one).collect()
}

/// A space and its true times: a plateau with ripples, launches that cost, sets of parameters that
/// are worse or better, and now and then an optimum where a chunk stays in the L2 cache.
pub(crate) fn problem(seed: u64, sets: u64) -> (Space, Nature) {
    let mut chance = Chance::new(seed);
    let items = 20_000 << chance.below(6);
    let space = Space::new(configurations(items, sets, chance.uniform() < 0.5));
    let base = 50_000.0 * (1.0 + 40.0 * chance.uniform());
    let mut factors: BTreeMap<Vec<(String, u64)>, f64> = BTreeMap::new();
    let cached = [0.0, 0.0, 0.05, 0.13][usize::try_from(chance.below(4)).expect("small")];
    let sweet = 4000.0 * (1.0 + 8.0 * chance.uniform());
    let mut times_ns = BTreeMap::new();
    for candidate in space.candidates() {
        let factor = *factors.entry(candidate.parameters.clone()).or_insert_with(|| {
            let near = 1.0 + 0.03 * chance.uniform();
            if chance.uniform() < 0.5 { near } else { 1.0 + chance.uniform() }
        });
        let chunk = crate::number::real(candidate.largest_chunk);
        let distance = (chunk / sweet).ln();
        let ripple = 1.0 + 0.02 * chance.uniform();
        let launches = crate::number::real(candidate.launches);
        let time = base * factor * ripple * (1.0 - cached * (-distance * distance).exp());
        times_ns.insert(candidate.clone(), time + 3000.0 * launches);
    }
    let noise = 0.003 + 0.007 * chance.uniform();
    let nature = Nature {
        noise,
        outliers: 0.01,
        drift: 2e-5,
        first: 0.2,
        times_ns,
        failing: BTreeMap::new(),
    };
    (space, nature)
}

/// Tunes for throughput, without a limit.
pub(crate) fn throughput(space: &Space, measurer: &mut dyn Measurer) -> TuningOutcome {
    let budget = Budget { pause: |_| {}, ..Budget::default() };
    tune(measurer, &mut space.clone(), Objective::Throughput, &budget, &mut ())
        .expect("the default runs")
}

/// 8 to 64 candidates.
pub(crate) fn ordinary(seeds: Range<u64>) -> impl Iterator<Item = (u64, Space, Nature)> {
    seeds.filter_map(|seed| {
        let (space, nature) = problem(seed, 1 + seed % 7);
        (8..=64).contains(&space.candidates().len()).then_some((seed, space, nature))
    })
}
