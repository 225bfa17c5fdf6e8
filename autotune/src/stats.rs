//! Order statistics of samples, which outliers do not distort.

use core::cmp::Ordering;

use gridguard::profile::Summary;

/// At least one finite number, in ascending order.
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

impl Samples {
    /// `None` without values, or if one is not finite: a NaN never becomes a result.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut ascending: Vec<f64> = values.into_iter().collect();
        if ascending.is_empty() || !ascending.iter().all(|value| value.is_finite()) {
            return None;
        }
        ascending.sort_by(f64::total_cmp);
        Some(Self { ascending })
    }

    /// Adds a finite sample.
    pub(crate) fn insert(&mut self, value: f64) {
        let place = self.ascending.partition_point(|other| *other <= value);
        self.ascending.insert(place, value);
    }

    /// The number of samples.
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

    /// The quantile at `fraction` from 0 to 1, with linear interpolation.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> f64 {
        let place = real(self.count().saturating_sub(1)) * fraction.clamp(0.0, 1.0);
        let below = whole(place.floor());
        let (low, high) = (self.at(below), self.at(below.saturating_add(1)));
        low + (high - low) * (place - real(below))
    }

    /// The median. For an even number, the mean of the two middle samples.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The typical distance of a sample from the median, as a fraction of the median. It is the scaled median
    /// absolute deviation, a robust standard deviation.
    #[must_use]
    pub fn spread(&self) -> f64 {
        NORMAL_DEVIATION * self.absolute_deviation() / self.median().abs()
    }

    fn absolute_deviation(&self) -> f64 {
        let median = self.median();
        let distances = self.ascending.iter().map(|value| (value - median).abs());
        Self::new(distances).map_or(0.0, |distances| distances.median())
    }

    /// The standard error of the median as a fraction of the median, from the width of [`Self::median_interval`].
    ///
    /// A plain standard deviation would never become precise after one interrupt. A median absolute deviation
    /// would call a bimodal series precise once one mode has the majority. The interval has neither flaw.
    #[must_use]
    pub fn relative_deviation(&self) -> f64 {
        let [low, high] = self.median_interval();
        (high - low) / INTERVAL_DEVIATIONS / self.median().abs()
    }

    /// The confidence interval of the median at 95 % or more, for any distribution. Its ends are two order
    /// statistics, by the exact binomial distribution. Fewer than six samples cannot reach 95 %, so their
    /// interval is the whole range.
    #[must_use]
    pub fn median_interval(&self) -> [f64; 2] {
        let outside = samples_outside(self.count());
        let last = self.count().saturating_sub(1);
        [self.at(outside), self.at(last.saturating_sub(outside))]
    }

    /// The summary for a profile. The samples are nanoseconds.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let [low, high] = self.median_interval();
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

/// The fewest samples whose range is a 95 % interval: 1 - 2 / 2^6.
pub(crate) const MIN_FOR_INTERVAL: u64 = 6;
/// The distance that counts as far: twice the range of a few samples, or four times the median absolute deviation of
/// more samples. In 10^5 sets of four normal samples with their centre at the limit, 0.08 % exceeded it; with more
/// samples, fewer.
const FAR: f64 = 2.0;
const MIN_FAR: u64 = 4;
/// From this number on, one outlier must not decide.
const MIN_DEVIATION: u64 = 10;
/// The standard deviation of a normal distribution over its median absolute deviation.
const NORMAL_DEVIATION: f64 = 1.4826;
/// The width of a 95 % interval of a normal distribution in standard deviations.
const INTERVAL_DEVIATIONS: f64 = 2.0 * 1.96;
/// The probability that the median is beyond one given end of an interval.
const BEYOND_ONE_END: f64 = 0.025;

/// Whether `samples` come from a distribution whose centre is below or above `limit`; `None` if they are too few or too
/// close to say.
///
/// The test is Wilcoxon's signed-rank test, at a confidence of `deviations` standard deviations of a normal
/// distribution. Outliers hardly affect it, and it needs a third fewer samples than a sign test. With fewer than 12
/// samples it cannot reach three deviations, so four or more samples are also enough if they are far from the limit.
pub(crate) fn side_of(samples: &[f64], limit: f64, deviations: f64) -> Option<Ordering> {
    let mut distances: Vec<f64> = samples.iter().map(|sample| sample - limit).collect();
    let ends = Samples::new(distances.iter().copied())?;
    let (nearest, spread) = match (ends.count() < MIN_DEVIATION, ends.median() > 0.0) {
        (true, true) => (ends.least(), ends.greatest() - ends.least()),
        (true, false) => (-ends.greatest(), ends.greatest() - ends.least()),
        (false, _) => (ends.median().abs(), 2.0 * ends.absolute_deviation()),
    };
    if ends.count() >= MIN_FAR && nearest > FAR * spread {
        return ends.median().partial_cmp(&0.0);
    }
    distances.sort_by(|one, other| one.abs().total_cmp(&other.abs()));
    let ranks = distances.iter().zip(1_u64..).map(|(distance, rank)| match distance {
        0.0 => real(rank) / 2.0,
        above if *above > 0.0 => real(rank),
        _ => 0.0,
    });
    let (sum, n) = (ranks.sum::<f64>(), real(ends.count()));
    let mean = n * (n + 1.0) / 4.0;
    let deviation = (mean * (2.0 * n + 1.0) / 6.0).sqrt();
    let distance = (sum - mean) / deviation;
    (distance.abs() > deviations).then(|| distance.total_cmp(&0.0))
}

/// The largest k such that at most k of `n` fair coins show heads with a probability within [`BEYOND_ONE_END`]. It is
/// the number of samples outside each end of the median's interval. Computed in logarithms, because 2^-n underflows for
/// large n.
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

/// `count` as a double, exact up to 2^53.
#[allow(clippy::as_conversions, reason = "no lossless conversion exists, and 2^53 is enough")]
#[must_use]
pub const fn real(count: u64) -> f64 {
    count as f64
}

/// The nearest integer, saturating; 0 for NaN.
#[allow(clippy::as_conversions, reason = "the saturation is intended")]
pub(crate) fn whole(value: f64) -> u64 {
    value.round() as u64
}

pub(crate) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

pub(crate) fn position(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::recorded;

    fn samples(values: &[f64]) -> Samples {
        Samples::new(values.iter().copied()).expect("finite")
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
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
    fn non_finite_values_are_rejected() {
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Samples::new([1.0, wrong, 2.0]), None);
        }
        assert_eq!(Samples::new([]), None);
    }

    #[test]
    fn the_interval_of_the_median_matches_sign_test_tables() {
        // Tables of the sign test: the largest number outside each end at 95 %.
        for (n, outside) in [(6, 0), (8, 0), (9, 1), (10, 1), (12, 2), (15, 3), (20, 5), (40, 13)] {
            assert_eq!(samples_outside(n), outside, "{n} samples");
        }
        assert_eq!(samples_outside(3), 0);
        assert!((440..500).contains(&samples_outside(1000)));
        assert!(samples_outside(100_000) > 49_000);
    }

    #[test]
    fn samples_are_on_one_side_of_a_limit_only_with_confidence() {
        let side = |limit| side_of(&recorded::OUTLIERS, limit, 3.0);
        assert_eq!(side(101_900.0), Some(Ordering::Greater));
        assert_eq!(side(103_200.0), None, "three outliers of twenty");
        assert_eq!(side(104_000.0), Some(Ordering::Less), "far, but for the outliers");
        assert_eq!(side(102_500.0), None);
        let stable = |taken: usize, limit| side_of(&recorded::STABLE[..taken], limit, 3.0);
        assert_eq!(stable(9, 101_000.0), None, "too few for the ranks, too close for the range");
        assert_eq!(stable(12, 101_900.0), Some(Ordering::Greater));
        assert_eq!(stable(12, 103_000.0), Some(Ordering::Less));
        assert_eq!(stable(4, 100_000.0), Some(Ordering::Greater), "far");
        assert_eq!(stable(4, 105_000.0), Some(Ordering::Less), "far");
        assert_eq!(stable(3, 1.0), None);
        assert_eq!(side_of(&[1.0; 20], 1.0, 3.0), None);
        assert_eq!(side_of(&[f64::NAN; 20], 1.0, 3.0), None);
        assert_eq!(side_of(&[], 1.0, 3.0), None);
    }

    #[test]
    fn a_stable_series_is_precise_at_once() {
        let stable = samples(&recorded::STABLE);
        assert!(stable.relative_deviation() < 0.002, "{}", stable.relative_deviation());
        let [low, high] = stable.median_interval();
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
        let [low, high] = tail.median_interval();
        assert!(high - tail.median() > tail.median() - low);
    }

    #[test]
    fn ratios_of_pairs_cancel_a_drift_that_medians_do_not() {
        let drift = recorded::DRIFTING;
        let faster = drift.map(|time| time * 0.98);
        let ratios = faster.iter().zip(drift).map(|(faster, time)| faster / time);
        let ratios = Samples::new(ratios).expect("finite");
        assert!((ratios.median() - 0.98).abs() < 1e-9);
        assert!(ratios.median_interval()[1] < 0.99);
        let alone = samples(&faster).median_interval();
        assert!(alone[1] > samples(&drift).median(), "their own intervals overlap");
    }

    #[test]
    fn a_summary_rounds_to_nanoseconds() {
        let summary = samples(&[1000.4, 1001.6, 999.9]).summary();
        assert_eq!((summary.median_ns, summary.low_ns, summary.high_ns), (1000, 1000, 1002));
        assert_eq!(summary.samples, 3);
    }
}
