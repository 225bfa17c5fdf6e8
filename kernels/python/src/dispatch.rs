//! The kernel at PyTorch's dispatcher. It serves common calls without Python code.
//!
//! PyTorch's C interface for kernels would save another microsecond. But it turns exceptions into status codes, and has
//! neither the types of tensors, nor whether they need gradients, nor the modes and transforms of a thread.

use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::attention::Attention;
use crate::attention::call::Options;

/// A kernel of `aten::scaled_dot_product_attention`.
#[pyclass(frozen, module = "gridguard._native")]
pub(crate) struct Dispatched {
    /// Serves common calls; `None` while nothing is installed.
    kernels: Mutex<Option<Py<Attention>>>,
    /// The function for all other calls.
    others: Py<PyAny>,
    /// Its attribute `is_unserved` keeps the calls of a thread in PyTorch.
    thread: Py<PyAny>,
}

#[pymethods]
impl Dispatched {
    #[new]
    #[pyo3(signature = (others, thread, /))]
    fn new(others: Py<PyAny>, thread: Py<PyAny>) -> Self {
        Self { kernels: Mutex::new(None), others, thread }
    }

    #[getter]
    fn kernels(&self, py: Python<'_>) -> Option<Py<Attention>> {
        self.kernels.lock().as_ref().map(|kernels| kernels.clone_ref(py))
    }

    #[setter]
    fn set_kernels(&self, kernels: Option<Py<Attention>>) {
        // Dropped after the lock is released: it may run Python code.
        let before = core::mem::replace(&mut *self.kernels.lock(), kernels);
        drop(before);
    }

    #[pyo3(signature = (*arguments, **options))]
    fn __call__<'py>(
        &self,
        arguments: &Bound<'py, PyTuple>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = arguments.py();
        if let Some(kernels) = self.kernels(py)
            && !self.thread.getattr(py, intern!(py, "is_unserved"))?.is_truthy(py)?
            && let Some(served) = serve(kernels.get(), arguments, options)?
        {
            return Ok(served);
        }
        self.others.bind(py).call(arguments, options)
    }
}

/// The output of a common call. The dispatcher leaves out the arguments with default values.
fn serve<'py>(
    kernels: &Attention,
    arguments: &Bound<'py, PyTuple>,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let (py, given) = (arguments.py(), arguments.len());
    let at = |index: usize| (index < given).then(|| arguments.get_item(index)).transpose();
    let ([Some(query), Some(key), Some(value)], None) = ([at(0)?, at(1)?, at(2)?], at(6)?) else {
        return Ok(None);
    };
    let [scale, enable_gqa] = match options {
        Some(options) => {
            [intern!(py, "scale"), intern!(py, "enable_gqa")].map(|name| options.get_item(name))
        }
        None => [Ok(None), Ok(None)],
    };
    let (scale, enable_gqa) = (scale?, enable_gqa?);
    let known = usize::from(scale.is_some()) + usize::from(enable_gqa.is_some());
    if options.is_some_and(|options| options.len() != known) {
        return Ok(None);
    }
    let (mask, options) = (
        at(3)?,
        Options::of_common_call(
            at(4)?.as_ref(),
            at(5)?.as_ref(),
            scale.as_ref(),
            enable_gqa.as_ref(),
        ),
    );
    let Some(options) = options else { return Ok(None) };
    // Autocast has cast the tensors before.
    kernels.serve_common([&query, &key, &value], mask.as_ref(), options, true)
}
