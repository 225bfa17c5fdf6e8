//! Attention launches.

use core::ffi::c_void;

use cudarc::driver::CudaStream;
use gridguard::cuda::Args;
use gridguard::profile::{DefaultReason, Match, Objective, Policy};
use gridguard::{Choice, KernelArgs, RawArgs};

use super::backward::AttentionBackward;
use super::folded::Folded;
use super::operation::{
    Layout, STRIDE_BYTES, STRIDES_BYTES, TemporalAttention, check_given, narrow,
};
use crate::element::Element;
use crate::error::KernelError;
use crate::extent::Extent;
use crate::kernels::{Kernels, Prepared, TunedLaunch};
use crate::operation::{Operation, VECTOR_BYTES};
use crate::tensor::{Tensor, TensorMut, check, check_element, check_shape};

impl Kernels {
    /// Prepares attention with the choice of the guard's profile for its shape. Profiles have entries for the layout
    /// on y, without strides, mask and bias; a choice may move the launch to x. Without an entry the launch is flat
    /// on x. Shapes with different numbers of frames and keys, or different head dimensions, are not in profiles.
    ///
    /// # Errors
    ///
    /// As [`Self::prepare`].
    pub fn prepare_attention(
        &self,
        attention: TemporalAttention,
    ) -> Result<TunedLaunch<TemporalAttention>, KernelError> {
        let flat = attention.with_layout(Layout::FlatX);
        if !attention.shape.is_in_profiles() {
            return self.prepare_untuned(flat);
        }
        let folded = attention.with_layout(Layout::FoldedY);
        let limits = self.guard().limits();
        let key = folded.plain().key(limits, Policy::default(), Objective::default())?;
        self.prepare_by(&key, &folded, flat)
    }

    /// As [`Self::prepare_attention`], for the gradients. Profiles have no entries for causal gradients and those with a
    /// bias, which take other launch parameters.
    ///
    /// # Errors
    ///
    /// As [`Self::prepare`].
    pub fn prepare_attention_backward(
        &self,
        backward: AttentionBackward,
    ) -> Result<TunedLaunch<AttentionBackward>, KernelError> {
        let attention = backward.attention;
        let flat = backward.with_layout(Layout::FlatX);
        if attention.causal || attention.biased || !attention.shape.is_in_profiles() {
            return self.prepare_untuned(flat);
        }
        let folded = backward.with_layout(Layout::FoldedY);
        let mut plain = folded;
        plain.attention = plain.attention.plain();
        let limits = self.guard().limits();
        let key = plain.key(limits, Policy::default(), Objective::default())?;
        self.prepare_by(&key, &folded, flat)
    }

    fn prepare_untuned<O: Operation>(&self, default: O) -> Result<TunedLaunch<O>, KernelError> {
        let prepared = self.prepare(default, Choice::AUTOMATIC)?;
        let matched = Match::Default(DefaultReason::NoEntries);
        Ok(TunedLaunch { prepared, matched, rejected: None })
    }
}

impl Prepared<TemporalAttention> {
    /// Submits the launches to `stream` and returns their number without waiting for them.
    ///
    /// The tensors have the dimensions [`Shape::dims`](super::Shape::dims), [`key_dims`](super::Shape::key_dims),
    /// [`value_dims`](super::Shape::value_dims) and [`out_dims`](super::Shape::out_dims), contiguous. A `bias` must be given if and only if the launch was prepared with one; it has the extent
    /// [`Shape::shared_bias`](super::Shape::shared_bias). If prepared [with strides](TemporalAttention::with_strides),
    /// the first three axes of all tensors may have any strides, for example `[batch, frames, heads, head_dim]` with two
    /// axes swapped.
    /// `scale` must be finite and not negative.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape, length or strides, before anything is
    /// launched; [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
    #[track_caller]
    pub fn launch<T: Element>(
        &self,
        stream: &CudaStream,
        [q, k, v]: [Tensor<'_, T, 4>; 3],
        bias: Option<Tensor<'_, T, 4>>,
        scale: f32,
        out: TensorMut<'_, T, 4>,
    ) -> Result<u64, KernelError> {
        let form = self.operation().form();
        self.submit_tensors(&form, stream, [q, k, v], (bias, None), scale, [out])
    }

    /// As [`Self::launch`], with the addresses of the tensors and the handle of the stream (a `CUstream`, null for
    /// the default stream), for memory of other CUDA bindings. The calling thread's current context does not
    /// change, and a stream that is being captured is not refused.
    ///
    /// # Safety
    ///
    /// `addresses` point to q, k, v and out, and to the bias if there is one. `tensors` describes this memory, which has
    /// elements of the prepared type, or bytes where it is a mask, and is in the context of the guard. `stream` is a live
    /// stream of that context. The memory lives until the launches have run. Until then, no other work writes it, or reads out. If
    /// the stream is being captured, this also holds for the launches of the graph, and the caller keeps a clone of
    /// `self` for as long.
    ///
    /// # Errors
    ///
    /// As [`Self::launch`].
    #[track_caller]
    #[allow(unsafe_code, reason = "memory and streams of other CUDA bindings")]
    pub unsafe fn launch_raw(
        &self,
        stream: *mut c_void,
        (addresses, bias): ([u64; 4], Option<u64>),
        tensors: &Folded,
        scale: f32,
    ) -> Result<u64, KernelError> {
        let form = self.operation().form();
        // SAFETY: this function's contract.
        unsafe { self.submit_addresses(&form, stream, addresses, [None, bias], tensors, scale) }
    }
}

impl Prepared<AttentionBackward> {
    /// Submits the launches to `stream` and returns their number without waiting for them.
    ///
    /// `grad` is the gradient of the output, as q. dq, dk and dv are as q, k and v. Everything else is as in the launch of
    /// [`TemporalAttention`]. A query whose keys are all hidden has gradients of zero. The sums have a fixed order, so that
    /// the same tensors give the same bits.
    ///
    /// `bias_gradient` must be given if and only if the launch was prepared
    /// [with it](AttentionBackward::with_bias_gradient). It is `[items, heads, frames, keys]`, contiguous, for a bias of any
    /// strides.
    ///
    /// # Errors
    ///
    /// As the launch of [`TemporalAttention`].
    #[track_caller]
    pub fn launch<T: Element>(
        &self,
        stream: &CudaStream,
        inputs: [Tensor<'_, T, 4>; 4],
        bias: Option<Tensor<'_, T, 4>>,
        scale: f32,
        gradients: [TensorMut<'_, T, 4>; 3],
        bias_gradient: Option<TensorMut<'_, T, 4>>,
    ) -> Result<u64, KernelError> {
        let form = self.operation().form();
        self.submit_tensors(&form, stream, inputs, (bias, bias_gradient), scale, gradients)
    }

    /// As [`Self::launch`], with addresses and a handle as `launch_raw` of [`TemporalAttention`] takes them.
    ///
    /// # Safety
    ///
    /// As `launch_raw` of [`TemporalAttention`], for the addresses of q, k, v, grad, dq, dk and dv, and for
    /// `bias_gradient`, which has the elements of the [launch by slices](Self::launch). The memory of the gradients has no
    /// element of another tensor.
    ///
    /// # Errors
    ///
    /// As [`Self::launch`].
    #[track_caller]
    #[allow(unsafe_code, reason = "memory and streams of other CUDA bindings")]
    pub unsafe fn launch_raw(
        &self,
        stream: *mut c_void,
        (addresses, bias): ([u64; 7], Option<u64>),
        bias_gradient: Option<u64>,
        tensors: &Folded<7>,
        scale: f32,
    ) -> Result<u64, KernelError> {
        let (form, of_bias) = (self.operation().form(), [bias_gradient, bias]);
        // SAFETY: this function's contract.
        unsafe { self.submit_addresses(&form, stream, addresses, of_bias, tensors, scale) }
    }
}

impl<O> Prepared<O> {
    #[track_caller]
    fn submit_tensors<T: Element, const R: usize, const W: usize>(
        &self,
        form: &Form<'_>,
        stream: &CudaStream,
        reads: [Tensor<'_, T, 4>; R],
        (bias, bias_gradient): (Option<Tensor<'_, T, 4>>, Option<TensorMut<'_, T, 4>>),
        scale: f32,
        writes: [TensorMut<'_, T, 4>; W],
    ) -> Result<u64, KernelError> {
        check_element::<T>(form.attention.element)?;
        let of_bias = bias.as_ref().map(|bias| (bias.extent, bias.memory.len()));
        let tensors = || {
            let reads = reads.iter().map(|tensor| (tensor.extent, tensor.memory.len()));
            let writes = writes.iter().map(|tensor| (tensor.extent, tensor.memory.len()));
            reads.chain(writes).chain(of_bias)
        };
        let extents = || tensors().map(|(extent, _)| extent);
        for ((name, extent, dims), (_, length)) in form.named(extents()).zip(tensors()) {
            check(name, length, &extent, dims)?;
        }
        form.attention.check_bias(bias.is_some())?;
        form.check_launch(extents(), scale)?;
        check_given(BIAS_GRADIENT, bias_gradient.is_some(), form.bias_gradient)?;
        let score_dims = form.attention.shape.score_dims();
        let bias_gradient =
            bias_gradient.map(|it| it.contiguous(BIAS_GRADIENT, score_dims)).transpose()?;

        let strides = strides_of(extents());
        let mut args = Args::new(stream);
        for tensor in &reads {
            let (stride, span) = item_of(&tensor.extent);
            args.read_strided_items(tensor.memory, stride, span);
        }
        for tensor in writes {
            let (stride, span) = item_of(&tensor.extent);
            args.write_strided_items(tensor.memory, stride, span);
        }
        if let Some(memory) = bias_gradient {
            args.write_items(memory, form.scores_per_item());
        }
        if let Some(bias) = &bias {
            let (stride, span) = item_of(&bias.extent);
            args.read_strided_items(bias.memory, stride, span);
        }
        form.add_sizes(&mut args, &strides, scale);
        self.submit(args)
    }

    /// # Safety
    ///
    /// As `launch_raw` of the operation.
    #[track_caller]
    #[allow(unsafe_code, reason = "memory and streams of other CUDA bindings")]
    unsafe fn submit_addresses<const N: usize>(
        &self,
        form: &Form<'_>,
        stream: *mut c_void,
        addresses: [u64; N],
        [bias_gradient, bias]: [Option<u64>; 2],
        tensors: &Folded<N>,
        scale: f32,
    ) -> Result<u64, KernelError> {
        let extents = || tensors.extents.into_iter().chain(tensors.bias);
        for (tensor, extent, dims) in form.named(extents()) {
            check_shape(tensor, &extent, dims)?;
        }
        check_given(BIAS, tensors.bias.is_some(), form.attention.biased)?;
        form.check_launch(extents(), scale)?;
        check_given(BIAS_GRADIENT, bias_gradient.is_some(), form.bias_gradient)?;

        let bytes = form.attention.element.bytes();
        let strides = strides_of(extents());
        let mut args = RawArgs::new();
        let mut add = |address, of_item: (u64, u64), bytes: u64| {
            let [stride, span] = <[u64; 2]>::from(of_item).map(|one| one.saturating_mul(bytes));
            args.items_within(address, stride, span, u64::MAX);
        };
        for (address, extent) in addresses.into_iter().zip(&tensors.extents) {
            add(address, item_of(extent), bytes);
        }
        if let Some(address) = bias_gradient {
            add(address, (form.scores_per_item(), form.scores_per_item()), bytes);
        }
        if let (Some(address), Some(extent)) = (bias, &tensors.bias) {
            add(address, item_of(extent), if form.attention.masked { 1 } else { bytes });
        }
        form.add_sizes(&mut args, &strides, scale);
        // SAFETY: this function's contract. The arguments are in the order of the kernel's parameters.
        unsafe { self.submit_raw(stream, &args) }
    }
}

/// The arguments of a launch of attention or its gradients.
struct Form<'a> {
    attention: &'a TemporalAttention,
    /// The names of the tensors in messages.
    reads: &'static [&'static str],
    writes: &'static [&'static str],
    /// Whether the general kernel runs, which loads single elements.
    is_general: bool,
    bias_gradient: bool,
}

const BIAS: &str = "bias";
const BIAS_GRADIENT: &str = "bias_gradient";

impl TemporalAttention {
    const fn form(&self) -> Form<'_> {
        let is_general = !self.variant.loads_vectors();
        let (reads, writes) = (&["q", "k", "v"], &["out"]);
        Form { attention: self, reads, writes, is_general, bias_gradient: false }
    }
}

impl AttentionBackward {
    const fn form(&self) -> Form<'_> {
        let (reads, writes) = (&["q", "k", "v", "grad"], &["dq", "dk", "dv"]);
        let bias_gradient = self.has_bias_gradient();
        Form { attention: self.attention(), reads, writes, is_general: false, bias_gradient }
    }
}

impl Form<'_> {
    /// The names, extents and expected sizes of the tensors, in the order of the arguments, then of a bias.
    fn named(
        &self,
        extents: impl Iterator<Item = Extent<4>>,
    ) -> impl Iterator<Item = (&'static str, Extent<4>, [u64; 4])> {
        let shape = self.attention.shape;
        let names = self.reads.iter().chain(self.writes).enumerate();
        let tensors = names.map(move |(at, name)| (*name, shape.tensor_dims(at)));
        let tensors = tensors.chain([(BIAS, shape.score_dims())]);
        tensors.zip(extents).map(|((name, dims), extent)| (name, extent, dims))
    }

    /// Checks strides, overlap within outputs and scale of a launch.
    fn check_launch(
        &self,
        extents: impl Iterator<Item = Extent<4>>,
        scale: f32,
    ) -> Result<(), KernelError> {
        for (tensor, extent, _) in self.named(extents) {
            self.check_strides(tensor, &extent)?;
            if self.writes.contains(&tensor) && !extent.is_injective() {
                let (shape, strides) = (extent.dims.to_vec(), extent.strides.to_vec());
                return Err(KernelError::Overlap { tensor, shape, strides });
            }
        }
        if !scale.is_finite() || scale < 0.0 {
            let expected = "a finite number that is not negative";
            return Err(KernelError::Value { argument: "scale", given: scale, expected });
        }
        Ok(())
    }

    /// Elements of the gradient of the bias for each item.
    fn scores_per_item(&self) -> u64 {
        let [_, of_item @ ..] = self.attention.shape.score_dims();
        of_item.into_iter().fold(1, u64::saturating_mul)
    }

    /// Checks the strides of a tensor. A bias needs no alignment, because it is loaded element by element.
    fn check_strides(&self, tensor: &'static str, extent: &Extent<4>) -> Result<(), KernelError> {
        let (is_bias, strides) = (tensor == BIAS, extent.strides);
        let ([.., row], [.., element]) = (extent.dims, strides);
        let is_plain = || match is_bias {
            true => self.attention.shape.is_shared_bias(extent),
            false => extent.is_contiguous(),
        };
        let vector = if self.is_general || is_bias { 1 } else { VECTOR_BYTES };
        let bytes = u128::from(self.attention.element.bytes());
        let is_aligned = |stride: u64| (u128::from(stride) * bytes).is_multiple_of(vector.into());
        let mut axes = extent.dims.into_iter().zip(strides).take(3);
        let expected = match (self.attention.strided, is_bias) {
            (false, _) if is_plain() => return Ok(()),
            (false, true) => {
                "one contiguous matrix for all items and heads unless prepared with strides"
            }
            (false, false) => "contiguous memory unless prepared with strides",
            _ if element != 1 && row > 1 => "rows of contiguous elements",
            _ if axes.any(|(dim, stride)| dim > 1 && !is_aligned(stride)) => {
                "strides that are multiples of 16 bytes"
            }
            _ => return Ok(()),
        };
        Err(KernelError::Strides { tensor, strides: strides.to_vec(), expected })
    }

    /// Adds what follows the tensors: the length, heads and strides, the scale and the sizes that are not compiled in.
    fn add_sizes<'s, M>(
        &self,
        args: &mut KernelArgs<'s, M>,
        strides: &'s [u8; MAX_STRIDES_BYTES],
        scale: f32,
    ) {
        let TemporalAttention { shape, strided, .. } = self.attention;
        args.length().constant(narrow(shape.heads));
        if *strided {
            let bytes = self.attention.strides_bytes(self.reads.len() + self.writes.len());
            args.bytes(strides.get(..bytes).unwrap_or_default());
        }
        args.value(scale);
        if self.is_general {
            self.attention.runtime_sizes().for_each(|size| _ = args.constant(size));
        }
    }
}

/// The strides of q, k, v and out as the argument of an operation with strides.
pub(crate) fn stride_bytes(
    operation: &TemporalAttention,
    extents: &[Extent<4>; 4],
) -> Result<[u8; STRIDES_BYTES], KernelError> {
    let form = operation.form();
    for (name, extent, _) in form.named(extents.iter().copied()) {
        form.check_strides(name, &extent)?;
    }
    Ok(strides_of(extents.iter().copied()).first_chunk().copied().unwrap_or([0; STRIDES_BYTES]))
}

/// The stride between items and the reach of one item, in elements. A single item has stride 0.
fn item_of(extent: &Extent<4>) -> (u64, u64) {
    let [items, one @ ..] = extent.dims;
    let [stride, strides @ ..] = extent.strides;
    let one = Extent::strided(one, strides);
    let span = u64::try_from(one.reach()).unwrap_or(u64::MAX);
    (if items > 1 { stride } else { 0 }, span)
}

/// Bytes of the strides of the gradients with a bias.
const MAX_STRIDES_BYTES: usize = 8 * STRIDE_BYTES;

/// The strides in the layout of `Strides` in `cu/attention.cu`. Axes of one element get stride 0.
fn strides_of(extents: impl Iterator<Item = Extent<4>>) -> [u8; MAX_STRIDES_BYTES] {
    let mut bytes = [0; MAX_STRIDES_BYTES];
    let axes = extents.flat_map(|extent| {
        let dims = extent.dims.into_iter().zip(extent.strides);
        dims.take(3).map(|(dim, stride)| if dim > 1 { stride } else { 0 })
    });
    for (bytes, stride) in bytes.chunks_exact_mut(8).zip(axes) {
        bytes.copy_from_slice(&stride.to_le_bytes());
    }
    bytes
}
