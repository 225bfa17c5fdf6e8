//! Attention on PyTorch's tensors.
//!
//! A common call is one Python function, from the checks to the launch, which PyTorch's dispatcher calls too
//! (`dispatch.rs`). The operators of `_operator.py`, for compiled code, try it first, and then call `submit`.

use core::ffi::c_void;
use core::hash::Hash;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;

use gridguard::cuda::LaunchErrorKind;
use gridguard_kernels::temporal_attention::{
    AttentionBackward, Folded, MAX_HEAD_DIM, MAX_LONG_FRAMES, NotFolded, TemporalAttention,
};
use gridguard_kernels::{ElementType, Extent, KernelError, Kernels};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyTuple, PyType};

use crate::border::{Border, Borders, Problem, Reason, VERSIONS, attention_of};
use crate::error::{UnavailableError, failed, unavailable};
use crate::launches::{self, BACKWARD, LAUNCHES, Launch, Launches};
use crate::state::State;
use crate::tensor::{Device, Reader, View};

/// Attention on tensors of the module `torch`.
///
/// Only `gridguard.torch` calls it. It calls `submit` only while no operators are traced or transformed.
#[pyclass(frozen, module = "gridguard._native")]
pub(crate) struct Attention {
    reader: Reader,
    /// `Tensor` and `Parameter`. Subclasses may give the same memory another meaning.
    plain: [Py<PyType>; 2],
    /// `torch._C`.
    torch: Py<PyAny>,
    empty_like: Py<PyAny>,
    /// `torch.log`, and the type `torch.bool` of masks.
    log: Py<PyAny>,
    boolean: Py<PyAny>,
    state: State,
    #[cfg(feature = "stand-in")]
    stand_in: std::sync::OnceLock<(Py<PyAny>, Borders)>,
    /// Calls and backward passes by the kernels, and calls by PyTorch because it is faster, or has dropout.
    served: AtomicU64,
    backward: AtomicU64,
    slower: AtomicU64,
    dropout: AtomicU64,
    /// Whether calls are left to PyTorch beyond a border.
    compares: bool,
    /// Whether problems that no entry decides are timed.
    measures: AtomicBool,
}

/// The most items and heads that PyTorch's kernels take: they are on the y and z axes of a grid.
const MAX_SLICE: u64 = 65_535;

/// `apply` of the node that differentiates a call of `serve`.
static RECORD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
/// PyTorch's operator, for calls that it computes faster.
static LEFT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// A call with q, k, v and out, or of the gradients with q, k, v, grad, dq, dk and dv.
struct Call<const N: usize> {
    folded: Folded<N>,
    addresses: [u64; N],
    bias: Option<u64>,
    bias_gradient: Option<u64>,
    scale: f32,
    causal: bool,
    element: ElementType,
    device: i32,
}

/// The sizes of a call.
struct Sizes {
    /// With four axes.
    of_problem: Option<[u64; 7]>,
    /// The most of queries and keys.
    rows: u64,
    /// The head dimension of queries.
    width: u64,
    element: ElementType,
    device: Device,
}

/// The options of a call.
#[derive(Clone, Copy)]
pub(crate) struct Options<S = f64> {
    scale: S,
    causal: bool,
    grouped: bool,
    dropout: f64,
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

/// Where a call is submitted.
pub(crate) struct Target {
    pub(crate) stream: usize,
    pub(crate) capturing: bool,
    /// Whether a kernel may be loaded.
    pub(crate) may_load: bool,
}

#[pymethods]
impl Attention {
    /// `dlpack=False` reads tensors by their attributes even if PyTorch has the C functions. `compares=False` also serves
    /// the calls that take PyTorch less time.
    #[new]
    #[pyo3(signature = (torch, *, dlpack=true, compares=true))]
    fn new(torch: &Bound<'_, PyAny>, dlpack: bool, compares: bool) -> PyResult<Self> {
        let version = torch.getattr("__version__")?.str()?;
        let versions = format!("gridguard {}, PyTorch {version}", env!("CARGO_PKG_VERSION"));
        VERSIONS.get_or_init(|| versions.chars().take(64).collect());
        let parameter = torch.getattr("nn")?.getattr("Parameter")?;
        let plain =
            |object: Bound<'_, PyAny>| Ok::<_, PyErr>(object.cast_into::<PyType>()?.unbind());
        Ok(Self {
            reader: Reader::new(torch, dlpack)?,
            plain: [plain(torch.getattr("Tensor")?)?, plain(parameter)?],
            torch: torch.getattr("_C")?.unbind(),
            empty_like: torch.getattr("empty_like")?.unbind(),
            log: torch.getattr("log")?.unbind(),
            boolean: torch.getattr("bool")?.unbind(),
            state: State::new(torch)?,
            #[cfg(feature = "stand-in")]
            stand_in: std::sync::OnceLock::new(),
            served: AtomicU64::new(0),
            backward: AtomicU64::new(0),
            slower: AtomicU64::new(0),
            dropout: AtomicU64::new(0),
            compares,
            measures: AtomicBool::new(false),
        })
    }

    #[getter]
    fn reader(&self) -> &'static str {
        match self.reader {
            Reader::Dlpack(_) => "dlpack",
            Reader::Attributes { .. } => "attributes",
        }
    }

    #[getter]
    fn counts(&self) -> [u64; 4] {
        [&self.served, &self.backward, &self.slower, &self.dropout]
            .map(|count| count.load(Ordering::Relaxed))
    }

    /// Whether problems that no entry of a profile decides are timed at their first call.
    #[getter]
    fn measures(&self) -> bool {
        self.measures.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_measures(&self, measures: bool) {
        self.measures.store(measures, Ordering::Relaxed);
    }

    /// For rising head dimensions, the most queries or keys that the kernels serve on a device: forwards, forwards causal
    /// and with a mask, and the same with gradients. Nothing if they serve all that they can.
    fn borders(&self, device: i32, dtype: &str) -> Vec<Border> {
        let element = ElementType::ALL.into_iter().find(|element| element.name() == dtype);
        let of = |element| self.with_borders(device, |borders| borders.of(element).to_vec());
        element.filter(|_| self.compares).and_then(of).unwrap_or_default()
    }

    /// Where the borders of the devices in use come from, and which entries of profiles are not used.
    #[getter]
    fn notes(&self) -> Vec<String> {
        #[cfg(feature = "stand-in")]
        if let Some((_, borders)) = self.stand_in.get() {
            return borders.notes();
        }
        let devices = launches::DEVICES.lock();
        let mut opened: Vec<_> =
            devices.iter().filter_map(|it| Some((it.0, it.1.get()?))).collect();
        opened.sort_unstable_by_key(|(ordinal, _)| *ordinal);
        opened.iter().flat_map(|(_, device)| device.borders.notes()).collect()
    }

    /// Whether PyTorch's kernels take less time for a call, or were not compared.
    #[pyo3(signature = (query, key, value, is_masked, is_causal, needs_grad, /))]
    fn is_slower(
        &self,
        query: &Bound<'_, PyAny>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        is_masked: bool,
        is_causal: bool,
        needs_grad: bool,
    ) -> bool {
        let Some(sizes) = self.sizes([query, key, value]) else { return false };
        let kind = (is_causal, is_masked, needs_grad);
        self.route(&sizes, kind).is_some_and(|(_, (slower, _))| slower)
    }

    /// Whether this thread records or transforms functions or operators, and would not see a launch.
    fn is_transformed(&self, py: Python<'_>) -> PyResult<bool> {
        self.state.is_transformed(py)
    }

    /// Whether PyTorch's dispatcher must see operators of this thread: also of a profiler.
    fn is_recorded(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.state.is_transformed(py)? || self.state.is_profiled(py)?)
    }

    /// Whether a mode may change a call of a function. `torch.set_default_device` only changes new tensors.
    fn has_function_mode(&self, py: Python<'_>) -> PyResult<bool> {
        self.state.has_function_mode(py)
    }

    /// The output of a common call: plain tensors on the current device, no autocast, no mode, transform or profiler, a
    /// kernel that is already loaded, no faster one of PyTorch. `None` for any other call, which the caller passes to
    /// `submit` or to PyTorch.
    #[pyo3(signature = (query, key, value, mask, dropout_p, is_causal, scale, enable_gqa, /))]
    #[allow(clippy::too_many_arguments, reason = "the arguments of PyTorch's function")]
    fn serve<'py>(
        &self,
        query: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
        mask: Option<&Bound<'py, PyAny>>,
        dropout_p: &Bound<'py, PyAny>,
        is_causal: &Bound<'py, PyAny>,
        scale: &Bound<'py, PyAny>,
        enable_gqa: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let [dropout_p, causal, scale, grouped] =
            [dropout_p, is_causal, scale, enable_gqa].map(Some);
        let Some(options) = Options::of_common_call(dropout_p, causal, scale, grouped) else {
            return Ok(None);
        };
        let device_type = if self.stand_in().is_none() { "cuda" } else { "cpu" };
        if self.state.is_autocast_enabled(query.py(), device_type)? {
            return Ok(None);
        }
        self.serve_common([query, key, value], mask, options, false)
    }

    /// The gradients of query, key and value of a call that `serve` recorded with these tensors (query, key, value and
    /// bias), where they are needed. `None` if the call is not common, as in `serve`, if a bias needs a gradient, or if
    /// the gradients are differentiated: nothing was launched.
    #[pyo3(signature = (grad, saved, needed, is_causal, scale, enable_gqa, /))]
    fn serve_backward<'py>(
        &self,
        grad: &Bound<'py, PyAny>,
        saved: [Bound<'py, PyAny>; 4],
        needed: [bool; 4],
        is_causal: bool,
        scale: f64,
        enable_gqa: bool,
    ) -> PyResult<Option<[Option<Bound<'py, PyAny>>; 3]>> {
        let ([query, key, value, bias], py) = (&saved, grad.py());
        let bias = (!bias.is_none()).then_some(bias);
        let mut given = [query, key, value, grad].into_iter().chain(bias);
        if needed[3]
            || !given.all(|tensor| self.is_plain(tensor))
            || self.state.is_grad_enabled(py)?
            || self.is_recorded(py)?
        {
            return Ok(None);
        }
        let Some(sizes) = self.sizes([query, key, value]) else { return Ok(None) };
        if !self.is_current(py, sizes.device)? {
            return Ok(None);
        }
        let empty_like = |tensor: &Bound<'py, PyAny>| self.empty_like.bind(py).call1((tensor,));
        let views = [query, key].map(|tensor| self.reader.view(tensor).unwrap_or_default());
        let heads = heads_of_group(&views).filter(|_| enable_gqa);
        // The kernels write the gradients of key and value for each head of the query.
        let gradient = |like: &Bound<'py, PyAny>| {
            let Some(heads) = heads else { return empty_like(like) };
            let mut sizes = self.reader.view(like)?.dims.into_owned();
            sizes.insert(sizes.len().saturating_sub(2), heads);
            like.call_method1(intern!(py, "new_empty"), (sizes,))
        };
        let (dq, mut dk, mut dv) = (empty_like(query)?, gradient(key)?, gradient(value)?);
        let options = Options { scale, causal: is_causal, grouped: heads.is_some(), dropout: 0.0 };
        let tensors = [query, key, value, grad, &dq, &dk, &dv];
        if !self.is_launched(tensors, bias, options, submit_backward)? {
            return Ok(None);
        }
        self.backward.fetch_add(1, Ordering::Relaxed);
        if heads.is_some() {
            // With a type, autocast does not change it.
            let options = PyDict::new(py);
            options.set_item(intern!(py, "dtype"), query.getattr(intern!(py, "dtype"))?)?;
            for gradient in [&mut dk, &mut dv] {
                *gradient = gradient.call_method(intern!(py, "sum"), (-3,), Some(&options))?;
            }
        }
        let mut wanted = needed.into_iter();
        Ok(Some([dq, dk, dv].map(|it| wanted.next().unwrap_or_default().then_some(it))))
    }

    /// Launches attention of (query, key, value, out) on PyTorch's current stream, on the current device. Returns the reason if
    /// the kernels do not serve the call. PyTorch's allocator reuses memory in stream order.
    #[pyo3(signature = (tensors, bias, is_causal, scale, enable_gqa, /))]
    fn submit(
        &self,
        tensors: [Bound<'_, PyAny>; 4],
        bias: Option<&Bound<'_, PyAny>>,
        is_causal: bool,
        scale: f64,
        enable_gqa: bool,
    ) -> PyResult<Option<Reason>> {
        let options = Options { scale, causal: is_causal, grouped: enable_gqa, dropout: 0.0 };
        self.run(tensors.each_ref(), [bias, None], options, true, submit)
    }

    /// As `submit`, the gradients of attention: (query, key, value, grad, dq, dk, dv). There are no grouped heads.
    /// `bias_gradient` has the batch axes of query, then queries and keys, and is contiguous.
    #[pyo3(signature = (tensors, bias, bias_gradient, is_causal, scale, /))]
    fn submit_backward(
        &self,
        tensors: [Bound<'_, PyAny>; 7],
        bias: Option<&Bound<'_, PyAny>>,
        bias_gradient: Option<&Bound<'_, PyAny>>,
        is_causal: bool,
        scale: f64,
    ) -> PyResult<Option<Reason>> {
        let options = Options { scale, causal: is_causal, grouped: false, dropout: 0.0 };
        self.run(tensors.each_ref(), [bias, bias_gradient], options, true, submit_backward)
    }
}

impl Attention {
    /// As `serve`, for tensors that autocast does not change. If it `is_of_pytorch`, the call is one of PyTorch's function,
    /// and PyTorch computes it here if it is faster.
    pub(crate) fn serve_common<'py>(
        &self,
        tensors: [&Bound<'py, PyAny>; 3],
        mask: Option<&Bound<'py, PyAny>>,
        options: Options<Option<f64>>,
        is_of_pytorch: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let ([query, key, value], py) = (tensors, tensors[0].py());
        let mask = mask.filter(|mask| !mask.is_none());
        let given = || tensors.into_iter().chain(mask);
        // A function mode would see reads of the tensors' attributes.
        if !given().all(|tensor| self.is_plain(tensor)) || self.is_recorded(py)? {
            return Ok(None);
        }
        let Some(sizes) = self.sizes(tensors) else { return Ok(None) };
        let differentiated = self.needs_gradients(given())?;
        let has_dropout = options.dropout != 0.0;
        let is_slower = || {
            let kind = (options.causal, mask.is_some(), differentiated);
            match self.route(&sizes, kind) {
                Some((problem, (slower, false))) if self.measures() => {
                    let call =
                        (query, key, value, mask, options.causal, options.scale, options.grouped);
                    let measured = self.measure(py, sizes.device, problem, call)?;
                    Ok(measured.unwrap_or(slower))
                }
                found => Ok::<_, PyErr>(found.is_some_and(|(_, (slower, _))| slower)),
            }
        };
        if has_dropout || is_slower()? {
            if !is_of_pytorch || !given().all(|tensor| self.is_read_by_pytorch(tensor, key)) {
                return Ok(None);
            }
            let counter = if has_dropout { &self.dropout } else { &self.slower };
            counter.fetch_add(1, Ordering::Relaxed);
            let Options { scale, causal, grouped, dropout } = options;
            let call = (query, key, value, mask, dropout, causal, scale, grouped);
            let left = LEFT.import(py, "gridguard._pytorch", "left")?;
            return left.call1(call).map(Some);
        }
        let is_taken = sizes.rows <= MAX_LONG_FRAMES && sizes.width <= MAX_HEAD_DIM;
        let Ok(width) = u32::try_from(sizes.width) else { return Ok(None) };
        if !is_taken || !self.is_current(py, sizes.device)? {
            return Ok(None);
        }
        let scale = options.scale.unwrap_or_else(|| 1.0 / f64::from(width).sqrt());
        let bias = match mask {
            None => None,
            Some(mask) => match self.bias(mask, query, key)? {
                Some(bias) if !options.causal => Some(bias),
                _ => return Ok(None),
            },
        };
        let out = self.empty_like.bind(py).call1((query,))?;
        let options =
            Options { scale, causal: options.causal, grouped: options.grouped, dropout: 0.0 };
        if !self.is_launched([query, key, value, &out], bias.as_ref(), options, submit)? {
            return Ok(None);
        }
        self.served.fetch_add(1, Ordering::Relaxed);
        if !differentiated {
            return Ok(Some(out));
        }
        let record = RECORD.import(py, "gridguard._operator", "record")?;
        let call = (out, options.causal, scale, options.grouped);
        record.call1((query, key, value, bias, call)).map(Some)
    }

    /// Launches a common call. `false`: the kernels do not serve it, or are not loaded.
    fn is_launched<const N: usize>(
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

    /// A mask of a common call as numbers to add to the scores. `None` for a mask that is not common.
    ///
    /// A boolean mask is converted in each call: kernels that PyTorch does not know, and replays of graphs, change
    /// memory without a trace.
    fn bias<'py>(
        &self,
        mask: &Bound<'py, PyAny>,
        query: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = mask.py();
        let is_boolean = mask.getattr(intern!(py, "dtype"))?.is(&self.boolean);
        let views = [mask, query, key].map(|tensor| self.reader.view(tensor));
        let [Ok(view), Ok(of_query), Ok(of_key)] = views else { return Ok(None) };
        let (dims, strides) = (&view.dims, view.strided().strides);
        let scores = of_key.dims.iter().rev().skip(1).take(1);
        let scores = scores.chain(of_query.dims.iter().rev().skip(1));
        let is_broadcast =
            dims.iter().rev().zip(scores).all(|(own, full)| [1, *full].contains(own));
        if view.device != of_query.device
            || !(2..=of_query.dims.len()).contains(&dims.len())
            || !is_broadcast
            || dims.last() != of_key.dims.iter().rev().nth(1)
        {
            return Ok(None);
        }
        if !is_boolean {
            return Ok(Some(mask.clone()));
        }
        // The bias of a repeated mask is as small as the mask.
        let axes = dims.iter().zip(strides);
        let mut small: Vec<_> =
            axes.map(|(size, stride)| if *stride == 0 { 1 } else { *size }).collect();
        if let (Some(last), Some(keys)) = (small.last_mut(), dims.last()) {
            *last = *keys;
        }
        let (is_repeated, strides) = (small != **dims, strides.to_vec());
        let mask = if is_repeated {
            &mask.call_method1(intern!(py, "as_strided"), (&small, strides))?
        } else {
            mask
        };
        let bias = query.call_method1(intern!(py, "new_empty"), (small,))?;
        let options = PyDict::new(py);
        options.set_item(intern!(py, "out"), bias)?;
        // One kernel: log 1 is 0, and log 0 is minus infinity.
        self.log.bind(py).call((mask,), Some(&options)).map(Some)
    }

    fn run<'py, const N: usize>(
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
                .map(|(at, extent)| (at, extent.dims, extent.strides))
                .collect();
            stand_in.call1(py, (tensors, call.scale, call.causal, call.element.name()))?;
            return Ok(None);
        }
        let stream = self.reader.stream(py, call.device)?;
        let capturing = intern!(py, "_cuda_isCurrentStreamCapturing");
        let capturing = self.torch.call_method0(py, capturing)?.is_truthy(py)?;
        // Other threads may run: compiling takes a second, and a full stream blocks.
        py.detach(|| submit(&call, &Target { stream, capturing, may_load }))
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
        if let (true, Some(heads)) = (N == 7 && grouped, heads_of_group(&tensors)) {
            // The gradients of key and value have an axis of heads already.
            for (at, view) in tensors.iter_mut().enumerate().take(5) {
                view.group(heads, matches!(at, 1 | 2)).ok_or("shape")?;
            }
            if let Some(bias) = bias.as_mut().filter(|bias| bias.dims.len() > 2) {
                let is_shared = bias.dims.iter().rev().nth(2) == Some(&1);
                bias.group(if is_shared { 1 } else { heads }, is_shared).ok_or("shape")?;
            }
        }
        let Some(q) = tensors.first() else { return Err("shape") };
        let all = || tensors.iter().chain(&bias).chain(&bias_gradient);
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
        Ok(Call { folded, addresses, bias, bias_gradient, scale, causal, element, device })
    }

    /// What computes in place of the kernels, on CPU tensors. Wheels have no such thing.
    #[cfg(not(feature = "stand-in"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    const fn stand_in(&self) -> Option<&Py<PyAny>> {
        None
    }

    #[cfg(feature = "stand-in")]
    fn stand_in(&self) -> Option<&Py<PyAny>> {
        self.stand_in.get().map(|(function, _)| function)
    }

    fn kind(&self) -> i32 {
        if self.stand_in().is_none() { Device::CUDA } else { Device::CPU }
    }

    fn is_plain(&self, tensor: &Bound<'_, PyAny>) -> bool {
        self.plain.iter().any(|plain| tensor.get_type().is(plain))
    }

    /// The sizes of a call on a device that is served, as far as they follow from the ends of the tensors' axes.
    fn sizes(&self, tensors: [&Bound<'_, PyAny>; 3]) -> Option<Sizes> {
        let [Ok(q), Ok(k), Ok(v)] = tensors.map(|tensor| self.reader.view(tensor)) else {
            return None;
        };
        let (&[.., queries, width], &[.., keys, _], &[.., values]) = (&*q.dims, &*k.dims, &*v.dims)
        else {
            return None;
        };
        let of_problem = match (&*q.dims, &*k.dims) {
            (&[items, heads, ..], &[_, key_heads, _, _]) if q.dims.len() == 4 => {
                Some([items, heads, key_heads, queries, keys, width, values])
            }
            _ => None,
        };
        let device = q.device;
        let rows = queries.max(keys);
        (device.kind == self.kind()).then_some(())?;
        Some(Sizes { of_problem, rows, width, element: q.element?, device })
    }

    /// Whether PyTorch serves a call, and whether that is decided. `None` for other axes than four, for which PyTorch has no
    /// fused kernels.
    fn route(&self, sizes: &Sizes, kind: (bool, bool, bool)) -> Option<(Problem, (bool, bool))> {
        let problem = Problem::new(sizes.element, sizes.of_problem?, kind);
        let route = |borders: &Borders| (problem, borders.route(&problem));
        self.compares.then(|| self.with_borders(sizes.device.ordinal, route))?
    }

    fn with_borders<R>(&self, ordinal: i32, read: impl FnOnce(&Borders) -> R) -> Option<R> {
        #[cfg(feature = "stand-in")]
        if let Some((_, borders)) = self.stand_in.get() {
            return Some(read(borders));
        }
        let device = launches::device(usize::try_from(ordinal).ok()?).ok()?;
        Some(read(&device.borders))
    }

    /// Times a call by our kernels and by PyTorch's. Returns whether PyTorch serves it, unless this is no time to measure.
    fn measure<'py>(
        &self,
        py: Python<'py>,
        device: Device,
        problem: Problem,
        call: impl IntoPyObject<'py, Target = PyTuple> + pyo3::call::PyCallArgs<'py>,
    ) -> PyResult<Option<bool>> {
        let measured = self.with_borders(device.ordinal, |borders| {
            borders.measure(py, problem, || {
                py.import("gridguard._measure")?.getattr("measure")?.call1(call)?.extract()
            })
        });
        measured.transpose().map(Option::flatten)
    }

    /// Whether PyTorch's kernels read a tensor of a call in place, and no axis of the batch overflows their grids.
    fn is_read_by_pytorch(&self, tensor: &Bound<'_, PyAny>, key: &Bound<'_, PyAny>) -> bool {
        let (Ok(view), Ok(of_key)) = (self.reader.view(tensor), self.reader.view(key)) else {
            return false;
        };
        // A boolean mask is converted first.
        let bytes = view.element.map_or(16, ElementType::bytes);
        let is_row = |at: u64| view.element.is_none() || at.is_multiple_of(16);
        let mut axes = view.dims.iter().zip(view.strided().strides).rev();
        view.device == of_key.device
            && view.dims.len() >= 2
            && is_row(view.address)
            && axes.next().is_some_and(|(size, stride)| *size > 1 && *stride == 1)
            && axes.all(|(size, stride)| *size == 1 || (*size > 1 && is_row(stride * bytes)))
            && view.dims.iter().rev().skip(2).all(|size| *size <= MAX_SLICE)
    }

    fn needs_gradients<'a, 'py: 'a>(
        &self,
        tensors: impl IntoIterator<Item = &'a Bound<'py, PyAny>>,
    ) -> PyResult<bool> {
        for tensor in tensors {
            let py = tensor.py();
            if tensor.getattr(intern!(py, "requires_grad"))?.is_truthy()? {
                return self.state.is_grad_enabled(py);
            }
        }
        Ok(false)
    }

    fn is_current(&self, py: Python<'_>, device: Device) -> PyResult<bool> {
        if self.stand_in().is_some() {
            return Ok(true);
        }
        let current = self.torch.call_method0(py, intern!(py, "_cuda_getDevice"))?;
        Ok(current.extract::<i32>(py)? == device.ordinal)
    }
}

/// Lets a function compute in place of the kernels of `attention`, on CPU tensors. Its arguments are the (address,
/// sizes, strides) of the tensors, the bias and its gradient, if any; the scale; whether the call is causal; and the
/// type. The tensors are q, k, v and out, or q, k, v, grad, dq, dk and dv. The borders are those of a GPU in the catalogue.
#[cfg(feature = "stand-in")]
#[pyfunction]
#[pyo3(signature = (attention, stand_in, gpu="h200"))]
pub(crate) fn set_stand_in(attention: &Attention, stand_in: Py<PyAny>, gpu: &str) -> PyResult<()> {
    use gridguard::profile::{DeviceIdentity, Environment, Layers};

    let limits = gridguard::catalog::limits(gpu).map_err(crate::error::invalid)?;
    let environment = Environment::host();
    let profile = Layers::new().user().load(&DeviceIdentity::new(&limits), &environment).profile;
    // A second one has no effect.
    let _ = attention.stand_in.set((stand_in, Borders::new(Some(&profile), &limits, environment)));
    Ok(())
}

/// Launches a call on a stream, or returns why the kernels do not serve it.
fn submit(call: &Call<4>, target: &Target) -> PyResult<Option<Reason>> {
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
fn submit_backward(call: &Call<7>, target: &Target) -> PyResult<Option<Reason>> {
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
    let of_call = |attention| (device, kernels, call.folded.options(attention, call.causal));
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

/// How many heads of the query have one head of the key, if that is more than one.
fn heads_of_group(tensors: &[View<'_>]) -> Option<u64> {
    let [of_query, of_key] = [0, 1].map(|at| tensors.get(at)?.dims.iter().rev().nth(2).copied());
    let heads = of_query?.checked_div(of_key?)?;
    (heads > 1 && Some(of_key? * heads) == of_query).then_some(heads)
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
