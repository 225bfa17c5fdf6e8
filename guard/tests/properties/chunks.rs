//! Chunks of any number of items: exact cover, balance, alignment, and no chunk too many.

use gridguard::{Chunk, Chunks};
use gridguard_test_support::invariants::size;
use proptest::prelude::*;

use super::cases;

/// Up to this number, all chunks are checked. Beyond it, only some neighbours are.
const WALKED: u64 = 100_000;

/// The number of launches without the guard's own arithmetic: whole units of `align`, as many in a
/// chunk as `cap` holds.
fn expected_launches(items: u64, cap: u64, align: u64) -> u128 {
    let (items, cap, align) = (u128::from(items), u128::from(cap), u128::from(align.max(1)));
    let units_of_a_chunk = (cap / align).max(1);
    items.div_ceil(align).div_ceil(units_of_a_chunk)
}

/// The fewest launches that any cut into aligned starts and at most `cap` items could have: all
/// but the last are whole units, the last may end anywhere.
fn least_launches(items: u64, cap: u64, align: u64) -> u128 {
    let (items, cap, align) = (u128::from(items), u128::from(cap), u128::from(align.max(1)));
    let cap = cap.max(align);
    if items == 0 {
        return 0;
    }
    1 + items.saturating_sub(cap).div_ceil(cap / align * align)
}

/// What holds for a chunk by itself.
fn is_sound(chunk: Chunk, place: u64, (items, cap, align): (u64, u64, u64)) {
    let align = align.max(1);
    assert_eq!(chunk.index, place);
    assert!(chunk.items > 0, "{chunk:?} is empty");
    assert!(chunk.start.is_multiple_of(align), "{chunk:?} starts between units");
    assert!(chunk.items <= cap.max(align), "{chunk:?} is above the cap");
    assert!(chunk.end() <= items, "{chunk:?} ends past the items");
    assert_eq!(chunk.end() - chunk.start, chunk.items);
    if chunk.end() < items {
        assert!(chunk.items.is_multiple_of(align), "{chunk:?} cuts a unit");
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn chunks_cover_all_items_once_and_are_balanced(
        items in size(), cap in size(), align in prop_oneof![Just(1), 1..100_u64, size()],
    ) {
        let case = (items, cap, align);
        let chunks = Chunks::balanced(items, cap, align);
        let launches = chunks.launches();
        prop_assert_eq!(chunks.items(), items);
        prop_assert_eq!(u128::from(launches), expected_launches(items, cap, align));
        prop_assert_eq!(chunks.at(launches), None);
        prop_assert_eq!(chunks.at(u64::MAX), None);
        let (mut smallest, mut largest) = (u64::MAX, 0);
        let mut see = |chunk: Chunk, place| {
            is_sound(chunk, place, case);
            smallest = smallest.min(chunk.items);
            largest = largest.max(chunk.items);
        };
        if launches <= WALKED {
            let (mut next, mut place) = (0, 0);
            for chunk in chunks.iter() {
                prop_assert_eq!(chunk.start, next, "a gap or an overlap");
                prop_assert_eq!(chunks.at(place), Some(chunk));
                see(chunk, place);
                (next, place) = (chunk.end(), place + 1);
            }
            prop_assert_eq!((next, place), (items, launches));
            prop_assert_eq!(chunks.largest(), largest);
        } else {
            let last = chunks.at(launches - 1).unwrap();
            prop_assert_eq!(chunks.at(0).unwrap().start, 0);
            prop_assert_eq!(last.end(), items);
            for part in 0..=64 {
                let place = u64::try_from(u128::from(launches - 2) * part / 64).unwrap();
                let (left, right) = (chunks.at(place).unwrap(), chunks.at(place + 1).unwrap());
                prop_assert_eq!(left.end(), right.start, "a gap or an overlap");
                see(left, place);
                see(right, place + 1);
            }
            prop_assert!(chunks.largest() >= largest);
            prop_assert!(chunks.largest() <= cap.max(align).max(1));
        }
        if launches > 0 {
            prop_assert!(largest - smallest <= align.max(1), "{smallest} to {largest} items");
        }
    }

    #[test]
    fn chunks_are_the_fewest_possible_where_the_cap_is_whole_units(
        items in size(), units in size(), align in prop_oneof![Just(1), 1..100_u64],
    ) {
        let cap = units.max(1).saturating_mul(align) / align * align;
        let launches = Chunks::balanced(items, cap, align).launches();
        prop_assert_eq!(u128::from(launches), least_launches(items, cap, align));
    }
}
