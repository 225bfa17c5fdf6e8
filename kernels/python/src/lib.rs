//! The native module of the Python package `gridguard`: what the command `gridguard` writes, as JSON, and
//! attention on the memory, stream and context of PyTorch.

mod attention;
mod block;
mod documents;
mod error;
mod launches;
mod tensor;
mod tuning;

use gridguard::DeviceLimits;
use gridguard_kernels::temporal_attention::{MAX_FRAMES, MAX_HEAD_DIM};
use gridguard_kernels::temporal_block::block_tensors;
use pyo3::prelude::*;
use pyo3::wrap_pyfunction;

/// `gridguard._native`, which `_native.pyi` describes.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("GridguardError", module.py().get_type::<error::GridguardError>())?;
    module.add("UnavailableError", module.py().get_type::<error::UnavailableError>())?;
    module.add("MAX_LENGTH", MAX_FRAMES)?;
    module.add("MAX_HEAD_DIM", MAX_HEAD_DIM)?;
    module.add("MAX_GRID_Y", DeviceLimits::any_device().max_grid.y)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(documents::limits, module)?)?;
    module.add_function(wrap_pyfunction!(documents::gpus, module)?)?;
    module.add_function(wrap_pyfunction!(documents::parse_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(documents::check, module)?)?;
    module.add_function(wrap_pyfunction!(documents::explain, module)?)?;
    module.add_class::<attention::Attention>()?;
    let tensors = block_tensors().map(|tensor| (tensor.in_files, tensor.rows, tensor.columns));
    module.add("BLOCK_TENSORS", tensors)?;
    module.add_function(wrap_pyfunction!(block::block_scratch, module)?)?;
    module.add_function(wrap_pyfunction!(block::block, module)?)?;
    module.add_function(wrap_pyfunction!(block::block_on_host, module)?)?;
    module.add_function(wrap_pyfunction!(tuning::choices, module)?)?;
    module.add_function(wrap_pyfunction!(tuning::profiles, module)?)?;
    module.add_function(wrap_pyfunction!(tuning::misses, module)?)?;
    module.add_function(wrap_pyfunction!(tuning::write_misses, module)?)?;
    module.add_function(wrap_pyfunction!(tuning::reload_profiles, module)?)
}
