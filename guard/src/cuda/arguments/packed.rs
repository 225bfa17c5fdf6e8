//! Packs arguments into the array of pointers that `cuLaunchKernel` takes.

use core::ffi::c_void;
use core::mem::MaybeUninit;

use crate::plan::arguments::{ArgumentList, MAX_ARGS};
use crate::plan::chunks::Chunk;
use crate::plan::slot::Slot;

/// Argument values, and pointers to them, as `cuLaunchKernel` takes them. Unused places stay uninitialised.
pub(crate) struct PackedArgs {
    values: [MaybeUninit<u64>; MAX_ARGS],
    /// One more than a launch's arguments, for the parameter that rewriting adds to a kernel.
    pointers: [MaybeUninit<*mut c_void>; MAX_ARGS + 1],
}

impl PackedArgs {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self {
            values: [const { MaybeUninit::uninit() }; MAX_ARGS],
            pointers: [const { MaybeUninit::uninit() }; MAX_ARGS + 1],
        }
    }

    /// The arguments for `chunk`, followed by `words` if there are any. The pointer is valid until the next call or
    /// move of `self`, and while `words` live.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        args: &ArgumentList<'_>,
        chunk: &Chunk,
        words: &[u32],
    ) -> *mut *mut c_void {
        let mut pointers = self.pointers.iter_mut();
        for ((slot, value), pointer) in args.slots().iter().zip(&mut self.values).zip(&mut pointers)
        {
            pointer.write(match slot {
                // `cuLaunchKernel` takes mutable pointers, but only reads through them.
                Slot::Bytes(bytes) => bytes.as_ptr().cast_mut().cast(),
                Slot::ByAddress(value) => core::ptr::with_exposed_provenance_mut(value.address),
                _ => core::ptr::from_mut(value.write(slot.bits(chunk))).cast(),
            });
        }
        if let (false, Some(pointer)) = (words.is_empty(), pointers.next()) {
            pointer.write(words.as_ptr().cast_mut().cast());
        }
        self.pointers.as_mut_ptr().cast()
    }
}

/// Reads the arguments as the driver does; also under Miri.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::arguments::RawArgs;

    const CHUNK: Chunk = Chunk { index: 1, start: 7680, items: 5 };

    /// The bytes of each parameter, read as the driver does: the pointer, then as many bytes.
    fn read(params: *mut *mut c_void, sizes: &[usize]) -> Vec<Vec<u8>> {
        let parameter = |(place, size): (usize, &usize)| {
            // SAFETY: `fill` returned as many pointers as there are sizes.
            let from = unsafe { params.add(place).read() }.cast::<u8>();
            // SAFETY: each points to as many bytes as its parameter has.
            (0..*size).map(|byte| unsafe { from.add(byte).read() }).collect()
        };
        sizes.iter().enumerate().map(parameter).collect()
    }

    fn sizes(args: &RawArgs<'_>) -> Vec<usize> {
        args.list.slots().iter().map(Slot::size).collect()
    }

    #[test]
    fn the_driver_reads_every_kind_of_argument_unchanged() {
        let structure: Vec<u8> = (0..100).collect();
        let mut args = RawArgs::new();
        args.address(0x7f00_dead_beef)
            .value(7_u8)
            .value(-2_i16)
            .value(0.125_f32)
            .value(-1.5_f64)
            .bytes(&structure)
            .bytes(&[])
            .items_at(1 << 40, 2048)
            .items_within(4096, 8, 72, 1 << 20)
            .offset()
            .offset_as::<u32>()
            .length()
            .length_as::<u32>()
            .push(Slot::Workspace);
        args.list = args.list.with_workspace_at(0x5000);
        let expected: [&[u8]; 14] = [
            &0x7f00_dead_beef_u64.to_ne_bytes(),
            &[7],
            &(-2_i16).to_ne_bytes(),
            &0.125_f32.to_ne_bytes(),
            &(-1.5_f64).to_ne_bytes(),
            &structure,
            &[],
            &((1_u64 << 40) + 7680 * 2048).to_ne_bytes(),
            &(4096_u64 + 7680 * 8).to_ne_bytes(),
            &7680_u64.to_ne_bytes(),
            &7680_u32.to_ne_bytes(),
            &5_u64.to_ne_bytes(),
            &5_u32.to_ne_bytes(),
            &0x5000_u64.to_ne_bytes(),
        ];
        let mut packed = PackedArgs::new();
        let params = packed.fill(&args.list, &CHUNK, &[]);
        assert_eq!(read(params, &sizes(&args)), expected);
    }

    #[test]
    fn arguments_are_packed_anew_for_each_chunk() {
        let mut args = RawArgs::new();
        args.value(9_u64).items_at(1 << 32, 16).offset().length();
        let mut packed = PackedArgs::new();
        for index in 0..3 {
            let chunk = Chunk { index, start: 100 * index, items: 7 + index };
            let params = packed.fill(&args.list, &chunk, &[]);
            let expected = [9, (1 << 32) + 1600 * index, 100 * index, 7 + index];
            assert_eq!(read(params, &[8; 4]), expected.map(u64::to_ne_bytes));
        }
    }

    #[test]
    fn as_many_arguments_as_fit_are_all_read() {
        let mut args = RawArgs::new();
        for value in 0..u64::try_from(MAX_ARGS).expect("few") {
            args.value(value.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        let mut packed = PackedArgs::new();
        let params = packed.fill(&args.list, &CHUNK, &[]);
        for (value, bytes) in (0..).zip(read(params, &[8; MAX_ARGS])) {
            let value: u64 = value;
            assert_eq!(bytes, value.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes());
        }
        assert_eq!(args.len(), MAX_ARGS);
    }

    #[test]
    fn no_arguments_are_no_pointers() {
        let (args, mut packed) = (RawArgs::new(), PackedArgs::new());
        let params = packed.fill(&args.list, &CHUNK, &[]);
        assert_eq!(read(params, &[]), [[0; 0]; 0]);
    }
}
