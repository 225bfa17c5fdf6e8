//! How much is measured before something is decided.

use crate::stop::StoppingRule;

/// How many samples each part of a search takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Samples of each candidate in the coarse stage.
    pub(crate) coarse: u64,
    /// After the fine stage.
    pub(crate) fine: u64,
    /// Rounds that the finals take at least.
    pub(crate) finals: u64,
    /// When they end.
    pub(crate) rule: StoppingRule,
    /// Samples of each candidate, on average, within which a search goes on as long as it is not
    /// clear who ties.
    pub(crate) affordable: u64,
    /// Samples of each candidate, on average, at which the finals end whatever is left open.
    pub(crate) most: u64,
    /// Whether the first sample of a candidate counts.
    pub(crate) keeps_first: bool,
}

impl Effort {
    /// Sized for a quarter of 40 samples of each of eight candidates when none of them can be
    /// eliminated early; larger spaces cost less of theirs.
    pub(crate) const FAST: Self = Self {
        coarse: 2,
        fine: 4,
        finals: 6,
        rule: StoppingRule::FAST,
        affordable: 8,
        most: 10,
        keeps_first: false,
    };
    /// For samples of a second and more. The bias of a first sample is caches and clocks, a matter
    /// of milliseconds.
    pub(crate) const SLOW: Self = Self {
        coarse: 1,
        fine: 2,
        finals: 3,
        rule: StoppingRule::SLOW,
        affordable: 0,
        most: 10,
        keeps_first: true,
    };
}
