//! Writing without locking the bus, where one thread is known to be the only writer.
//!
//! A locked addition takes some 5 ns, and waits for all stores before it. Nearly all launches of a
//! guard, and of a stream, come from one thread: it gets words of its own, which it loads and
//! stores, and all others share words that they change atomically.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The one thread that may write what it guards: the first that asks.
#[derive(Debug)]
pub(crate) struct Owner(AtomicUsize);

impl Owner {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Whether this thread is the owner, and so the only writer.
    #[inline]
    pub(crate) fn is_me(&self) -> bool {
        let me = this_thread();
        match self.0.load(Ordering::Relaxed) {
            0 => self.take(me),
            owner => owner == me,
        }
    }

    #[cold]
    fn take(&self, me: usize) -> bool {
        self.0.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// A number that no other living thread has: the address of something of its own.
///
/// A thread that begins may get that of one that has ended, and then owns what that one did. The
/// memory came to it through the system, which orders all that the one wrote before all that the
/// other reads.
#[inline]
fn this_thread() -> usize {
    thread_local! {
        static OWN: u8 = const { 0 };
    }
    OWN.with(|own| core::ptr::from_ref(own).addr())
}

/// A sum that any thread adds to, its owner for next to nothing.
#[derive(Debug)]
pub(crate) struct Tally {
    owner: Owner,
    by_owner: AtomicU64,
    by_others: AtomicU64,
}

impl Tally {
    pub(crate) const fn new() -> Self {
        Self { owner: Owner::new(), by_owner: AtomicU64::new(0), by_others: AtomicU64::new(0) }
    }

    #[inline]
    pub(crate) fn add_one(&self) {
        if self.owner.is_me() {
            let so_far = self.by_owner.load(Ordering::Relaxed);
            self.by_owner.store(so_far.wrapping_add(1), Ordering::Relaxed);
        } else {
            self.by_others.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn sum(&self) -> u64 {
        let by_owner = self.by_owner.load(Ordering::Relaxed);
        by_owner.wrapping_add(self.by_others.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_thread_owns_and_no_other() {
        let owner = Owner::new();
        assert!(owner.is_me());
        // The scope's end waits for the thread, and this one lives on.
        let other = std::thread::scope(|scope| scope.spawn(|| owner.is_me()).join());
        assert!(!other.expect("it answers"));
        assert!(owner.is_me());
    }

    #[test]
    fn nothing_is_lost_whoever_adds_and_however_many_threads_come_and_go() {
        /// Additions of each thread.
        const ADDITIONS: u64 = if cfg!(miri) { 20 } else { 10_000 };
        let tally = Tally::new();
        let add = || (0..ADDITIONS).for_each(|_| tally.add_one());
        for _ in 0..20 {
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(add))));
        }
        add();
        assert_eq!(tally.sum(), 81 * ADDITIONS);
    }
}
