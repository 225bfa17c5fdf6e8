//! An axis of a picture: which values it shows, where, and under which marks.

/// Values from `low` to `high`, spread evenly by their logarithm or by themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    /// Around positive `values`, with a margin; of one value, an octave or a tenth around it.
    pub(crate) fn around(values: &[f64], logarithmic: bool) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(0.0, f64::max);
        let (low, high) = if low <= high { (low, high) } else { (1.0, 1.0) };
        if logarithmic {
            let margin = (high / low).powf(MARGIN).max(2.0_f64.powf(MARGIN));
            let (low, high) = (low / margin, high * margin);
            return Self { low, high, logarithmic };
        }
        let margin = ((high - low) * MARGIN).max(SMALLEST_MARGIN * high);
        Self { low: (low - margin).max(0.0), high: high + margin, logarithmic }
    }

    /// Where `value` lies: 0 at the lower end, 1 at the upper.
    pub(crate) fn fraction(&self, value: f64) -> f64 {
        let place = match self.logarithmic {
            true => (value / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        place.clamp(0.0, 1.0)
    }

    /// Round values to mark, two to about nine.
    pub(crate) fn marks(&self) -> Vec<f64> {
        if self.logarithmic {
            for per_decade in DECADES {
                let marks = self.decades(per_decade);
                if (FEWEST_MARKS..=MOST_MARKS).contains(&marks.len()) {
                    return marks;
                }
            }
            let decades = self.decades(&[1.0]);
            if decades.len() > MOST_MARKS {
                return decades
                    .iter()
                    .copied()
                    .step_by(decades.len().div_ceil(MOST_MARKS))
                    .collect();
            }
        }
        self.steps()
    }

    fn decades(&self, of_each: &[f64]) -> Vec<f64> {
        let mut decade = 10_f64.powf(self.low.log10().floor());
        let mut marks = Vec::new();
        while decade <= self.high {
            let inside = of_each.iter().map(|times| times * decade);
            marks.extend(inside.filter(|mark| (self.low..=self.high).contains(mark)));
            decade *= 10.0;
        }
        marks
    }

    fn steps(&self) -> Vec<f64> {
        let rough = (self.high - self.low) / WANTED_STEPS;
        let power = 10_f64.powf(rough.log10().floor());
        let round = [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power);
        let step = round.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let mut mark = (self.low / step).ceil() * step;
        let mut marks = Vec::new();
        while mark <= self.high && marks.len() < 2 * MOST_MARKS {
            marks.push(mark);
            mark += step;
        }
        marks
    }
}

/// Round values of a decade, from few to many.
const DECADES: [&[f64]; 4] =
    [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 2.0, 3.0, 5.0, 7.0], &[1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0]];
/// Beside the outermost values, as a fraction of the range.
const MARGIN: f64 = 0.06;
/// The margin of a range without extent, as a fraction of its value.
const SMALLEST_MARGIN: f64 = 0.05;
const FEWEST_MARKS: usize = 4;
/// More would touch one another.
const MOST_MARKS: usize = 9;
const WANTED_STEPS: f64 = 6.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_lies_in_the_middle() {
        for logarithmic in [false, true] {
            let scale = Scale::around(&[4096.0], logarithmic);
            assert!((scale.fraction(4096.0) - 0.5).abs() < 1e-9);
            assert!(scale.marks().len() >= 2, "{:?}", scale.marks());
        }
    }

    #[test]
    fn huge_ranges_have_few_marks_inside_them() {
        for high in [10.0, 1e3, 1e9, 1e19] {
            let scale = Scale::around(&[1.0, high], true);
            let marks = scale.marks();
            assert!((2..=2 * MOST_MARKS).contains(&marks.len()), "{marks:?}");
            assert!(marks.windows(2).all(|two| scale.fraction(two[0]) < scale.fraction(two[1])));
        }
    }

    #[test]
    fn nothing_at_all_still_has_a_scale() {
        assert!(Scale::around(&[], true).fraction(1.0).is_finite());
    }
}
