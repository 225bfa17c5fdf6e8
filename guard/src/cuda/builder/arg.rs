//! The arguments of a launch builder: cudarc's memory, and references to values.

use cudarc::driver::DeviceRepr;

use crate::cuda::arguments::Args;
use crate::cuda::arguments::memory::{Memory, MemoryMut};
use crate::plan::slot::{ByAddress, Scalar, Slot};

/// An argument of a launch builder. `Kind` is inferred.
pub(crate) trait Argument<'a, Kind> {
    /// Adds it. An integer that equals the number of items is refused in chunks if `is_checked`.
    fn add(self, args: &mut Args<'a>, is_checked: bool);
}

// The kinds are the standard library's types, since a public method infers them.

/// The kind of a reference to a value.
pub(crate) type Value = ();
/// The kind of memory of elements `T` that the kernel reads.
type Read<T> = fn() -> T;
/// The kind of memory of elements `T` that the kernel writes.
type Written<T> = fn(T);

impl<'a, T: DeviceRepr> Argument<'a, Value> for &'a T {
    #[inline(always)]
    fn add(self, args: &mut Args<'a>, is_checked: bool) {
        let size = size_of::<T>();
        args.push(match integer(self) {
            Some(bits) => Slot::Value { bits, size, may_be_items: is_checked },
            None => {
                let address = core::ptr::from_ref(self).expose_provenance();
                Slot::ByAddress(ByAddress::new(address, size))
            }
        });
    }
}

impl<'a, T, S: Memory<T>> Argument<'a, Read<T>> for &'a S {
    #[inline(always)]
    fn add(self, args: &mut Args<'a>, _: bool) {
        args.read(self);
    }
}

impl<'a, T, S: MemoryMut<T>> Argument<'a, Written<T>> for &'a mut S {
    #[inline(always)]
    fn add(self, args: &mut Args<'a>, _: bool) {
        args.write(self);
    }
}

/// The bits of `value`, if it is an integer.
#[inline(always)]
fn integer<T>(value: &T) -> Option<u64> {
    #[inline(always)]
    fn as_a<T, U: Scalar>(value: &T) -> Option<u64> {
        if typeid::of::<T>() != typeid::of::<U>() {
            return None;
        }
        // SAFETY: `T` is `U`, which has no lifetime.
        Some(unsafe { *core::ptr::from_ref(value).cast::<U>() }.bits())
    }
    let narrow = as_a::<T, u32>(value).or_else(|| as_a::<T, i32>(value));
    let wide = || as_a::<T, u64>(value).or_else(|| as_a::<T, i64>(value));
    narrow.or_else(wide).or_else(|| as_a::<T, usize>(value))
}
