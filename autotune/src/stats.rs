//! What samples say: order statistics only, so that an outlier is one sample and no more.

use gridguard::profile::Summary;

use crate::number::{count, position, real, whole};

/// Finite numbers in ascending order, at least one.
///
/// ```
/// use gridguard_autotune::Samples;
/// let samples = Samples::new([3.0, 1.0, 2.0]).expect("finite");
/// assert_eq!(samples.median(), 2.0);
/// assert!(Samples::new([1.0, f64::NAN]).is_none());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Samples {
    ascending: Vec<f64>,
}

/// A range of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

/// How one series of times compares with another that was taken in the same rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedRatio {
    /// The median of the ratios: below one where the first series is faster.
    pub median: f64,
    /// Where the true median lies with 95 % confidence.
    pub interval: Interval,
    /// How many pairs there are.
    pub pairs: u64,
}

impl Samples {
    /// `None` where there are none, or where any is not finite: a NaN never becomes a result.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut ascending: Vec<f64> = values.into_iter().collect();
        if ascending.is_empty() || !ascending.iter().all(|value| value.is_finite()) {
            return None;
        }
        ascending.sort_by(f64::total_cmp);
        Some(Self { ascending })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        count(self.ascending.len())
    }

    /// The smallest.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.at(0)
    }

    /// The largest.
    #[must_use]
    pub fn greatest(&self) -> f64 {
        self.at(self.count().saturating_sub(1))
    }

    /// The value below which a `fraction` of them lies, with linear interpolation.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> f64 {
        let place = real(self.count().saturating_sub(1)) * fraction.clamp(0.0, 1.0);
        let below = whole(place.floor());
        let (low, high) = (self.at(below), self.at(below.saturating_add(1)));
        low + (high - low) * (place - real(below))
    }

    /// The value in the middle.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(HALF)
    }

    /// The median of the distances from the median.
    #[must_use]
    pub fn median_absolute_deviation(&self) -> f64 {
        let median = self.median();
        let distances = self.ascending.iter().map(|value| (value - median).abs());
        Self::new(distances).map_or(0.0, |distances| distances.median())
    }

    /// How far a sample typically lies from the median, as a fraction of it: the standard deviation
    /// of the bulk, which outliers do not move.
    #[must_use]
    pub fn spread(&self) -> f64 {
        NORMAL_DEVIATION * self.median_absolute_deviation() / self.median().abs()
    }

    /// How uncertain the median still is, as a fraction of it: the standard error that the width of
    /// [`Self::median_interval`] stands for.
    ///
    /// A plain standard deviation would let one interrupt keep a stable series from ever being
    /// precise, and a median absolute deviation would call two modes precise as soon as one of them
    /// has the majority; order statistics do neither.
    #[must_use]
    pub fn relative_deviation(&self) -> f64 {
        let Interval { low, high } = self.median_interval();
        (high - low) / INTERVAL_DEVIATIONS / self.median().abs()
    }

    /// Where the true median lies with at least 95 % confidence, whatever the distribution: between
    /// two order statistics, by the exact binomial distribution. Fewer than six samples cannot say
    /// so; for them it is their whole range.
    #[must_use]
    pub fn median_interval(&self) -> Interval {
        let outside = samples_outside(self.count());
        let last = self.count().saturating_sub(1);
        Interval { low: self.at(outside), high: self.at(last.saturating_sub(outside)) }
    }

    /// As a profile stores it; values in nanoseconds.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let Interval { low, high } = self.median_interval();
        Summary {
            median_ns: whole(self.median()),
            low_ns: whole(low),
            high_ns: whole(high),
            samples: self.count(),
        }
    }

    fn at(&self, place: u64) -> f64 {
        let value = self.ascending.get(position(place)).or(self.ascending.last());
        value.copied().unwrap_or(f64::NAN)
    }
}

impl PairedRatio {
    /// The ratio of the first to the second of each pair. `None` where there is no pair or where a
    /// ratio is not finite.
    pub fn new(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let ratios = Samples::new(pairs.into_iter().map(|(first, second)| first / second))?;
        Some(Self {
            median: ratios.median(),
            interval: ratios.median_interval(),
            pairs: ratios.count(),
        })
    }
}

/// The fewest samples whose range is an interval of 95 %: 1 - 2 / 2^6.
pub(crate) const FEWEST_FOR_INTERVAL: u64 = 6;
const HALF: f64 = 0.5;
/// The standard deviation of a normal distribution over its median absolute deviation.
const NORMAL_DEVIATION: f64 = 1.4826;
/// An interval of 95 % of a normal distribution is so many standard deviations wide.
const INTERVAL_DEVIATIONS: f64 = 2.0 * 1.96;
/// The probability that the median lies beyond one given end of an interval.
const BEYOND_ONE_END: f64 = 0.025;

/// How many samples of `n` may lie outside each end of the interval of their median: as many as keep
/// P(at most so many of n fair coins show heads) within [`BEYOND_ONE_END`]. In logarithms, because
/// 2^-n leaves the range of a double for large n.
fn samples_outside(n: u64) -> u64 {
    let mut log_probability = -real(n) * core::f64::consts::LN_2;
    let mut cumulative = log_probability.exp();
    let mut outside = 0;
    while outside < n / 2 {
        let ratio = real(n - outside) / real(outside + 1);
        log_probability += ratio.ln();
        cumulative += log_probability.exp();
        if cumulative > BEYOND_ONE_END {
            break;
        }
        outside += 1;
    }
    outside
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorded;

    fn samples(values: &[f64]) -> Samples {
        Samples::new(values.iter().copied()).expect("finite")
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(samples(&[4.0, 1.0, 3.0, 2.0]).median(), 2.5);
        assert_eq!(samples(&[7.0]).median(), 7.0);
    }

    #[test]
    fn quantiles_reach_both_ends() {
        let samples = samples(&[10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!([0.0, 0.25, 0.9, 1.0].map(|q| samples.quantile(q)), [10.0, 20.0, 46.0, 50.0]);
        assert_eq!((samples.least(), samples.greatest()), (10.0, 50.0));
    }

    #[test]
    fn what_is_not_finite_is_no_sample_set() {
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Samples::new([1.0, wrong, 2.0]), None);
        }
        assert_eq!(Samples::new([]), None);
        assert_eq!(PairedRatio::new([(1.0, 0.0)]), None);
    }

    #[test]
    fn the_interval_of_the_median_leaves_out_what_the_binomial_allows() {
        // Tables of the sign test: the largest number outside each end at 95 %.
        for (n, outside) in [(6, 0), (8, 0), (9, 1), (10, 1), (12, 2), (15, 3), (20, 5), (40, 13)] {
            assert_eq!(samples_outside(n), outside, "{n} samples");
        }
        assert_eq!(samples_outside(3), 0);
        assert!((440..500).contains(&samples_outside(1000)));
        assert!(samples_outside(100_000) > 49_000);
    }

    #[test]
    fn a_stable_series_is_precise_at_once() {
        let stable = samples(&recorded::STABLE);
        assert!(stable.relative_deviation() < 0.002, "{}", stable.relative_deviation());
        let Interval { low, high } = stable.median_interval();
        assert!(low <= stable.median() && stable.median() <= high);
        assert!(high / low < 1.01);
    }

    #[test]
    fn outliers_move_neither_median_nor_deviation() {
        let (clean, hit) = (samples(&recorded::STABLE), samples(&recorded::OUTLIERS));
        assert!((hit.median() / clean.median() - 1.0).abs() < 0.005);
        assert!(hit.relative_deviation() < 0.005);
        assert!(hit.greatest() > 2.0 * hit.median());
    }

    #[test]
    fn two_modes_are_not_precise() {
        assert!(samples(&recorded::BIMODAL).relative_deviation() > 0.005);
    }

    #[test]
    fn a_heavy_tail_widens_the_interval_upwards_only() {
        let tail = samples(&recorded::HEAVY_TAIL);
        let Interval { low, high } = tail.median_interval();
        assert!(high - tail.median() > tail.median() - low);
    }

    #[test]
    fn pairs_cancel_a_drift_that_medians_do_not() {
        let drift = recorded::DRIFTING;
        let faster = drift.map(|time| time * 0.98);
        let ratio = PairedRatio::new(faster.into_iter().zip(drift)).expect("pairs");
        assert!((ratio.median - 0.98).abs() < 1e-9);
        assert!(ratio.interval.high < 0.99);
        let alone = samples(&faster).median_interval();
        assert!(alone.high > samples(&drift).median(), "their own intervals overlap");
    }

    #[test]
    fn a_summary_rounds_to_nanoseconds() {
        let summary = samples(&[1000.4, 1001.6, 999.9]).summary();
        assert_eq!((summary.median_ns, summary.low_ns, summary.high_ns), (1000, 1000, 1002));
        assert_eq!(summary.samples, 3);
    }
}
