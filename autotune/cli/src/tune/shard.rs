//! Distributes problems over machines.

use core::fmt;
use core::str::FromStr;

/// One share of the problems, `0/4` to `3/4`, for several machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    index: usize,
    count: usize,
}

impl Shard {
    pub(crate) const ALL: Self = Self { index: 0, count: 1 };

    /// The share: every `count`-th element, so that each shard has problems of every kernel.
    pub(crate) fn of<T>(self, list: impl IntoIterator<Item = T>) -> Vec<T> {
        list.into_iter().skip(self.index).step_by(self.count).collect()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (index, count) = text.split_once('/')?;
            let (index, count) = (index.trim().parse().ok()?, count.trim().parse().ok()?);
            (index < count).then_some(Self { index, count })
        };
        parse().ok_or_else(|| {
            format!("{text:?} is not a shard: expected I/N with I from 0 to N - 1, such as 0/4")
        })
    }
}
