//! The one place where this workspace vouches for its device code.

use gridguard::Parameter;
use gridguard::cuda::{Kernel, LoadError, Module};

/// The kernel `name`, which takes `parameters`, of a module compiled from this crate's `cu/`, whose
/// chunks `overlap` if it was compiled so.
#[allow(unsafe_code, reason = "the promise that our own device code keeps its contract")]
pub(crate) fn kernel(
    module: &Module,
    name: &str,
    parameters: &[Parameter],
    overlap: bool,
) -> Result<Kernel, LoadError> {
    // SAFETY: every kernel in `cu/` states its contract in its header comment and keeps to it: it
    // takes the parameters that its module declares, and touches `items` times the stride from each
    // pointer on, for as many items as its grid has blocks for. The public functions of this crate
    // check lengths and shapes before, and memory checkers run over every kernel in the GPU suite.
    let kernel = unsafe { module.kernel(name, parameters)? };
    if !overlap {
        return Ok(kernel);
    }
    // SAFETY: compiled with `OVERLAP`, and every kernel in `cu/` begins by making an `Overlap`, whose
    // end waits in the last block; chunks write their own items and nothing that another reads.
    Ok(unsafe { kernel.with_overlapping_chunks() })
}
