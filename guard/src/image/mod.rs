//! Kernel images: PTX, cubins and fatbins, checked before they are loaded. Pure.

mod checked;
mod elf;
mod error;
mod fatbin;
mod info;
mod ptx;

pub use checked::Image;
pub use error::ImageError;
