//! Attention launches.

use core::ffi::c_void;

use cudarc::driver::CudaStream;
use gridguard::KernelArgs;
use gridguard::cuda::Args;

use super::operation::{STRIDES_BYTES, TemporalAttention};
use super::variant::Variant;
use crate::element::Element;
use crate::error::KernelError;
use crate::extent::Extent;
use crate::kernels::Prepared;
use crate::operation::VECTOR_BYTES;
use crate::tensor::{Tensor, TensorMut, check, check_element};
#[cfg(feature = "profile")]
use {
    super::operation::Layout,
    crate::kernels::{Kernels, TunedLaunch},
    crate::operation::Operation,
    gridguard::profile::{Objective, Policy},
};

#[cfg(feature = "profile")]
impl Kernels {
    /// Prepares attention as the guard's profile says for its shape, whatever its layout: profiles know launches of
    /// the one that overflows, without strides, mask and bias, from which a choice may move them. Without such a
    /// choice the launch is flat on x.
    ///
    /// # Errors
    ///
    /// Those of [`Self::prepare`].
    pub fn prepare_attention(
        &self,
        attention: TemporalAttention,
    ) -> Result<TunedLaunch<TemporalAttention>, KernelError> {
        let folded = attention.with_layout(Layout::FoldedY);
        let limits = self.guard().limits();
        let key = folded.plain().key(limits, Policy::default(), Objective::default())?;
        self.prepare_by(&key, &folded, attention.with_layout(Layout::FlatX))
    }
}

impl Prepared<TemporalAttention> {
    /// Submits the launches to `stream` and returns their number without waiting for them.
    ///
    /// q, k, v and out are `[items, heads, frames, head_dim]`, contiguous. If prepared
    /// [with strides](TemporalAttention::with_strides), their first three axes may have any strides,
    /// such as those of `[batch, frames, heads, head_dim]` with two axes swapped. `bias` is
    /// `[frames, frames]`, if prepared with one. `scale` must be finite and not negative.
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
        bias: Option<Tensor<'_, T, 2>>,
        scale: f32,
        out: TensorMut<'_, T, 4>,
    ) -> Result<u64, KernelError> {
        let operation = self.operation();
        let shape = operation.shape;
        check_element::<T>(operation.element)?;
        let extents = [&q.extent, &k.extent, &v.extent, &out.extent];
        let lengths = [q.memory.len(), k.memory.len(), v.memory.len(), out.memory.len()];
        for ((name, extent), length) in NAMES.into_iter().zip(extents).zip(lengths) {
            check(name, length, extent, shape.dims())?;
        }
        operation.check_launch(&extents, bias.is_some(), scale)?;

        let mut args = Args::new(stream);
        for tensor in [&q, &k, &v] {
            let (stride, span) = item_of(&tensor.extent);
            args.read_strided_items(tensor.memory, stride, span);
        }
        let (stride, span) = item_of(&out.extent);
        args.write_strided_items(out.memory, stride, span);
        if let Some(bias) = bias {
            args.read(bias.contiguous("bias", [shape.frames; 2])?);
        }
        args.length().constant(narrow(shape.heads));
        let strides = strides_of(extents);
        if operation.strided {
            args.bytes(&strides);
        }
        args.value(scale);
        if operation.variant == Variant::General {
            args.constant(narrow(shape.frames)).constant(narrow(shape.head_dim));
        }
        self.submit(args)
    }

    /// As [`Self::launch`], with the tensors by their addresses and the stream by its handle (a
    /// `CUstream`, null for the default one): for memory of other CUDA bindings. The calling thread's
    /// current context is the same afterwards, and a stream that is being captured is not refused.
    ///
    /// # Safety
    ///
    /// `addresses` and `extents` are those of q, k, v and out, of elements of the prepared type, and
    /// `bias` that of its elements, in the context of the guard; `stream` is a live stream of that context.
    /// The memory lives until the launches have run, and no other work writes it, or reads out, meanwhile.
    /// Where the stream is being captured, both hold for the graph's launches too, and a clone of `self` is
    /// kept as long.
    ///
    /// # Errors
    ///
    /// As [`Self::launch`].
    #[track_caller]
    #[allow(unsafe_code, reason = "memory and streams of other CUDA bindings")]
    pub unsafe fn launch_raw(
        &self,
        stream: *mut c_void,
        addresses: [u64; 4],
        extents: &[Extent<4>; 4],
        bias: Option<u64>,
        scale: f32,
    ) -> Result<u64, KernelError> {
        let operation = self.operation();
        let dims = operation.shape.dims();
        for (tensor, extent) in NAMES.into_iter().zip(extents) {
            if extent.dims != dims {
                let (given, expected) = (extent.dims.to_vec(), dims.to_vec());
                return Err(KernelError::Shape { tensor, given, expected });
            }
        }
        operation.check_launch(&extents.each_ref(), bias.is_some(), scale)?;

        let bytes = operation.element.bytes();
        let strides = strides_of(extents.each_ref());
        let mut args = KernelArgs::new();
        for (address, extent) in addresses.into_iter().zip(extents) {
            let (stride, span) = item_of(extent);
            let [stride, span] = [stride, span].map(|elements| elements.saturating_mul(bytes));
            args.strided_items_within(address, stride, span, u64::MAX);
        }
        if let Some(bias) = bias {
            args.address(bias);
        }
        args.length().constant(narrow(operation.shape.heads));
        if operation.strided {
            args.bytes(&strides);
        }
        args.value(scale);
        if operation.variant == Variant::General {
            args.constant(narrow(operation.shape.frames));
            args.constant(narrow(operation.shape.head_dim));
        }
        // SAFETY: this function's contract; the arguments are those of the kernel, as above.
        unsafe { self.submit_raw(stream, &args) }
    }
}

impl TemporalAttention {
    /// Checks strides, overlap of out, bias and scale of a launch.
    fn check_launch(
        &self,
        extents: &[&Extent<4>; 4],
        has_bias: bool,
        scale: f32,
    ) -> Result<(), KernelError> {
        for (name, extent) in NAMES.into_iter().zip(extents) {
            check_strides(name, extent, self)?;
        }
        let [.., out] = extents;
        if !out.is_injective() {
            let (shape, strides) = (out.dims.to_vec(), out.strides.to_vec());
            return Err(KernelError::Overlap { tensor: "out", shape, strides });
        }
        if !scale.is_finite() || scale < 0.0 {
            let expected = "a finite number that is not negative";
            return Err(KernelError::Value { argument: "scale", given: scale, expected });
        }
        self.check_bias(has_bias)
    }
}

/// The tensors of a launch, in messages.
const NAMES: [&str; 4] = ["q", "k", "v", "out"];

fn narrow(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// The strides of q, k, v and out as the kernel's argument, if an operation with strides takes them.
pub(crate) fn stride_bytes(
    operation: &TemporalAttention,
    extents: &[Extent<4>; 4],
) -> Result<[u8; STRIDES_BYTES], KernelError> {
    for (name, extent) in NAMES.into_iter().zip(extents) {
        check_strides(name, extent, operation)?;
    }
    Ok(strides_of(extents.each_ref()))
}

fn check_strides(
    tensor: &'static str,
    extent: &Extent<4>,
    operation: &TemporalAttention,
) -> Result<(), KernelError> {
    let [items, heads, frames, row] = extent.strides;
    let alignment = if operation.variant.loads_vectors() { VECTOR_BYTES } else { 1 };
    let bytes = operation.element.bytes();
    let is_aligned =
        |stride: u64| (u128::from(stride) * u128::from(bytes)).is_multiple_of(alignment.into());
    let mut axes = operation.shape.dims().into_iter().zip([items, heads, frames]);
    let expected = if !operation.strided {
        if extent.is_contiguous() {
            return Ok(());
        }
        "contiguous memory unless prepared with strides"
    } else if row != 1 && operation.shape.head_dim > 1 {
        "rows of contiguous elements"
    } else if axes.any(|(dim, stride)| dim > 1 && !is_aligned(stride)) {
        "strides that are multiples of 16 bytes"
    } else {
        return Ok(());
    };
    Err(KernelError::Strides { tensor, strides: extent.strides.to_vec(), expected })
}

/// The stride between items and the reach of one item, in elements. The stride of a single item does
/// not matter.
fn item_of(extent: &Extent<4>) -> (u64, u64) {
    let [items, heads, frames, head_dim] = extent.dims;
    let [stride, heads_stride, frames_stride, row] = extent.strides;
    let one = Extent::strided([heads, frames, head_dim], [heads_stride, frames_stride, row]);
    let span = u64::try_from(one.reach()).unwrap_or(u64::MAX);
    (if items > 1 { stride } else { 0 }, span)
}

/// The strides in the layout of `Strides` in `cu/attention_prelude.cu`. Those of axes of one element
/// do not matter and become 0.
fn strides_of(extents: [&Extent<4>; 4]) -> [u8; STRIDES_BYTES] {
    let mut bytes = [0; STRIDES_BYTES];
    let axes = extents.into_iter().flat_map(|extent| {
        let dims = extent.dims.into_iter().zip(extent.strides);
        dims.take(3).map(|(dim, stride)| if dim > 1 { stride } else { 0 })
    });
    for (bytes, stride) in bytes.chunks_exact_mut(8).zip(axes) {
        bytes.copy_from_slice(&stride.to_le_bytes());
    }
    bytes
}
