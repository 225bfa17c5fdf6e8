//! Operators over rows, the last axis of a tensor.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, DType, Error, Layout, Result, Shape, Tensor, WithDType,
};
use gridguard_kernels::argsort::{self, Argsort, Order};
use gridguard_kernels::rms_norm::{self, RmsNorm};
use gridguard_kernels::softmax::{self, Softmax};
use rayon::prelude::*;
#[cfg(feature = "cuda")]
use {
    crate::device::{DeviceLaunches, failed},
    crate::element::{device_elements, output},
    candle_core::CudaStorage,
    candle_core::cuda::CudaDType,
    cudarc::driver::{CudaStream, DeviceRepr},
    gridguard_kernels::{KernelError, Tensor as Input, TensorMut as Output},
};

use crate::element::{
    Supported, check_alike, element_type, host_elements, narrow, packed, rounded, unsupported,
    wide, with_element,
};

const SOFTMAX: &str = "gridguard-softmax";
const ARGSORT: &str = "gridguard-argsort";
const RMS_NORM: &str = "gridguard-rms-norm";

/// The softmax along the last axis, of up to 1,048,576 elements of f16, bf16 or f32.
///
/// An element of -inf gives 0, also in a row of nothing else, where candle's own operator gives NaN.
///
/// # Errors
///
/// [`Error::UnsupportedDTypeForOp`], [`Error::UnexpectedNumberOfDims`] for a scalar, and an error of the kernels
/// for a longer row. On a device also [`Error::Cuda`] with a [`KernelError`](gridguard_kernels::KernelError) or
/// candle's own error.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    let element = element_type(x.dtype(), SOFTMAX)?;
    let [rows, columns] = rows_of(x)?;
    let operation = Softmax::new(rows, columns, element).map_err(unsupported)?;
    if rows == 0 {
        return Ok(x.clone());
    }
    packed(x)?.apply_op1(RowSoftmax(operation))
}

/// The columns that sort each row, along the last axis of up to 32,768 elements of f16, bf16 or f32. The smallest
/// element is first if `ascending`, else the largest.
///
/// Stable in both directions. NaN is greater than everything else. candle's own operator is limited to the default
/// 48 KiB of shared memory. This one opts in to the limit of the device, 227 KiB for compute capability 9.0;
/// 32,768 columns of f32 need 200 KiB.
///
/// # Errors
///
/// As [`softmax()`], also if a row does not fit into the device's shared memory.
pub fn argsort(x: &Tensor, ascending: bool) -> Result<Tensor> {
    let element = element_type(x.dtype(), ARGSORT)?;
    let [rows, columns] = rows_of(x)?;
    let order = if ascending { Order::Ascending } else { Order::Descending };
    let operation = Argsort::new(rows, columns, element, order).map_err(unsupported)?;
    if rows == 0 {
        return Tensor::zeros(x.shape(), DType::U32, x.device());
    }
    packed(x)?.apply_op1(RowArgsort { operation, order })
}

/// The RMS norm along the last axis, `x / sqrt(mean(x^2) + epsilon) * weight`, of up to 1,048,576 elements of f16,
/// bf16 or f32; `weight` has the type and length of a row.
///
/// # Errors
///
/// As [`softmax()`]; [`Error::DTypeMismatchBinaryOp`] and [`Error::ShapeMismatchBinaryOp`] if `weight` does not fit,
/// [`Error::DeviceMismatchBinaryOp`] if it is on another device.
pub fn rms_norm(x: &Tensor, weight: &Tensor, epsilon: f32) -> Result<Tensor> {
    let element = element_type(x.dtype(), RMS_NORM)?;
    check_alike(x, weight, RMS_NORM)?;
    let [rows, columns] = rows_of(x)?;
    if weight.rank() != 1 || wide(weight.elem_count()) != columns {
        let (lhs, rhs) = (x.shape().clone(), weight.shape().clone());
        return Err(Error::ShapeMismatchBinaryOp { lhs, rhs, op: RMS_NORM }.bt());
    }
    let operation = RmsNorm::new(rows, columns, element).map_err(unsupported)?;
    if rows == 0 {
        return Ok(x.clone());
    }
    packed(x)?.apply_op2(&packed(weight)?, RowRmsNorm { operation, epsilon })
}

/// The number of rows, and of their elements.
fn rows_of(x: &Tensor) -> Result<[u64; 2]> {
    let Some((columns, outer)) = x.dims().split_last() else {
        let shape = x.shape().clone();
        return Err(Error::UnexpectedNumberOfDims { expected: 1, got: 0, shape }.bt());
    };
    Ok([wide(outer.iter().product()), wide(*columns)])
}

/// Rows of one tensor by a reference, in parallel.
fn on_host<T: Supported, U: WithDType>(
    (storage, layout): (&CpuStorage, &Layout),
    operator: &'static str,
    [_, columns]: [u64; 2],
    reference: impl Fn(&[T]) -> Vec<U> + Send + Sync,
) -> Result<(CpuStorage, Shape)> {
    let rows = host_elements::<T>(storage, layout, operator)?.par_chunks(narrow(columns));
    let out = rows.flat_map_iter(reference).collect();
    Ok((U::to_cpu_storage_owned(out), layout.shape().clone()))
}

/// Rows of one tensor by a launch that writes all elements of its output, of the tensor's shape.
#[cfg(feature = "cuda")]
#[allow(unsafe_code, reason = "memory that is not cleared")]
fn on_device<T: Supported, U: CudaDType + DeviceRepr>(
    (storage, layout): (&CudaStorage, &Layout),
    operator: &'static str,
    dims: [u64; 2],
    launch: impl FnOnce(
        &CudaStream,
        Input<'_, T, 2>,
        Output<'_, U, 2>,
    ) -> core::result::Result<u64, KernelError>,
) -> Result<(CudaStorage, Shape)> {
    let input = device_elements::<T>(storage, layout, operator)?;
    // SAFETY: the launch of each operator checks that the memory has exactly `[rows, columns]` elements, and writes
    // all of them. If it fails, the memory is dropped.
    let mut out = unsafe { storage.device.alloc::<U>(layout.shape().elem_count()) }?;
    let mut written = output(&mut out);
    let (x, to) = (Input::new(&input, dims), Output::new(&mut written, dims));
    launch(&storage.device.cuda_stream(), x, to).map_err(failed)?;
    Ok((U::wrap_cuda_slice(out, storage.device.clone()), layout.shape().clone()))
}

struct RowSoftmax(Softmax);

impl CustomOp1 for RowSoftmax {
    fn name(&self) -> &'static str {
        SOFTMAX
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let dims = self.0.dims();
        with_element!(x.dtype(), SOFTMAX, T => {
            on_host((x, layout), SOFTMAX, dims, |row: &[T]| rounded::<T>(&softmax::reference(row)))
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (launches, dims) = (DeviceLaunches::of(&x.device)?, self.0.dims());
        let prepared = launches.softmax.get(&launches.kernels, self.0)?;
        with_element!(x.dtype(), SOFTMAX, T => {
            on_device::<T, T>((x, layout), SOFTMAX, dims, |s, x, out| prepared.launch(s, x, out))
        })
    }
}

struct RowArgsort {
    operation: Argsort,
    order: Order,
}

impl CustomOp1 for RowArgsort {
    fn name(&self) -> &'static str {
        ARGSORT
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let dims = self.operation.dims();
        with_element!(x.dtype(), ARGSORT, T => {
            on_host((x, layout), ARGSORT, dims, |row: &[T]| argsort::reference(row, self.order))
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
        let (launches, dims) = (DeviceLaunches::of(&x.device)?, self.operation.dims());
        let prepared = launches.argsort.get(&launches.kernels, self.operation)?;
        with_element!(x.dtype(), ARGSORT, T => {
            on_device::<T, u32>((x, layout), ARGSORT, dims, |s, x, out| prepared.launch(s, x, out))
        })
    }
}

struct RowRmsNorm {
    operation: RmsNorm,
    epsilon: f32,
}

impl CustomOp2 for RowRmsNorm {
    fn name(&self) -> &'static str {
        RMS_NORM
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        with_element!(x.dtype(), RMS_NORM, T => {
            let weight = host_elements::<T>(weight, weight_layout, RMS_NORM)?;
            on_host((x, layout), RMS_NORM, self.operation.dims(), |row: &[T]| {
                rounded::<T>(&rms_norm::reference(row, weight, self.epsilon))
            })
        })
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (launches, dims) = (DeviceLaunches::of(&x.device)?, self.operation.dims());
        let prepared = launches.rms_norm.get(&launches.kernels, self.operation)?;
        with_element!(x.dtype(), RMS_NORM, T => {
            let weight = device_elements::<T>(weight, weight_layout, RMS_NORM)?;
            on_device::<T, T>((x, layout), RMS_NORM, dims, |stream, x, out| {
                let weight = Input::new(&weight, [dims[1]]);
                prepared.launch(stream, x, weight, self.epsilon, out)
            })
        })
    }
}
