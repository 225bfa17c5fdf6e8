//! The recent launches of a CUDA context, in one ring buffer per stream.
//!
//! One lock protects all rings. A launch holds it for about ten nanoseconds, and a reader while it copies one ring. It
//! is a spin lock, because its release does not wait for the record to be written. A thread that does not get the lock
//! yields. Recording allocates nothing.

use core::panic::Location;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use spin::mutex::SpinMutex;
use spin::relax::Yield;

use crate::plan::chunks::Chunk;

/// Launches that a ring holds.
const SLOTS: usize = 64;
/// Streams with a ring of their own. All other streams share one more ring.
const STREAMS: usize = 15;
/// `CU_STREAM_PER_THREAD`: a handle that names a different stream on each thread.
pub(crate) const PER_THREAD: usize = 2;

/// A launch that the driver accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The stream's handle.
    pub(crate) stream: usize,
    /// The number of the kernel's name.
    pub(crate) kernel: u32,
    /// Blocks along x, y, z.
    pub(crate) grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub(crate) block: [u32; 3],
    pub(crate) chunk: Chunk,
    /// Launches of the plan.
    pub(crate) launches: u64,
    /// The time in nanoseconds of the caller's clock.
    pub(crate) at_ns: u64,
    pub(crate) call_site: &'static Location<'static>,
}

/// The recent launches of a context.
#[derive(Debug)]
pub(crate) struct Recorder {
    rings: SpinMutex<Rings, Yield>,
    /// The ring of the newest launch, for [`Self::read_by_next`].
    newest: AtomicPtr<Ring>,
}

/// The number of launches on a stream when its synchronisation began.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct StreamMark {
    stream: StreamKey,
    launches: u64,
}

/// Launches that are not known to have succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unproven {
    /// Launches on record, the oldest first.
    pub(crate) entries: Vec<Entry>,
    /// Number of launches whose records were overwritten.
    pub(crate) forgotten: u64,
}

#[derive(Debug)]
struct Rings {
    /// Launches so far.
    launches: u64,
    /// The streams of all rings but the last, which the other streams share.
    streams: [Option<StreamKey>; STREAMS],
    rings: Box<[Ring]>,
}

/// A stream: its handle, and the thread if the handle is [`PER_THREAD`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StreamKey {
    handle: usize,
    /// 0 for other handles.
    thread: u64,
}

// Its counters are in front, where the prefetch of the newest ring reaches them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Ring {
    /// Launches so far; launch `n` is in slot `n % SLOTS`.
    launches: u64,
    /// The launches before this number ran without an error.
    proven: u64,
    slots: [Option<Slot>; SLOTS],
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The launch's number among all launches of the context.
    number: u64,
    entry: Entry,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let ring = Ring { launches: 0, proven: 0, slots: [None; SLOTS] };
        let rings = vec![ring; STREAMS + 1].into_boxed_slice();
        let rings = SpinMutex::new(Rings { launches: 0, streams: [None; STREAMS], rings });
        Self { rings, newest: AtomicPtr::new(ptr::null_mut()) }
    }

    #[inline]
    pub(crate) fn record(&self, entry: Entry) {
        let stream = StreamKey::of(entry.stream);
        let mut rings = self.rings.lock();
        let number = rings.launches;
        rings.launches += 1;
        if let Some(ring) = rings.ring_for(stream) {
            ring.push(Slot { number, entry });
            self.newest.store(ring, Ordering::Relaxed);
        }
    }

    /// Addresses to prefetch for the next record on the same stream: the start and the end of the locked data,
    /// and the ring.
    #[inline]
    pub(crate) fn read_by_next(&self) -> [*const (); 3] {
        let start = ptr::from_ref(&self.rings);
        let end = start.wrapping_add(1).wrapping_byte_sub(1);
        [start.cast(), end.cast(), self.newest.load(Ordering::Relaxed).cast()]
    }

    /// All launches on record, the oldest first.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        in_order(self.rings().flat_map(|ring| ring.slots.into_iter().flatten()).collect())
    }

    pub(crate) fn unproven(&self) -> Unproven {
        let mut forgotten = 0;
        let mut slots = Vec::new();
        for ring in self.rings() {
            forgotten += ring.forgotten();
            slots.extend(ring.unproven());
        }
        Unproven { entries: in_order(slots), forgotten }
    }

    /// Copies of the rings. The lock is held while one is copied, and free while the caller works with it.
    fn rings(&self) -> impl Iterator<Item = Ring> {
        (0..=STREAMS).filter_map(|place| self.rings.lock().rings.get(place).copied())
    }

    /// Marks the launches on `stream` so far, unless there are none on record.
    pub(crate) fn mark(&self, stream: usize) -> Option<StreamMark> {
        let stream = StreamKey::of(stream);
        let rings = self.rings.lock();
        let launches = rings.rings.get(rings.place_of(stream)?)?.launches;
        Some(StreamMark { stream, launches })
    }

    /// Records that the launches before `mark` ran without an error.
    pub(crate) fn prove(&self, mark: StreamMark) {
        let mut rings = self.rings.lock();
        // The ring may belong to another stream by now.
        let place = rings.place_of(mark.stream);
        if let Some(ring) = place.and_then(|place| rings.rings.get_mut(place)) {
            ring.proven = ring.proven.max(mark.launches);
        }
    }

    /// Launches recorded in the ring that streams share.
    pub(crate) fn sharing(&self) -> u64 {
        self.rings.lock().rings.last().map_or(0, |ring| ring.launches)
    }
}

impl Rings {
    #[inline]
    fn place_of(&self, stream: StreamKey) -> Option<usize> {
        self.streams.iter().position(|one| *one == Some(stream))
    }

    #[inline]
    fn ring_for(&mut self, stream: StreamKey) -> Option<&mut Ring> {
        let place = self.place_of(stream).unwrap_or_else(|| self.place_for(stream));
        self.rings.get_mut(place)
    }

    /// A free ring for `stream`; else the least recently used ring without unproven launches; else the shared
    /// ring.
    #[cold]
    fn place_for(&mut self, stream: StreamKey) -> usize {
        let rings = self.streams.iter_mut().zip(&mut self.rings).enumerate();
        let idle = rings.filter(|(_, (_, ring))| ring.proven == ring.launches);
        let chosen = idle.min_by_key(|(_, (key, ring))| key.map(|_| ring.newest()));
        let Some((place, (key, ring))) = chosen else { return STREAMS };
        *key = Some(stream);
        // The count continues, so that marks of the previous stream prove nothing about this stream.
        ring.slots = [None; SLOTS];
        place
    }
}

impl Ring {
    #[inline]
    fn push(&mut self, slot: Slot) {
        let place = usize::try_from(self.launches).unwrap_or(0) % SLOTS;
        if let Some(place) = self.slots.get_mut(place) {
            *place = Some(slot);
        }
        self.launches += 1;
    }

    /// The number of its newest launch among all launches of the context.
    fn newest(&self) -> u64 {
        self.slots.iter().flatten().map(|slot| slot.number).max().unwrap_or(0)
    }

    /// Unproven launches whose records were overwritten.
    fn forgotten(&self) -> u64 {
        (self.launches - self.proven).saturating_sub(SLOTS_U64)
    }

    fn unproven(&self) -> impl Iterator<Item = Slot> {
        let first = self.proven.max(self.launches.saturating_sub(SLOTS_U64));
        let places =
            (first..self.launches).map(|launch| usize::try_from(launch).unwrap_or(0) % SLOTS);
        places.filter_map(|place| *self.slots.get(place)?)
    }
}

impl StreamKey {
    #[inline]
    fn of(handle: usize) -> Self {
        Self { handle, thread: if handle == PER_THREAD { this_thread() } else { 0 } }
    }
}

/// A number of this thread, from 1, that the process never reuses.
#[cold]
fn this_thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending has lost its number. Its launches then count as launches on a separate stream.
    NUMBER.try_with(|number| *number).unwrap_or_else(|_| NEXT.fetch_add(1, Ordering::Relaxed))
}

fn in_order(mut slots: Vec<Slot>) -> Vec<Entry> {
    slots.sort_unstable_by_key(|slot| slot.number);
    slots.into_iter().map(|slot| slot.entry).collect()
}

/// [`SLOTS`], to compare counts with.
const SLOTS_U64: u64 = 64;
const _: () = assert!(SLOTS_U64.ilog2() == SLOTS.ilog2() && SLOTS.is_power_of_two());

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use super::*;

    /// An entry of `stream` whose fields all follow from `seed`.
    fn entry(stream: usize, seed: u64) -> Entry {
        let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let bits = |salt: u64| {
            let bits = mixed.rotate_left(32) ^ seed.wrapping_mul(salt);
            u32::try_from(bits & u64::from(u32::MAX)).expect("32 bits")
        };
        Entry {
            stream,
            kernel: bits(3),
            grid: [bits(4), bits(5), bits(6)],
            block: [bits(7), bits(8), bits(9)],
            chunk: Chunk { index: seed ^ 5, start: seed ^ 6, items: mixed },
            launches: mixed ^ 11,
            at_ns: mixed ^ 12,
            call_site: Location::caller(),
        }
    }

    /// The seed that all fields of `entry` agree on.
    #[track_caller]
    fn seed_of(entry: &Entry) -> u64 {
        let seed = entry.chunk.start ^ 6;
        let Entry { stream, call_site, .. } = *entry;
        assert_eq!(*entry, Entry { call_site, ..self::entry(stream, seed) }, "torn");
        seed
    }

    fn seeds(entries: &[Entry]) -> Vec<u64> {
        entries.iter().map(seed_of).collect()
    }

    fn unproven(recorder: &Recorder) -> Vec<u64> {
        seeds(&recorder.unproven().entries)
    }

    fn synchronize(recorder: &Recorder, stream: usize) {
        recorder.prove(recorder.mark(stream).expect("it has launches"));
    }

    #[test]
    fn launches_are_recorded_while_a_reader_works_with_a_ring() {
        let recorder = Recorder::new();
        recorder.record(entry(1, 0));
        let read = recorder.rings().inspect(|_| recorder.record(entry(2, 1))).count();
        assert_eq!((read, recorder.entries().len()), (STREAMS + 1, STREAMS + 2));
    }

    #[test]
    fn launches_of_several_streams_are_in_order() {
        let recorder = Recorder::new();
        [3, 1, 3, 2, 1]
            .into_iter()
            .zip(0..)
            .for_each(|(stream, n)| recorder.record(entry(stream, n)));
        assert_eq!(seeds(&recorder.entries()), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_full_ring_forgets_the_oldest_and_counts_them() {
        let recorder = Recorder::new();
        for seed in 0..SLOTS_U64 + 5 {
            recorder.record(entry(7, seed));
        }
        assert_eq!(seeds(&recorder.entries()), (5..SLOTS_U64 + 5).collect::<Vec<_>>());
        assert_eq!(recorder.unproven().forgotten, 5);
        synchronize(&recorder, 7);
        assert_eq!(recorder.unproven(), Unproven { entries: Vec::new(), forgotten: 0 });
        assert_eq!(recorder.entries().len(), SLOTS, "they stay on record");
    }

    #[test]
    fn launches_forgotten_after_a_mark_are_still_counted() {
        let recorder = Recorder::new();
        recorder.record(entry(1, 0));
        let mark = recorder.mark(1).expect("launched on");
        for seed in 0..SLOTS_U64 + 3 {
            recorder.record(entry(1, seed));
        }
        assert_eq!(recorder.unproven().forgotten, 4);
        recorder.prove(mark);
        assert_eq!(recorder.unproven().forgotten, 3);
    }

    #[test]
    fn streams_past_the_table_share_a_ring_that_no_mark_proves() {
        let recorder = Recorder::new();
        for stream in 0..STREAMS + 2 {
            recorder.record(entry(10 + stream, 1));
        }
        assert_eq!(recorder.sharing(), 2);
        assert!(recorder.mark(10 + STREAMS + 1).is_none());
        assert_eq!(unproven(&recorder).len(), STREAMS + 2);
    }

    #[test]
    fn a_new_stream_takes_the_ring_of_the_stream_that_was_idle_longest() {
        let recorder = Recorder::new();
        for stream in 10..10 + STREAMS {
            recorder.record(entry(stream, 1));
        }
        let stale = recorder.mark(12).expect("launched on");
        synchronize(&recorder, 13);
        synchronize(&recorder, 12);
        recorder.record(entry(99, 2));
        assert_eq!(recorder.sharing(), 0);
        assert!(recorder.mark(12).is_none() && recorder.mark(13).is_some());
        recorder.prove(stale);
        assert!(unproven(&recorder).contains(&2));
    }

    #[test]
    fn a_mark_proves_the_launches_before_it_on_its_stream_of_whichever_thread() {
        let recorder = Recorder::new();
        let on_another_thread = |seed| {
            let launch = || recorder.record(entry(1, seed));
            std::thread::scope(|scope| scope.spawn(launch).join().expect("it records"));
        };
        recorder.record(entry(1, 1));
        recorder.record(entry(2, 2));
        on_another_thread(3);
        let mark = recorder.mark(1).expect("launched on");
        on_another_thread(4);
        recorder.prove(mark);
        assert_eq!(unproven(&recorder), [2, 4]);
    }

    #[test]
    fn a_mark_on_the_per_thread_stream_proves_launches_of_its_own_thread() {
        let recorder = Recorder::new();
        recorder.record(entry(PER_THREAD, 1));
        let other = || {
            recorder.record(entry(PER_THREAD, 2));
            synchronize(&recorder, PER_THREAD);
            recorder.record(entry(PER_THREAD, 3));
        };
        std::thread::scope(|scope| scope.spawn(other).join().expect("it records"));
        assert_eq!(unproven(&recorder), [1, 3]);
        synchronize(&recorder, PER_THREAD);
        assert_eq!(unproven(&recorder), [3]);
    }

    #[test]
    fn every_launch_of_eight_threads_is_counted_and_every_record_that_is_read_is_whole() {
        /// Launches of each thread.
        const LAUNCHES: u64 = if cfg!(miri) { 25 } else { 100_000 };
        let (recorder, done) = (Recorder::new(), AtomicBool::new(false));
        let read = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..8_u64)
                .map(|thread| {
                    let recorder = &recorder;
                    scope.spawn(move || {
                        for launch in 0..LAUNCHES {
                            // Two streams, so that four threads share a ring.
                            recorder.record(entry(usize::from(thread > 3), thread << 32 | launch));
                        }
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut read = 0;
                while !done.load(Ordering::Relaxed) {
                    read += seeds(&recorder.entries()).len();
                }
                read
            });
            writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
            done.store(true, Ordering::Relaxed);
            reader.join().expect("every record is whole")
        });
        assert!(read > 0 || cfg!(miri), "nothing was read, so nothing was tested");
        let Unproven { entries, forgotten } = recorder.unproven();
        assert_eq!(entries.len(), 2 * SLOTS);
        assert_eq!(forgotten + 2 * SLOTS_U64, 8 * LAUNCHES);
    }
}
