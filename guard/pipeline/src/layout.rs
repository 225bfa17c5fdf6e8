//! The layout of scratch buffers: buffers whose lifetimes do not overlap share memory, and one layout serves
//! every chunk size.

use core::cmp::Reverse;

use crate::buffer::{BufferSpec, Extent, saturated};

/// The alignment in bytes of every scratch buffer, which CUDA guarantees for its allocations.
pub(crate) const SCRATCH_ALIGNMENT: u64 = 256;

/// A buffer in scratch, and the stages from its first to its last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lifetime {
    /// The index of the buffer.
    buffer: usize,
    first: usize,
    last: usize,
    bytes: u64,
}

/// The offsets of scratch buffers in the scratch of one chunk.
///
/// Buffers of a fixed size come first, at fixed offsets. The buffers per item follow, at offsets that grow
/// with the chunk: bytes an item times the chunk's items, rounded down to the alignment, plus one alignment
/// for each lower place, which makes up for the rounding. The total is linear in the chunk, so the largest
/// chunk within a budget needs no search.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// By buffer.
    places: Vec<Place>,
    /// Bytes of all buffers of a fixed size.
    fixed_bytes: u64,
    /// Bytes an item of all buffers per item.
    bytes_per_item: u64,
    /// Places above the lowest one.
    steps: u64,
}

/// The offset of a buffer: the bytes of some items, rounded down to the alignment, plus fixed bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    bytes_per_item: u64,
    bytes: u64,
}

impl Layout {
    /// Places the buffers that are in scratch; `None` if a sum of sizes exceeds u64.
    pub(crate) fn new(buffers: &[BufferSpec]) -> Option<Self> {
        let (mut fixed, mut per_item) = (Vec::new(), Vec::new());
        for (buffer, spec) in buffers.iter().enumerate().filter(|(_, spec)| spec.in_scratch()) {
            let (first, last) = spec.lifetime;
            let (list, bytes) = match spec.extent {
                Extent::PerItem(bytes) => (&mut per_item, bytes),
                Extent::Fixed(bytes) => {
                    (&mut fixed, bytes.checked_next_multiple_of(SCRATCH_ALIGNMENT)?)
                }
            };
            list.push(Lifetime { buffer, first, last, bytes });
        }
        let (packed_fixed, packed) = (pack(&fixed)?, pack(&per_item)?);
        let mut starts = packed.offsets.clone();
        starts.sort_unstable();
        starts.dedup();
        let at_fixed = |bytes: &u64| Place { bytes_per_item: 0, bytes: *bytes };
        let per_item_at = |start: &u64| {
            let below =
                saturated(starts.partition_point(|other| other < start)) * SCRATCH_ALIGNMENT;
            Place { bytes_per_item: *start, bytes: packed_fixed.bytes.saturating_add(below) }
        };
        let placed = packed_fixed.offsets.iter().map(at_fixed);
        let placed = placed.chain(packed.offsets.iter().map(per_item_at));
        let mut places = vec![Place::default(); buffers.len()];
        for (lifetime, place) in fixed.iter().chain(&per_item).zip(placed) {
            places.get_mut(lifetime.buffer).into_iter().for_each(|slot| *slot = place);
        }
        Some(Self {
            places,
            fixed_bytes: packed_fixed.bytes,
            bytes_per_item: packed.bytes,
            steps: saturated(starts.len().saturating_sub(1)),
        })
    }

    /// Bytes of scratch for a chunk of `items`, a multiple of the alignment.
    pub(crate) fn bytes(&self, items: u64) -> u128 {
        let per_item = u128::from(self.bytes_per_item) * u128::from(items);
        let aligned = per_item.next_multiple_of(SCRATCH_ALIGNMENT.into());
        aligned + u128::from(self.fixed_bytes) + u128::from(self.steps * SCRATCH_ALIGNMENT)
    }

    /// The most items of a chunk with at most `bytes` of scratch; `None` if not even fixed sizes fit.
    pub(crate) fn items_within(&self, bytes: u64) -> Option<u64> {
        let aligned = bytes - bytes % SCRATCH_ALIGNMENT;
        let left = aligned.checked_sub(self.fixed_bytes)?;
        let left = left.checked_sub(self.steps * SCRATCH_ALIGNMENT)?;
        Some(left.checked_div(self.bytes_per_item).unwrap_or(u64::MAX))
    }

    /// The offset of the buffer at `index`, in scratch for chunks of `items`, whose size fits u64.
    pub(crate) fn offset(&self, index: usize, items: u64) -> u64 {
        let place = self.places.get(index).copied().unwrap_or_default();
        let start = place.bytes_per_item.saturating_mul(items);
        place.bytes.saturating_add(start - start % SCRATCH_ALIGNMENT)
    }
}

/// Offsets of buffers. Buffers that are live at the same time do not overlap.
struct Packing {
    offsets: Vec<u64>,
    /// The end of the highest buffer.
    bytes: u64,
    #[cfg(test)]
    compared: usize,
}

/// Places the largest buffers first, each in the smallest gap between buffers that are live at the same time,
/// or above them: "greedy by size" of Pisarchyk and Lee, Efficient Memory Management for Deep Neural Net
/// Inference, 2020. A buffer is compared only with buffers that overlap it in time. `None` past u64.
fn pack(buffers: &[Lifetime]) -> Option<Packing> {
    buffers.iter().try_fold(0_u64, |sum, buffer| sum.checked_add(buffer.bytes))?;
    let stages = buffers.iter().map(|buffer| buffer.last + 1).max().unwrap_or(0);
    let mut order: Vec<(usize, &Lifetime)> = buffers.iter().enumerate().collect();
    order.sort_by_key(|(_, buffer)| (Reverse(buffer.bytes), buffer.first));
    // For each stage, the buffers that are live at it, and the buffers whose lifetime begins with it.
    let (mut living, mut beginning) = (vec![Vec::new(); stages], vec![Vec::new(); stages]);
    let mut packing = Packing {
        offsets: vec![0; buffers.len()],
        bytes: 0,
        #[cfg(test)]
        compared: 0,
    };
    for (index, &Lifetime { first, last, bytes, .. }) in order {
        let mut others: Vec<(u64, u64)> = living.get(first).cloned().unwrap_or_default();
        others.extend(beginning.get(first + 1..=last).into_iter().flatten().flatten());
        others.sort_unstable();
        #[cfg(test)]
        {
            packing.compared += others.len();
        }
        let offset = smallest_gap(&others, bytes);
        let placed = (offset, offset + bytes);
        let lived = living.get_mut(first..=last).into_iter().flatten();
        lived.chain(beginning.get_mut(first)).for_each(|list| list.push(placed));
        packing.offsets.get_mut(index).into_iter().for_each(|place| *place = offset);
        packing.bytes = packing.bytes.max(placed.1);
    }
    Some(packing)
}

/// The start of the smallest gap of `bytes` between `others`, which are sorted, or the end of all.
fn smallest_gap(others: &[(u64, u64)], bytes: u64) -> u64 {
    let (mut end, mut best) = (0, None);
    for &(start, next_end) in others {
        let gap = start.saturating_sub(end);
        if gap >= bytes && best.is_none_or(|(smallest, _)| gap < smallest) {
            best = Some((gap, end));
        }
        end = end.max(next_end);
    }
    best.map_or(end, |(_, start)| start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Role;

    fn live(first: usize, last: usize, bytes: u64) -> Lifetime {
        Lifetime { buffer: 0, first, last, bytes }
    }

    fn scratch(lifetime: &Lifetime, extent: fn(u64) -> Extent) -> BufferSpec {
        BufferSpec {
            name: String::new(),
            role: Role::Scratch,
            extent: extent(lifetime.bytes),
            elements: "u8",
            on_host: false,
            lifetime: (lifetime.first, lifetime.last),
        }
    }

    /// Buffers of a fixed size, then buffers per item.
    fn layout(fixed: &[Lifetime], per_item: &[Lifetime]) -> Option<Layout> {
        let fixed = fixed.iter().map(|lifetime| scratch(lifetime, Extent::Fixed));
        let per_item = per_item.iter().map(|lifetime| scratch(lifetime, Extent::PerItem));
        Layout::new(&fixed.chain(per_item).collect::<Vec<_>>())
    }

    /// A generator of numbers below a bound.
    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        }
    }

    fn small(number: u64) -> usize {
        usize::try_from(number).expect("small")
    }

    #[test]
    fn a_chain_needs_no_more_than_its_two_largest_neighbours() {
        // The widths of a transformer block: norm, qkv, attention, norm, up, gate, in units of a row.
        let widths = [1, 3, 1, 1, 8, 4, 1];
        let chain: Vec<_> =
            (0..).zip(widths).map(|(stage, bytes)| live(stage, stage + 1, bytes)).collect();
        assert_eq!(pack(&chain).expect("small").bytes, 12);
    }

    #[test]
    fn a_gap_below_a_later_buffer_is_used() {
        let buffers = [live(0, 3, 10), live(0, 0, 7), live(0, 3, 5), live(1, 3, 6)];
        let packing = pack(&buffers).expect("small");
        assert_eq!(packing.offsets, [0, 10, 17, 10]);
        assert_eq!(packing.bytes, 22);
    }

    #[test]
    fn buffers_that_live_at_once_never_overlap_in_any_chunk() {
        for seed in 0..300 {
            let mut number = random(seed);
            let stages = 1 + number(12);
            let mut lifetimes = |count: u64, most: u64| -> Vec<Lifetime> {
                let mut one = || {
                    let first = number(stages);
                    let last = first + number(stages - first);
                    live(small(first), small(last), 1 + number(most))
                };
                (0..count).map(|_| one()).collect()
            };
            let (fixed, per_item) = (lifetimes(seed % 5, 5000), lifetimes(1 + seed % 17, 3000));
            let layout = layout(&fixed, &per_item).expect("small");
            for items in [1, 2, 3, 63, 64, 65, 1000, 4097] {
                let sizes = fixed.iter().map(|buffer| (buffer, buffer.bytes));
                let growing = per_item.iter().map(|buffer| (buffer, buffer.bytes * items));
                let place = |(index, (buffer, bytes))| {
                    let start = layout.offset(index, items);
                    (buffer, start, start + bytes)
                };
                let all: Vec<_> = sizes.chain(growing).enumerate().map(place).collect();
                for (place, (one, start, end)) in all.iter().enumerate() {
                    assert!(
                        start % SCRATCH_ALIGNMENT == 0 && u128::from(*end) <= layout.bytes(items)
                    );
                    for (other, other_start, other_end) in &all[..place] {
                        let in_time = one.first <= other.last && other.first <= one.last;
                        let in_space = start < other_end && other_start < end;
                        assert!(
                            !(in_time && in_space),
                            "seed {seed}, {items} items: {one:?} {other:?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_largest_chunk_within_a_budget_fits_and_the_next_does_not() {
        let per_item = [live(0, 1, 12), live(1, 2, 700), live(2, 3, 4)];
        let layout = layout(&[live(1, 1, 1000)], &per_item).expect("small");
        for budget in (0..40_000).step_by(37) {
            let Some(items) = layout.items_within(budget) else {
                assert!(layout.bytes(0) > budget.into());
                continue;
            };
            assert!(
                layout.bytes(items) <= budget.into() && layout.bytes(items + 1) > budget.into()
            );
        }
    }

    #[test]
    fn random_lifetimes_need_little_more_than_what_lives_at_once() {
        let (mut used, mut least) = (0, 0);
        for seed in 0..200 {
            let mut number = random(seed);
            let mut one = || {
                let first = number(20);
                live(small(first), small(first + 1 + number(3)), 1 + number(1000))
            };
            let buffers: Vec<_> = (0..25).map(|_| one()).collect();
            let at = |stage: usize| -> u64 {
                let alive = buffers.iter().filter(|one| (one.first..=one.last).contains(&stage));
                alive.map(|one| one.bytes).sum()
            };
            used += pack(&buffers).expect("small").bytes;
            least += (0..24).map(at).max().expect("stages");
        }
        assert!(used * 100 <= least * 110, "{used} bytes, {least} live at once");
    }

    #[test]
    fn the_work_grows_with_the_overlaps_only() {
        let chain = |stages: usize| -> usize {
            let buffers: Vec<_> = (0..stages).map(|stage| live(stage, stage + 2, 64)).collect();
            pack(&buffers).expect("small").compared
        };
        assert!(chain(1000) <= 4 * 1000 && chain(2000) <= 2 * chain(1000) + 8);
    }

    #[test]
    fn sizes_past_64_bits_are_no_layout() {
        assert!(layout(&[], &[live(0, 0, u64::MAX), live(1, 1, 1)]).is_none());
        assert!(layout(&[live(0, 0, u64::MAX)], &[]).is_none());
        let layout = layout(&[], &[live(0, 0, u64::MAX)]).expect("one buffer");
        assert_eq!(layout.bytes(2), 2 * u128::from(u64::MAX) + 2);
        assert_eq!(layout.items_within(u64::MAX), Some(0));
    }
}
