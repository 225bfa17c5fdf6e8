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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cover_all_problems_once() {
        let problems: Vec<u32> = (0..10).collect();
        let mut all: Vec<u32> = (0..3)
            .flat_map(|index| {
                let shard: Shard = format!("{index}/3").parse().expect("a shard");
                shard.of(problems.clone())
            })
            .collect();
        all.sort_unstable();
        assert_eq!(all, problems);
        assert_eq!(Shard::ALL.of(problems.clone()), problems);
    }

    #[test]
    fn an_invalid_shard_is_rejected_with_the_expected_form() {
        for text in ["", "4", "4/4", "-1/4", "1/0", "a/b", "1/2/3"] {
            let error = text.parse::<Shard>().expect_err("not a shard");
            assert!(error.to_string().contains("I/N"), "{error}");
        }
    }
}
