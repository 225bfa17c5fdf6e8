//! The flight recorder: the recent launches of a context, stream by stream.
//!
//! Recording takes no lock and allocates nothing. The room knows only `alone`, so that a bench can
//! take both in as they are.

mod ring;

use core::panic::Location;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ring::{Ring, WORDS};

use super::alone::Owner;

/// Streams that have rings of their own; all others share one more.
pub(crate) const STREAMS: usize = 15;

/// The recent launches of a context.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Streams by handle, plus one, so that zero is a free place: the default stream's handle is
    /// zero.
    streams: [AtomicUsize; STREAMS],
    /// Rings for each of these, in their order.
    rings: Box<[StreamRings]>,
    /// The ring of all other streams.
    shared_ring: Ring,
    shared: AtomicU64,
}

/// The recent launches of a stream.
#[derive(Debug)]
struct StreamRings {
    /// The first thread that launched on the stream.
    owner: Owner,
    of_owner: Ring,
    of_others: Ring,
}

/// A launch that the driver accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The stream's handle.
    pub(crate) stream: usize,
    /// The number under which the kernel's name is known.
    pub(crate) kernel: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// The chunk's place, first item and items.
    pub(crate) chunk: [u64; 3],
    /// Launches of the plan.
    pub(crate) launches: u64,
    /// Nanoseconds of the recorder's clock.
    pub(crate) at_ns: u64,
    pub(crate) call_site: *const Location<'static>,
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
            streams: [const { AtomicUsize::new(0) }; STREAMS],
            rings: (0..STREAMS).map(|_| StreamRings::new()).collect(),
            shared_ring: Ring::new(),
            shared: AtomicU64::new(0),
        }
    }

    /// Records a launch.
    #[inline]
    pub(crate) fn record(&self, entry: &Entry) {
        let (words, call_site) = (entry.words(), entry.call_site.cast_mut());
        match self.rings.get(self.place_of(entry.stream)) {
            Some(rings) if rings.owner.is_me() => rings.of_owner.write_alone(&words, call_site),
            Some(rings) => rings.of_others.write(&words, call_site),
            None => {
                self.shared.fetch_add(1, Ordering::Relaxed);
                self.shared_ring.write(&words, call_site);
            }
        }
    }

    /// All that is on record, in no order between streams.
    pub(crate) fn entries(&self) -> Vec<Recorded> {
        self.all_rings().flat_map(Ring::read).collect()
    }

    /// How far `stream` has come: everything recorded before this is also before a
    /// synchronisation that begins now.
    pub(crate) fn mark(&self, stream: usize) -> Mark {
        let place = self.place_of(stream);
        let rings = self.rings.get(place).map(StreamRings::each);
        Mark { place, numbers: rings.map_or([0; 2], |rings| rings.map(Ring::next)) }
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
        let overwritten: u64 = self.all_rings().map(Ring::overwritten_unproven).sum();
        overwritten.saturating_add(self.unrecorded())
    }

    /// Launches that were never on record.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.all_rings().map(Ring::unrecorded).sum()
    }

    /// Launches recorded in the shared ring.
    pub(crate) fn sharing(&self) -> u64 {
        self.shared.load(Ordering::Relaxed)
    }

    fn all_rings(&self) -> impl Iterator<Item = &Ring> {
        let of_streams = self.rings.iter().flat_map(StreamRings::each);
        of_streams.chain(core::iter::once(&self.shared_ring))
    }

    /// The place of `stream`, which gets one at its first launch while there are any.
    #[inline]
    fn place_of(&self, stream: usize) -> usize {
        let wanted = stream.wrapping_add(1);
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
    fn new() -> Self {
        Self { owner: Owner::new(), of_owner: Ring::new(), of_others: Ring::new() }
    }

    const fn each(&self) -> [&Ring; 2] {
        [&self.of_owner, &self.of_others]
    }
}

impl Entry {
    #[inline]
    fn words(&self) -> [u64; WORDS] {
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        let [index, start, items] = self.chunk;
        [
            // No platform has handles wider than 64 bits.
            u64::try_from(self.stream).unwrap_or(u64::MAX),
            self.kernel,
            pair(gx, gy),
            pair(gz, bx),
            pair(by, bz),
            index,
            start,
            items,
            self.launches,
            self.at_ns,
        ]
    }

    fn from_words(words: [u64; WORDS], call_site: *const Location<'static>) -> Self {
        let [stream, kernel, g, gb, b, index, start, items, launches, at_ns] = words;
        let (([gx, gy], [gz, bx]), [by, bz]) = ((halves(g), halves(gb)), halves(b));
        Self {
            stream: usize::try_from(stream).unwrap_or(usize::MAX),
            kernel,
            grid: [gx, gy, gz],
            block: [bx, by, bz],
            chunk: [index, start, items],
            launches,
            at_ns,
            call_site,
        }
    }
}

#[inline]
fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(pair: u64) -> [u32; 2] {
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    [half(pair), half(pair >> 32)]
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use super::ring::SLOTS;
    use super::*;

    fn here() -> *const Location<'static> {
        Location::caller()
    }

    /// An entry of `stream` whose every field follows from `seed`.
    fn entry(stream: usize, seed: u64) -> Entry {
        let small = u32::try_from(seed % 1_000_003).expect("small");
        Entry {
            stream,
            kernel: seed.wrapping_mul(3),
            grid: [small, small ^ 1, small ^ 2],
            block: [small ^ 3, small ^ 4, small ^ 5],
            chunk: [seed ^ 6, seed ^ 7, seed ^ 8],
            launches: seed.rotate_left(9),
            at_ns: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            call_site: core::ptr::without_provenance(usize::try_from(seed).expect("64 bits")),
        }
    }

    /// The seed that all fields of `entry` agree on.
    fn seed_of(entry: &Entry) -> Option<u64> {
        let seed = entry.chunk[0] ^ 6;
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
    fn every_record_that_is_read_while_eight_threads_write_is_whole() {
        /// Launches of each thread.
        const LAUNCHES: u64 = 200_000;
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
        assert!(read > 0, "nothing was read, so nothing was tested");
        let numbered: u64 = [0, 1].iter().flat_map(|stream| recorder.mark(*stream).numbers).sum();
        assert_eq!(numbered + recorder.unrecorded(), 8 * LAUNCHES);
        // Of both streams the owner's ring and that of the others.
        assert_eq!(recorder.entries().len(), 4 * usize::try_from(SLOTS).expect("few"));
    }
}
