//! Distributes problems over machines, and over the equal devices of one machine.

use core::fmt;
use core::str::FromStr;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// One share of a list, `0/4` to `3/4`: of problems for several machines, or of candidates for several
/// devices.
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

/// One piece of work for a device. `S` is the result of a shard.
#[derive(Debug)]
pub(crate) enum WorkItem<'a, P, S> {
    Search(&'a P, Shard),
    /// Decide between the results of all shards, in order.
    Confirm(&'a P, Vec<S>),
}

/// A queue of problems `P` for equal devices. With fewer problems than devices, each problem is split into
/// shards, and one device confirms the winner.
#[derive(Debug)]
pub(crate) struct WorkQueue<P, S> {
    /// Each problem with the results of its shards, by index.
    problems: Vec<(P, Mutex<BTreeMap<usize, S>>)>,
    shards: usize,
    next: AtomicUsize,
}

impl<P, S> WorkQueue<P, S> {
    pub(crate) fn new(problems: Vec<P>, devices: usize) -> Self {
        let shards = devices.max(1).div_ceil(problems.len().max(1));
        let problems = problems.into_iter().map(|problem| (problem, Mutex::default())).collect();
        Self { problems, shards, next: AtomicUsize::new(0) }
    }

    /// Keeps one device busy until no work is left. `work` returns the result of a shard; `None` leaves the
    /// problem undecided. The device that finishes the last shard confirms the problem, so no device waits
    /// for another.
    pub(crate) fn serve(&self, mut work: impl FnMut(WorkItem<'_, P, S>) -> Option<S>) {
        loop {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            // Adjacent, so that the shards of a problem run at the same time.
            let shard = Shard { index: place % self.shards, count: self.shards };
            let Some((problem, results)) = self.problems.get(place / self.shards) else { return };
            let Some(result) = work(WorkItem::Search(problem, shard)) else { continue };
            // A panic cannot leave the results inconsistent.
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            results.insert(shard.index, result);
            if results.len() == shard.count {
                let all = core::mem::take(&mut *results);
                drop(results);
                work(WorkItem::Confirm(problem, all.into_values().collect()));
            }
        }
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

    /// Runs a queue on one thread per device. Returns the confirmed problems, sorted.
    fn run(problems: usize, devices: usize) -> Vec<(usize, Vec<usize>)> {
        let queue = WorkQueue::new((0..problems).collect(), devices);
        let confirmed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..devices {
                scope.spawn(|| {
                    queue.serve(|work| match work {
                        WorkItem::Search(_, shard) => Some(shard.index),
                        WorkItem::Confirm(problem, results) => {
                            confirmed.lock().expect("no panic").push((*problem, results));
                            None
                        }
                    });
                });
            }
        });
        let mut confirmed = confirmed.into_inner().expect("no panic");
        confirmed.sort_unstable();
        confirmed
    }

    #[test]
    fn each_problem_is_confirmed_once_with_all_its_results() {
        assert_eq!(run(5, 2), (0..5).map(|problem| (problem, vec![0])).collect::<Vec<_>>());
        assert_eq!(run(2, 4), vec![(0, vec![0, 1]), (1, vec![0, 1])]);
        assert_eq!(run(1, 3), vec![(0, vec![0, 1, 2])]);
        assert_eq!(run(0, 3), vec![]);
    }

    #[test]
    fn a_failed_shard_leaves_only_its_problem_undecided() {
        let queue = WorkQueue::new(vec![0, 1, 2], 1);
        let mut confirmed = Vec::new();
        queue.serve(|work| match work {
            WorkItem::Search(1, _) => None,
            WorkItem::Search(problem, _) => Some(*problem),
            WorkItem::Confirm(problem, results) => {
                confirmed.push((*problem, results));
                None
            }
        });
        assert_eq!(confirmed, [(0, vec![0]), (2, vec![2])]);
    }
}
