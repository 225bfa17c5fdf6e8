//! Handles of the objects that callers hold: numbers instead of addresses, so that a wrong one is
//! detected.

use core::any::Any;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::failure::Failure;

/// What a handle stands for.
pub(crate) trait Object: Any + Send + Sync {
    /// The name of its type in C.
    const NAME: &'static str;
}

/// The handle of a new object.
pub(crate) fn insert<T: Object>(object: T) -> Result<*mut T, Failure> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = match free.reusable.pop() {
        Some(handle) => handle,
        None if free.used == MAX_OBJECTS => return Err(Failure::TooManyObjects),
        None => {
            free.used += 1;
            FIRST_GENERATION | (free.used - 1)
        }
    };
    let place = Place::of(handle);
    let segment = SEGMENTS.get(place.segment).ok_or(Failure::TooManyObjects)?;
    let slots = segment.get_or_init(|| (0..place.slots).map(|_| Slot::default()).collect());
    let slot = slots.get(place.slot).ok_or(Failure::TooManyObjects)?;
    let object: Box<Erased> = Box::new(Box::new(object));
    slot.object.store(Box::into_raw(object), Ordering::Relaxed);
    slot.handle.store(handle, Ordering::Release);
    Ok(core::ptr::without_provenance_mut(handle))
}

/// The object of `handle`, which messages call `what`.
///
/// # Safety
///
/// No other thread frees the handle for as long as the object is used.
#[inline]
pub(crate) unsafe fn get<'a, T: Object>(
    handle: *const T,
    what: &'static str,
) -> Result<&'a T, Failure> {
    let found = find(handle.addr()).and_then(|slot| {
        let object = slot.object.load(Ordering::Relaxed);
        // SAFETY: while the slot has the handle, the pointer is that of `insert`; by this function's
        // contract it stays so.
        unsafe { object.as_ref() }
    });
    let object = found.and_then(|object| (**object).downcast_ref::<T>());
    object.ok_or_else(|| Failure::of_handle(handle.addr(), what, T::NAME))
}

/// Frees the object of `handle`, of any type.
///
/// # Safety
///
/// No other thread uses the object.
pub(crate) unsafe fn remove(handle: usize) -> Result<(), Failure> {
    let unknown = || Failure::of_handle(handle, "handle", "object");
    let slot = find(handle).ok_or_else(unknown)?;
    // Of two threads that free the same handle, one succeeds.
    let taken = slot.handle.compare_exchange(handle, 0, Ordering::Acquire, Ordering::Relaxed);
    taken.map_err(|_| unknown())?;
    let object = slot.object.swap(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: the pointer is that of `insert`, and no other thread took it, nor uses it by this
    // function's contract.
    drop(unsafe { Box::from_raw(object) });
    // A slot whose generations are used up is not used again.
    if let Some(next) = handle.checked_add(FIRST_GENERATION) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).reusable.push(next);
    }
    Ok(())
}

/// The slot that has `handle` now.
#[inline]
fn find(handle: usize) -> Option<&'static Slot> {
    let place = Place::of(handle);
    let slot = SEGMENTS.get(place.segment)?.get()?.get(place.slot)?;
    (handle != 0 && slot.handle.load(Ordering::Acquire) == handle).then_some(slot)
}

/// Boxed twice, because an atomic pointer is thin.
type Erased = Box<dyn Any + Send + Sync>;

#[derive(Default)]
struct Slot {
    /// The handle of the object in it, 0 for none.
    handle: AtomicUsize,
    object: AtomicPtr<Erased>,
}

/// Where the slot of a handle is.
struct Place {
    segment: usize,
    /// Slots of the segment.
    slots: usize,
    slot: usize,
}

impl Place {
    #[inline]
    fn of(handle: usize) -> Self {
        let number = (handle & (FIRST_GENERATION - 1)) + FIRST_SLOTS;
        let slots = 1 << number.ilog2();
        let segment = slots / FIRST_SLOTS;
        Self {
            segment: segment.trailing_zeros().try_into().unwrap_or(usize::MAX),
            slots,
            slot: number - slots,
        }
    }
}

/// Handles that were not given out yet.
struct Free {
    /// Slots that were used at least once.
    used: usize,
    /// The next handles of slots whose object was freed.
    reusable: Vec<usize>,
}

static FREE: Mutex<Free> = Mutex::new(Free { used: 0, reusable: Vec::new() });
/// Slots never move: each segment is twice as long as the one before.
static SEGMENTS: [OnceLock<Box<[Slot]>>; 19] = [const { OnceLock::new() }; 19];

/// Slots of the first segment.
const FIRST_SLOTS: usize = 64;
/// The low bits of a handle are the number of its slot, the others count the slot's objects from 1 on.
const FIRST_GENERATION: usize = 1 << 24;
/// Objects at the same time.
const MAX_OBJECTS: usize = FIRST_GENERATION;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Number(u64);
    impl Object for Number {
        const NAME: &'static str = "number";
    }
    struct Other;
    impl Object for Other {
        const NAME: &'static str = "other";
    }

    fn number(handle: *const Number) -> Result<&'static Number, Failure> {
        // SAFETY: no test frees the handle of another one.
        unsafe { get(handle, "it") }
    }

    #[test]
    fn an_object_is_found_until_it_is_freed() {
        let handle = insert(Number(7)).expect("room");
        assert_eq!(number(handle).expect("alive"), &Number(7));
        // SAFETY: nothing uses the object.
        unsafe { remove(handle.addr()) }.expect("alive");
        let text = number(handle).expect_err("freed").to_string();
        assert_eq!(text, "it is not the handle of a live number");
        // SAFETY: as above.
        unsafe { remove(handle.addr()) }.expect_err("freed already");
    }

    #[test]
    fn the_next_object_in_a_slot_has_another_handle() {
        let handles: Vec<_> = (0..200).map(|n| insert(Number(n)).expect("room")).collect();
        for handle in &handles {
            // SAFETY: nothing uses the object.
            unsafe { remove(handle.addr()) }.expect("alive");
        }
        let again: Vec<_> = (0..200).map(|n| insert(Number(n)).expect("room")).collect();
        for handle in &handles {
            number(*handle).expect_err("freed");
        }
        for (n, handle) in (0..).zip(&again) {
            assert_eq!(number(*handle).expect("alive"), &Number(n));
        }
    }

    #[test]
    fn no_other_number_and_no_handle_of_another_type_is_taken_for_one() {
        let other = insert(Other).expect("room").cast::<Number>();
        let text = number(other).expect_err("another type").to_string();
        assert_eq!(text, "it is not the handle of a live number");
        let address = core::ptr::from_ref(&text).addr();
        for handle in [1, 63, 64, 0xff_ffff, FIRST_GENERATION - 1, usize::MAX, address] {
            number(core::ptr::without_provenance(handle)).expect_err("no handle");
        }
        let text = number(core::ptr::null()).expect_err("null").to_string();
        assert_eq!(text, "it is NULL");
    }

    #[test]
    fn every_slot_number_has_a_place_of_its_own() {
        let places = (0..4096).map(|number| {
            let Place { segment, slots, slot } = Place::of(number);
            assert!(slot < slots && segment < SEGMENTS.len());
            (segment, slot)
        });
        let distinct: std::collections::HashSet<_> = places.collect();
        assert_eq!(distinct.len(), 4096);
        let last = Place::of(MAX_OBJECTS - 1);
        assert!(last.segment < SEGMENTS.len() && last.slot < last.slots);
    }

    #[test]
    fn threads_create_use_and_free_objects_at_the_same_time() {
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                scope.spawn(move || {
                    for n in 0..500 {
                        let handle = insert(Number(thread << 32 | n)).expect("room");
                        assert_eq!(number(handle).expect("alive"), &Number(thread << 32 | n));
                        // SAFETY: only this thread knows the handle.
                        unsafe { remove(handle.addr()) }.expect("alive");
                    }
                });
            }
        });
    }
}
