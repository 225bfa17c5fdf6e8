//! Sizes that a kernel takes.

use core::ops::RangeInclusive;

use crate::element::ElementType;
use crate::error::KernelError;

/// Checks that `dimension` is within what the kernel takes.
pub(crate) fn check_size(
    dimension: &'static str,
    given: u64,
    expected: RangeInclusive<u64>,
) -> Result<(), KernelError> {
    if expected.contains(&given) {
        return Ok(());
    }
    let (least, most) = expected.into_inner();
    Err(KernelError::Dimension { dimension, given, least, most })
}

/// Checks that the bytes of a tensor of this shape, of the widest element, count in 64 bits, also
/// where the slowest axis is empty.
pub(crate) fn check_elements(shape: &[u64]) -> Result<(), KernelError> {
    let bytes = shape
        .iter()
        .try_fold(ElementType::F32.bytes(), |bytes, size| bytes.checked_mul((*size).max(1)));
    match bytes {
        Some(_) => Ok(()),
        None => Err(KernelError::TooLarge { shape: shape.to_vec() }),
    }
}
