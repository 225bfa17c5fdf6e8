//! Handles of the objects that callers hold: numbers instead of addresses, so that a wrong handle is detected.

use core::any::{TypeId, type_name};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::failure::{Failure, gg_status};

/// The handle of a new object; `None` beyond [`MAX_OBJECTS`].
pub(crate) fn insert<T: Send + Sync + 'static>(object: T) -> Option<*mut T> {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    let handle = match free.reusable.pop() {
        Some(handle) => handle,
        None if free.used == MAX_OBJECTS => return None,
        None => {
            free.used += 1;
            FIRST_GENERATION | (free.used - 1)
        }
    };
    let place = Place::of(handle);
    let segment = SEGMENTS.get(place.segment)?;
    let slots = segment.get_or_init(|| (0..place.slots).map(|_| Slot::default()).collect());
    let slot = slots.get(place.slot)?;
    let header = Header { of_type: TypeId::of::<T>(), release: release::<T> };
    let object = Arc::into_raw(Arc::new(Held { header, object }));
    slot.object.store(object.cast::<Header>().cast_mut(), Ordering::Relaxed);
    slot.handle.store(handle, Ordering::Release);
    Some(core::ptr::without_provenance_mut(handle))
}

/// The object of `handle`, which messages call `what`. To call a callback while it is used, see [`keep`].
///
/// # Safety
///
/// Nobody frees the handle for as long as the object is used.
#[inline(always)]
pub(crate) unsafe fn get<'a, T: 'static>(
    handle: *const T,
    what: &'static str,
) -> Result<&'a T, Failure> {
    // SAFETY: by this function's contract, the slot's reference keeps the object alive.
    unsafe { Ok(&(*held(handle, what)?).object) }
}

/// The object of `handle`, alive as long as the result, even if a callback frees the handle.
///
/// Only calls with callbacks count references, because counting takes as long as validating a launch.
///
/// # Safety
///
/// Nobody frees the handle until this returns.
#[cfg(feature = "cuda")]
pub(crate) unsafe fn keep<T: 'static>(
    handle: *const T,
    what: &'static str,
) -> Result<Arc<Held<T>>, Failure> {
    // SAFETY: `insert` got the pointer from an `Arc`. The slot's reference is alive until this returns.
    unsafe {
        let held = held(handle, what)?;
        Arc::increment_strong_count(held);
        Ok(Arc::from_raw(held))
    }
}

/// # Safety
///
/// Nobody frees the handle until this returns.
#[inline(always)]
unsafe fn held<T: 'static>(
    handle: *const T,
    what: &'static str,
) -> Result<*const Held<T>, Failure> {
    let unknown = || unknown(handle.addr(), what, type_name::<T>());
    let slot = find(handle.addr()).ok_or_else(unknown)?;
    let object = slot.object.load(Ordering::Relaxed);
    // SAFETY: while the slot has the handle, `insert` made the pointer, and the object begins with its header. By
    // this function's contract, the slot keeps the handle.
    let of_type = unsafe { (*object).of_type };
    if of_type == TypeId::of::<T>() { Ok(object.cast()) } else { Err(unknown()) }
}

/// The failure for a wrong handle of an object of the type `of`.
#[cold]
#[inline(never)]
fn unknown(handle: usize, what: &str, of: &str) -> Failure {
    // `gg_limits` for `gridguard_capi::limits::gg_limits`.
    let of = of.rsplit(':').next().unwrap_or_default();
    let text = match handle {
        0 => format!("{what} is NULL"),
        _ => format!("{what} is not the handle of a live {of}"),
    };
    Failure::new(gg_status::GG_INVALID_HANDLE, text)
}

/// Frees the object of a handle of any type. NULL is ignored.
///
/// Objects keep each other alive, so they can be freed in any order. Returns `GG_INVALID_HANDLE` for a handle that was
/// freed already, and for a number that is not a handle.
///
/// Thread-safe, but no other thread may be using the same handle, unless it waits in a callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_free(handle: *mut c_void) -> gg_status {
    if handle.is_null() {
        return gg_status::GG_OK;
    }
    // SAFETY: by this function's contract, another thread uses the handle only if it waits in a callback. Its
    // call keeps the object.
    let freed = std::panic::catch_unwind(|| unsafe { remove(handle.addr()) });
    match freed {
        Ok(freed) => freed.map_or_else(|failure| failure.status, |()| gg_status::GG_OK),
        Err(_) => gg_status::GG_INTERNAL,
    }
}

/// Frees `handle`, of any type, and its object once nothing holds it.
///
/// # Safety
///
/// Only calls that [`keep`] the object are still using it.
unsafe fn remove(handle: usize) -> Result<(), Failure> {
    let unknown = || unknown(handle, "handle", "object");
    let slot = find(handle).ok_or_else(unknown)?;
    // If two threads free the same handle, one succeeds.
    let taken = slot.handle.compare_exchange(handle, 0, Ordering::Acquire, Ordering::Relaxed);
    taken.map_err(|_| unknown())?;
    let object = slot.object.load(Ordering::Relaxed);
    // SAFETY: the object of this slot, whose reference no other thread took.
    unsafe { ((*object).release)(object) };
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
pub(crate) struct Held<T> {
    header: Header,
    pub(crate) object: T,
}

struct Header {
    of_type: TypeId,
    release: unsafe fn(*mut Self),
}

/// Drops the slot's reference.
///
/// # Safety
///
/// `object` is from [`insert`] with the same type, and its slot does not use it afterwards.
unsafe fn release<T>(object: *mut Header) {
    // SAFETY: this function's contract.
    drop(unsafe { Arc::from_raw(object.cast::<Held<T>>().cast_const()) });
}

#[derive(Default)]
struct Slot {
    /// The handle of the object in it, 0 for none.
    handle: AtomicUsize,
    /// A [`Held`] in an `Arc`.
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
pub(crate) const MAX_OBJECTS: usize = FIRST_GENERATION;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Number(u64);
    struct Other;

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
        assert_eq!(text, "it is not the handle of a live Number");
        // SAFETY: nothing uses the object: the handle is refused.
        unsafe { remove(handle.addr()) }.expect_err("freed already");
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn an_object_that_is_kept_outlives_its_handle() {
        struct Tells(std::sync::mpsc::Sender<()>);
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
        // SAFETY: only `one` and `other` use the object.
        unsafe { remove(handle.addr()) }.expect("alive");
        // SAFETY: nothing uses the object: the handle is refused.
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
        assert_eq!(text, "it is not the handle of a live Number");
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
