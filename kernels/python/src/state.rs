//! What PyTorch does with the calls of this thread, apart from computing them.

use pyo3::intern;
use pyo3::prelude::*;

/// Functions and modules of PyTorch with the state of a thread.
pub(crate) struct State {
    dispatch_modes: Py<PyAny>,
    function_modes: Py<PyAny>,
    function_mode_stack: Py<PyAny>,
    functorch_level: Py<PyAny>,
    is_tracing: Py<PyAny>,
    is_grad_enabled: Py<PyAny>,
    is_autocast_enabled: Py<PyAny>,
    forward_ad: Py<PyAny>,
    profiler: Py<PyAny>,
}

impl State {
    pub(crate) fn new(torch: &Bound<'_, PyAny>) -> PyResult<Self> {
        let of = |path: &[&str]| -> PyResult<Py<PyAny>> {
            let found = path.iter().try_fold(torch.clone(), |object, name| object.getattr(*name));
            Ok(found?.unbind())
        };
        Ok(Self {
            dispatch_modes: of(&["_C", "_len_torch_dispatch_stack"])?,
            function_modes: of(&["_C", "_len_torch_function_stack"])?,
            function_mode_stack: of(&["overrides", "_get_current_function_mode_stack"])?,
            functorch_level: of(&["_C", "_functorch", "peek_interpreter_stack"])?,
            is_tracing: of(&["_C", "_is_tracing"])?,
            is_grad_enabled: of(&["is_grad_enabled"])?,
            is_autocast_enabled: of(&["is_autocast_enabled"])?,
            forward_ad: of(&["autograd", "forward_ad"])?,
            profiler: of(&["autograd", "profiler"])?,
        })
    }

    /// Whether this thread records or transforms functions or operators, and would not see a launch.
    pub(crate) fn is_transformed(&self, py: Python<'_>) -> PyResult<bool> {
        let level = self.forward_ad.getattr(py, intern!(py, "_current_level"))?;
        Ok(is_true(py, &self.dispatch_modes)?
            || self.has_function_mode(py)?
            || !self.functorch_level.call0(py)?.is_none(py)
            || is_true(py, &self.is_tracing)?
            || level.extract::<i64>(py)? >= 0)
    }

    /// Whether a mode may change a call of a function. `torch.set_default_device` only changes new tensors.
    pub(crate) fn has_function_mode(&self, py: Python<'_>) -> PyResult<bool> {
        if !is_true(py, &self.function_modes)? {
            return Ok(false);
        }
        for mode in self.function_mode_stack.bind(py).call0()?.try_iter()? {
            let module = mode?.get_type().getattr(intern!(py, "__module__"))?;
            if !module.eq(intern!(py, "torch.utils._device"))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a profiler records operators.
    pub(crate) fn is_profiled(&self, py: Python<'_>) -> PyResult<bool> {
        self.profiler.getattr(py, intern!(py, "_is_profiler_enabled"))?.is_truthy(py)
    }

    pub(crate) fn is_grad_enabled(&self, py: Python<'_>) -> PyResult<bool> {
        is_true(py, &self.is_grad_enabled)
    }

    pub(crate) fn is_autocast_enabled(&self, py: Python<'_>, device_type: &str) -> PyResult<bool> {
        self.is_autocast_enabled.call1(py, (device_type,))?.is_truthy(py)
    }
}

fn is_true(py: Python<'_>, function: &Py<PyAny>) -> PyResult<bool> {
    function.call0(py)?.is_truthy(py)
}
