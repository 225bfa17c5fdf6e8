//! Kernel arguments that advance from chunk to chunk, in inline storage.

use arrayvec::ArrayVec;

use crate::plan::chunks::Chunk;

/// The most arguments that [`KernelArgs`] holds.
pub const MAX_ARGS: usize = 32;

/// The arguments of one kernel, in the order of its parameters.
///
/// From chunk to chunk, pointers to items advance and the chunk's offset and length are filled in;
/// everything else stays.
///
/// ```
/// use gridguard::KernelArgs;
/// let mut args = KernelArgs::new();
/// args.items_at(0x7f00_0000_0000, 2048) // q: 2,048 bytes per item
///     .value(0.125_f32)                 // scale
///     .length();                        // items of this chunk, as u64
/// assert_eq!(args.len(), 3);
/// ```
#[derive(Clone, Debug)]
pub struct KernelArgs<'a> {
    slots: ArrayVec<Slot<'a>, MAX_ARGS>,
    /// Arguments beyond [`MAX_ARGS`], which the launch rejects.
    surplus: usize,
}

/// One argument.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Slot<'a> {
    /// A device address, the same for every chunk.
    Address(u64),
    /// A value of up to 8 bytes, little endian.
    Value { bits: u64, size: usize },
    /// A value of any size, owned by the caller.
    Bytes(&'a [u8]),
    /// `base + chunk.start * stride_bytes`, where an item spans `span_bytes`, in a buffer of
    /// `reach_bytes` from `base` on.
    Items { base: u64, stride_bytes: u64, span_bytes: u64, reach_bytes: u64 },
    /// The chunk's first item.
    Offset { width: Width },
    /// The chunk's number of items.
    Length { width: Width },
    /// The workspace that the launch allocates; its address is not known yet.
    Workspace,
}

/// The type of an offset or a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    U64,
    U32,
    I32,
}

impl Width {
    const fn size(self) -> usize {
        match self {
            Self::U64 => size_of::<u64>(),
            Self::U32 | Self::I32 => size_of::<u32>(),
        }
    }

    /// Checks that the type of argument `index` can represent `items`.
    #[inline]
    fn check(self, index: usize, items: u64) -> Result<(), ArgsError> {
        match self {
            Self::U32 if u32::try_from(items).is_err() => {
                Err(ArgsError::ItemsPast32Bits { index, items })
            }
            Self::I32 if i32::try_from(items).is_err() => {
                Err(ArgsError::ItemsPastI32 { index, items })
            }
            _ => Ok(()),
        }
    }
}

impl Default for KernelArgs<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> KernelArgs<'a> {
    /// No arguments.
    #[must_use]
    #[inline]
    pub const fn new() -> Self {
        Self { slots: ArrayVec::new_const(), surplus: 0 }
    }

    /// The number of arguments, including those beyond [`MAX_ARGS`].
    #[must_use]
    pub const fn len(&self) -> usize {
        self.slots.len() + self.surplus
    }

    /// Whether there are no arguments.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A fixed value: an integer or a float.
    pub fn value<T: Scalar>(&mut self, value: T) -> &mut Self {
        self.push(Slot::Value { bits: value.bits(), size: size_of::<T>() })
    }

    /// A device address that is the same for every chunk.
    pub fn address(&mut self, address: u64) -> &mut Self {
        self.push(Slot::Address(address))
    }

    /// A fixed value of any size in its memory layout, such as a `#[repr(C)]` struct.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> &mut Self {
        self.push(Slot::Bytes(bytes))
    }

    /// A device address that advances by `stride_bytes` for each item before the chunk.
    ///
    /// Use [`Self::items_within`] where the size of the memory is known.
    pub fn items_at(&mut self, base: u64, stride_bytes: u64) -> &mut Self {
        self.items_within(base, stride_bytes, u64::MAX)
    }

    /// As [`Self::items_at`], in a buffer of `reach_bytes`: a launch whose items reach further is
    /// rejected.
    pub fn items_within(&mut self, base: u64, stride_bytes: u64, reach_bytes: u64) -> &mut Self {
        self.strided_items_within(base, stride_bytes, stride_bytes, reach_bytes)
    }

    /// As [`Self::items_within`], where an item spans more or less than `stride_bytes`, such as one
    /// whose rows are interleaved with those of other items.
    pub fn strided_items_within(
        &mut self,
        base: u64,
        stride_bytes: u64,
        span_bytes: u64,
        reach_bytes: u64,
    ) -> &mut Self {
        self.push(Slot::Items { base, stride_bytes, span_bytes, reach_bytes })
    }

    /// The chunk's first item as `u64`.
    pub fn offset(&mut self) -> &mut Self {
        self.push(Slot::Offset { width: Width::U64 })
    }

    /// The chunk's first item as `u32`; a batch beyond 32 bits is rejected.
    pub fn offset_u32(&mut self) -> &mut Self {
        self.push(Slot::Offset { width: Width::U32 })
    }

    /// The chunk's first item as `i32`, for kernels with an `int`; a batch beyond 31 bits is
    /// rejected.
    pub fn offset_i32(&mut self) -> &mut Self {
        self.push(Slot::Offset { width: Width::I32 })
    }

    /// The chunk's number of items as `u64`.
    pub fn length(&mut self) -> &mut Self {
        self.push(Slot::Length { width: Width::U64 })
    }

    /// The chunk's number of items as `u32`; a batch beyond 32 bits is rejected.
    pub fn length_u32(&mut self) -> &mut Self {
        self.push(Slot::Length { width: Width::U32 })
    }

    /// The chunk's number of items as `i32`, for kernels with an `int`; a batch beyond 31 bits is
    /// rejected.
    pub fn length_i32(&mut self) -> &mut Self {
        self.push(Slot::Length { width: Width::I32 })
    }

    /// The workspace that the launch allocates.
    pub(crate) fn workspace(&mut self) -> &mut Self {
        self.push(Slot::Workspace)
    }

    /// The index of the workspace argument, from 0.
    pub(crate) fn workspace_place(&self) -> Option<usize> {
        self.slots.iter().position(|slot| matches!(slot, Slot::Workspace))
    }

    /// The same arguments with the workspace at `address`.
    pub(crate) fn with_workspace_at(&self, address: u64) -> Self {
        let mut placed = self.clone();
        for slot in &mut placed.slots {
            if matches!(slot, Slot::Workspace) {
                *slot = Slot::Address(address);
            }
        }
        placed
    }

    fn push(&mut self, slot: Slot<'a>) -> &mut Self {
        if self.slots.try_push(slot).is_err() {
            self.surplus += 1;
        }
        self
    }

    pub(crate) fn slots(&self) -> &[Slot<'a>] {
        &self.slots
    }

    /// Checks that every chunk of a batch of `items` stays within the buffers and types.
    #[inline]
    pub(crate) fn check(&self, items: u64) -> Result<(), ArgsError> {
        if self.surplus > 0 {
            return Err(ArgsError::TooMany { given: self.len() });
        }
        for (index, slot) in self.slots().iter().enumerate() {
            match *slot {
                Slot::Items { base, stride_bytes, span_bytes, reach_bytes } => {
                    let before = u128::from(items.saturating_sub(1)) * u128::from(stride_bytes);
                    let last = if items == 0 { 0 } else { u128::from(span_bytes) };
                    let needed = before + last;
                    if needed > u128::from(reach_bytes) {
                        let available = reach_bytes;
                        return Err(ArgsError::BufferTooSmall { index, needed, available });
                    }
                    if needed + u128::from(base) > u128::from(u64::MAX) {
                        return Err(ArgsError::AddressOverflow { index });
                    }
                }
                Slot::Offset { width } | Slot::Length { width } => width.check(index, items)?,
                Slot::Workspace => return Err(ArgsError::WorkspaceNotAllocated { index }),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Slot<'_> {
    pub(crate) const fn is_memory(&self) -> bool {
        matches!(self, Self::Address(_) | Self::Items { .. } | Self::Workspace)
    }

    /// Bytes that the kernel's parameter must have.
    pub(crate) const fn size(&self) -> usize {
        match self {
            Self::Address(_) | Self::Items { .. } | Self::Workspace => size_of::<u64>(),
            Self::Value { size, .. } => *size,
            Self::Offset { width } | Self::Length { width } => width.size(),
            Self::Bytes(bytes) => bytes.len(),
        }
    }

    /// The argument's bits for `chunk`, in little endian, so that a narrower parameter reads its part.
    #[inline]
    pub(crate) const fn bits(&self, chunk: &Chunk) -> u64 {
        match *self {
            Self::Value { bits, .. } | Self::Address(bits) => bits,
            // Checked for the whole batch before the first chunk.
            Self::Items { base, stride_bytes, .. } => {
                base.wrapping_add(chunk.start.wrapping_mul(stride_bytes))
            }
            Self::Offset { .. } => chunk.start,
            Self::Length { .. } => chunk.items,
            // A workspace has its address before the launch.
            Self::Bytes(_) | Self::Workspace => 0,
        }
    }
}

/// Why arguments do not fit a kernel or a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArgsError {
    /// More arguments than fit inline.
    #[error("{given} kernel arguments, at most {MAX_ARGS} fit: pass the rest in a struct")]
    TooMany {
        /// How many were given.
        given: usize,
    },
    /// The items reach past the end of an argument's buffer.
    #[error("kernel argument {index} has {available} bytes, the items of the batch need {needed}")]
    BufferTooSmall {
        /// The argument, from 0.
        index: usize,
        /// Bytes that all items need.
        needed: u128,
        /// Bytes of the buffer.
        available: u64,
    },
    /// A pointer to items would advance past the end of the address space.
    #[error("kernel argument {index} would advance past the end of the address space")]
    AddressOverflow {
        /// The argument, from 0.
        index: usize,
    },
    /// A 32-bit offset or length cannot represent the batch's items.
    #[error("kernel argument {index} is 32 bits wide, the batch has {items} items: use 64 bits")]
    ItemsPast32Bits {
        /// The argument, from 0.
        index: usize,
        /// Items of the batch.
        items: u64,
    },
    /// A signed 32-bit offset or length cannot represent the batch's items.
    #[error(
        "kernel argument {index} is 32 bits wide and signed, the batch has {items} items: use 64 \
         bits"
    )]
    ItemsPastI32 {
        /// The argument, from 0.
        index: usize,
        /// Items of the batch.
        items: u64,
    },
    /// An argument is the launch's workspace, but the launch allocates none.
    #[error(
        "kernel argument {index} is the launch's workspace, but this launch allocates none: use \
         launch_with_workspace and Args::with_workspace"
    )]
    WorkspaceNotAllocated {
        /// The argument, from 0.
        index: usize,
    },
    /// The launch allocates a workspace, but no argument receives it.
    #[error("no kernel argument receives the launch's workspace: add it with Args::workspace")]
    WorkspaceUnused,
    /// The kernel has another number of parameters.
    #[error("kernel {kernel} has {expected} parameters, but {given} arguments were given")]
    WrongCount {
        /// The kernel's name.
        kernel: String,
        /// Parameters of the kernel.
        expected: usize,
        /// Arguments given.
        given: usize,
    },
    /// A value where the kernel expects memory, or memory where it expects a value.
    #[error("parameter {index} of kernel {kernel} is {expected}, the argument is {given}")]
    WrongKind {
        /// The kernel's name.
        kernel: String,
        /// The parameter, from 0.
        index: usize,
        /// What it is.
        expected: &'static str,
        /// What the argument is.
        given: &'static str,
    },
    /// Memory, or a chunk of it, that is not aligned as the kernel requires.
    #[error(
        "parameter {index} of kernel {kernel} must be aligned to {alignment} bytes, the argument or \
         its items are not"
    )]
    Misaligned {
        /// The kernel's name.
        kernel: String,
        /// The parameter, from 0.
        index: usize,
        /// The required alignment in bytes.
        alignment: u64,
    },
    /// A parameter of the kernel has another size.
    #[error("parameter {index} of kernel {kernel} is {expected} bytes, the argument is {given}")]
    WrongSize {
        /// The kernel's name.
        kernel: String,
        /// The parameter, from 0.
        index: usize,
        /// Bytes of the parameter.
        expected: usize,
        /// Bytes of the argument.
        given: usize,
    },
}

/// A value that is passed directly: integers and floats of up to 8 bytes.
pub trait Scalar: sealed::Sealed + Copy {}

mod sealed {
    pub trait Sealed {
        fn bits(self) -> u64;
    }
}

macro_rules! scalars {
    ($($type:ty),*) => {$(
        impl Scalar for $type {}
        impl sealed::Sealed for $type {
            fn bits(self) -> u64 {
                let mut bytes = [0; 8];
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
                u64::from_le_bytes(bytes)
            }
        }
    )*};
}

scalars!(u8, i8, u16, i16, u32, i32, u64, i64, usize, f32, f64);

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: Chunk = Chunk { index: 1, start: 7680, items: 5 };

    fn bits(args: &KernelArgs<'_>) -> Vec<u64> {
        args.slots().iter().map(|slot| slot.bits(&CHUNK)).collect()
    }

    #[test]
    fn only_pointers_offset_and_length_follow_the_chunk() {
        let mut args = KernelArgs::new();
        args.items_at(1 << 40, 2048).value(7_u32).value(-1_i32).offset().length_u32();
        assert_eq!(bits(&args), [(1 << 40) + 7680 * 2048, 7, 0xffff_ffff, 7680, 5]);
        let sizes: Vec<_> = args.slots().iter().map(Slot::size).collect();
        assert_eq!(sizes, [8, 4, 4, 8, 4]);
    }

    #[test]
    fn items_past_the_buffer_are_rejected() {
        let mut args = KernelArgs::new();
        args.items_within(4096, 8, 800);
        assert_eq!(args.check(100), Ok(()));
        let refused = ArgsError::BufferTooSmall { index: 0, needed: 808, available: 800 };
        assert_eq!(args.check(101), Err(refused));
    }

    #[test]
    fn interleaved_items_reach_over_their_span() {
        let mut args = KernelArgs::new();
        args.strided_items_within(4096, 8, 72, 800);
        assert_eq!(args.check(92), Ok(()));
        let refused = ArgsError::BufferTooSmall { index: 0, needed: 808, available: 800 };
        assert_eq!(args.check(93), Err(refused));
        assert_eq!(args.check(0), Ok(()));
        let mut one_for_all = KernelArgs::new();
        one_for_all.strided_items_within(4096, 0, 800, 800);
        assert_eq!(one_for_all.check(u64::MAX), Ok(()));
    }

    #[test]
    fn addresses_and_offsets_do_not_wrap() {
        let mut args = KernelArgs::new();
        args.items_at(u64::MAX - 8, 8);
        assert_eq!(args.check(2), Err(ArgsError::AddressOverflow { index: 0 }));
        let mut args = KernelArgs::new();
        args.value(0_u8).offset_u32();
        let refused = ArgsError::ItemsPast32Bits { index: 1, items: 1 << 32 };
        assert_eq!(args.check(1 << 32), Err(refused));
    }

    #[test]
    fn a_signed_offset_or_length_never_turns_negative() {
        for fill in [KernelArgs::offset_i32, KernelArgs::length_i32] {
            let mut args = KernelArgs::new();
            fill(&mut args);
            assert_eq!(args.check((1 << 31) - 1), Ok(()));
            let refused = ArgsError::ItemsPastI32 { index: 0, items: 1 << 31 };
            assert_eq!(args.check(1 << 31), Err(refused));
            assert_eq!(args.slots()[0].size(), 4);
        }
    }

    #[test]
    fn too_many_arguments_are_rejected() {
        let mut args = KernelArgs::new();
        for _ in 0..=MAX_ARGS {
            args.value(0_u64);
        }
        assert_eq!(args.check(1), Err(ArgsError::TooMany { given: MAX_ARGS + 1 }));
    }
}
