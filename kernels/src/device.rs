//! Loads kernels of this crate's `cu/`, and proves that their launches are safe.

use gridguard::Parameter;
use gridguard::cuda::{CudaError, Kernel, Module};

/// The kernel `name` of a module compiled from this crate's `cu/`. `overlap` says whether the module
/// was compiled with `OVERLAP`, which lets the chunks of a split launch overlap.
#[allow(unsafe_code, reason = "the device code in `cu/`")]
pub(crate) fn kernel(
    module: &Module,
    name: &str,
    parameters: &[Parameter],
    overlap: bool,
) -> Result<Kernel, CudaError> {
    // SAFETY: the kernel takes `parameters`, and accesses only memory that its arguments reach. The source in the
    // same `Code`, which only this crate makes, shows both: its header comment states the parameters and the memory that a
    // chunk reads and writes. For tensors with items, these are the items of the chunk; for others, the shape in
    // macros or arguments. The module was compiled from that source, or read from a cache that only this crate
    // writes, by a key of the source. The kernel stays in this crate, in `Prepared` and `TemporalBlock`. Pipelines of
    // `TemporalBlock` declare buffers of the sizes of its operations. Launches of `Prepared` check the sealed element
    // types, and the shape and length of each tensor. All of them give `Args` the size of an item, so the guard checks the reach again. All bit patterns
    // are valid elements.
    let kernel = unsafe { module.kernel(name, parameters)? };
    if !overlap {
        return Ok(kernel);
    }
    // SAFETY: the source was compiled with `OVERLAP`, and each kernel begins by constructing an `Overlap`, which
    // `tests/compile` checks. Its destructor makes every thread of a grid's last block end with
    // `griddepcontrol.wait`. Chunks write disjoint items, since no two items of an output overlap. They read nothing
    // that another chunk writes, because a launch borrows outputs mutably. Chunks share only the sums of `compare`,
    // which they change by atomic operations.
    Ok(unsafe { kernel.with_overlapping_chunks() })
}
