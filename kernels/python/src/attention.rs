//! Attention on PyTorch's tensors.
//!
//! A common call is one Python function, from the checks to the launch, which PyTorch's dispatcher calls too
//! (`dispatch.rs`). The operators of `_operator.py`, for compiled code, try it first, and then call `submit`.

pub(crate) mod call;
mod group;
mod mask;
mod route;
mod torch;

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use call::{Options, submit, submit_backward};
use gridguard_kernels::ElementType;
use gridguard_kernels::temporal_attention::{MAX_HEAD_DIM, MAX_LONG_FRAMES};
use pyo3::IntoPyObject;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use route::Router;
use torch::Torch;

#[cfg(feature = "stand-in")]
use crate::border::Borders;
use crate::border::{Border, Reason, VERSIONS};
use crate::launches;
use crate::tensor::{Reader, heads_of_group};

/// Attention on tensors of the module `torch`.
///
/// Only `gridguard.torch` calls it. It calls `submit` only while no operators are traced or transformed.
#[pyclass(frozen, module = "gridguard._native")]
pub(crate) struct Attention {
    torch: Torch,
    router: Router,
    /// Calls and backward passes by the kernels, and calls by PyTorch because it is faster, or has dropout.
    served: AtomicU64,
    backward: AtomicU64,
    slower: AtomicU64,
    dropout: AtomicU64,
}

/// `apply` of the node that differentiates a call of `serve`.
static RECORD: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
/// PyTorch's operator as if we registered none, and what its gradients need.
static COMPOSITE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static ALIGNED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

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
        Ok(Self {
            torch: Torch::new(torch, dlpack)?,
            router: Router { compares, measures: AtomicBool::new(false) },
            served: AtomicU64::new(0),
            backward: AtomicU64::new(0),
            slower: AtomicU64::new(0),
            dropout: AtomicU64::new(0),
        })
    }

    #[getter]
    fn reader(&self) -> &'static str {
        match self.torch.reader {
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
        self.router.measures.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_measures(&self, measures: bool) {
        self.router.measures.store(measures, Ordering::Relaxed);
    }

    /// For rising head dimensions, the most queries or keys that the kernels serve on a device: forwards, forwards causal
    /// and with a mask, and the same with gradients. Nothing if they serve all that they can.
    fn borders(&self, device: i32, dtype: &str) -> Vec<Border> {
        let element = ElementType::ALL.into_iter().find(|element| element.name() == dtype);
        let of = |element| self.torch.with_borders(device, |borders| borders.of(element).to_vec());
        element.filter(|_| self.router.compares).and_then(of).unwrap_or_default()
    }

    /// Where the borders of the devices in use come from, and which entries of profiles are not used.
    #[getter]
    fn notes(&self) -> Vec<String> {
        #[cfg(feature = "stand-in")]
        if let Some((_, borders)) = self.torch.stand_in.get() {
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
    ) -> PyResult<bool> {
        let Some(sizes) = self.torch.sizes([query, key, value]) else { return Ok(false) };
        let kind = (is_causal, is_masked, needs_grad);
        self.router.is_slower(&self.torch, &sizes, kind, || Ok(None))
    }

    /// Whether this thread records or transforms functions or operators, and would not see a launch.
    fn is_transformed(&self, py: Python<'_>) -> PyResult<bool> {
        self.torch.state.is_transformed(py)
    }

    /// Whether PyTorch's dispatcher must see operators of this thread: also of a profiler.
    fn is_recorded(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.torch.state.is_transformed(py)? || self.torch.state.is_profiled(py)?)
    }

    /// Whether a mode may change a call of a function. `torch.set_default_device` only changes new tensors.
    fn has_function_mode(&self, py: Python<'_>) -> PyResult<bool> {
        self.torch.state.has_function_mode(py)
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
        let device_type = if self.torch.stand_in().is_none() { "cuda" } else { "cpu" };
        if self.torch.state.is_autocast_enabled(query.py(), device_type)? {
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
            || !given.all(|tensor| self.torch.is_plain(tensor))
            || self.torch.state.is_grad_enabled(py)?
            || self.is_recorded(py)?
        {
            return Ok(None);
        }
        let Some(sizes) = self.torch.sizes([query, key, value]) else { return Ok(None) };
        if !self.torch.is_current(py, sizes.device)? {
            return Ok(None);
        }
        let empty_like =
            |tensor: &Bound<'py, PyAny>| self.torch.empty_like.bind(py).call1((tensor,));
        let views = [query, key].map(|tensor| self.torch.reader.view(tensor).unwrap_or_default());
        let heads = heads_of_group(&views).filter(|_| enable_gqa);
        // The kernels write the gradients of key and value for each head of the query.
        let gradient = |like: &Bound<'py, PyAny>| {
            let Some(heads) = heads else { return empty_like(like) };
            let mut sizes = self.torch.reader.view(like)?.dims.into_owned();
            sizes.insert(sizes.len().saturating_sub(2), heads);
            like.call_method1(intern!(py, "new_empty"), (sizes,))
        };
        let (dq, mut dk, mut dv) = (empty_like(query)?, gradient(key)?, gradient(value)?);
        let options = Options { scale, causal: is_causal, grouped: heads.is_some(), dropout: 0.0 };
        let tensors = [query, key, value, grad, &dq, &dk, &dv];
        if !self.torch.is_launched(tensors, bias, options, submit_backward)? {
            return Ok(None);
        }
        if let Some(heads) = heads {
            let sums = self.torch.group_sums([&dk, &dv], [key, value], heads)?;
            let Some(sums) = sums else { return Ok(None) };
            [dk, dv] = sums;
        }
        count(&self.backward);
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
        self.torch.run(tensors.each_ref(), [bias, None], options, true, submit)
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
        self.torch.run(tensors.each_ref(), [bias, bias_gradient], options, true, submit_backward)
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
        if !given().all(|tensor| self.torch.is_plain(tensor)) || self.is_recorded(py)? {
            return Ok(None);
        }
        let Some(sizes) = self.torch.sizes(tensors) else { return Ok(None) };
        let differentiated = self.torch.needs_gradients(given())?;
        let has_dropout = options.dropout != 0.0;
        let kind = (options.causal, mask.is_some(), differentiated);
        let arguments = || {
            let Options { scale, causal, grouped, .. } = options;
            (query, key, value, mask, causal, scale, grouped).into_pyobject(py).map(Some)
        };
        let is_slower = || self.router.is_slower(&self.torch, &sizes, kind, arguments);
        if has_dropout || is_slower()? {
            if !is_of_pytorch || !given().all(|tensor| self.torch.is_read_by_pytorch(tensor, key)) {
                return Ok(None);
            }
            let counter = if has_dropout { &self.dropout } else { &self.slower };
            count(counter);
            let Options { scale, causal, grouped, dropout } = options;
            let named = PyDict::new(py);
            if let Some(scale) = scale {
                named.set_item(intern!(py, "scale"), scale)?;
            }
            if grouped {
                named.set_item(intern!(py, "enable_gqa"), true)?;
            }
            let composite = COMPOSITE.import(py, "gridguard._pytorch", "_composite")?;
            let call = (query, key, value, mask, dropout, causal);
            let out = composite.call(call, Some(&named))?;
            if !differentiated {
                return Ok(Some(out));
            }
            let aligned = ALIGNED.import(py, "gridguard._pytorch", "with_aligned_gradient")?;
            return aligned.call1((out,)).map(Some);
        }
        let is_taken = sizes.rows <= MAX_LONG_FRAMES && sizes.width <= MAX_HEAD_DIM;
        let Ok(width) = u32::try_from(sizes.width) else { return Ok(None) };
        if !is_taken || !self.torch.is_current(py, sizes.device)? {
            return Ok(None);
        }
        let scale = options.scale.unwrap_or_else(|| 1.0 / f64::from(width).sqrt());
        let bias = match mask {
            None => None,
            Some(mask) => match self.torch.bias(mask, query, key, differentiated)? {
                Some(bias) if !options.causal => Some(bias),
                _ => return Ok(None),
            },
        };
        let out = self.torch.empty_like.bind(py).call1((query,))?;
        let options =
            Options { scale, causal: options.causal, grouped: options.grouped, dropout: 0.0 };
        if !self.torch.is_launched([query, key, value, &out], bias.as_ref(), options, submit)? {
            return Ok(None);
        }
        count(&self.served);
        if !differentiated {
            return Ok(Some(out));
        }
        let record = RECORD.import(py, "gridguard._operator", "record")?;
        let call = (out, options.causal, scale, options.grouped);
        record.call1((query, key, value, bias, call)).map(Some)
    }
}

thread_local! {
    static IGNORES_CALLS: Cell<bool> = const { Cell::new(false) };
}

/// Counts no further calls of this thread.
#[pyfunction]
pub(crate) fn ignore_calls() {
    IGNORES_CALLS.set(true);
}

#[pyfunction]
pub(crate) fn ignores_calls() -> bool {
    IGNORES_CALLS.get()
}

fn count(calls: &AtomicU64) {
    if !ignores_calls() {
        calls.fetch_add(1, Ordering::Relaxed);
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
    let _ = attention
        .torch
        .stand_in
        .set((stand_in, Borders::new(Some(&profile), &limits, environment)));
    Ok(())
}
