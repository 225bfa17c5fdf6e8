//! Keeps the first explanations for the report.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// At most `N` explanations, written and read without a lock.
pub(crate) struct Explained<T: 'static, const N: usize> {
    kept: [AtomicPtr<T>; N],
    claimed: AtomicUsize,
}

impl<T, const N: usize> Explained<T, N> {
    pub(crate) const fn new() -> Self {
        Self { kept: [const { AtomicPtr::new(ptr::null_mut()) }; N], claimed: AtomicUsize::new(0) }
    }

    /// Claims the place of a new explanation; `None` once there are enough.
    pub(crate) fn claim(&self) -> Option<usize> {
        let place = self.claimed.fetch_add(1, Ordering::Relaxed);
        (place < N).then_some(place)
    }

    /// Keeps a claimed explanation.
    pub(crate) fn keep(&self, place: usize, explanation: T) {
        if let Some(place) = self.kept.get(place) {
            place.store(Box::into_raw(Box::new(explanation)), Ordering::Release);
        }
    }

    /// Those that were kept.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static T> {
        // SAFETY: null, or an explanation that is never freed nor changed.
        self.kept.iter().filter_map(|kept| unsafe { kept.load(Ordering::Acquire).as_ref() })
    }

    /// Forgets everything, in a child process.
    pub(crate) fn reset(&self) {
        self.kept.iter().for_each(|kept| kept.store(ptr::null_mut(), Ordering::Release));
        self.claimed.store(0, Ordering::Relaxed);
    }
}
