//! Arguments as cudarc's launch builder takes them: memory, and references to values.

use cudarc::driver::DeviceRepr;

use crate::cuda::arguments::Args;
use crate::cuda::arguments::memory::{Memory, MemoryMut};
use crate::plan::slot::{ByAddress, Scalar, Slot};

/// What [`Args::arg`] takes: a reference to cudarc's memory or to a value. `Kind` is inferred.
pub trait Argument<'a, Kind>: sealed::Argument<'a, Kind> {}

impl<'a, Kind, A: sealed::Argument<'a, Kind>> Argument<'a, Kind> for A {}

impl<'a> Args<'a> {
    /// The next argument, as cudarc's builder takes it: memory that is the same for every chunk, or a reference
    /// to a value.
    ///
    /// An integer that equals the number of items is rejected if blocks share items and the launch is split, see
    /// [`BatchAxis`](crate::BatchAxis#what-a-kernel-sees-of-a-chunk): pass [`Self::length`] or [`Self::constant`].
    #[inline]
    pub fn arg<A, Kind>(&mut self, arg: A) -> &mut Self
    where
        A: Argument<'a, Kind>,
    {
        arg.add(self);
        self
    }
}

mod sealed {
    pub trait Argument<'a, Kind> {
        fn add(self, args: &mut super::Args<'a>);
    }
}

// The kinds are the standard library's types, since a public method infers them.

/// The kind of a reference to a value.
type Value = ();
/// The kind of memory of elements `T` that the kernel reads.
type Read<T> = fn() -> T;
/// The kind of memory of elements `T` that the kernel writes.
type Written<T> = fn(T);

impl<'a, T: DeviceRepr> sealed::Argument<'a, Value> for &'a T {
    #[inline(always)]
    fn add(self, args: &mut Args<'a>) {
        let size = size_of::<T>();
        args.push(match integer(self) {
            Some(bits) => Slot::Value { bits, size, may_be_items: true },
            None => {
                let address = core::ptr::from_ref(self).expose_provenance();
                Slot::ByAddress(ByAddress::new(address, size))
            }
        });
    }
}

impl<'a, T, S: Memory<T>> sealed::Argument<'a, Read<T>> for &'a S {
    #[inline(always)]
    fn add(self, args: &mut Args<'a>) {
        args.read(self);
    }
}

impl<'a, T, S: MemoryMut<T>> sealed::Argument<'a, Written<T>> for &'a mut S {
    #[inline(always)]
    fn add(self, args: &mut Args<'a>) {
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
