//! A simulated device with known true times, and with noise, drift and failures.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use gridguard::profile::Objective;
use gridguard::{Axis, BatchAxis, Dim3, KernelLimits, LaunchLimits, LaunchRequest, catalog};

use crate::stats::real;
use crate::{
    Budget, Candidate, FailureKind, LaunchConfig, MeasureFailure, Measurer, Portion, Sample, Space,
    TuningOutcome, tune,
};

/// How a kernel behaves on a device.
#[derive(Clone, Debug)]
pub(crate) struct Nature {
    /// Lognormal noise of one sample.
    pub(crate) noise: f64,
    /// The fraction of samples that take 1.5 to 4 times as long.
    pub(crate) outliers: f64,
    /// The slowdown per sample taken.
    pub(crate) drift: f64,
    /// The slowdown of a candidate's first sample.
    pub(crate) first: f64,
    /// True times in nanoseconds.
    pub(crate) times_ns: BTreeMap<Candidate, f64>,
    /// Candidates that fail, and how.
    pub(crate) failing: BTreeMap<Candidate, FailureKind>,
}

/// Measures as the nature of its kernel says.
#[derive(Clone, Debug)]
pub(crate) struct Simulated {
    nature: Nature,
    rng: Rng,
    seen: BTreeSet<Candidate>,
    taken: u32,
    checked: BTreeSet<Candidate>,
}

impl Simulated {
    pub(crate) fn new(nature: Nature, seed: u64) -> Self {
        Self {
            nature,
            rng: Rng::with_seed(seed),
            seen: BTreeSet::new(),
            taken: 0,
            checked: BTreeSet::new(),
        }
    }
}

impl Nature {
    /// The true time; candidates that a search adds take 10 ns per item and 3 us per launch.
    pub(crate) fn time_ns(&self, candidate: &Candidate, portion: Portion) -> f64 {
        let whole = self.times_ns.get(candidate).copied().unwrap_or_else(|| {
            let launches = real(candidate.launches);
            launches * (10.0 * real(candidate.largest_chunk) + 3000.0)
        });
        match portion {
            Portion::Sequence => whole,
            Portion::LargestLaunch => whole / real(candidate.launches.max(1)),
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
    ) -> Result<Sample, MeasureFailure> {
        assert!(self.checked.contains(candidate), "{candidate} was not checked");
        if let Some(kind) = self.nature.failing.get(candidate) {
            return Err(failure(*kind));
        }
        let truth = self.nature.time_ns(candidate, portion);
        self.taken += 1;
        let mut time_ns = truth * (self.nature.noise * normal(&mut self.rng)).exp();
        time_ns *= 1.0 + self.nature.drift * f64::from(self.taken);
        if self.rng.f64() < self.nature.outliers {
            time_ns *= 1.5 + 2.5 * self.rng.f64();
        }
        if self.seen.insert(candidate.clone()) {
            time_ns *= 1.0 + self.nature.first;
        }
        Ok(Sample { time_ns, clock_mhz: None, disturbed: false })
    }
}

/// A normally distributed number with mean 0 and variance 1 (Box-Muller).
fn normal(rng: &mut Rng) -> f64 {
    let (radius, angle) = (1.0 - rng.f64(), rng.f64());
    (-2.0 * radius.ln()).sqrt() * (core::f64::consts::TAU * angle).cos()
}

fn failure(kind: FailureKind) -> MeasureFailure {
    MeasureFailure { kind, message: format!("{kind:?} as configured") }
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
            batch: Some(batch),
            limits: LaunchLimits::new(device.clone(), KernelLimits::unknown("k")),
        }
    };
    // The default is neither the smallest nor the largest.
    let mut sets: Vec<u64> = (0..sets).collect();
    let middle = sets.len() / 2;
    sets.swap(0, middle);
    sets.into_iter().map(one).collect()
}

/// A space and its true times: a plateau with ripples, a cost per launch, better and worse sets of
/// parameters, and sometimes an optimum where a chunk stays in the L2 cache.
pub(crate) fn problem(seed: u64, sets: u64) -> (Space, Nature) {
    let mut rng = Rng::with_seed(seed);
    let items = 20_000 << rng.u64(..6);
    let space = Space::new(configurations(items, sets, rng.f64() < 0.5));
    let base = 50_000.0 * (1.0 + 40.0 * rng.f64());
    let mut factors: BTreeMap<Vec<(String, u64)>, f64> = BTreeMap::new();
    let cached = [0.0, 0.0, 0.05, 0.13][rng.usize(..4)];
    let sweet = 4000.0 * (1.0 + 8.0 * rng.f64());
    let mut times_ns = BTreeMap::new();
    for candidate in space.candidates() {
        let factor = *factors.entry(candidate.parameters.clone()).or_insert_with(|| {
            let near = 1.0 + 0.03 * rng.f64();
            if rng.f64() < 0.5 { near } else { 1.0 + rng.f64() }
        });
        let chunk = real(candidate.largest_chunk);
        let distance = (chunk / sweet).ln();
        let ripple = 1.0 + 0.02 * rng.f64();
        let launches = real(candidate.launches);
        let time = base * factor * ripple * (1.0 - cached * (-distance * distance).exp());
        times_ns.insert(candidate.clone(), time + 3000.0 * launches);
    }
    let noise = 0.003 + 0.007 * rng.f64();
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
    tune(measurer, &mut space.clone(), Objective::Throughput, &Budget::default(), &mut ())
        .expect("the default runs")
}

/// 8 to 64 candidates.
pub(crate) fn ordinary(seeds: Range<u64>) -> impl Iterator<Item = (u64, Space, Nature)> {
    seeds.filter_map(|seed| {
        let (space, nature) = problem(seed, 1 + seed % 7);
        (8..=64).contains(&space.candidates().len()).then_some((seed, space, nature))
    })
}
