//! Images of device code: checks PTX, cubins and fatbins before they are loaded, and reads the attributes of
//! their kernels without a GPU.

mod architecture;
#[cfg(feature = "image")]
mod archive;
mod checked;
#[cfg(feature = "image")]
mod cubin;
mod elf;
mod error;
mod fatbin;
#[cfg(feature = "image")]
mod file;
mod info;
#[cfg(feature = "image")]
mod kernels;
mod ptx;
#[cfg(feature = "image")]
mod ptx_kernels;

pub use architecture::{Architecture, Scope};
pub use checked::Image;
pub use error::ImageError;
// For the preload library.
#[cfg(feature = "image")]
pub use fatbin::fatbin_bytes;
#[cfg(feature = "image")]
pub use file::{FileImage, ImageFile};
#[cfg(feature = "image")]
pub use kernels::KernelAttributes;
