//! Attention over short sequences.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp3, D, Error, Layout, Result, Shape, Storage, Tensor};
use gridguard::DeviceLimits;
use gridguard_kernels::KernelError;
use gridguard_kernels::temporal_attention::{
    Folded, NotFolded, StridedView, TemporalAttention, Variant, reference,
};
use rayon::prelude::*;
#[cfg(feature = "cuda")]
use {
    crate::device::{DeviceLaunches, failed},
    crate::element::{device_elements, elements_from, output},
    candle_core::CudaStorage,
    cudarc::driver::CudaView,
    gridguard::cuda::InOrder,
    gridguard_kernels::{Extent, Tensor as Input, TensorMut as Output},
};

use crate::element::{
    Supported, check_alike, element_type, host_elements, is_whole_vectors, narrow, packed, rounded,
    unsupported, wide, with_element,
};

const ATTENTION: &str = "gridguard-attention";

/// Attention over the frames of each item and head, or cross-attention: `softmax(scale * q k^T + bias) v`.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use gridguard_candle::Attention;
///
/// // q, k and v of one projection, [items, frames, 3, heads, head_dim], without a copy on a device.
/// let qkv = Tensor::randn(0_f32, 1.0, (40, 16, 3, 5, 64), &Device::Cpu)?;
/// let part = |at: usize| qkv.get_on_dim(2, at)?.transpose(1, 2);
/// let out = Attention::new(0.125).causal().forward(&part(0)?, &part(1)?, &part(2)?)?;
/// assert_eq!(out.dims(), [40, 5, 16, 64]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Attention {
    scale: f32,
    causal: bool,
    /// A private copy, which nothing else writes or locks.
    bias: Option<Tensor>,
}

impl Attention {
    /// Attention with `scale`, usually `1 / sqrt(head_dim)`: finite, not negative.
    pub const fn new(scale: f32) -> Self {
        Self { scale, causal: false, bias: None }
    }

    /// A causal mask: query n attends to the first n + 1 keys.
    pub const fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// Adds `[frames, keys]`, of the tensors' type and on their device, to the scaled scores of every item and
    /// head. -inf hides a key. A query with all keys hidden gives zeros. The bias is copied once, here.
    ///
    /// # Errors
    ///
    /// [`Error::BackwardNotSupported`] for a bias whose gradient candle tracks: `detach` it.
    pub fn with_bias(mut self, bias: &Tensor) -> Result<Self> {
        if bias.track_op() {
            return Err(Error::BackwardNotSupported { op: ATTENTION }.bt());
        }
        self.bias = Some(bias.force_contiguous()?);
        Ok(self)
    }

    /// Attention over f16, bf16 or f32 tensors. q is `[items, heads, frames, head_dim]`, `[items, frames, head_dim]`,
    /// or any number of batch axes before `[frames, head_dim]`. k and v have the same shape with any number of keys
    /// instead of frames. Head dimensions are at most 512. If they are a multiple of 8, or of 4 in f32, the fast kernels take
    /// up to 512 frames and keys, or 128 keys above a head dimension of 128. The output is contiguous and has the shape of q.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedDTypeForOp`], [`Error::DTypeMismatchBinaryOp`], [`Error::UnexpectedNumberOfDims`],
    /// [`Error::ShapeMismatchBinaryOp`], [`Error::DeviceMismatchBinaryOp`], and a [`KernelError`] for an unsupported
    /// size or scale. On a device also [`Error::Cuda`] with a [`KernelError`] or candle's own error.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        element_type(q.dtype(), ATTENTION)?;
        for other in [Some(k), Some(v), self.bias.as_ref()].into_iter().flatten() {
            check_alike(q, other, ATTENTION)?;
        }
        let &[ref batch @ .., frames, head_dim] = q.dims() else {
            let (got, shape) = (q.rank(), q.shape().clone());
            return Err(Error::UnexpectedNumberOfDims { expected: 4, got, shape }.bt());
        };
        let keys = k.dim(D::Minus2).unwrap_or(frames);
        let of_keys = Shape::from([batch, &[keys, head_dim]].concat());
        for other in [k, v] {
            if *other.shape() != of_keys {
                return Err(other_shape(&of_keys, other.shape()));
            }
        }
        if let Some(bias) = &self.bias
            && bias.dims() != [frames, keys]
        {
            return Err(other_shape(&Shape::from((frames, keys)), bias.shape()));
        }
        if !self.scale.is_finite() || self.scale < 0.0 {
            let (given, expected) = (self.scale, "a finite number that is not negative");
            return Err(unsupported(KernelError::Value { argument: "scale", given, expected }));
        }
        if batch.contains(&0) {
            return Ok(q.clone());
        }
        let (mut q, mut k, mut v) = (aligned(q)?, aligned(k)?, aligned(v)?);
        let bias = self.bias.as_ref();
        let mut folded = fold([&q, &k, &v], bias);
        if folded == Err(NotFolded::Strides) {
            (q, k, v) = (packed(&q)?, packed(&k)?, packed(&v)?);
            folded = fold([&q, &k, &v], bias);
        }
        let folded = folded.map_err(|error| match error {
            NotFolded::Shape(error) => unsupported(error),
            other => Error::wrap(other),
        })?;
        q.apply_op3(&k, &v, Operator { attention: self.clone(), folded })
    }
}

fn other_shape(lhs: &Shape, rhs: &Shape) -> Error {
    Error::ShapeMismatchBinaryOp { lhs: lhs.clone(), rhs: rhs.clone(), op: ATTENTION }.bt()
}

/// The tensor, or a copy as its device needs it: contiguous on the host, else with aligned rows if they are whole
/// vectors.
fn aligned(tensor: &Tensor) -> Result<Tensor> {
    if tensor.device().is_cpu() {
        return packed(tensor);
    }
    let is_whole = |elements: usize| is_whole_vectors(elements, tensor.dtype());
    let mut axes = tensor.dims().iter().zip(tensor.stride()).rev();
    let has_whole_rows = axes.next().is_none_or(|(head_dim, _)| is_whole(*head_dim));
    let is_aligned = is_whole(tensor.layout().start_offset())
        && axes.all(|(size, stride)| *size <= 1 || is_whole(*stride));
    if has_whole_rows && !is_aligned {
        return tensor.force_contiguous();
    }
    Ok(tensor.clone())
}

/// q, k, v, a contiguous output and the bias as items and heads.
fn fold(tensors: [&Tensor; 3], bias: Option<&Tensor>) -> core::result::Result<Folded, NotFolded> {
    let wide = |sizes: &[usize]| sizes.iter().copied().map(wide).collect::<Vec<u64>>();
    let of = |layout: &Layout| (wide(layout.dims()), wide(layout.stride()));
    let [of_q, of_k, of_v] = tensors.map(|tensor| of(tensor.layout()));
    let of_out = of(&Layout::contiguous(tensors[0].shape()));
    let of_bias = bias.map(|bias| of(bias.layout()));
    let views = [&of_q, &of_k, &of_v, &of_out].map(view);
    Folded::new(views, of_bias.as_ref().map(view), false)
}

fn view((dims, strides): &(Vec<u64>, Vec<u64>)) -> StridedView<'_> {
    StridedView { dims, strides }
}

/// Attention over tensors of the same type and device.
struct Operator {
    attention: Attention,
    folded: Folded,
}

impl Operator {
    fn on_host<T: Supported>(
        &self,
        tensors: [(&CpuStorage, &Layout); 3],
    ) -> Result<(CpuStorage, Shape)> {
        let [(_, layout), ..] = tensors;
        let (shape, device) = (self.folded.shape, DeviceLimits::any_device());
        let general = TemporalAttention::by_variant(shape, T::TYPE, &device, Variant::General);
        let operation = self.folded.options(general.map_err(unsupported)?, self.attention.causal);
        let bias = self.attention.bias.as_ref().map(Tensor::storage_and_layout);
        let bias = bias.as_ref().map(|(storage, layout)| match &**storage {
            Storage::Cpu(storage) => host_elements::<T>(storage, layout, ATTENTION),
            _ => Err(bias_on_other_device()),
        });
        let bias = bias.transpose()?;

        let [q, k, v] = tensors.map(|(storage, layout)| host_elements(storage, layout, ATTENTION));
        let [of_q, of_k] =
            [shape.elements_per_problem(), shape.key_elements_per_problem()].map(narrow);
        let (k, v) = (k?.par_chunks(of_k), v?.par_chunks(of_k));
        let problem = |((q, k), v)| {
            rounded::<T>(&reference(&operation, self.attention.scale, [q, k, v], bias))
        };
        let out = q?.par_chunks(of_q).zip(k).zip(v).flat_map_iter(problem).collect();
        Ok((T::to_cpu_storage_owned(out), layout.shape().clone()))
    }

    #[cfg(feature = "cuda")]
    #[allow(unsafe_code, reason = "memory that is not cleared")]
    fn on_device<T: Supported>(
        &self,
        tensors: [(&CudaStorage, &Layout); 3],
    ) -> Result<(CudaStorage, Shape)> {
        let [(CudaStorage { device, .. }, layout), ..] = tensors;
        let [of_q, of_k, of_v, of_out] = self.folded.extents;
        let launches = DeviceLaunches::of(device)?;
        let limits = launches.kernels.guard().limits();
        let operation = TemporalAttention::new(self.folded.shape, T::TYPE, limits);
        let operation = self.folded.options(operation.map_err(failed)?, self.attention.causal);
        let prepared = launches.attention.get(&launches.kernels, operation)?;
        let bias = self.attention.bias.as_ref().map(Tensor::storage_and_layout);
        let bias = bias.as_ref().map(|(storage, layout)| match &**storage {
            Storage::Cuda(storage) => device_elements::<T>(storage, layout, ATTENTION),
            _ => Err(bias_on_other_device()),
        });
        let bias = bias.transpose()?;

        let [q, k, v] = tensors;
        let (q, k, v) = (reached::<T>(q, &of_q)?, reached(k, &of_k)?, reached(v, &of_v)?);
        let inputs = [(&q, of_q), (&k, of_k), (&v, of_v)];
        let inputs = inputs.map(|(memory, extent)| Input::with_extent(memory, extent));
        let bias = bias.as_ref().zip(self.folded.bias);
        let bias = bias.map(|(bias, extent)| Input::with_extent(bias, extent));
        // SAFETY: the launch checks that the output is contiguous and of this length, and writes all of its elements.
        // If it fails, the memory is dropped.
        let mut out = unsafe { device.alloc::<T>(layout.shape().elem_count()) }?;
        let mut written = output(&mut out);
        let to = Output::with_extent(&mut written, of_out);
        let scale = self.attention.scale;
        prepared.launch(&device.cuda_stream(), inputs, bias, scale, to).map_err(failed)?;
        Ok((T::wrap_cuda_slice(out, device.clone()), layout.shape().clone()))
    }
}

/// The elements between the first and the last of a tensor, both included.
#[cfg(feature = "cuda")]
fn reached<'a, T: Supported>(
    (storage, layout): (&'a CudaStorage, &Layout),
    extent: &Extent<4>,
) -> Result<InOrder<CudaView<'a, T>>> {
    let (first, length) = (layout.start_offset(), usize::try_from(extent.reach()));
    let end = length.ok().and_then(|length| first.checked_add(length));
    let own = end.and_then(|end| elements_from(storage, (first, end)));
    own.ok_or_else(|| Error::RequiresContiguous { op: ATTENTION }.bt())
}

fn bias_on_other_device() -> Error {
    Error::msg("the bias of the attention is on another kind of device")
}

impl CustomOp3 for Operator {
    fn name(&self) -> &'static str {
        ATTENTION
    }

    fn cpu_fwd(
        &self,
        q: &CpuStorage,
        of_q: &Layout,
        k: &CpuStorage,
        of_k: &Layout,
        v: &CpuStorage,
        of_v: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let tensors = [(q, of_q), (k, of_k), (v, of_v)];
        with_element!(q.dtype(), ATTENTION, T => self.on_host::<T>(tensors))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        q: &CudaStorage,
        of_q: &Layout,
        k: &CudaStorage,
        of_k: &Layout,
        v: &CudaStorage,
        of_v: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let tensors = [(q, of_q), (k, of_k), (v, of_v)];
        with_element!(q.dtype(), ATTENTION, T => self.on_device::<T>(tensors))
    }
}
