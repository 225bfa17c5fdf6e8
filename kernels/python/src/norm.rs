//! The norm of a sum, on the memory of PyTorch's tensors.

use gridguard::Choice;
use gridguard_kernels::ElementType;
use gridguard_kernels::residual_norm::ResidualNorm;
use pyo3::prelude::*;

use crate::attention::call::{Target, submit_prepared};
use crate::border::Reason;
use crate::error::{invalid, unavailable};
use crate::launches::{self, NORMS};

/// Launches `out = norm(x + added) * weight` and its cast on a stream of PyTorch, or returns why the kernel does not
/// serve the problem: (rows, columns, type of the cast, whether the mean is subtracted, device ordinal).
///
/// The caller, `gridguard.torch`, passes the device's current stream and the addresses of x, added, out, cast and
/// weight. These tensors have the problem's sizes and device, are contiguous and alive, and only x and out may have
/// memory in common. x, out and weight are f32. PyTorch's allocator orders all of this memory on the stream.
#[pyfunction]
pub(crate) fn residual_norm(
    py: Python<'_>,
    problem: (u64, u64, String, bool, usize),
    addresses: [u64; 5],
    epsilon: f32,
    stream: usize,
    capturing: bool,
) -> PyResult<Option<Reason>> {
    let (rows, columns, dtype, centered, device) = problem;
    let element = ElementType::ALL.into_iter().find(|element| element.name() == dtype);
    let element = element.ok_or_else(|| invalid("dtype"))?;
    let Ok(norm) = ResidualNorm::new(rows, columns, element, centered) else {
        return Ok(Some("shape"));
    };
    py.detach(|| {
        let kernels = launches::kernels(device).map_err(unavailable)?;
        let prepare = || kernels.prepare(norm, Choice::AUTOMATIC);
        let target = Target { stream, capturing, may_load: true };
        submit_prepared(&NORMS, (device, norm), &target, prepare, |prepared, stream| {
            // SAFETY: the contract of this function, whose only caller is `gridguard.torch`. The stream belongs to the
            // device's primary context, which is the guard's. In a capture the graph owns the memory, and
            // `submit_prepared` keeps the code loaded.
            unsafe { prepared.launch_raw(stream, addresses, epsilon) }
        })
    })
}
