//! The only place where this crate vouches for its device code.

use gridguard::Parameter;
use gridguard::cuda::{Kernel, LoadError, Module};

/// The kernel `name` of a module compiled from this crate's `cu/`. `overlap` says whether the module
/// was compiled with `OVERLAP`, which lets the chunks of a split launch overlap.
#[allow(unsafe_code, reason = "vouches for the device code in `cu/`")]
pub(crate) fn kernel(
    module: &Module,
    name: &str,
    parameters: &[Parameter],
    overlap: bool,
) -> Result<Kernel, LoadError> {
    // SAFETY: the kernel takes `parameters`, and touches only the memory that its arguments describe.
    // Both follow from the source that stands beside them in a `Code`, which only this crate's sealed
    // operations make: its header comment states the parameters, and what a chunk reads and writes
    // (one item of each advancing tensor for each item of its grid; the other tensors within the
    // shapes that its macros give). The kernel stays inside `Prepared`. Its launches check element
    // and index types, both sealed, and shapes, and give `Args` the size of an item, which checks
    // lengths. compute-sanitizer runs over every kernel in the GPU suite.
    let kernel = unsafe { module.kernel(name, parameters)? };
    if !overlap {
        return Ok(kernel);
    }
    // SAFETY: a chunk must end only after those before it. The source was compiled with `OVERLAP` and
    // begins by making an `Overlap` (`tests/compile.rs` checks that), with which every thread of the
    // last block ends by executing `griddepcontrol.wait`; a grid does not end before its last block.
    // Chunks write disjoint items and read nothing that another writes; what they share, sums and
    // index reports, they change by atomic operations alone.
    Ok(unsafe { kernel.with_overlapping_chunks() })
}
