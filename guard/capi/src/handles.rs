//! Handles of the objects that callers hold: numbers instead of addresses, so that a wrong one is
//! detected.

use core::any::TypeId;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::failure::Failure;

/// What a handle stands for.
pub(crate) trait Object: Send + Sync + 'static {
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
    let of_type = TypeId::of::<T>();
    let header = Header { of_type, free: free_held::<T>, holders: AtomicUsize::new(1) };
    let object = Box::into_raw(Box::new(Held { header, object }));
    slot.object.store(object.cast(), Ordering::Relaxed);
    slot.handle.store(handle, Ordering::Release);
    Ok(core::ptr::without_provenance_mut(handle))
}

/// The object of `handle`, which messages call `what`. To call a callback while it is used, see [`keep`].
///
/// # Safety
///
/// Nobody frees the handle for as long as the object is used.
#[inline(always)]
pub(crate) unsafe fn get<'a, T: Object>(
    handle: *const T,
    what: &'static str,
) -> Result<&'a T, Failure> {
    let unknown = || Failure::of_handle(handle.addr(), what, T::NAME);
    let slot = find(handle.addr()).ok_or_else(unknown)?;
    let object = slot.object.load(Ordering::Relaxed);
    // SAFETY: while the slot has the handle, the pointer is that of `insert`, to an object that begins with
    // its header; by this function's contract it stays so.
    let of_type = unsafe { (*object).of_type };
    if of_type != TypeId::of::<T>() {
        return Err(unknown());
    }
    // SAFETY: as above, and `insert` made it of this type.
    Ok(unsafe { &(*object.cast::<Held<T>>()).object })
}

/// The object of `handle`, alive as long as the result, even if a callback frees the handle.
///
/// Only calls with callbacks count holders, since counting takes as long as validating a launch.
///
/// # Safety
///
/// Nobody frees the handle until this returns.
#[cfg(feature = "cuda")]
pub(crate) unsafe fn keep<T: Object>(
    handle: *const T,
    what: &'static str,
) -> Result<Kept<T>, Failure> {
    // SAFETY: this function's contract.
    let object = unsafe { get(handle, what) }?;
    let slot = find(handle.addr()).ok_or(Failure::Handle { what, name: T::NAME })?;
    let held = slot.object.load(Ordering::Relaxed);
    // SAFETY: as in `get`.
    unsafe { (*held).holders.fetch_add(1, Ordering::Relaxed) };
    Ok(Kept { held, object })
}

/// A holder of an object: see [`keep`].
#[cfg(feature = "cuda")]
pub(crate) struct Kept<T: Object> {
    held: *mut Header,
    object: *const T,
}

#[cfg(feature = "cuda")]
impl<T: Object> core::ops::Deref for Kept<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object lives until its last holder is gone, and nothing changes it.
        unsafe { &*self.object }
    }
}

#[cfg(feature = "cuda")]
impl<T: Object> Drop for Kept<T> {
    fn drop(&mut self) {
        // SAFETY: this holder is counted once.
        unsafe { release(self.held) }
    }
}

/// Gives up one hold on an object, and frees it after the last one.
///
/// # Safety
///
/// The hold is counted, and not used afterwards.
unsafe fn release(held: *mut Header) {
    // SAFETY: the object lives as long as this hold.
    if unsafe { (*held).holders.fetch_sub(1, Ordering::AcqRel) } == 1 {
        // SAFETY: `insert` made the object and its header, which names the function for its type. Nobody
        // else holds it.
        unsafe { ((*held).free)(held) };
    }
}

/// Frees `handle`, of any type, and its object once nothing holds it.
///
/// # Safety
///
/// Nobody uses the object, but those who [`keep`] it.
pub(crate) unsafe fn remove(handle: usize) -> Result<(), Failure> {
    let unknown = || Failure::of_handle(handle, "handle", "object");
    let slot = find(handle).ok_or_else(unknown)?;
    // Of two threads that free the same handle, one succeeds.
    let taken = slot.handle.compare_exchange(handle, 0, Ordering::Acquire, Ordering::Relaxed);
    taken.map_err(|_| unknown())?;
    let object = slot.object.load(Ordering::Relaxed);
    // SAFETY: the slot's own hold, which no other thread took.
    unsafe { release(object) };
    // A slot whose generations are used up is not used again.
    if let Some(next) = handle.checked_add(FIRST_GENERATION) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).reusable.push(next);
    }
    Ok(())
}

/// The slot that has `handle` now.
#[inline(always)]
fn find(handle: usize) -> Option<&'static Slot> {
    let place = Place::of(handle);
    let slot = SEGMENTS.get(place.segment)?.get()?.get(place.slot)?;
    (handle != 0 && slot.handle.load(Ordering::Acquire) == handle).then_some(slot)
}

/// An object behind its header, so that a pointer to it is thin, whatever its type.
#[repr(C)]
struct Held<T> {
    header: Header,
    object: T,
}

struct Header {
    of_type: TypeId,
    /// The slot, and each [`Kept`].
    holders: AtomicUsize,
    free: unsafe fn(*mut Self),
}

/// # Safety
///
/// `object` is a boxed [`Held<T>`], which nothing else uses.
unsafe fn free_held<T>(object: *mut Header) {
    // SAFETY: this function's contract.
    drop(unsafe { Box::from_raw(object.cast::<Held<T>>()) });
}

#[derive(Default)]
struct Slot {
    /// The handle of the object in it, 0 for none.
    handle: AtomicUsize,
    /// A [`Held`].
    object: AtomicPtr<Header>,
}

/// Where the slot of a handle is.
struct Place {
    segment: usize,
    /// Slots of the segment.
    slots: usize,
    slot: usize,
}

impl Place {
    #[inline(always)]
    fn of(handle: usize) -> Self {
        let number = (handle & (FIRST_GENERATION - 1)) + FIRST_SLOTS;
        let segment = number.ilog2() - FIRST_SLOTS.ilog2();
        let slots = FIRST_SLOTS << segment;
        Self { segment: segment.try_into().unwrap_or(usize::MAX), slots, slot: number - slots }
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

    #[cfg(feature = "cuda")]
    #[test]
    fn an_object_that_is_kept_outlives_its_handle() {
        struct Tells(std::sync::mpsc::Sender<()>);
        impl Object for Tells {
            const NAME: &'static str = "tells";
        }
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.send(()).expect("the test listens");
            }
        }
        let (sender, dropped) = std::sync::mpsc::channel();
        let handle = insert(Tells(sender)).expect("room");
        // SAFETY: only this test has the handle.
        let keep = || unsafe { keep(handle.cast_const(), "it") };
        let (one, other) = (keep().expect("alive"), keep().expect("alive"));
        // SAFETY: nothing but what keeps it uses the object.
        unsafe { remove(handle.addr()) }.expect("alive");
        // SAFETY: as above.
        unsafe { remove(handle.addr()) }.expect_err("freed already");
        assert!(keep().is_err(), "the handle is gone at once");
        drop(one);
        dropped.try_recv().expect_err("the other keeps it");
        drop(other);
        dropped.try_recv().expect("nothing keeps it");
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
