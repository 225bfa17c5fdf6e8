//! Sets of values that are never freed, and tables of hashes.

use core::hash::{Hash, Hasher};
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::collections::hash_map::DefaultHasher;

/// The places of a table that are searched for one hash.
const MAX_PROBES: usize = 64;

/// A hash that is not 0.
pub(crate) fn hash_of(value: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish() | 1
}

/// The place of `hash` in a table, and whether the hash is new there; `None` if no place is free. `at` returns the hash
/// at a place; 0 marks a free one. The search neither locks nor allocates.
pub(crate) fn place_of(
    hash: u64,
    places: usize,
    at: impl Fn(usize) -> &'static AtomicU64,
) -> Option<(usize, bool)> {
    let first = usize::try_from(hash >> 32).unwrap_or(0);
    (0..MAX_PROBES).map(|probe| (first + probe) % places).find_map(|place| {
        match at(place).compare_exchange(0, hash, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some((place, true)),
            Err(known) => (known == hash).then_some((place, false)),
        }
    })
}

/// A lock-free set of at most `MOST` values, by their hash. `PLACES` is a power of two greater than `MOST`.
pub(crate) struct SlotCache<T: 'static, const PLACES: usize, const MOST: usize> {
    places: [AtomicPtr<(u64, T)>; PLACES],
    count: AtomicUsize,
}

impl<T, const PLACES: usize, const MOST: usize> SlotCache<T, PLACES, MOST> {
    pub(crate) const fn new() -> Self {
        const { assert!(PLACES.is_power_of_two() && PLACES > MOST) }
        Self {
            places: [const { AtomicPtr::new(ptr::null_mut()) }; PLACES],
            count: AtomicUsize::new(0),
        }
    }

    /// The value with this hash. Inserts the result of `make` if there is none; `None` if the set is full.
    pub(crate) fn get(&self, hash: u64, make: impl FnOnce() -> T) -> Option<&'static T> {
        let mut make = Some(make);
        let mut fresh = ptr::null_mut();
        let first = usize::try_from(hash >> 32).unwrap_or(0);
        for probe in 0..PLACES {
            let place = &self.places[(first + probe) & (PLACES - 1)];
            let mut known = place.load(Ordering::Acquire);
            if known.is_null() {
                if let Some(make) = make.take() {
                    if self.count.fetch_add(1, Ordering::Relaxed) >= MOST {
                        self.count.fetch_sub(1, Ordering::Relaxed);
                        return None;
                    }
                    fresh = Box::into_raw(Box::new((hash, make())));
                }
                match place.compare_exchange(known, fresh, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => known = fresh,
                    Err(other) => known = other,
                }
            }
            // SAFETY: not null, and never freed nor changed.
            let (found, value) = unsafe { &*known };
            if *found == hash {
                // If two threads race, one value is leaked.
                return Some(value);
            }
        }
        None
    }

    /// The value with this hash, if there is one.
    pub(crate) fn find(&self, hash: u64) -> Option<&'static T> {
        let first = usize::try_from(hash >> 32).unwrap_or(0);
        let at = |probe: usize| self.places[(first + probe) & (PLACES - 1)].load(Ordering::Acquire);
        // SAFETY: null, or a value that is never freed nor changed.
        let mut known = (0..PLACES).map_while(|probe| unsafe { at(probe).as_ref() });
        known.find(|(found, _)| *found == hash).map(|(_, value)| value)
    }

    /// All values.
    pub(crate) fn all(&self) -> impl Iterator<Item = &'static T> {
        // SAFETY: null, or a value that is never freed nor changed.
        let known = |place: &AtomicPtr<(u64, T)>| unsafe { place.load(Ordering::Acquire).as_ref() };
        self.places.iter().filter_map(known).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_kept_once_and_no_more_than_so_many() {
        static KEPT: SlotCache<u64, 8, 5> = SlotCache::new();
        // All hashes begin at the same place.
        let get = |number: u64| KEPT.get(number, || number).copied();
        for _ in 0..2 {
            assert_eq!((1..=5).map(get).collect::<Option<Vec<_>>>(), Some(vec![1, 2, 3, 4, 5]));
            assert_eq!(get(6), None);
        }
        assert_eq!((KEPT.find(5), KEPT.find(6)), (Some(&5), None));
        assert_eq!(KEPT.get(3, || panic!("it is known")), Some(&3));
        assert_eq!(KEPT.all().sum::<u64>(), 15);
    }
}
