//! What the module `torch` offers: the layouts of its tensors, its state, and some of its functions.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyType;

#[cfg(feature = "stand-in")]
use crate::border::Borders;
use crate::state::State;
use crate::tensor::{Device, Reader};

/// The module `torch`.
pub(crate) struct Torch {
    pub(super) reader: Reader,
    /// `Tensor` and `Parameter`. Subclasses may give the same memory another meaning.
    plain: [Py<PyType>; 2],
    /// `torch._C`.
    pub(super) module: Py<PyAny>,
    pub(super) empty_like: Py<PyAny>,
    pub(super) log: Py<PyAny>,
    pub(super) state: State,
    #[cfg(feature = "stand-in")]
    pub(super) stand_in: std::sync::OnceLock<(Py<PyAny>, Borders)>,
}

impl Torch {
    pub(super) fn new(torch: &Bound<'_, PyAny>, dlpack: bool) -> PyResult<Self> {
        let parameter = torch.getattr("nn")?.getattr("Parameter")?;
        let plain =
            |object: Bound<'_, PyAny>| Ok::<_, PyErr>(object.cast_into::<PyType>()?.unbind());
        Ok(Self {
            reader: Reader::new(torch, dlpack)?,
            plain: [plain(torch.getattr("Tensor")?)?, plain(parameter)?],
            module: torch.getattr("_C")?.unbind(),
            empty_like: torch.getattr("empty_like")?.unbind(),
            log: torch.getattr("log")?.unbind(),
            state: State::new(torch)?,
            #[cfg(feature = "stand-in")]
            stand_in: std::sync::OnceLock::new(),
        })
    }

    /// What computes in place of the kernels, on CPU tensors. Wheels have no such thing.
    #[cfg(not(feature = "stand-in"))]
    #[allow(clippy::unused_self, reason = "as with the feature")]
    pub(super) const fn stand_in(&self) -> Option<&Py<PyAny>> {
        None
    }

    #[cfg(feature = "stand-in")]
    pub(super) fn stand_in(&self) -> Option<&Py<PyAny>> {
        self.stand_in.get().map(|(function, _)| function)
    }

    pub(super) fn kind(&self) -> i32 {
        if self.stand_in().is_none() { Device::CUDA } else { Device::CPU }
    }

    pub(super) fn is_plain(&self, tensor: &Bound<'_, PyAny>) -> bool {
        self.plain.iter().any(|plain| tensor.get_type().is(plain))
    }

    pub(super) fn needs_gradients<'a, 'py: 'a>(
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

    pub(super) fn is_current(&self, py: Python<'_>, device: Device) -> PyResult<bool> {
        if self.stand_in().is_some() {
            return Ok(true);
        }
        let current = self.module.call_method0(py, intern!(py, "_cuda_getDevice"))?;
        Ok(current.extract::<i32>(py)? == device.ordinal)
    }
}
