//! Sizes of the work that a log states, and whether they exceed an axis of the grid.

use super::shape::{AXIS_BLOCKS, MAX_THREADS, Shape};

/// A size of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dimension {
    Batch,
    Heads,
    Rows,
    Channels,
    Tokens,
    Choices,
    Height,
    Width,
}

/// The names of the sizes. The first name of each is shown.
pub(super) const NAMES: [(Dimension, &str); 8] = [
    (Dimension::Batch, "batch|batch_size|batch size|bsz"),
    (Dimension::Heads, "heads|num_heads|n_heads|n_head"),
    (Dimension::Rows, "rows|num_rows|n_rows|nrows|vocab_size|n_vocab"),
    (Dimension::Channels, "channels|num_channels"),
    (Dimension::Tokens, "tokens|num_tokens|n_tokens"),
    (Dimension::Choices, "top_k|topk"),
    (Dimension::Height, "height"),
    (Dimension::Width, "width"),
];

/// Sizes of the work, each if it is stated, and numbers of elements that worked and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WorkSizes {
    sizes: [Option<u64>; NAMES.len()],
    pub(super) works: Option<u64>,
    pub(super) fails: Option<u64>,
    /// The bound that a checked size reached.
    pub(super) bound: Option<u64>,
    /// A shape that a launch may be refused for.
    pub(super) shape: Option<Shape>,
}

/// What the stated sizes decide about an axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AxisVerdict {
    /// It has more blocks than an axis holds.
    TooLarge(u64, String),
    /// It has few enough.
    Fits(String),
}

impl WorkSizes {
    /// The known sizes, or else the sizes in `other`.
    pub(super) fn or(self, other: Self) -> Self {
        let mut sizes = self.sizes;
        sizes.iter_mut().zip(other.sizes).for_each(|(size, other)| *size = size.or(other));
        Self {
            sizes,
            works: self.works.or(other.works),
            fails: self.fails.or(other.fails),
            bound: self.bound.or(other.bound),
            shape: self.shape.or(other.shape),
        }
    }

    pub(super) fn set(&mut self, dimension: Dimension, size: u64) {
        let sizes = self.sizes.iter_mut().zip(NAMES);
        sizes.filter(|(_, (it, _))| *it == dimension).for_each(|(place, _)| *place = Some(size));
    }

    fn get(&self, dimension: Dimension) -> Option<(&'static str, u64)> {
        let mut sizes = self.sizes.iter().zip(NAMES);
        let (size, (_, names)) = sizes.find(|(_, (it, _))| *it == dimension)?;
        Some((names.split('|').next()?, (*size)?))
    }

    /// Judges an axis whose blocks are the product of these sizes. Known sizes may suffice to exceed it.
    pub(super) fn judge(&self, axis: &[Dimension]) -> Option<AxisVerdict> {
        let known = axis.iter().filter_map(|it| self.get(*it));
        let known: Vec<(&str, u64)> = known.filter(|(_, size)| *size > 0).collect();
        let blocks = known.iter().fold(1_u64, |all, (_, size)| all.saturating_mul(*size));
        let factors = known.iter().map(|(name, size)| format!("{name} {size}"));
        let mut text = factors.collect::<Vec<_>>().join(" x ");
        if known.len() > 1 {
            text += &format!(" = {blocks}");
        }
        match known.len() {
            0 => None,
            _ if blocks > AXIS_BLOCKS => Some(AxisVerdict::TooLarge(blocks, text)),
            all if all == axis.len() => Some(AxisVerdict::Fits(text)),
            _ => None,
        }
    }

    /// The blocks of `threads` threads that worked and failed, if an axis ends between them: `(threads, works,
    /// fails)`. Without known threads, the axis must have been full.
    pub(super) fn pair(&self, threads: Option<u64>) -> Option<(u64, u64, u64)> {
        let (works, fails) = (self.works?, self.fails?);
        let ends_between = |threads: &u64| {
            let [below, above] = [works, fails].map(|elements| elements.div_ceil(*threads));
            let is_exact = below == AXIS_BLOCKS && fails.saturating_sub(works) <= *threads;
            below <= AXIS_BLOCKS && above > AXIS_BLOCKS && is_exact
        };
        let threads = match threads {
            Some(threads) => Some(threads).filter(|it| *it > 0).filter(ends_between)?,
            None => (1..=MAX_THREADS).find(ends_between)?,
        };
        Some((threads, works.div_ceil(threads), fails.div_ceil(threads)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_ends_between_a_size_that_works_and_one_that_fails() {
        let pair = |works, fails, threads| {
            let (works, fails) = (Some(works), Some(fails));
            WorkSizes { works, fails, ..WorkSizes::default() }.pair(threads)
        };
        let found = Some((16, 65_535, 65_536));
        assert_eq!(pair(1_048_560, 1_048_561, Some(16)), found);
        assert_eq!(pair(1_048_560, 1_048_561, None), found);
        assert_eq!(pair(65_535, 65_536, None), Some((1, 65_535, 65_536)));
        assert_eq!(pair(1000, 2000, None), None);
        assert_eq!(pair(1_048_560, 1_048_561, Some(32)), None);
        assert_eq!(pair(u64::MAX, 0, Some(0)), None);
    }

    #[test]
    fn known_sizes_decide_whether_an_axis_is_too_short() {
        use Dimension::{Batch, Heads};
        let judge = |sizes: &[(Dimension, u64)]| {
            let mut work = WorkSizes::default();
            sizes.iter().for_each(|(dimension, size)| work.set(*dimension, *size));
            work.judge(&[Batch, Heads])
        };
        let large = AxisVerdict::TooLarge(131_072, "batch 16384 x heads 8 = 131072".into());
        assert_eq!(judge(&[(Batch, 16_384), (Heads, 8)]), Some(large));
        let fits = AxisVerdict::Fits("batch 2 x heads 8 = 16".into());
        assert_eq!(judge(&[(Batch, 2), (Heads, 8)]), Some(fits));
        assert_eq!(judge(&[(Batch, 2)]), None);
        assert!(matches!(judge(&[(Batch, 70_000)]), Some(AxisVerdict::TooLarge(70_000, _))));
        assert_eq!(judge(&[]), None);
        assert!(matches!(judge(&[(Batch, u64::MAX), (Heads, 2)]), Some(AxisVerdict::TooLarge(..))));
    }
}
