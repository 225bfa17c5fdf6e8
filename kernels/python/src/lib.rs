//! The native module of the Python package `gridguard`: launch checks and explanations as JSON, and kernels that read
//! PyTorch's tensors and run on its streams.

#[allow(unsafe_code, reason = "memory and streams of PyTorch")]
mod attention;
#[allow(unsafe_code, reason = "memory and streams of PyTorch")]
mod block;
mod border;
mod dispatch;
mod documents;
mod error;
mod function;
mod launches;
#[allow(unsafe_code, reason = "memory and streams of PyTorch")]
mod norm;
mod state;
#[allow(unsafe_code, reason = "C functions and structs of DLPack")]
mod tensor;
mod tuning;

/// `gridguard._native`, typed in `_native.pyi`.
#[pyo3::pymodule]
mod _native {
    use gridguard::DeviceLimits;
    use gridguard_kernels::temporal_block::BLOCK_TENSORS;
    use pyo3::prelude::*;

    #[cfg(feature = "stand-in")]
    #[pymodule_export]
    use crate::attention::set_stand_in;
    #[pymodule_export]
    use crate::attention::{Attention, ignore_calls, ignores_calls};
    #[pymodule_export]
    use crate::block::{block, block_on_host, block_scratch};
    #[pymodule_export]
    use crate::dispatch::Dispatched;
    #[pymodule_export]
    use crate::documents::{check, explain, gpus, limits, parse_bytes};
    #[pymodule_export]
    use crate::error::{GridguardError, UnavailableError};
    #[pymodule_export]
    use crate::function::{compare_digests, look_up_function, profile_digest, tune_function};
    #[pymodule_export]
    use crate::norm::residual_norm;
    #[pymodule_export]
    use crate::tuning::{choices, misses, profiles, reload_profiles, write_misses};

    #[pymodule_export]
    const MAX_LENGTH: u64 = gridguard_kernels::temporal_attention::MAX_LONG_FRAMES;
    #[pymodule_export]
    const MAX_HEAD_DIM: u64 = gridguard_kernels::temporal_attention::MAX_HEAD_DIM;
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name of a module's version")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let tensors = BLOCK_TENSORS.map(|tensor| (tensor.in_files, tensor.rows, tensor.columns));
        module.add("BLOCK_TENSORS", tensors)?;
        module.add("MAX_GRID_Y", DeviceLimits::any_device().max_grid.y)
    }
}
