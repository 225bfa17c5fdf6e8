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
    // SAFETY: the kernel takes `parameters`, and accesses only memory that its arguments reach. Both
    // follow from the source that stands beside them in a `Code` of one of this crate's sealed operations:
    // its header comment states the parameters, and what a chunk reads and writes (of each tensor with
    // items, those of the chunk; of others, the shape that macros or arguments give). The module was
    // compiled from that source, or read from a cache that only this crate writes, by a key of it.
    // The kernel stays in this crate, in `Prepared` and `TemporalBlock`. The pipelines of the latter declare
    // buffers of the sizes that its operations were made for. The public launches of the former check the element and index types,
    // which are sealed, and shape and length of each tensor; those of `bench` use tensors of its own, made
    // for the operation. Each gives `Args` the size of an item, and so the whole reach is checked again.
    // All bit patterns are valid elements.
    let kernel = unsafe { module.kernel(name, parameters)? };
    if !overlap {
        return Ok(kernel);
    }
    // SAFETY: the source was compiled with `OVERLAP`, and each kernel begins by making an `Overlap`
    // (`tests/compile.rs` checks that), with which every thread of a grid's last block ends by executing
    // `griddepcontrol.wait`. Chunks write disjoint items, since no two items of an output overlap, and read
    // nothing that another writes: a launch borrows outputs mutably. What chunks share, the sums of
    // `compare` and the report of `get_rows`, they change by atomic operations alone and do not read.
    Ok(unsafe { kernel.with_overlapping_chunks() })
}
