//! Deals problems out: over machines that know nothing of each other, and over equal devices of one.

use core::fmt;
use core::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One of several machines that share a list of problems: `0/4` to `3/4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

impl Default for Shard {
    /// All of it.
    fn default() -> Self {
        Self { index: 0, count: 1 }
    }
}

impl Shard {
    /// The problems of this machine: every `count`-th, so that each has some of every kernel.
    #[must_use]
    pub fn of<T>(self, problems: Vec<T>) -> Vec<T> {
        problems.into_iter().skip(self.index).step_by(self.count).collect()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Why a text names no shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no shard: expected is I/N with I from 0 to N - 1, such as 0/4")]
pub struct ShardError {
    given: String,
}

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let parse = || {
            let (index, count) = text.split_once('/')?;
            let (index, count) = (index.trim().parse().ok()?, count.trim().parse().ok()?);
            (index < count).then_some(Self { index, count })
        };
        parse().ok_or_else(|| ShardError { given: text.into() })
    }
}

/// A share of the candidates of one problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which, from 0.
    pub index: usize,
    /// Of how many.
    pub count: usize,
}

impl Part {
    /// All candidates.
    pub const ALL: Self = Self { index: 0, count: 1 };
}

/// What a device is given to do.
#[derive(Debug)]
pub enum WorkItem<'a, P, S> {
    /// Search a share of the candidates.
    Search(&'a P, Part),
    /// Decide between what the shares brought, in the order of the parts.
    Confirm(&'a P, Vec<S>),
}

/// Problems on their way to equal devices. Where there are fewer problems than devices, the
/// candidates of each are dealt out, and the winner is confirmed on one.
#[derive(Debug)]
pub struct WorkQueue<P, S> {
    problems: Vec<P>,
    parts: usize,
    next: AtomicUsize,
    shares: Vec<Mutex<Vec<(usize, S)>>>,
}

impl<P, S> WorkQueue<P, S> {
    /// Deals `problems` to so many devices.
    #[must_use]
    pub fn new(problems: Vec<P>, devices: usize) -> Self {
        let parts = devices.max(1).div_ceil(problems.len().max(1));
        let shares = problems.iter().map(|_| Mutex::default()).collect();
        Self { problems, parts, next: AtomicUsize::new(0), shares }
    }

    /// The problems.
    #[must_use]
    pub fn problems(&self) -> &[P] {
        &self.problems
    }

    /// Keeps one device busy until nothing is left to begin. `turn` answers a share where it
    /// searched one; without an answer the problem is not decided. Whoever brings the last share
    /// confirms, so that no device waits for another.
    pub fn serve(&self, mut turn: impl FnMut(WorkItem<'_, P, S>) -> Option<S>) {
        loop {
            let place = self.next.fetch_add(1, Ordering::Relaxed);
            // Neighbours in the queue are parts of one problem: they run at the same time.
            let Some(problem) = self.problems.get(place / self.parts) else {
                return;
            };
            let part = Part { index: place % self.parts, count: self.parts };
            let Some(share) = turn(WorkItem::Search(problem, part)) else {
                continue;
            };
            let Some(shares) = self.shares.get(place / self.parts) else {
                return;
            };
            if let Some(all) = complete(shares, part, share) {
                turn(WorkItem::Confirm(problem, all));
            }
        }
    }
}

/// Puts a share to the others; all of them where it was the last.
fn complete<S>(shares: &Mutex<Vec<(usize, S)>>, part: Part, share: S) -> Option<Vec<S>> {
    // A device that panicked has left whole shares or none.
    let mut shares: MutexGuard<'_, Vec<(usize, S)>> =
        shares.lock().unwrap_or_else(PoisonError::into_inner);
    shares.push((part.index, share));
    if shares.len() < part.count {
        return None;
    }
    let mut all = core::mem::take(&mut *shares);
    all.sort_by_key(|(index, _)| *index);
    Some(all.into_iter().map(|(_, share)| share).collect())
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
        assert_eq!(Shard::default().of(problems.clone()), problems);
    }

    #[test]
    fn what_is_no_shard_is_said() {
        for text in ["", "4", "4/4", "-1/4", "1/0", "a/b", "1/2/3"] {
            let error = text.parse::<Shard>().expect_err("no shard");
            assert!(error.to_string().contains("I/N"), "{error}");
        }
    }

    /// Runs a deal on so many threads and gives what was confirmed, sorted.
    fn run(problems: usize, devices: usize) -> Vec<(usize, Vec<usize>)> {
        let deal = WorkQueue::new((0..problems).collect(), devices);
        let confirmed = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..devices {
                scope.spawn(|| {
                    deal.serve(|turn| match turn {
                        WorkItem::Search(_, part) => Some(part.index),
                        WorkItem::Confirm(problem, shares) => {
                            confirmed.lock().expect("no panic").push((*problem, shares));
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
    fn each_problem_is_confirmed_once_with_all_its_shares() {
        assert_eq!(run(5, 2), (0..5).map(|problem| (problem, vec![0])).collect::<Vec<_>>());
        assert_eq!(run(2, 4), vec![(0, vec![0, 1]), (1, vec![0, 1])]);
        assert_eq!(run(1, 3), vec![(0, vec![0, 1, 2])]);
        assert_eq!(run(0, 3), vec![]);
    }

    #[test]
    fn a_share_that_failed_leaves_its_problem_undecided_and_others_go_on() {
        let deal = WorkQueue::new(vec![0, 1, 2], 1);
        let mut confirmed = Vec::new();
        deal.serve(|turn| match turn {
            WorkItem::Search(1, _) => None,
            WorkItem::Search(problem, _) => Some(*problem),
            WorkItem::Confirm(problem, shares) => {
                confirmed.push((*problem, shares));
                None
            }
        });
        assert_eq!(confirmed, [(0, vec![0]), (2, vec![2])]);
    }
}
