//! The PTX that machine code was compiled from, if that is proven. PTX of another compilation may compute something else:
//! `__CUDA_ARCH__` may decide how many rows a block has.
//!
//! Proven is the PTX of the same architecture in a fat binary, of a compiler in the process (`compilers`), of a `ptxas`
//! of the run (`assembler`), and in the folder of a kernel of Triton (`caches`). The driver compiles rewritten PTX
//! without options, so machine code that was compiled with options that change it has none.

use core::ptr;
use std::path::Path;

use gridguard::ComputeCapability;
use gridguard::image::fatbin_bytes;

use crate::driver::Driver;
use crate::fix::fatbin::in_fatbin;
use crate::fix::image::{digest_of_object, digest_of_path};
use crate::fix::{assembler, caches, store};
use crate::process::elf;
use crate::watch::handle_record::{Kernel, Origin, Reason};

/// The PTX of a kernel of machine code.
pub(super) fn ptx_of(kernel: &Kernel, origin: &Origin, driver: &Driver) -> Result<Vec<u8>, Reason> {
    let device = driver.device_limits().ok_or("the limits of the device are unknown")?;
    let capability = device.compute_capability;
    match origin {
        Origin::Mapped { address, digest } => in_object(*address, *digest, capability),
        Origin::File { path, digest } => in_fatbin(&of_file(path, *digest)?, capability),
        Origin::Copied(texts) => {
            let of_device = texts.iter().find(|(known, _)| *known == capability);
            let (_, text) = of_device.ok_or("its fat binary has nothing for the device")?;
            store::decompressed(text.as_ref().map_err(Reason::clone)?)
        }
        Origin::Cubin(digest) => {
            let known = store::find(*digest).or_else(|| assembler::find(*digest));
            let known = known.or_else(|| caches::ptx_of_triton(&kernel.name, *digest));
            known.unwrap_or(Err(NO_PTX_OF_CUBIN.into()))
        }
    }
}

/// The PTX in a fat binary of a loaded object, if it is the same as when it was loaded. The object stays loaded only
/// while it is read: plugins are unloaded, rebuilt and loaded again.
fn in_object(
    address: usize,
    digest: u64,
    capability: ComputeCapability,
) -> Result<Vec<u8>, Reason> {
    const HEADER: usize = 16;
    let image: *const u8 = ptr::with_exposed_provenance(address);
    let _held = elf::hold(address).ok_or(UNLOADED)?;
    // SAFETY: the bytes are of a loaded object, which is held, and are only read.
    let header =
        elf::contains(address, HEADER).then(|| unsafe { image.cast::<[u8; HEADER]>().read() });
    let bytes = header.and_then(|header| usize::try_from(fatbin_bytes(&header)?).ok());
    let bytes = bytes.filter(|bytes| elf::contains(address, *bytes)).ok_or(UNLOADED)?;
    // SAFETY: the object is held, and `elf::contains` found all of these bytes in it. They are only read.
    let fatbin = unsafe { core::slice::from_raw_parts(image, bytes) };
    match digest_of_object(fatbin) == Some(digest) {
        true => in_fatbin(fatbin, capability),
        false => Err(UNLOADED.into()),
    }
}

/// The fat binary in a file, if it is the same as when it was loaded.
fn of_file(path: &Path, digest: u64) -> Result<Vec<u8>, Reason> {
    let changed = || Reason::from(format!("{} was changed since it was loaded", path.display()));
    let read = gridguard_files::read(path, MOST_BYTES).map_err(|error| error.to_string())?;
    let is_same = |bytes: &Vec<u8>| digest_of_path(path, bytes).is_ok_and(|now| now == digest);
    read.filter(is_same).ok_or_else(changed)
}

const UNLOADED: &str = "the library with its fat binary was unloaded or replaced";
const NO_PTX_OF_CUBIN: &str = "its module is machine code, whose PTX is neither in Triton's caches nor was compiled in this run (NVRTC, nvJitLink, \
     ptxas): an empty cache has it compiled again (TRITON_CACHE_DIR); if CuPy took its machine code from its cache, \
     CUPY_CACHE_IN_MEMORY=1 has CuPy compile it again; the attention of a package is served by gridguard.torch";
/// The largest file that is read.
const MOST_BYTES: u64 = 1 << 30;
