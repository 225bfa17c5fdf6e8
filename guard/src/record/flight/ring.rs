//! The recent launches of a stream, in a ring that is written without a lock.

use core::panic::Location;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use super::super::alone::Owner;

/// Launches that a ring holds, a power of two; under Miri so few that threads meet in each slot.
pub(super) const SLOTS: u64 = if cfg!(miri) { 4 } else { 64 };
/// The same, as the length of an array.
const LENGTH: usize = if cfg!(miri) { 4 } else { 64 };
const _: () = assert!(SLOTS.is_power_of_two() && LENGTH.ilog2() == SLOTS.ilog2());

/// A ring of launches, numbered from 0 in the order in which they were recorded; `WORDS` for each,
/// and its call site.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Ring<const WORDS: usize> {
    /// The one thread that writes here, where the ring has an owner.
    owner: Owner,
    /// The number of the next launch, or one that was: the slots have the last word.
    next: AtomicU64,
    /// Launches before this one have run without an error.
    proven: AtomicU64,
    unrecorded: AtomicU64,
    slots: [Slot<WORDS>; LENGTH],
}

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<const WORDS: usize> {
    pub(super) words: [u64; WORDS],
    pub(super) call_site: *const Location<'static>,
}

/// A record with its number, and whether it is proven good.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbered<const WORDS: usize> {
    pub(super) number: u64,
    pub(super) proven: bool,
    pub(super) record: Record<WORDS>,
}

/// Place for every launch whose number leaves the same remainder: with six words a cache line, so
/// that a record costs one miss and no more.
#[derive(Debug)]
#[repr(C, align(64))]
struct Slot<const WORDS: usize> {
    /// `2 n + 1` while launch `n` is being written, `2 n + 2` once it is whole, 0 before any.
    sequence: AtomicU64,
    call_site: AtomicPtr<Location<'static>>,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Ring<WORDS> {
    pub(super) const fn new() -> Self {
        Self {
            owner: Owner::new(),
            next: AtomicU64::new(0),
            proven: AtomicU64::new(0),
            unrecorded: AtomicU64::new(0),
            slots: [const { Slot::new() }; LENGTH],
        }
    }

    /// Whether this thread owns the ring.
    #[inline]
    pub(super) fn is_mine(&self) -> bool {
        self.owner.is_me()
    }

    /// Records a launch without locking the bus, where this thread owns the ring: the first that
    /// asks does. None uses [`Self::write`] on such a ring.
    #[inline]
    pub(super) fn write_as_owner(&self, record: impl FnOnce() -> Record<WORDS>) -> bool {
        let owned = self.is_mine();
        if owned {
            let number = self.next.load(Ordering::Relaxed);
            let slot = self.slot(number);
            self.next.store(number + 1, Ordering::Relaxed);
            slot.sequence.store(2 * number + 1, Ordering::Relaxed);
            slot.fill(number, &record());
        }
        owned
    }

    /// Records a launch, whoever else does. Only taking the slot locks the bus.
    #[inline]
    pub(super) fn write(&self, record: &Record<WORDS>) {
        loop {
            let number = self.next.load(Ordering::Relaxed);
            let slot = self.slot(number);
            match slot.claim(number) {
                Ok(()) => {
                    // A late store can set this back; the next launch then walks on from there.
                    self.next.store(number + 1, Ordering::Relaxed);
                    return slot.fill(number, record);
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
    pub(super) fn read(&self) -> Vec<Numbered<WORDS>> {
        let proven = self.proven.load(Ordering::Relaxed);
        let whole = self.slots.iter().filter_map(Slot::read);
        let mut records: Vec<_> = whole
            .map(|(number, record)| Numbered { number, proven: number < proven, record })
            .collect();
        records.sort_unstable_by_key(|one| one.number);
        records
    }

    /// The number of the next launch: all before it have been taken.
    pub(super) fn next(&self) -> u64 {
        let mut number = self.next.load(Ordering::Relaxed);
        // A late store may have set it back.
        while self.slot(number).is_taken(number) {
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
    fn slot(&self, number: u64) -> &Slot<WORDS> {
        let [first, ..] = &self.slots;
        // The remainder is always a place.
        let place = usize::try_from(number % SLOTS).unwrap_or(0);
        self.slots.get(place).unwrap_or(first)
    }
}

impl<const WORDS: usize> Slot<WORDS> {
    const fn new() -> Self {
        Self {
            sequence: AtomicU64::new(0),
            call_site: AtomicPtr::new(core::ptr::null_mut()),
            words: [const { AtomicU64::new(0) }; WORDS],
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
    fn fill(&self, number: u64, record: &Record<WORDS>) {
        // Who reads a word of this launch must also see that the slot was taken.
        fence(Ordering::Release);
        self.call_site.store(record.call_site.cast_mut(), Ordering::Relaxed);
        for (place, word) in self.words.iter().zip(&record.words) {
            place.store(*word, Ordering::Relaxed);
        }
        self.sequence.store(2 * number + 2, Ordering::Release);
    }

    /// What the slot holds, where that is whole.
    fn read(&self) -> Option<(u64, Record<WORDS>)> {
        let before = self.sequence.load(Ordering::Acquire);
        if before == 0 || !before.is_multiple_of(2) {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let call_site = self.call_site.load(Ordering::Relaxed);
        // The words are read before the sequence is read again.
        fence(Ordering::Acquire);
        let whole = self.sequence.load(Ordering::Relaxed) == before;
        whole.then_some((before / 2 - 1, Record { words, call_site }))
    }
}
