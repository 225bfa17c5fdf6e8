//! The kernels on a device.

use cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceRepr};
use gridguard::cuda::Args;

use super::operation::STRIDES_BYTES;
use super::{TemporalAttention, Variant};
use crate::element::Element;
use crate::error::KernelError;
use crate::kernels::Prepared;
use crate::tensor::{Extent, Tensor, TensorMut, check, check_contiguous, check_element};

impl Prepared<TemporalAttention> {
    /// Submits the launches to `stream` and answers how many there are; returns before they have
    /// run.
    ///
    /// q, k, v and out are `[items, heads, frames, head_dim]`; where prepared with strides they may
    /// lie otherwise, such as `[batch, frames, heads, head_dim]` with two axes exchanged. `bias` is
    /// `[frames, frames]`, where prepared with one. `scale` is finite and not negative.
    ///
    /// # Errors
    ///
    /// [`KernelError`] where a tensor has another type, shape, length or strides, before anything is
    /// launched; [`KernelError::Launch`] where memory is misaligned or the driver refuses.
    #[track_caller]
    pub fn launch<T, R, W>(
        &self,
        stream: &CudaStream,
        [q, k, v]: [Tensor<'_, R, 4>; 3],
        bias: Option<Tensor<'_, R, 2>>,
        scale: f32,
        out: TensorMut<'_, W, 4>,
    ) -> Result<u64, KernelError>
    where
        T: Element + DeviceRepr,
        R: DevicePtr<T>,
        W: DevicePtrMut<T>,
    {
        let operation = self.operation();
        let shape = operation.shape();
        check_element::<T>(operation.element())?;
        check("q", q.memory, &q.extent, shape.dims())?;
        check("k", k.memory, &k.extent, shape.dims())?;
        check("v", v.memory, &v.extent, shape.dims())?;
        check("out", out.memory, &out.extent, shape.dims())?;
        let extents = [&q.extent, &k.extent, &v.extent, &out.extent];
        for (tensor, extent) in ["q", "k", "v", "out"].into_iter().zip(extents) {
            check_strides(tensor, extent, operation, T::TYPE.bytes())?;
        }
        if !out.extent.is_injective() {
            let (shape, strides) = (out.extent.dims().to_vec(), out.extent.strides().to_vec());
            return Err(KernelError::Overlap { tensor: "out", shape, strides });
        }
        if !scale.is_finite() || scale < 0.0 {
            let expected = "a finite number that is not negative";
            return Err(KernelError::Value { argument: "scale", given: scale, expected });
        }

        let mut args = Args::new(stream);
        for tensor in [&q, &k, &v] {
            let (stride, span) = item_of(&tensor.extent);
            args.read_strided_items(tensor.memory, stride, span);
        }
        let (stride, span) = item_of(&out.extent);
        args.write_strided_items(out.memory, stride, span);
        match (&bias, operation.is_biased()) {
            (Some(bias), true) => {
                check_contiguous("bias", bias.memory, &bias.extent, [shape.frames; 2])?;
                args.read(bias.memory);
            }
            (None, false) => {}
            (Some(_), false) => return Err(bias_error("given", "without")),
            (None, true) => return Err(bias_error("not given", "with")),
        }
        let narrow = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
        args.length().value(narrow(shape.heads));
        let strides = strides_of(extents);
        if operation.is_strided() {
            args.bytes(&strides);
        }
        args.value(scale);
        if operation.variant() == Variant::General {
            args.value(narrow(shape.frames)).value(narrow(shape.head_dim));
        }
        self.submit(args)
    }
}

const fn bias_error(given: &'static str, expected: &'static str) -> KernelError {
    KernelError::Argument { argument: "bias", given, expected }
}

fn check_strides(
    tensor: &'static str,
    extent: &Extent<4>,
    operation: &TemporalAttention,
    bytes: u64,
) -> Result<(), KernelError> {
    let refuse = |expected| {
        let strides = extent.strides().to_vec();
        Err(KernelError::Strides { tensor, strides, expected })
    };
    if extent.is_contiguous() && !operation.is_strided() {
        return Ok(());
    }
    if !operation.is_strided() {
        return refuse("contiguous memory unless prepared with strides");
    }
    let [items, heads, frames, row] = extent.strides();
    if row != 1 && operation.shape().head_dim > 1 {
        return refuse("rows of neighbouring elements");
    }
    let whole = |stride: u64| {
        let alignment = operation.variant().alignment().unwrap_or(1);
        u128::from(stride) * u128::from(bytes) % u128::from(alignment) == 0
    };
    let axes = operation.shape().dims().into_iter().zip([items, heads, frames]);
    if axes.into_iter().any(|(dim, stride)| dim > 1 && !whole(stride)) {
        return refuse("strides of whole 16 bytes");
    }
    Ok(())
}

/// From one item to the next, and over one, in elements. A lone item may have any stride.
fn item_of(extent: &Extent<4>) -> (u64, u64) {
    let [items, heads, frames, head_dim] = extent.dims();
    let [stride, heads_stride, frames_stride, row] = extent.strides();
    let one = Extent::strided([heads, frames, head_dim], [heads_stride, frames_stride, row]);
    let span = u64::try_from(one.reach()).unwrap_or(u64::MAX);
    (if items > 1 { stride } else { 0 }, span)
}

/// The strides as the kernels' `Strides` has them; those of lone items, heads and frames count for
/// nothing.
fn strides_of(extents: [&Extent<4>; 4]) -> [u8; STRIDES_BYTES] {
    let mut bytes = [0; STRIDES_BYTES];
    let axes = extents.into_iter().flat_map(|extent| {
        let dims = extent.dims().into_iter().zip(extent.strides());
        dims.take(3).map(|(dim, stride)| if dim > 1 { stride } else { 0 })
    });
    for (place, stride) in bytes.chunks_exact_mut(8).zip(axes) {
        place.copy_from_slice(&stride.to_le_bytes());
    }
    bytes
}
