//! Attention launches.

use core::ffi::c_void;

use cudarc::driver::CudaStream;
use gridguard::cuda::Args;
use gridguard::profile::{DefaultReason, Match, Objective, Policy};
use gridguard::{Choice, KernelArgs};

use super::folded::Folded;
use super::operation::{BIASED_STRIDES_BYTES, Layout, STRIDES_BYTES, TemporalAttention, narrow};
use crate::element::Element;
use crate::error::KernelError;
use crate::extent::Extent;
use crate::kernels::{Kernels, Prepared, TunedLaunch};
use crate::operation::{Operation, VECTOR_BYTES};
use crate::tensor::{Tensor, TensorMut, check, check_element, check_shape};

impl Kernels {
    /// Prepares attention with the choice of the guard's profile for its shape. Profiles have entries for the layout
    /// on y, without strides, mask and bias; a choice may move the launch to x. Without an entry the launch is flat
    /// on x. Shapes with different numbers of frames and keys are not in profiles.
    ///
    /// # Errors
    ///
    /// Those of [`Self::prepare`].
    pub fn prepare_attention(
        &self,
        attention: TemporalAttention,
    ) -> Result<TunedLaunch<TemporalAttention>, KernelError> {
        let flat = attention.with_layout(Layout::FlatX);
        if attention.shape.keys != attention.shape.frames {
            let prepared = self.prepare(flat, Choice::AUTOMATIC)?;
            let matched = Match::Default(DefaultReason::NoEntries);
            return Ok(TunedLaunch { prepared, matched, rejected: None });
        }
        let folded = attention.with_layout(Layout::FoldedY);
        let limits = self.guard().limits();
        let key = folded.plain().key(limits, Policy::default(), Objective::default())?;
        self.prepare_by(&key, &folded, flat)
    }
}

impl Prepared<TemporalAttention> {
    /// Submits the launches to `stream` and returns their number without waiting for them.
    ///
    /// q and out are `[items, heads, frames, head_dim]`, k and v `[items, heads, keys, head_dim]`, contiguous. A
    /// `bias` must be given if and only if the launch was prepared with one; it has the extent
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
        let operation = self.operation();
        check_element::<T>(operation.element)?;
        let extents = [q.extent, k.extent, v.extent, out.extent];
        let of_bias = bias.as_ref().map(|bias| bias.extent);
        let tensors = Folded { shape: operation.shape, extents, bias: of_bias };
        let lengths = [q.memory.len(), k.memory.len(), v.memory.len(), out.memory.len()];
        let lengths = lengths.into_iter().chain(bias.as_ref().map(|bias| bias.memory.len()));
        for ((name, extent, dims), length) in tensors.named().zip(lengths) {
            check(name, length, extent, dims)?;
        }
        operation.check_launch(&tensors, scale)?;

        let strides = strides_of(tensors.all());
        let mut args = Args::new(stream);
        for tensor in [&q, &k, &v] {
            let (stride, span) = item_of(&tensor.extent);
            args.read_strided_items(tensor.memory, stride, span);
        }
        let (stride, span) = item_of(&out.extent);
        args.write_strided_items(out.memory, stride, span);
        if let Some(bias) = bias {
            let (stride, span) = item_of(&bias.extent);
            args.read_strided_items(bias.memory, stride, span);
        }
        args.length().constant(narrow(operation.shape.heads));
        if operation.strided {
            args.bytes(strides.get(..operation.strides_bytes()).unwrap_or_default());
        }
        args.value(scale);
        for size in operation.runtime_sizes() {
            args.constant(size);
        }
        self.submit(args)
    }

    /// As [`Self::launch`], with the addresses of the tensors and the handle of the stream (a `CUstream`, null for
    /// the default stream), for memory of other CUDA bindings. The calling thread's current context does not
    /// change, and a stream that is being captured is not refused.
    ///
    /// # Safety
    ///
    /// `addresses` point to q, k, v and out, and to the bias if there is one. `tensors` describes this memory, which
    /// has elements of the prepared type and is in the context of the guard. `stream` is a live stream of that
    /// context. The memory lives until the launches have run. Until then, no other work writes it, or reads out. If
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
        let operation = self.operation();
        let tensors = Folded { shape: operation.shape, ..*tensors };
        for (tensor, extent, dims) in tensors.named() {
            check_shape(tensor, extent, dims)?;
        }
        operation.check_launch(&tensors, scale)?;

        let bytes = operation.element.bytes();
        let strides = strides_of(tensors.all());
        let mut args = KernelArgs::new();
        for (address, extent) in addresses.into_iter().chain(bias).zip(tensors.all()) {
            let (stride, span) = item_of(extent);
            let [stride, span] = [stride, span].map(|elements| elements.saturating_mul(bytes));
            args.items_within(address, stride, span, u64::MAX);
        }
        args.length().constant(narrow(operation.shape.heads));
        if operation.strided {
            args.bytes(strides.get(..operation.strides_bytes()).unwrap_or_default());
        }
        args.value(scale);
        for size in operation.runtime_sizes() {
            args.constant(size);
        }
        // SAFETY: this function's contract. The arguments are in the order of the kernel's parameters.
        unsafe { self.submit_raw(stream, &args) }
    }
}

impl TemporalAttention {
    /// Checks strides, overlap of out, bias and scale of a launch.
    fn check_launch(&self, tensors: &Folded, scale: f32) -> Result<(), KernelError> {
        for (name, extent, _) in tensors.named() {
            self.check_strides(name, extent)?;
        }
        let [.., out] = &tensors.extents;
        if !out.is_injective() {
            let (shape, strides) = (out.dims.to_vec(), out.strides.to_vec());
            return Err(KernelError::Overlap { tensor: "out", shape, strides });
        }
        if !scale.is_finite() || scale < 0.0 {
            let expected = "a finite number that is not negative";
            return Err(KernelError::Value { argument: "scale", given: scale, expected });
        }
        self.check_bias(tensors.bias.is_some())
    }

    /// Checks the strides of a tensor. A bias needs no alignment, because it is loaded element by element.
    fn check_strides(&self, tensor: &'static str, extent: &Extent<4>) -> Result<(), KernelError> {
        let (is_bias, strides) = (tensor == BIAS, extent.strides);
        let ([.., row], [.., element]) = (extent.dims, strides);
        let is_plain = || match is_bias {
            true => self.shape.is_shared_bias(extent),
            false => extent.is_contiguous(),
        };
        let vector = if self.variant.loads_vectors() && !is_bias { VECTOR_BYTES } else { 1 };
        let bytes = u128::from(self.element.bytes());
        let is_aligned = |stride: u64| (u128::from(stride) * bytes).is_multiple_of(vector.into());
        let mut axes = extent.dims.into_iter().zip(strides).take(3);
        let expected = match (self.strided, is_bias) {
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
}

impl Folded {
    fn all(&self) -> impl Iterator<Item = &Extent<4>> {
        self.extents.iter().chain(&self.bias)
    }

    /// The names in messages, extents and expected sizes of the tensors.
    fn named(&self) -> impl Iterator<Item = (&'static str, &Extent<4>, [u64; 4])> {
        let (dims, of_keys) = (self.shape.dims(), self.shape.key_dims());
        let names = NAMES.into_iter().chain([BIAS]);
        let expected = [dims, of_keys, of_keys, dims, self.shape.score_dims()];
        let named = names.zip(self.all()).zip(expected);
        named.map(|((name, extent), dims)| (name, extent, dims))
    }
}

/// The tensors in messages.
const NAMES: [&str; 4] = ["q", "k", "v", "out"];
const BIAS: &str = "bias";

/// The strides of q, k, v and out as the argument of an operation with strides.
pub(crate) fn stride_bytes(
    operation: &TemporalAttention,
    extents: &[Extent<4>; 4],
) -> Result<[u8; STRIDES_BYTES], KernelError> {
    for (name, extent) in NAMES.into_iter().zip(extents) {
        operation.check_strides(name, extent)?;
    }
    Ok(strides_of(extents.iter()).first_chunk().copied().unwrap_or([0; STRIDES_BYTES]))
}

/// The stride between items and the reach of one item, in elements. A single item has stride 0.
fn item_of(extent: &Extent<4>) -> (u64, u64) {
    let [items, one @ ..] = extent.dims;
    let [stride, strides @ ..] = extent.strides;
    let one = Extent::strided(one, strides);
    let span = u64::try_from(one.reach()).unwrap_or(u64::MAX);
    (if items > 1 { stride } else { 0 }, span)
}

/// The strides in the layout of `Strides` in `cu/attention.cu`. Axes of one element get stride 0.
fn strides_of<'e>(extents: impl Iterator<Item = &'e Extent<4>>) -> [u8; BIASED_STRIDES_BYTES] {
    let mut bytes = [0; BIASED_STRIDES_BYTES];
    let axes = extents.flat_map(|extent| {
        let dims = extent.dims.into_iter().zip(extent.strides);
        dims.take(3).map(|(dim, stride)| if dim > 1 { stride } else { 0 })
    });
    for (bytes, stride) in bytes.chunks_exact_mut(8).zip(axes) {
        bytes.copy_from_slice(&stride.to_le_bytes());
    }
    bytes
}
