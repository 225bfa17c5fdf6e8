//! The flight recorder: the recent launches of a context, stream by stream.
//!
//! Recording takes no lock and allocates nothing. The room knows only `alone`, so that a bench can
//! take both in as they are.

mod entry;
mod ring;

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use entry::WORDS;
pub(crate) use entry::{Entry, KERNELS};
use ring::{Numbered, Record, Ring};

/// Streams that have rings of their own; all others share one more.
pub(crate) const STREAMS: usize = 15;
/// Words of an entry in the ring that streams share: it also says whose it is.
const SHARED_WORDS: usize = WORDS + 1;

/// `CU_STREAM_PER_THREAD`: one handle for as many streams as there are threads, of which a thread
/// waits for its own alone.
const PER_THREAD: usize = 2;

/// The recent launches of a context.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Recorder {
    /// Rings for each of the streams, in their order.
    rings: Box<[StreamRings]>,
    /// Streams by handle, plus one, so that zero is a free place: the default stream's handle is
    /// zero. Beside the rings, so that the first streams cost one look.
    streams: [AtomicUsize; STREAMS],
    shared: AtomicU64,
    /// The ring of all other streams.
    shared_ring: Ring<SHARED_WORDS>,
}

/// The recent launches of a stream.
#[derive(Debug)]
struct StreamRings {
    /// Those of the first thread that launched on the stream.
    of_owner: Ring<WORDS>,
    of_others: Ring<WORDS>,
}

/// An entry with its number among those of its ring, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) number: u64,
    /// Whether the stream's launches have been waited for since, without an error.
    pub(crate) proven: bool,
    pub(crate) entry: Entry,
}

/// How far a stream had come when someone began to wait for it.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Mark {
    place: usize,
    /// In the owner's ring, and in that of the others.
    numbers: [u64; 2],
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            rings: (0..STREAMS).map(|_| StreamRings::new()).collect(),
            streams: [const { AtomicUsize::new(0) }; STREAMS],
            shared: AtomicU64::new(0),
            shared_ring: Ring::new(),
        }
    }

    /// Records a launch.
    #[inline(always)]
    #[allow(clippy::inline_always, reason = "it stands once, and an entry is dear to pass on")]
    pub(crate) fn record(&self, entry: &Entry) {
        // Packed where it is written, so that on the way of most nothing need stand in memory.
        let record = || entry.record();
        match self.rings.get(self.place_of(entry.stream)) {
            Some(rings) => {
                if !rings.of_owner.write_as_owner(record) {
                    rings.of_others.write(&record());
                }
            }
            None => self.record_shared(entry.stream, record()),
        }
    }

    #[cold]
    fn record_shared(&self, stream: usize, record: Record<WORDS>) {
        self.shared.fetch_add(1, Ordering::Relaxed);
        let Record { words: [a, b, c, d, e, f], call_site } = record;
        // No platform has handles wider than 64 bits.
        let stream = u64::try_from(stream).unwrap_or(u64::MAX);
        self.shared_ring.write(&Record { words: [a, b, c, d, e, f, stream], call_site });
    }

    /// All that is on record, in no order between streams.
    pub(crate) fn entries(&self) -> Vec<Recorded> {
        let of_streams = self.rings.iter().zip(&self.streams).flat_map(|(rings, key)| {
            let stream = key.load(Ordering::Relaxed).wrapping_sub(1);
            let numbered = rings.each().into_iter().flat_map(Ring::read);
            numbered.map(move |one| Recorded::of(one, stream, one.record))
        });
        let shared = self.shared_ring.read().into_iter().map(|one| {
            let Record { words: [a, b, c, d, e, f, stream], call_site } = one.record;
            let stream = usize::try_from(stream).unwrap_or(usize::MAX);
            Recorded::of(one, stream, Record { words: [a, b, c, d, e, f], call_site })
        });
        of_streams.chain(shared).collect()
    }

    /// How far `stream` has come: everything recorded before this is also before a
    /// synchronisation that begins now.
    pub(crate) fn mark(&self, stream: usize) -> Mark {
        let place = self.place_of(stream);
        let numbers = match self.rings.get(place) {
            None => [0; 2],
            // Nothing tells whose the launches of other threads are.
            Some(rings) if stream == PER_THREAD && !rings.of_owner.is_mine() => [0; 2],
            Some(rings) if stream == PER_THREAD => [rings.of_owner.next(), 0],
            Some(rings) => rings.each().map(Ring::next),
        };
        Mark { place, numbers }
    }

    /// Everything before `mark` has run without an error.
    pub(crate) fn prove(&self, mark: Mark) {
        // Other streams of the shared ring were not waited for.
        if let Some(rings) = self.rings.get(mark.place) {
            rings
                .each()
                .into_iter()
                .zip(mark.numbers)
                .for_each(|(ring, number)| ring.prove(number));
        }
    }

    /// Launches not proven good that are no longer, or never were, on record.
    pub(crate) fn forgotten(&self) -> u64 {
        let of_streams: u64 = self.of_streams().map(Ring::overwritten_unproven).sum();
        let overwritten = of_streams.saturating_add(self.shared_ring.overwritten_unproven());
        overwritten.saturating_add(self.unrecorded())
    }

    /// Launches that were never on record.
    pub(crate) fn unrecorded(&self) -> u64 {
        let of_streams: u64 = self.of_streams().map(Ring::unrecorded).sum();
        of_streams.saturating_add(self.shared_ring.unrecorded())
    }

    /// Launches recorded in the shared ring.
    pub(crate) fn sharing(&self) -> u64 {
        self.shared.load(Ordering::Relaxed)
    }

    fn of_streams(&self) -> impl Iterator<Item = &Ring<WORDS>> {
        self.rings.iter().flat_map(StreamRings::each)
    }

    /// The place of `stream`, which gets one at its first launch while there are any.
    #[inline]
    fn place_of(&self, stream: usize) -> usize {
        let wanted = stream.wrapping_add(1);
        let known = self.streams.iter().position(|key| key.load(Ordering::Relaxed) == wanted);
        known.unwrap_or_else(|| self.take_place_of(wanted))
    }

    #[cold]
    fn take_place_of(&self, wanted: usize) -> usize {
        for (place, known) in self.streams.iter().enumerate() {
            let mut key = known.load(Ordering::Relaxed);
            if key == 0 {
                // Another thread may take the place meanwhile, perhaps for the same stream.
                let taken = known.compare_exchange(0, wanted, Ordering::Relaxed, Ordering::Relaxed);
                key = taken.map_or_else(|key| key, |_| wanted);
            }
            if key == wanted {
                return place;
            }
        }
        STREAMS
    }
}

impl StreamRings {
    const fn new() -> Self {
        Self { of_owner: Ring::new(), of_others: Ring::new() }
    }

    const fn each(&self) -> [&Ring<WORDS>; 2] {
        [&self.of_owner, &self.of_others]
    }
}

impl Recorded {
    fn of<const N: usize>(one: Numbered<N>, stream: usize, record: Record<WORDS>) -> Self {
        let Numbered { number, proven, .. } = one;
        Self { number, proven, entry: Entry::of(stream, record) }
    }
}

#[cfg(test)]
mod tests {
    use core::panic::Location;
    use core::sync::atomic::AtomicBool;

    use super::ring::SLOTS;
    use super::*;

    fn here() -> *const Location<'static> {
        Location::caller()
    }

    /// An entry of `stream` whose every field follows from `seed`.
    fn entry(stream: usize, seed: u64) -> Entry {
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = |count: u32, salt: u64| {
            let bits = mixed.rotate_left(count) ^ seed.wrapping_mul(salt);
            u32::try_from(bits & ((1 << count) - 1)).expect("so many bits")
        };
        Entry {
            stream,
            kernel: bits(24, 3),
            grid: [bits(32, 4), bits(32, 5), bits(32, 6)],
            block: [bits(12, 7), bits(12, 8), bits(8, 9)],
            items: [seed ^ 6, mixed],
            place: [bits(32, 10), bits(32, 11)],
            // What the clock's ticks keep of it.
            at_ns: mixed >> 24 << 20,
            call_site: core::ptr::without_provenance(usize::try_from(seed).expect("64 bits")),
        }
    }

    /// The seed that all fields of `entry` agree on.
    fn seed_of(entry: &Entry) -> Option<u64> {
        let seed = entry.items[0] ^ 6;
        (*entry == self::entry(entry.stream, seed)).then_some(seed)
    }

    #[test]
    fn what_is_recorded_is_read_back() {
        let recorder = Recorder::new();
        let one = Entry { call_site: here(), ..entry(0, 42) };
        recorder.record(&one);
        assert_eq!(recorder.entries(), [Recorded { number: 0, proven: false, entry: one }]);
    }

    #[test]
    fn a_full_ring_forgets_the_oldest_and_says_how_many() {
        let recorder = Recorder::new();
        for seed in 0..SLOTS + 5 {
            recorder.record(&entry(7, seed));
        }
        let mut seeds: Vec<u64> =
            recorder.entries().iter().filter_map(|one| seed_of(&one.entry)).collect();
        seeds.sort_unstable();
        assert_eq!(seeds, (5..SLOTS + 5).collect::<Vec<u64>>());
        assert_eq!((recorder.forgotten(), recorder.unrecorded()), (5, 0));
        recorder.prove(recorder.mark(7));
        assert_eq!(recorder.forgotten(), 0);
        assert!(recorder.entries().iter().all(|one| one.proven));
    }

    #[test]
    fn a_mark_proves_what_came_before_it_on_its_own_stream() {
        let recorder = Recorder::new();
        recorder.record(&entry(1, 1));
        recorder.record(&entry(2, 2));
        let mark = recorder.mark(1);
        recorder.record(&entry(1, 3));
        recorder.prove(mark);
        let unproven: Vec<Option<u64>> = recorder
            .entries()
            .iter()
            .filter(|one| !one.proven)
            .map(|one| seed_of(&one.entry))
            .collect();
        assert_eq!(unproven, [Some(3), Some(2)]);
    }

    #[test]
    fn streams_past_the_table_share_a_ring_that_nothing_proves() {
        let recorder = Recorder::new();
        for stream in 0..STREAMS + 2 {
            recorder.record(&entry(stream, 1));
        }
        assert_eq!(recorder.sharing(), 2);
        recorder.prove(recorder.mark(STREAMS + 1));
        let unproven = recorder.entries().iter().filter(|one| !one.proven).count();
        assert_eq!(unproven, STREAMS + 2);
    }

    #[test]
    fn a_mark_proves_launches_of_other_threads_on_its_stream_too() {
        let recorder = Recorder::new();
        recorder.record(&entry(1, 1));
        std::thread::scope(|scope| drop(scope.spawn(|| recorder.record(&entry(1, 2)))));
        let mark = recorder.mark(1);
        std::thread::scope(|scope| drop(scope.spawn(|| recorder.record(&entry(1, 3)))));
        recorder.prove(mark);
        let proven = recorder.entries().into_iter().filter(|one| one.proven);
        assert_eq!(proven.map(|one| seed_of(&one.entry)).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert_eq!((recorder.entries().len(), recorder.unrecorded()), (3, 0));
    }

    #[test]
    fn on_the_stream_that_each_thread_has_of_its_own_a_mark_proves_nothing_of_other_threads() {
        let recorder = Recorder::new();
        recorder.record(&entry(PER_THREAD, 1));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                recorder.record(&entry(PER_THREAD, 2));
                recorder.prove(recorder.mark(PER_THREAD));
            });
            other.join().expect("it records");
        });
        assert!(recorder.entries().iter().all(|one| !one.proven));
        recorder.prove(recorder.mark(PER_THREAD));
        let unproven = recorder.entries().into_iter().filter(|one| !one.proven);
        assert_eq!(unproven.map(|one| seed_of(&one.entry)).collect::<Vec<_>>(), [Some(2)]);
    }

    #[test]
    fn every_record_that_is_read_while_eight_threads_write_is_whole() {
        /// Launches of each thread.
        const LAUNCHES: u64 = if cfg!(miri) { 25 } else { 200_000 };
        let recorder = Recorder::new();
        let done = AtomicBool::new(false);
        let read = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8_u64)
                .map(|thread| {
                    let recorder = &recorder;
                    scope.spawn(move || {
                        for launch in 0..LAUNCHES {
                            // Two streams, so that four threads meet in a ring.
                            recorder.record(&entry(usize::from(thread > 3), thread << 32 | launch));
                        }
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut read = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    for one in recorder.entries() {
                        assert!(seed_of(&one.entry).is_some(), "torn: {one:?}");
                        read += 1;
                    }
                }
                read
            });
            writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
            done.store(true, Ordering::Relaxed);
            reader.join().expect("every record is whole")
        });
        assert!(read > 0 || cfg!(miri), "nothing was read, so nothing was tested");
        let numbered: u64 = [0, 1].iter().flat_map(|stream| recorder.mark(*stream).numbers).sum();
        assert_eq!(numbered + recorder.unrecorded(), 8 * LAUNCHES);
        // Of both streams the owner's ring and that of the others.
        assert_eq!(recorder.entries().len(), 4 * usize::try_from(SLOTS).expect("few"));
    }
}
