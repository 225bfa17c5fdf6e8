//! What every kernel module says of itself.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::error::KernelError;

/// One kernel at one size: what device code serves it, the launch that covers it, and which axis may
/// be split.
///
/// Implementors check sizes when they are made, so that `request` and `batch` cannot fail.
///
/// Only the kernels of this crate are operations: it vouches for their device code, so that launching
/// them is safe. Device code of others goes through `gridguard::cuda::Module`.
#[allow(private_bounds, reason = "nobody else can vouch for device code without `unsafe`")]
pub trait Operation: Sealed {
    /// The device code that serves it on `device`, and how it is specialised.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] where the device has no instructions for it.
    fn code(&self, device: &DeviceLimits) -> Result<Code, KernelError>;

    /// The launch over the whole problem at once, legal or not.
    fn request(&self) -> LaunchRequest;

    /// The axis whose items are independent.
    fn batch(&self) -> BatchAxis;
}

/// What only this crate implements.
pub(crate) trait Sealed {}

/// A kernel's source and what it is specialised for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The name in messages and of the kernel: `rms_norm` of `rms_norm.cu`.
    pub kernel: &'static str,
    /// CUDA C++ that NVRTC compiles without a header.
    pub source: &'static str,
    /// Macros and their values.
    pub defines: Vec<(&'static str, u64)>,
    /// Whether it has instructions of one architecture only.
    pub architecture_specific: bool,
    /// What the kernel takes.
    pub parameters: Vec<Parameter>,
}

#[cfg(feature = "cuda")]
impl Code {
    /// How it is compiled for `architecture`.
    #[must_use]
    pub fn compile_options(
        &self,
        architecture: gridguard::ComputeCapability,
    ) -> gridguard::cuda::CompileOptions {
        let name = format!("{}.cu", self.kernel);
        let mut options = gridguard::cuda::CompileOptions::new(name, architecture);
        options.architecture_specific = self.architecture_specific;
        self.defines.iter().fold(options, |options, (name, value)| options.define(*name, value))
    }
}

/// A parameter of 64 bits, such as the items of a chunk.
pub(crate) const U64: Parameter = Parameter::of::<u64>();

/// Memory that a kernel takes in vectors of 16 bytes, or element by element.
pub(crate) const fn memory(in_vectors: bool) -> Parameter {
    if in_vectors { Parameter::AlignedMemory { bytes: 16 } } else { Parameter::Memory }
}

/// Sources joined behind the prelude, each with line numbers of its own.
macro_rules! source {
    ($($file:literal),+) => {
        concat!(
            "#line 1 \"prelude.cu\"\n",
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/cu/prelude.cu")),
            $("\n#line 1 \"", $file, "\"\n", include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/cu/", $file))),+
        )
    };
}
pub(crate) use source;
