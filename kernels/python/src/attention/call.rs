//! One launch of attention or its gradients on PyTorch's tensors.

use core::ffi::c_void;
use core::hash::Hash;
use core::ptr;
use std::sync::Arc;

use gridguard::cuda::LaunchErrorKind;
use gridguard_kernels::temporal_attention::{
    AttentionBackward, Folded, MAX_LONG_FRAMES, NotFolded, TemporalAttention,
};
use gridguard_kernels::{ElementType, Extent, KernelError, Kernels};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};

use super::torch::Torch;
use crate::border::{Reason, attention_of};
use crate::error::{UnavailableError, failed, unavailable};
use crate::launches::{self, BACKWARD, LAUNCHES, Launch, Launches};
use crate::tensor::group_heads;

/// A call with q, k, v and out, or of the gradients with q, k, v, grad, dq, dk and dv.
pub(super) struct Call<const N: usize> {
    folded: Folded<N>,
    addresses: [u64; N],
    bias: Option<u64>,
    /// Whether the bias is a boolean mask.
    masked: bool,
    bias_gradient: Option<u64>,
    scale: f32,
    causal: bool,
    element: ElementType,
    device: i32,
}

/// The options of a call.
#[derive(Clone, Copy)]
pub(crate) struct Options<S = f64> {
    pub(super) scale: S,
    pub(super) causal: bool,
    pub(super) grouped: bool,
    pub(super) dropout: f64,
}

/// Where a call is submitted.
pub(crate) struct Target {
    pub(crate) stream: usize,
    pub(crate) capturing: bool,
    /// Whether a kernel may be loaded.
    pub(crate) may_load: bool,
}

impl Options<Option<f64>> {
    /// The options of a call with these arguments, where `None` is the default value; `None` if the call is not common.
    pub(crate) fn of_common_call(
        dropout_p: Option<&Bound<'_, PyAny>>,
        is_causal: Option<&Bound<'_, PyAny>>,
        scale: Option<&Bound<'_, PyAny>>,
        enable_gqa: Option<&Bound<'_, PyAny>>,
    ) -> Option<Self> {
        let dropout = dropout_p.map_or(Some(0.0), number)?;
        let [causal, grouped] = [is_causal, enable_gqa].map(|it| it.map_or(Some(false), boolean));
        let scale = match scale.filter(|scale| !scale.is_none()) {
            Some(scale) => Some(number(scale).filter(|scale| *scale > 0.0 && scale.is_finite())?),
            None => None,
        };
        Some(Self { scale, causal: causal?, grouped: grouped?, dropout })
    }
}

impl Torch {
    /// Launches a common call. `false`: the kernels do not serve it, or are not loaded.
    pub(super) fn is_launched<const N: usize>(
        &self,
        tensors: [&Bound<'_, PyAny>; N],
        bias: Option<&Bound<'_, PyAny>>,
        options: Options,
        submit: fn(&Call<N>, &Target) -> PyResult<Option<Reason>>,
    ) -> PyResult<bool> {
        let Some(py) = tensors.first().map(|tensor| tensor.py()) else { return Ok(false) };
        match self.run(tensors, [bias, None], options, false, submit) {
            Ok(refused) => Ok(refused.is_none()),
            Err(error) if error.is_instance_of::<UnavailableError>(py) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn run<'py, const N: usize>(
        &self,
        tensors: [&Bound<'py, PyAny>; N],
        [bias, bias_gradient]: [Option<&Bound<'py, PyAny>>; 2],
        options: Options,
        may_load: bool,
        submit: fn(&Call<N>, &Target) -> PyResult<Option<Reason>>,
    ) -> PyResult<Option<Reason>> {
        let Some(py) = tensors.first().map(|tensor| tensor.py()) else { return Ok(None) };
        // Tensors with the negative bit are materialised lazily. Outputs, which are new, do not have it.
        let inputs = N / 2 + 1;
        for tensor in tensors.into_iter().take(inputs).chain(bias) {
            if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
                return Ok(Some("tensor type"));
            }
        }
        let call = match self.call(tensors, [bias, bias_gradient], options) {
            Ok(call) => call,
            Err(reason) => return Ok(Some(reason)),
        };
        if let Some(stand_in) = self.stand_in() {
            let addresses = call.addresses.into_iter().chain(call.bias).chain(call.bias_gradient);
            let scores = Extent::contiguous(call.folded.shape.score_dims());
            let extents = call.folded.extents.into_iter().chain(call.folded.bias).chain([scores]);
            let tensors: Vec<_> = addresses
                .zip(extents)
                .enumerate()
                .map(|(at, (address, it))| (address, it.dims, it.strides, call.masked && at == N))
                .collect();
            stand_in.call1(py, (tensors, call.scale, call.causal, call.element.name()))?;
            return Ok(None);
        }
        let target = self.target(py, call.device, may_load)?;
        // Other threads may run: compiling takes a second, and a full stream blocks.
        py.detach(|| submit(&call, &target))
    }

    /// PyTorch's current stream on a device.
    pub(super) fn target(&self, py: Python<'_>, device: i32, may_load: bool) -> PyResult<Target> {
        let stream = self.reader.stream(py, device)?;
        let capturing = intern!(py, "_cuda_isCurrentStreamCapturing");
        let capturing = self.module.call_method0(py, capturing)?.is_truthy(py)?;
        Ok(Target { stream, capturing, may_load })
    }

    /// The launch of these tensors, or why the kernels do not serve it.
    fn call<const N: usize>(
        &self,
        tensors: [&Bound<'_, PyAny>; N],
        of_bias: [Option<&Bound<'_, PyAny>>; 2],
        Options { scale, causal, grouped, .. }: Options,
    ) -> Result<Call<N>, Reason> {
        let of_bias = of_bias.map(|given| given.map(|tensor| self.reader.view(tensor).ok()));
        let tensors = tensors.map(|tensor| self.reader.view(tensor).ok());
        if tensors.iter().chain(of_bias.iter().flatten()).any(Option::is_none) {
            return Err("tensor type");
        }
        let ([mut bias, bias_gradient], mut tensors) =
            (of_bias.map(Option::flatten), tensors.map(Option::unwrap_or_default));
        if N == 7 && grouped {
            group_heads(&mut tensors, bias.as_mut()).ok_or("shape")?;
        }
        let Some(q) = tensors.first() else { return Err("shape") };
        let all = || tensors.iter().chain(&bias).chain(&bias_gradient);
        if q.device.kind != self.kind() || all().any(|tensor| tensor.device != q.device) {
            return Err("device");
        }
        let Some(element) = q.element else { return Err("dtype") };
        let masked = bias.as_ref().is_some_and(|bias| bias.is_boolean);
        let numbers = tensors.iter().chain(bias.as_ref().filter(|_| !masked)).chain(&bias_gradient);
        if numbers.map(|tensor| tensor.element).any(|other| other != Some(element)) {
            return Err("dtype");
        }
        let views = tensors.each_ref().map(|tensor| tensor.strided());
        let folded = match Folded::new(views, bias.as_ref().map(|bias| bias.strided()), grouped) {
            Ok(folded) if folded.shape.items() == 0 => return Err("empty"),
            Ok(Folded { shape, .. }) if shape.frames().max(shape.keys()) > MAX_LONG_FRAMES => {
                return Err("length");
            }
            Ok(folded) => folded,
            Err(NotFolded::Strides) => return Err("strides"),
            Err(_) => return Err("shape"),
        };
        // For example, a parameter whose storage was freed.
        if all().any(|tensor| tensor.address == 0) {
            return Err("tensor type");
        }
        let scores = Extent::contiguous(folded.shape.score_dims());
        if bias_gradient.as_ref().is_some_and(|it| bias.is_none() || !it.is_whole(scores.reach())) {
            return Err("shape");
        }
        let scale = nearest(scale);
        if !scale.is_finite() || scale < 0.0 {
            return Err("scale");
        }
        let addresses = tensors.each_ref().map(|tensor| tensor.address);
        let [bias, bias_gradient] = [bias, bias_gradient].map(|it| it.map(|it| it.address));
        let device = q.device.ordinal;
        Ok(Call { folded, addresses, bias, masked, bias_gradient, scale, causal, element, device })
    }
}

/// Launches a call on a stream, or returns why the kernels do not serve it.
pub(super) fn submit(call: &Call<4>, target: &Target) -> PyResult<Option<Reason>> {
    let (device, kernels, operation) = match forward(call)? {
        Ok(forward) => forward,
        Err(reason) => return Ok(Some(reason)),
    };
    let prepare = || kernels.prepare_attention(operation);
    submit_prepared(&LAUNCHES, (device, operation), target, prepare, |tuned, stream| {
        let addresses = (call.addresses, call.bias);
        // SAFETY: `gridguard.torch` passes tensors that are alive until this returns, with their own sizes and strides, on
        // this device and of this type. PyTorch's allocator reuses their memory only in stream order. The stream belongs
        // to the device's primary context, which is the guard's. In a capture the graph owns the memory, and
        // `submit_prepared` keeps the code loaded.
        unsafe { tuned.prepared.launch_raw(stream, addresses, &call.folded, call.scale) }
    })
}

/// As `submit`, for the gradients.
pub(super) fn submit_backward(call: &Call<7>, target: &Target) -> PyResult<Option<Reason>> {
    let (device, kernels, attention) = match forward(call)? {
        Ok(forward) => forward,
        Err(reason) => return Ok(Some(reason)),
    };
    let operation = match AttentionBackward::new(attention, kernels.guard().limits()) {
        Ok(operation) => operation,
        Err(KernelError::Variant { .. }) => return Ok(Some("shape")),
        Err(_) => return Ok(Some("unavailable")),
    };
    let operation =
        if call.bias_gradient.is_some() { operation.with_bias_gradient() } else { operation };
    let prepare = || kernels.prepare_attention_backward(operation);
    submit_prepared(&BACKWARD, (device, operation), target, prepare, |tuned, stream| {
        let (addresses, of_bias) = ((call.addresses, call.bias), call.bias_gradient);
        // SAFETY: as in `submit`. `_operator.py` allocates the gradients.
        unsafe { tuned.prepared.launch_raw(stream, addresses, of_bias, &call.folded, call.scale) }
    })
}

/// The ordinal and the kernels of a call's device, and its attention, or why PyTorch's kernels are faster.
fn forward<const N: usize>(
    call: &Call<N>,
) -> PyResult<Result<(usize, Kernels, TemporalAttention), Reason>> {
    let device = usize::try_from(call.device).unwrap_or_default();
    let kernels = launches::kernels(device).map_err(unavailable)?;
    let found = attention_of(call.folded.shape, call.element, kernels.guard().limits());
    let of_call = |attention| {
        let attention = call.folded.options(attention, call.causal);
        (device, kernels, if call.masked { attention.with_mask() } else { attention })
    };
    Ok(found.map_err(unavailable)?.map(of_call))
}

/// Submits the launch of a key, which is prepared at its first call.
pub(crate) fn submit_prepared<O: Copy + Hash + Eq, P: Send + Sync + 'static>(
    table: &Launches<O, P>,
    key: (usize, O),
    target: &Target,
    prepare: impl FnOnce() -> Result<P, KernelError>,
    submit: impl FnOnce(&P, *mut c_void) -> Result<u64, KernelError>,
) -> PyResult<Option<Reason>> {
    let launch = table.get(key);
    // Loading code may invalidate a capture.
    if launch.get().is_none() && (target.capturing || !target.may_load) {
        return Ok(Some("first call during capture"));
    }
    // Only what depends on the problem alone is remembered.
    let prepared = launch.get_or_try_init(|| match prepare() {
        Err(error) if launches::may_pass(&error) => Err(error),
        other => Ok(other),
    });
    let prepared = match prepared {
        Ok(Ok(prepared)) => prepared,
        Ok(Err(error)) => return Err(unavailable(error.clone())),
        Err(error) => return Err(unavailable(error)),
    };
    if target.capturing {
        launches::keep_loaded(Arc::<Launch<P>>::clone(&launch));
    }
    match submit(prepared, ptr::with_exposed_provenance_mut(target.stream)) {
        Ok(_) => Ok(None),
        Err(KernelError::Strides { .. }) => Ok(Some("alignment")),
        Err(KernelError::Launch(error)) if matches!(error.kind(), LaunchErrorKind::Args(_)) => {
            Ok(Some("alignment"))
        }
        Err(error) => Err(failed(error)),
    }
}

/// The value of a `bool`, not of a subclass.
fn boolean(object: &Bound<'_, PyAny>) -> Option<bool> {
    object.cast_exact::<PyBool>().ok().map(PyBoolMethods::is_true)
}

/// The value of a `float` or an `int`, not of a subclass.
fn number(object: &Bound<'_, PyAny>) -> Option<f64> {
    match object.cast_exact::<PyFloat>() {
        Ok(float) => Some(float.value()),
        Err(_) => object.cast_exact::<PyInt>().ok()?.extract().ok(),
    }
}

#[allow(clippy::as_conversions, clippy::cast_possible_truncation, reason = "rounds to nearest")]
fn nearest(value: f64) -> f32 {
    value as f32
}
