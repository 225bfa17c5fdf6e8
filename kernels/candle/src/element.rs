//! Element types that candle and the kernels share, and the memory of candle's tensors.

use candle_core::{CpuStorage, DType, Error, Layout, Result, Tensor, WithDType};
use gridguard_kernels::{Element, ElementType, KernelError};
use half::{bf16, f16};
#[cfg(feature = "cuda")]
use {
    candle_core::CudaStorage,
    candle_core::cuda::CudaDType,
    cudarc::driver::{CudaSlice, CudaView, CudaViewMut},
    gridguard::cuda::InOrder,
};

/// A type of elements that both candle and the kernels support.
#[cfg(feature = "cuda")]
pub(crate) trait Supported: Element + WithDType + CudaDType {}
/// A type of elements that both candle and the kernels support.
#[cfg(not(feature = "cuda"))]
pub(crate) trait Supported: Element + WithDType {}

impl Supported for f16 {}
impl Supported for bf16 {}
impl Supported for f32 {}

/// Evaluates an expression with `$element` as the type of `$dtype`.
macro_rules! with_element {
    ($dtype:expr, $operator:expr, $element:ident => $value:expr) => {
        match $crate::element::element_type($dtype, $operator)? {
            gridguard_kernels::ElementType::F16 => {
                type $element = half::f16;
                $value
            }
            gridguard_kernels::ElementType::Bf16 => {
                type $element = half::bf16;
                $value
            }
            gridguard_kernels::ElementType::F32 => {
                type $element = f32;
                $value
            }
        }
    };
}
pub(crate) use with_element;

/// The element type of the kernels for `dtype`.
pub(crate) fn element_type(dtype: DType, operator: &'static str) -> Result<ElementType> {
    match dtype {
        DType::F16 => Ok(ElementType::F16),
        DType::BF16 => Ok(ElementType::Bf16),
        DType::F32 => Ok(ElementType::F32),
        other => Err(Error::UnsupportedDTypeForOp(other, operator).bt()),
    }
}

/// Checks that two tensors have one type and one device.
pub(crate) fn check_alike(one: &Tensor, other: &Tensor, op: &'static str) -> Result<()> {
    let (lhs, rhs) = (one.dtype(), other.dtype());
    if lhs != rhs {
        return Err(Error::DTypeMismatchBinaryOp { lhs, rhs, op }.bt());
    }
    if !one.device().same_device(other.device()) {
        let (lhs, rhs) = (one.device().location(), other.device().location());
        return Err(Error::DeviceMismatchBinaryOp { lhs, rhs, op }.bt());
    }
    Ok(())
}

/// A shape or value that a kernel does not support, found before anything was launched.
pub(crate) fn unsupported(error: KernelError) -> Error {
    Error::wrap(error)
}

/// A size as u64, as the kernels use it.
pub(crate) fn wide(size: usize) -> u64 {
    u64::try_from(size).unwrap_or(u64::MAX)
}

/// A size of a tensor that is in memory.
pub(crate) fn narrow(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

/// Results in f64, rounded once.
pub(crate) fn rounded<T: Supported>(results: &[f64]) -> Vec<T> {
    results.iter().map(|result| T::from_f64(*result)).collect()
}

/// Bytes that kernels load at once.
const VECTOR_BYTES: usize = 16;

/// Whether `elements` is a multiple of the kernels' vectors.
pub(crate) fn is_whole_vectors(elements: usize, dtype: DType) -> bool {
    elements.is_multiple_of(VECTOR_BYTES / dtype.size_in_bytes().clamp(1, VECTOR_BYTES))
}

/// The tensor if it is contiguous and, on a device, aligned to a vector; else a copy.
pub(crate) fn packed(tensor: &Tensor) -> Result<Tensor> {
    let is_aligned = tensor.device().is_cpu()
        || is_whole_vectors(tensor.layout().start_offset(), tensor.dtype());
    if tensor.is_contiguous() && is_aligned {
        Ok(tensor.clone())
    } else {
        tensor.force_contiguous()
    }
}

/// The elements of a contiguous tensor on the host.
pub(crate) fn host_elements<'a, T: Supported>(
    storage: &'a CpuStorage,
    layout: &Layout,
    operator: &'static str,
) -> Result<&'a [T]> {
    let elements = T::cpu_storage_as_slice(storage)?;
    let own = layout.contiguous_offsets().and_then(|(first, end)| elements.get(first..end));
    own.ok_or_else(|| Error::RequiresContiguous { op: operator }.bt())
}

/// The elements of a contiguous tensor on a device.
#[cfg(feature = "cuda")]
pub(crate) fn device_elements<'a, T: Supported>(
    storage: &'a CudaStorage,
    layout: &Layout,
    operator: &'static str,
) -> Result<InOrder<CudaView<'a, T>>> {
    let own = layout.contiguous_offsets().and_then(|of| elements_from(storage, of));
    own.ok_or_else(|| Error::RequiresContiguous { op: operator }.bt())
}

/// The elements `first` to `end` (exclusive), if the storage has them.
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "candle's order of work on a device")]
pub(crate) fn elements_from<T: Supported>(
    storage: &CudaStorage,
    (first, end): (usize, usize),
) -> Option<InOrder<CudaView<'_, T>>> {
    let elements = T::as_cuda_slice(storage).ok()?.try_slice(first..end)?;
    // SAFETY: candle and the operators submit all work on this memory, freeing included, to the stream of the device.
    // If that is the per-thread stream, candle requires the program to synchronise threads that use one tensor, also
    // for candle's own operations.
    Some(unsafe { InOrder::new(elements) })
}

/// The memory of an operator's output.
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "candle's order of work on a device")]
pub(crate) fn output<T>(memory: &mut CudaSlice<T>) -> InOrder<CudaViewMut<'_, T>> {
    // SAFETY: as above. Nothing else uses the memory yet.
    unsafe { InOrder::new(memory.as_view_mut()) }
}
