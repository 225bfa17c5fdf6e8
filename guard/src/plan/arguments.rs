//! Kernel arguments that advance from chunk to chunk, in inline storage.

use core::mem::ManuallyDrop;

use arrayvec::ArrayVec;

use crate::launch::violation::count;
use crate::limits::kernel::KernelLimits;
use crate::plan::signature::Signature;
use crate::plan::slot::{Count, Scalar, Slot, Width};

/// The most arguments of a launch.
pub const MAX_ARGS: usize = 32;

/// The arguments of one kernel, in the order of its parameters: [`RawArgs`] of addresses, or `cuda::Args` of cudarc's
/// memory.
///
/// From chunk to chunk, pointers to items advance and the chunk's offset and length are filled in;
/// everything else stays.
///
/// ```
/// use gridguard::RawArgs;
/// let mut args = RawArgs::new();
/// args.items_at(0x7f00_0000_0000, 2048) // q: 2,048 bytes per item
///     .value(0.125_f32)                 // scale
///     .length();                        // items of this chunk
/// assert_eq!(args.len(), 3);
/// ```
#[derive(Clone, Debug, Default)]
pub struct KernelArgs<'a, M> {
    pub(crate) list: ArgumentList<'a>,
    /// The memory behind the addresses, where the launch orders its uses.
    pub(crate) memory: M,
}

/// Arguments whose memory is given by its address, for launches by raw handles.
pub type RawArgs<'a> = KernelArgs<'a, ()>;

impl<'a> RawArgs<'a> {
    /// No arguments.
    #[inline]
    pub const fn new() -> Self {
        Self { list: ArgumentList::new(), memory: () }
    }

    /// A device address that is the same for every chunk.
    pub fn address(&mut self, address: u64) -> &mut Self {
        self.push(Slot::Address(address))
    }

    /// A device address that advances by `stride_bytes` for each item before the chunk.
    ///
    /// Use [`Self::items_within`] where the size of the memory is known.
    pub fn items_at(&mut self, base: u64, stride_bytes: u64) -> &mut Self {
        self.items_within(base, stride_bytes, stride_bytes, u64::MAX)
    }

    /// As [`Self::items_at`], in a buffer of `reach_bytes`: a launch whose items reach further is rejected. Items may
    /// span more or less than `stride_bytes`, for example with interleaved rows.
    pub fn items_within(
        &mut self,
        base: u64,
        stride_bytes: u64,
        span_bytes: u64,
        reach_bytes: u64,
    ) -> &mut Self {
        self.push(Slot::Items { base, stride_bytes, span_bytes, reach_bytes })
    }
}

/// Arguments that are not memory.
impl<'a, M> KernelArgs<'a, M> {
    /// The number of arguments, including those beyond [`MAX_ARGS`].
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are no arguments.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A fixed value: an integer or a float.
    ///
    /// An integer that equals the number of items is rejected where blocks share items and the launch
    /// may be split: see [`BatchAxis`](crate::BatchAxis#what-a-kernel-sees-of-a-chunk).
    pub fn value<T: Scalar>(&mut self, value: T) -> &mut Self {
        let (bits, size) = (value.bits(), size_of::<T>());
        self.push(Slot::Value { bits, size, may_be_items: T::IS_INTEGER })
    }

    /// As [`Self::value`], but the value may equal the number of items: the kernel does not use it as the end of its
    /// chunk.
    pub fn constant<T: Scalar>(&mut self, value: T) -> &mut Self {
        let (bits, size) = (value.bits(), size_of::<T>());
        self.push(Slot::Value { bits, size, may_be_items: false })
    }

    /// A fixed value of any size in its memory layout, such as a `#[repr(C)]` struct.
    pub fn bytes(&mut self, bytes: &'a [u8]) -> &mut Self {
        self.push(Slot::Bytes(bytes))
    }

    /// The chunk's first item, for a parameter of 4 or 8 bytes. A parameter of 4 bytes, or of unknown size
    /// (drivers before CUDA 12.4), takes batches of up to 2^31 - 1 items.
    pub fn offset(&mut self) -> &mut Self {
        self.push(Slot::Offset { width: Width::Parameter })
    }

    /// The chunk's first item as `u64`, as `u32`, or as `i32` for kernels with an `int`; a batch beyond 32 or 31 bits
    /// is rejected.
    pub fn offset_as<T: Count>(&mut self) -> &mut Self {
        self.push(Slot::Offset { width: T::WIDTH })
    }

    /// The chunk's number of items. Parameter sizes are as for [`Self::offset`].
    pub fn length(&mut self) -> &mut Self {
        self.push(Slot::Length { width: Width::Parameter })
    }

    /// The chunk's number of items, with a type as in [`Self::offset_as`].
    pub fn length_as<T: Count>(&mut self) -> &mut Self {
        self.push(Slot::Length { width: T::WIDTH })
    }

    /// The chunk's number of parts as `u64`: its items times `per_item`, for example the rows of a matrix. A batch
    /// with more than 2^64 - 1 parts is rejected.
    pub fn parts(&mut self, per_item: u64) -> &mut Self {
        self.push(Slot::Parts { per_item })
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: Slot<'a>) -> &mut Self {
        self.list.push(slot);
        self
    }
}

/// Arguments in inline storage.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArgumentList<'a> {
    /// Without drop glue, the borrow checker lets a launch builder outlive its arguments.
    slots: ManuallyDrop<ArrayVec<Slot<'a>, MAX_ARGS>>,
    /// Arguments beyond [`MAX_ARGS`], which the launch rejects.
    surplus: usize,
    /// Whether an argument is a workspace.
    has_workspace: bool,
}

impl<'a> ArgumentList<'a> {
    #[inline]
    pub(crate) const fn new() -> Self {
        Self { slots: ManuallyDrop::new(ArrayVec::new_const()), surplus: 0, has_workspace: false }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() + self.surplus
    }

    pub(crate) const fn has_workspace(&self) -> bool {
        self.has_workspace
    }

    /// The same arguments with the workspace at `address`.
    pub(crate) fn with_workspace_at(&self, address: u64) -> Self {
        self.replaced(|_, slot| matches!(slot, Slot::Workspace).then_some(Slot::Address(address)))
    }

    /// The same arguments. `other` may replace each one.
    pub(crate) fn replaced(&self, other: impl Fn(usize, &Slot<'a>) -> Option<Slot<'a>>) -> Self {
        let mut replaced = self.clone();
        for (index, slot) in replaced.slots.iter_mut().enumerate() {
            if let Some(other) = other(index, slot) {
                *slot = other;
            }
        }
        replaced
    }

    pub(crate) fn push(&mut self, slot: Slot<'a>) {
        self.has_workspace |= matches!(slot, Slot::Workspace);
        if self.slots.try_push(slot).is_err() {
            self.surplus += 1;
        }
    }

    pub(crate) fn slots(&self) -> &[Slot<'a>] {
        &self.slots
    }

    /// Checks that the arguments match the signature of `kernel`, and that every chunk of a batch of `items` stays within
    /// the buffers and types, or that nothing depends on items where there is no batch.
    #[inline]
    pub(crate) fn check(
        &self,
        items: Option<u64>,
        signature: &Signature,
        kernel: &KernelLimits,
    ) -> Result<(), ArgsError> {
        if self.surplus > 0 {
            return Err(ArgsError::TooMany { given: self.len() });
        }
        if let Some(expected) = signature.len()
            && expected != self.len()
        {
            let (kernel, given) = (kernel.name.clone(), self.len());
            return Err(ArgsError::WrongCount { kernel, expected, given });
        }
        for (index, slot) in self.slots().iter().enumerate() {
            check_items(slot, index, items, signature)?;
            check_parameter(slot, index, signature, kernel)?;
        }
        Ok(())
    }

    /// If the batch is split and its blocks share items, checks that no value equals `items`. A kernel that compares
    /// with the total would run past the end of a chunk.
    pub(crate) fn check_values(&self, items: u64) -> Result<(), ArgsError> {
        let is_total = |slot: &Slot<'_>| match *slot {
            Slot::Value { bits, may_be_items, .. } => may_be_items && bits == items,
            _ => false,
        };
        match self.slots().iter().position(is_total) {
            Some(index) => Err(ArgsError::TotalInChunks { index, items }),
            None => Ok(()),
        }
    }
}

/// Why arguments do not fit a kernel or a plan. Arguments and parameters are counted from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ArgsError {
    /// More arguments than fit inline.
    #[error("{given} kernel arguments, at most {MAX_ARGS} fit: pass the rest in a struct")]
    TooMany { given: usize },
    /// The items reach past the end of an argument's buffer.
    #[error("kernel argument {index} has {}, the items of the batch need {needed}", count(*available, "byte"))]
    BufferTooSmall { index: usize, needed: u128, available: u64 },
    /// A value equals the number of items of the whole batch, in a launch of several chunks whose blocks share items.
    #[error(
        "kernel argument {index} ({items}) looks like the batch size, but each chunk is smaller: if the kernel \
         uses it as a bound, pass it with length; if not, with constant"
    )]
    TotalInChunks { index: usize, items: u64 },
    /// An argument depends on the items of a batch, but the launch has none.
    #[error(
        "kernel argument {index} depends on the items of a batch, but the launch has none: declare \
         a BatchAxis, or pass whole memory and plain values"
    )]
    NoBatch { index: usize },
    /// A pointer to items would advance past the end of the address space.
    #[error("kernel argument {index} would advance past the end of the address space")]
    AddressOverflow { index: usize },
    /// A 32-bit offset or length cannot represent the batch's items.
    #[error(
        "kernel argument {index} is 32 bits wide{}, the batch has {items} items: use 64 bits",
        if *signed { " and signed" } else { "" }
    )]
    ItemsPast32Bits { index: usize, signed: bool, items: u64 },
    /// The parts of the batch's items exceed 64 bits.
    #[error(
        "kernel argument {index} is {per_item} for each of {items} items, which 64 bits cannot count"
    )]
    PartsPast64Bits { index: usize, per_item: u64, items: u64 },
    /// An argument is the launch's workspace, but the launch allocates none.
    #[error(
        "kernel argument {index} is the launch's workspace, but this launch allocates none: use \
         Guard::launch with a batch"
    )]
    WorkspaceNotAllocated { index: usize },
    /// The kernel has another number of parameters.
    #[error("kernel {kernel} takes {}, not {given}", count(*expected, "argument"))]
    WrongCount { kernel: String, expected: usize, given: usize },
    /// A value where the kernel expects memory, or memory where it expects a value.
    #[error("parameter {index} of kernel {kernel} is {expected}, the argument is {given}")]
    WrongKind { kernel: String, index: usize, expected: &'static str, given: &'static str },
    /// Memory, or a chunk's part of the memory, that is not aligned as the kernel requires.
    #[error(
        "parameter {index} of kernel {kernel} must be aligned to {alignment} bytes, the argument or \
         its items are not"
    )]
    Misaligned { kernel: String, index: usize, alignment: u64 },
    /// A parameter of the kernel has another size.
    #[error("parameter {index} of kernel {kernel} is {}, the argument is {given}", count(*expected, "byte"))]
    WrongSize { kernel: String, index: usize, expected: usize, given: usize },
}

/// Checks that every chunk of a batch of `items` stays within the buffer or type of argument `index`.
#[inline]
fn check_items(
    slot: &Slot<'_>,
    index: usize,
    items: Option<u64>,
    signature: &Signature,
) -> Result<(), ArgsError> {
    match (*slot, items) {
        (Slot::Workspace, _) => Err(ArgsError::WorkspaceNotAllocated { index }),
        (Slot::Items { base, stride_bytes, span_bytes, reach_bytes }, Some(items)) => {
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
            Ok(())
        }
        (Slot::Offset { width } | Slot::Length { width }, Some(items)) => {
            let width = match (width, signature.bytes_of(index)) {
                (Width::Parameter, Some(8)) => Width::U64,
                _ => width,
            };
            check_width(width, index, items)
        }
        (Slot::Parts { per_item }, Some(items)) if items.checked_mul(per_item).is_none() => {
            Err(ArgsError::PartsPast64Bits { index, per_item, items })
        }
        (
            Slot::Items { .. } | Slot::Offset { .. } | Slot::Length { .. } | Slot::Parts { .. },
            None,
        ) => Err(ArgsError::NoBatch { index }),
        _ => Ok(()),
    }
}

/// Checks that argument `index`, of the type `width`, can represent `items`.
#[inline]
fn check_width(width: Width, index: usize, items: u64) -> Result<(), ArgsError> {
    let (fits, signed) = match width {
        Width::U64 => return Ok(()),
        Width::U32 => (u32::try_from(items).is_ok(), false),
        Width::I32 | Width::Parameter => (i32::try_from(items).is_ok(), true),
    };
    if fits { Ok(()) } else { Err(ArgsError::ItemsPast32Bits { index, signed, items }) }
}

/// Checks that argument `index` has the size and kind of its parameter, if known.
#[inline]
fn check_parameter(
    slot: &Slot<'_>,
    index: usize,
    signature: &Signature,
    kernel: &KernelLimits,
) -> Result<(), ArgsError> {
    let name = || kernel.name.clone();
    if let Signature::Declared(parameters) = signature
        && let Some(parameter) = parameters.get(index)
    {
        if let Some(alignment) = parameter.missed_alignment(slot) {
            return Err(ArgsError::Misaligned { kernel: name(), index, alignment });
        }
        if !parameter.takes(slot) {
            let kind = |memory| if memory { "memory" } else { "a value" };
            let (given, expected) = (kind(slot.is_memory()), kind(!slot.is_memory()));
            return Err(ArgsError::WrongKind { kernel: name(), index, expected, given });
        }
    }
    match signature.bytes_of(index) {
        Some(expected) if !slot.fits(expected) => {
            Err(ArgsError::WrongSize { kernel: name(), index, expected, given: slot.size() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
