//! The recent launches of a stream, in a ring that is written without a lock.

use core::panic::Location;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use super::{Entry, Recorded};

/// Launches that a ring holds, a power of two.
pub(super) const SLOTS: u64 = 64;
/// Words of an entry, without its call site.
pub(super) const WORDS: usize = 10;

/// A ring of launches, numbered from 0 in the order in which they were recorded.
#[derive(Debug)]
pub(super) struct Ring {
    /// The number of the next launch, or one that was: the slots have the last word.
    next: AtomicU64,
    /// Launches before this one have run without an error.
    proven: AtomicU64,
    unrecorded: AtomicU64,
    slots: Box<[Slot]>,
}

/// Place for every launch whose number leaves the same remainder.
#[derive(Debug)]
struct Slot {
    /// `2 n + 1` while launch `n` is being written, `2 n + 2` once it is whole, 0 before any.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
    call_site: AtomicPtr<Location<'static>>,
}

impl Ring {
    pub(super) fn new() -> Self {
        Self {
            next: AtomicU64::new(0),
            proven: AtomicU64::new(0),
            unrecorded: AtomicU64::new(0),
            slots: (0..SLOTS).map(|_| Slot::new()).collect(),
        }
    }

    /// Records a launch without locking the bus. Only one thread does so in this ring, and none
    /// uses [`Self::write`].
    #[inline]
    pub(super) fn write_alone(&self, words: &[u64; WORDS], call_site: *mut Location<'static>) {
        let number = self.next.load(Ordering::Relaxed);
        let Some(slot) = self.slot(number) else { return };
        self.next.store(number + 1, Ordering::Relaxed);
        slot.sequence.store(2 * number + 1, Ordering::Relaxed);
        slot.fill(number, words, call_site);
    }

    /// Records a launch, whoever else does. Only taking the slot locks the bus.
    #[inline]
    pub(super) fn write(&self, words: &[u64; WORDS], call_site: *mut Location<'static>) {
        loop {
            let number = self.next.load(Ordering::Relaxed);
            let Some(slot) = self.slot(number) else { return };
            match slot.claim(number) {
                Ok(()) => {
                    // A late store can set this back; the next launch then walks on from there.
                    self.next.store(number + 1, Ordering::Relaxed);
                    return slot.fill(number, words, call_site);
                }
                Err(seen) if seen > 2 * number => self.walk_on(number),
                Err(_) => return self.give_up(),
            }
        }
    }

    /// Another thread has taken `number`.
    #[cold]
    fn walk_on(&self, number: u64) {
        // Whoever changes it first does what is needed.
        let _ =
            self.next.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A thread has been held up in the slot for a whole round. To pass it by would leave a number
    /// that is taken later, after a mark that counts it as done.
    #[cold]
    fn give_up(&self) {
        self.unrecorded.fetch_add(1, Ordering::Relaxed);
    }

    /// The whole records, in order. Those being written meanwhile are left out.
    pub(super) fn read(&self) -> Vec<Recorded> {
        let proven = self.proven.load(Ordering::Relaxed);
        let whole = self.slots.iter().filter_map(Slot::read);
        let mut records: Vec<_> = whole
            .map(|(number, entry)| Recorded { number, proven: number < proven, entry })
            .collect();
        records.sort_unstable_by_key(|record| record.number);
        records
    }

    /// The number of the next launch: all before it have been taken.
    pub(super) fn next(&self) -> u64 {
        let mut number = self.next.load(Ordering::Relaxed);
        // A late store may have set it back.
        while self.slot(number).is_some_and(|slot| slot.is_taken(number)) {
            number += 1;
        }
        number
    }

    pub(super) fn prove(&self, number: u64) {
        self.proven.fetch_max(number, Ordering::Relaxed);
    }

    pub(super) fn unrecorded(&self) -> u64 {
        self.unrecorded.load(Ordering::Relaxed)
    }

    /// Launches not proven good whose record later ones have taken.
    pub(super) fn overwritten_unproven(&self) -> u64 {
        let oldest = self.next().saturating_sub(SLOTS);
        oldest.saturating_sub(self.proven.load(Ordering::Relaxed))
    }

    #[inline]
    fn slot(&self, number: u64) -> Option<&Slot> {
        usize::try_from(number % SLOTS).ok().and_then(|place| self.slots.get(place))
    }
}

impl Slot {
    const fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
            call_site: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Takes the slot for launch `number`, or tells what it holds: only one thread can.
    #[inline]
    fn claim(&self, number: u64) -> Result<(), u64> {
        let round_before = (2 * number + 2).saturating_sub(2 * SLOTS);
        self.sequence
            .compare_exchange(
                round_before,
                2 * number + 1,
                // After all that the writer of the round before did.
                Ordering::Acquire,
                Ordering::Relaxed,
            )
            .map(drop)
    }

    fn is_taken(&self, number: u64) -> bool {
        self.sequence.load(Ordering::Relaxed) > 2 * number
    }

    #[inline]
    fn fill(&self, number: u64, words: &[u64; WORDS], call_site: *mut Location<'static>) {
        // Who reads a word of this launch must also see that the slot was taken.
        fence(Ordering::Release);
        for (place, word) in self.words.iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
        self.call_site.store(call_site, Ordering::Relaxed);
        self.sequence.store(2 * number + 2, Ordering::Release);
    }

    /// What the slot holds, where that is whole.
    fn read(&self) -> Option<(u64, Entry)> {
        let before = self.sequence.load(Ordering::Acquire);
        if before == 0 || !before.is_multiple_of(2) {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let call_site = self.call_site.load(Ordering::Relaxed);
        // The words are read before the sequence is read again.
        fence(Ordering::Acquire);
        let whole = self.sequence.load(Ordering::Relaxed) == before;
        whole.then(|| (before / 2 - 1, Entry::from_words(words, call_site)))
    }
}
