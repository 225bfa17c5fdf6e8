//! Attention on the memory of tensors.

use core::ptr;

use gridguard::cuda::LaunchError;
use gridguard_kernels::temporal_attention::{
    Folded, MAX_FRAMES, NotFolded, StridedView, TemporalAttention,
};
use gridguard_kernels::{ElementType, KernelError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::AttentionError;
use crate::launches;

/// The address, sizes and strides of a tensor, in elements.
type TensorArgument = (u64, Vec<u64>, Vec<u64>);

/// One call.
struct Call {
    /// q, k, v and out.
    tensors: [TensorArgument; 4],
    /// The address of a contiguous bias.
    bias: Option<u64>,
    scale: f32,
    causal: bool,
    grouped: bool,
    element: ElementType,
    device: usize,
    stream: usize,
    capturing: bool,
}

/// Submits attention to a stream of PyTorch and returns nothing, or why the kernels do not compute it.
///
/// The caller, `gridguard.torch`, passes tensors that are alive, on this device and of this type, and the
/// device's current stream, on which PyTorch's allocator orders their memory.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one call for all costs least")]
pub(crate) fn attention(
    py: Python<'_>,
    q: TensorArgument,
    k: TensorArgument,
    v: TensorArgument,
    out: TensorArgument,
    bias: Option<u64>,
    scale: f32,
    causal: bool,
    grouped: bool,
    dtype: &str,
    device: usize,
    stream: usize,
    capturing: bool,
) -> PyResult<Option<&'static str>> {
    let element = ElementType::ALL.into_iter().find(|element| element.name() == dtype);
    let element = element.ok_or_else(|| PyValueError::new_err(format!("no type {dtype}")))?;
    let tensors = [q, k, v, out];
    let call = Call { tensors, bias, scale, causal, grouped, element, device, stream, capturing };
    // Compiling takes a second, and a full stream blocks: other threads may run meanwhile.
    Ok(py.detach(|| submit(&call))?)
}

fn submit(call: &Call) -> Result<Option<&'static str>, AttentionError> {
    let views = call.tensors.each_ref().map(|(_, dims, strides)| StridedView { dims, strides });
    let folded = match Folded::new(views, call.grouped) {
        Ok(folded) if folded.shape.items == 0 => return Ok(Some("empty")),
        Ok(folded) if folded.shape.frames > MAX_FRAMES => return Ok(Some("length")),
        Ok(folded) => folded,
        Err(NotFolded::Lengths) => return Ok(Some("lengths differ")),
        Err(NotFolded::Strides) => return Ok(Some("strides")),
        Err(_) => return Ok(Some("shape")),
    };
    if !call.scale.is_finite() || call.scale < 0.0 {
        return Ok(Some("scale"));
    }

    let kernels = launches::kernels(call.device)
        .map_err(|error| AttentionError::Unavailable(error.into()))?;
    let operation = TemporalAttention::new(folded.shape, call.element, kernels.guard().limits());
    let mut operation = operation.map_err(AttentionError::Unavailable)?;
    if call.causal {
        operation = operation.causal();
    }
    if call.bias.is_some() {
        operation = operation.with_bias();
    }
    if !folded.is_contiguous() {
        operation = operation.with_strides();
    }
    let key = (call.device, operation);
    let launch = launches::kept(key);
    if call.capturing && launch.get().is_none() {
        // Loading code may end the capture.
        return Ok(Some("first call during capture"));
    }
    let prepared = launch.get_or_init(|| kernels.prepare_attention(operation));
    let prepared = prepared.as_ref().map_err(|error| AttentionError::Unavailable(error.clone()))?;
    if call.capturing {
        launches::keep_captured(key, prepared);
    }

    let addresses = call.tensors.each_ref().map(|(address, _, _)| *address);
    let stream = ptr::with_exposed_provenance_mut(call.stream);
    // SAFETY: `attention` is called by `gridguard.torch` alone, which passes what this needs: tensors with
    // their own sizes and strides, alive until it returns, whose memory PyTorch's allocator reuses only in
    // the order of the stream; the bias of `frames` times `frames` elements likewise; and a stream of the
    // device's primary context, which the guard is in. In a capture the memory is the graph's, and the code
    // was kept just now.
    #[allow(unsafe_code, reason = "memory of another CUDA binding")]
    let submitted =
        unsafe { prepared.launch_raw(stream, addresses, &folded.extents, call.bias, call.scale) };
    match submitted {
        Ok(_) => Ok(None),
        // Checked before anything is launched.
        Err(KernelError::Strides { .. }) => Ok(Some("strides")),
        Err(KernelError::Launch(LaunchError::Args(_))) => Ok(Some("alignment")),
        Err(error) => Err(AttentionError::Failed(error)),
    }
}
