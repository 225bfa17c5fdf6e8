//! One kernel at one size: its device code, its launch and its batch axis.

use core::ops::RangeInclusive;

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::element::ElementType;
use crate::error::KernelError;

/// One kernel at one size: the device code, the launch over the whole problem, and the axis along
/// which that launch can be split.
///
/// Constructors check all sizes, so that `request` and `batch` cannot fail.
///
/// Sealed: this crate vouches for the device code of its operations, which makes launching them safe.
/// Load device code of your own with `gridguard::cuda::Module`.
#[allow(private_bounds, reason = "sealed")]
pub trait Operation: Sealed {
    /// The device code for `device`, and the macros that specialise it.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] if the device lacks the instructions.
    fn code(&self, device: &DeviceLimits) -> Result<Code, KernelError>;

    /// The launch over the whole problem, legal or not.
    fn request(&self) -> LaunchRequest;

    /// The axis whose items are independent.
    fn batch(&self) -> BatchAxis;
}

/// Keeps implementations of [`Operation`] inside this crate.
pub(crate) trait Sealed {}

/// The source of a kernel and what it is specialised for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The kernel's name: `rms_norm` in `rms_norm.cu`.
    pub kernel: &'static str,
    /// CUDA C++ that NVRTC compiles without headers.
    pub source: &'static str,
    /// Macros and their values.
    pub defines: Vec<(&'static str, u64)>,
    /// Whether the code uses instructions of a single architecture, such as `sm_90a`.
    pub architecture_specific: bool,
    /// The kernel's parameters.
    pub parameters: Vec<Parameter>,
}

#[cfg(feature = "cuda")]
impl Code {
    /// The compiler options for `architecture`.
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

/// A 64-bit parameter, such as the number of items in a chunk.
pub(crate) const U64: Parameter = Parameter::of::<u64>();

/// The bytes that a thread loads or stores at once where rows are whole vectors.
pub(crate) const VECTOR_BYTES: u64 = 16;

/// Memory that a kernel accesses in vectors of 16 bytes, or else element by element.
pub(crate) const fn memory(in_vectors: bool) -> Parameter {
    if in_vectors { Parameter::AlignedMemory { bytes: VECTOR_BYTES } } else { Parameter::Memory }
}

/// Checks that a dimension is in the supported range.
pub(crate) fn check_size(
    dimension: &'static str,
    given: u64,
    supported: RangeInclusive<u64>,
) -> Result<(), KernelError> {
    if supported.contains(&given) {
        return Ok(());
    }
    let (least, most) = supported.into_inner();
    Err(KernelError::Dimension { dimension, given, least, most })
}

/// Checks that 64 bits can count the bytes of a tensor of this shape, of the widest element type. An
/// axis of zero elements counts as one.
pub(crate) fn check_elements(shape: &[u64]) -> Result<(), KernelError> {
    let bytes = shape
        .iter()
        .try_fold(ElementType::F32.bytes(), |bytes, size| bytes.checked_mul((*size).max(1)));
    match bytes {
        Some(_) => Ok(()),
        None => Err(KernelError::TooLarge { shape: shape.to_vec() }),
    }
}

/// The prelude followed by files of `cu/`, each with its own line numbers.
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
