//! Attention on PyTorch's tensors.
//!
//! The common call is one function of Python, from the checks to the launch. An operator that PyTorch's
//! dispatcher calls through its C interface would cost more, and could report an error only as an exception of
//! C++. The operator that compiled and differentiated code calls is in `_operator.py`, and ends here too.

use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use gridguard::cuda::LaunchError;
use gridguard_kernels::temporal_attention::{
    Folded, MAX_FRAMES, MAX_HEAD_DIM, NotFolded, TemporalAttention,
};
use gridguard_kernels::{ElementType, KernelError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyType};

use crate::error::{AttentionError, UnavailableError};
use crate::launches;
use crate::tensor::{Device, Reader};

/// The kernels, for tensors of the module `torch`.
///
/// Its one caller is `gridguard.torch`. Nothing here runs while operators are traced or transformed.
#[pyclass(frozen, module = "gridguard._native")]
pub(crate) struct Attention {
    reader: Reader,
    /// `Tensor` and `Parameter`; subclasses may mean something else by the same memory.
    plain: [Py<PyType>; 2],
    /// `torch._C`.
    torch: Py<PyAny>,
    empty_like: Py<PyAny>,
    is_grad_enabled: Py<PyAny>,
    /// What computes in place of the kernels, on tensors of the CPU.
    stand_in: Option<Py<PyAny>>,
    served: AtomicU64,
}

/// Why the kernels do not compute a call: nothing was launched.
type Reason = &'static str;

/// One launch.
struct Call {
    folded: Folded,
    /// The addresses of q, k, v and out.
    addresses: [u64; 4],
    /// The address of the bias.
    bias: Option<u64>,
    scale: f32,
    causal: bool,
    element: ElementType,
    device: i32,
}

/// The state of PyTorch for a launch.
struct Current {
    /// The address that is the handle of its stream.
    stream: usize,
    capturing: bool,
    /// Whether this call may compile a kernel and load it.
    may_prepare: bool,
}

#[pymethods]
impl Attention {
    /// Of the module `torch`. `dlpack` is false to read tensors by their attributes also where PyTorch has
    /// C functions. `stand_in`, if given, is called in place of the kernels for tensors of the CPU, for
    /// tests: with the addresses, sizes and strides of q, k, v, out and the bias, if there is one, the scale,
    /// whether it is causal, and the type.
    #[new]
    #[pyo3(signature = (torch, *, dlpack=true, stand_in=None))]
    fn new(torch: &Bound<'_, PyAny>, dlpack: bool, stand_in: Option<Py<PyAny>>) -> PyResult<Self> {
        let parameter = torch.getattr("nn")?.getattr("Parameter")?;
        let plain =
            |object: Bound<'_, PyAny>| Ok::<_, PyErr>(object.cast_into::<PyType>()?.unbind());
        Ok(Self {
            reader: Reader::new(torch, dlpack)?,
            plain: [plain(torch.getattr("Tensor")?)?, plain(parameter)?],
            torch: torch.getattr("_C")?.unbind(),
            empty_like: torch.getattr("empty_like")?.unbind(),
            is_grad_enabled: torch.getattr("is_grad_enabled")?.unbind(),
            stand_in,
            served: AtomicU64::new(0),
        })
    }

    /// How tensors are read: `dlpack` or `attributes`.
    #[getter]
    fn reader(&self) -> &'static str {
        self.reader.name()
    }

    /// The calls that `serve` computed.
    #[getter]
    fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// The output of a call without mask and autocast, where everything is as usual: plain tensors without
    /// gradients on the current device, whose kernel is loaded. None leaves the call to the general way,
    /// which finds what is unusual.
    #[pyo3(signature = (query, key, value, dropout_p, is_causal, scale, enable_gqa, /))]
    #[allow(clippy::too_many_arguments, reason = "the options of PyTorch's function")]
    fn serve<'py>(
        &self,
        query: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        dropout_p: &Bound<'py, PyAny>,
        is_causal: &Bound<'py, PyAny>,
        scale: &Bound<'py, PyAny>,
        enable_gqa: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, tensors) = (query.py(), [query, key, value]);
        let [Some(causal), Some(grouped)] = [is_causal, enable_gqa].map(boolean) else {
            return Ok(None);
        };
        if !tensors.iter().all(|tensor| self.is_plain(tensor)) || number(dropout_p) != Some(0.0) {
            return Ok(None);
        }
        if self.needs_gradients(tensors)? {
            return Ok(None);
        }
        let Some(scale) = self.usual_scale(tensors, scale)? else { return Ok(None) };
        let out = self.empty_like.bind(py).call1((query,))?;
        match self.run([query, key, value, &out], None, scale, causal, grouped, false) {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(None),
            Err(error) if error.is_instance_of::<UnavailableError>(py) => return Ok(None),
            Err(error) => return Err(error),
        }
        self.served.fetch_add(1, Ordering::Relaxed);
        Ok(Some(out))
    }

    /// Submits attention to PyTorch's current stream of the tensors' device, which is the current device.
    /// Returns nothing, or why the kernels do not compute it: then nothing was launched.
    ///
    /// PyTorch's allocator reuses the memory in the order of its stream, as for PyTorch's own operators.
    #[pyo3(signature = (query, key, value, out, bias, is_causal, scale, enable_gqa, /))]
    #[allow(clippy::too_many_arguments, reason = "the operator's arguments")]
    fn submit(
        &self,
        query: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        bias: Option<&Bound<'_, PyAny>>,
        is_causal: bool,
        scale: f64,
        enable_gqa: bool,
    ) -> PyResult<Option<Reason>> {
        self.run([query, key, value, out], bias, scale, is_causal, enable_gqa, true)
    }
}

impl Attention {
    fn run(
        &self,
        tensors: [&Bound<'_, PyAny>; 4],
        bias: Option<&Bound<'_, PyAny>>,
        scale: f64,
        causal: bool,
        grouped: bool,
        may_prepare: bool,
    ) -> PyResult<Option<Reason>> {
        let py = tensors[0].py();
        // Whose numbers are the negatives of what the memory holds.
        for tensor in tensors.into_iter().take(3).chain(bias) {
            if tensor.call_method0(intern!(py, "is_neg"))?.is_truthy()? {
                return Ok(Some("tensor type"));
            }
        }
        let call = match self.call(tensors, bias, scale, causal, grouped) {
            Ok(call) => call,
            Err(reason) => return Ok(Some(reason)),
        };
        if let Some(stand_in) = &self.stand_in {
            let addresses = call.addresses.into_iter().chain(call.bias);
            let extents = call.folded.extents.into_iter().chain(call.folded.bias);
            let tensors: Vec<_> = addresses
                .zip(extents)
                .map(|(at, extent)| (at, extent.dims, extent.strides))
                .collect();
            stand_in.call1(py, (tensors, call.scale, causal, call.element.name()))?;
            return Ok(None);
        }
        let capturing = intern!(py, "_cuda_isCurrentStreamCapturing");
        let current = Current {
            stream: self.reader.stream(py, call.device)?,
            capturing: self.torch.call_method0(py, capturing)?.is_truthy(py)?,
            may_prepare,
        };
        // Compiling takes a second, and a full stream blocks: other threads may run meanwhile.
        Ok(py.detach(|| submit(&call, &current))?)
    }

    /// The launch of these tensors; else why the kernels do not compute it.
    fn call(
        &self,
        [q, k, v, out]: [&Bound<'_, PyAny>; 4],
        bias: Option<&Bound<'_, PyAny>>,
        scale: f64,
        causal: bool,
        grouped: bool,
    ) -> Result<Call, Reason> {
        let read = |tensor| self.reader.view(tensor);
        let (Ok(q), Ok(k), Ok(v), Ok(out)) = (read(q), read(k), read(v), read(out)) else {
            return Err("tensor type");
        };
        let tensors = [q, k, v, out];
        let Ok(bias) = bias.map(read).transpose() else { return Err("tensor type") };
        let [q, ..] = &tensors;
        let all = || tensors.iter().chain(&bias);
        if q.device.kind != self.kind() || all().any(|tensor| tensor.device != q.device) {
            return Err("device");
        }
        let Some(element) = q.element else { return Err("dtype") };
        if all().any(|tensor| tensor.element != q.element) {
            return Err("dtype");
        }
        let views = tensors.each_ref().map(|tensor| tensor.strided());
        let folded = match Folded::new(views, bias.as_ref().map(|bias| bias.strided()), grouped) {
            Ok(folded) if folded.shape.items() == 0 => return Err("empty"),
            Ok(Folded { shape, .. }) if shape.frames().max(shape.keys()) > MAX_FRAMES => {
                return Err("length");
            }
            Ok(folded) => folded,
            Err(NotFolded::Strides) => return Err("strides"),
            Err(_) => return Err("shape"),
        };
        // As of a parameter whose memory was given back.
        if all().any(|tensor| tensor.address == 0) {
            return Err("tensor type");
        }
        let scale = nearest(scale);
        if !scale.is_finite() || scale < 0.0 {
            return Err("scale");
        }
        let addresses = tensors.each_ref().map(|tensor| tensor.address);
        let (device, bias) = (q.device.ordinal, bias.map(|bias| bias.address));
        Ok(Call { folded, addresses, bias, scale, causal, element, device })
    }

    /// DLPack's kind of the devices that are served.
    fn kind(&self) -> i32 {
        if self.stand_in.is_none() { Device::CUDA } else { Device::CPU }
    }

    fn is_plain(&self, tensor: &Bound<'_, PyAny>) -> bool {
        self.plain.iter().any(|plain| tensor.get_type().is(plain))
    }

    fn needs_gradients(&self, tensors: [&Bound<'_, PyAny>; 3]) -> PyResult<bool> {
        let py = tensors[0].py();
        if !self.is_grad_enabled.call0(py)?.is_truthy(py)? {
            return Ok(false);
        }
        for tensor in tensors {
            if tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The scale of a call whose sizes the kernels may serve, on the current device. Found before memory is
    /// allocated for its output.
    fn usual_scale(
        &self,
        [query, key, _]: [&Bound<'_, PyAny>; 3],
        scale: &Bound<'_, PyAny>,
    ) -> PyResult<Option<f64>> {
        let (py, read) = (query.py(), |tensor| self.reader.view(tensor).ok());
        let (Some(q), Some(k)) = (read(query), read(key)) else { return Ok(None) };
        let (Some([rows, width]), Some([keys, _])) = (q.matrix(), k.matrix()) else {
            return Ok(None);
        };
        if q.device.kind != self.kind() || q.element.is_none() {
            return Ok(None);
        }
        if rows.max(keys) > MAX_FRAMES || width > MAX_HEAD_DIM {
            return Ok(None);
        }
        let device = q.device.ordinal;
        if self.stand_in.is_none() {
            let current = self.torch.call_method0(py, intern!(py, "_cuda_getDevice"))?;
            if current.extract::<i32>(py)? != device {
                return Ok(None);
            }
        }
        if scale.is_none() {
            return Ok(u32::try_from(width).ok().map(|width| 1.0 / f64::from(width).sqrt()));
        }
        Ok(number(scale).filter(|scale| *scale > 0.0 && scale.is_finite()))
    }
}

/// Launches a call, or tells why the kernels do not compute it.
fn submit(call: &Call, current: &Current) -> Result<Option<Reason>, AttentionError> {
    let device = usize::try_from(call.device).unwrap_or_default();
    let kernels =
        launches::kernels(device).map_err(|error| AttentionError::Unavailable(error.into()))?;
    let (shape, limits) = (call.folded.shape, kernels.guard().limits());
    let operation = TemporalAttention::new(shape, call.element, limits);
    let mut operation = operation.map_err(AttentionError::Unavailable)?;
    if call.causal {
        operation = operation.causal();
    }
    if call.bias.is_some() {
        operation = operation.with_bias();
    }
    if !call.folded.is_contiguous() {
        operation = operation.with_strides();
    }
    let key = (device, operation);
    let launch = launches::kept(key);
    // Loading code may end a capture.
    if launch.get().is_none() && (current.capturing || !current.may_prepare) {
        return Ok(Some("first call during capture"));
    }
    let tuned = launch.get_or_init(|| kernels.prepare_attention(operation));
    let tuned = tuned.as_ref().map_err(|error| AttentionError::Unavailable(error.clone()))?;
    let prepared = &tuned.prepared;
    if current.capturing {
        launches::keep_captured(key, prepared);
    }

    let (addresses, extents) = (call.addresses, &call.folded.extents);
    let bias = call.bias.zip(call.folded.bias);
    let stream = ptr::with_exposed_provenance_mut(current.stream);
    // SAFETY: `gridguard.torch` passes tensors with their own sizes and strides, alive until this returns,
    // whose memory PyTorch's allocator reuses only in the order of the stream; all are on this device and of this
    // type; and the stream is one of the device's primary context, which the guard is in. In a capture the memory
    // is the graph's, and the code was kept just now.
    #[allow(unsafe_code, reason = "memory of another CUDA binding")]
    let submitted = unsafe { prepared.launch_raw(stream, addresses, extents, bias, call.scale) };
    match submitted {
        Ok(_) => Ok(None),
        // Checked before anything is launched.
        Err(KernelError::Strides { .. } | KernelError::Launch(LaunchError::Args(_))) => {
            Ok(Some("alignment"))
        }
        Err(error) => Err(AttentionError::Failed(error)),
    }
}

/// The value of an object that is exactly a `bool`.
fn boolean(object: &Bound<'_, PyAny>) -> Option<bool> {
    object.cast_exact::<PyBool>().ok().map(PyBoolMethods::is_true)
}

/// The value of an object that is exactly a `float` or an `int`.
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
