//! One kernel at one size: its device code, its launch, its batch axis and its launch parameters.

use core::ops::RangeInclusive;

use gridguard::profile::{Key, Objective, Policy};
use gridguard::{BatchAxis, ComputeCapability, DeviceLimits, LaunchRequest, Parameter};

use crate::element::ElementType;
use crate::error::KernelError;

/// One kernel at one size: the device code, the launch over the whole problem, the axis of its independent
/// items, and the launch parameters for a tuner.
///
/// Constructors check all sizes, so that `grid` cannot fail.
///
/// Only this crate makes the [`Code`] of an operation, because it guarantees the memory accesses of its device code.
/// Load your own device code with `gridguard::cuda::Module`.
pub trait Operation: Clone {
    /// The kernel's name in profiles.
    const KERNEL: &'static str;
    /// The names of the sizes, the number of items first.
    const SIZES: &'static [&'static str];
    /// The sources of all implementations.
    const SOURCES: &'static [&'static str];

    /// The values of [`Self::SIZES`], and the types of the tensors, such as `f16` or `f16 i64`.
    fn problem(&self) -> (Vec<u64>, String);

    /// The device code for `device`, and the macros that specialise it.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] if the device lacks the instructions.
    fn code(&self, device: &DeviceLimits) -> Result<Code, KernelError>;

    /// The launch over the whole problem, legal or not, and the axis whose items are independent.
    fn grid(&self) -> (LaunchRequest, BatchAxis);

    /// The launch over the whole problem, legal or not.
    fn request(&self) -> LaunchRequest {
        self.grid().0
    }

    /// The axis whose items are independent.
    fn batch(&self) -> BatchAxis {
        self.grid().1
    }

    /// The sizes with their names, the number of items first.
    fn sizes(&self) -> Vec<(&'static str, u64)> {
        Self::SIZES.iter().copied().zip(self.problem().0).collect()
    }

    /// The types of the tensors.
    fn dtypes(&self) -> String {
        self.problem().1
    }

    /// The implementation and its options, for kernels that have several; else empty.
    fn variant(&self) -> String {
        String::new()
    }

    /// Whether a quarter of the L1 cache is not used as shared memory, even if fewer blocks are resident.
    fn keeps_cache(&self) -> bool {
        false
    }

    /// The names and values of the launch parameters; empty if there are none.
    fn parameters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Sets of launch parameters worth measuring, the default first. One empty set if there are no
    /// launch parameters.
    fn candidates(&self) -> Vec<Vec<(String, u64)>> {
        vec![Vec::new()]
    }

    /// The same operation with other launch parameters. Parameters that are not named keep their values.
    ///
    /// # Errors
    ///
    /// [`KernelError::UnknownParameter`] for an unknown name, [`KernelError::LaunchParameter`] for a
    /// value that the kernel does not support.
    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        replaced::<0>(Self::KERNEL, [], parameters).map(|[]| self.clone())
    }

    /// The hashes that identify the [sources](Self::SOURCES) in profiles. An entry with another [`Key::source`] is
    /// stale: the kernel was edited since.
    fn source_hashes() -> Vec<String> {
        Self::SOURCES.iter().map(|source| source_hash(source)).collect()
    }

    /// The key of this operation in profiles, for a device with these limits.
    ///
    /// ```
    /// use gridguard::DeviceLimits;
    /// use gridguard::profile::{Objective, Policy};
    /// use gridguard_kernels::rms_norm::RmsNorm;
    /// use gridguard_kernels::{ElementType, Operation};
    ///
    /// let norm = RmsNorm::new(65_536, 4096, ElementType::F16)?;
    /// assert_eq!(norm.sizes(), [("rows", 65_536), ("columns", 4096)]);
    /// let device = DeviceLimits::any_device();
    /// let key = norm.key(&device, Policy::default(), Objective::default())?;
    /// assert_eq!((&*key.kernel, &*key.dtypes, key.source.len()), ("rms_norm", "f16", 16));
    /// # Ok::<(), gridguard_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Operation::code`].
    fn key(
        &self,
        device: &DeviceLimits,
        policy: Policy,
        objective: Objective,
    ) -> Result<Key, KernelError> {
        Ok(Key {
            kernel: Self::KERNEL.to_owned(),
            source: source_hash(self.code(device)?.source),
            variant: self.variant(),
            dtypes: self.dtypes(),
            policy,
            objective,
        })
    }
}

/// The architecture of the warpgroup instructions: later ones lack them.
pub(crate) const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);

/// The source of a kernel of this crate, and the macros that specialise it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

impl Code {
    /// The code of `O`, specialised for `element`, that runs on every architecture.
    pub(crate) fn new<O: Operation>(
        source: &'static str,
        element: ElementType,
        parameters: Vec<Parameter>,
    ) -> Self {
        let defines = vec![("ELEMENT", element.number())];
        let (kernel, architecture_specific) = (O::KERNEL, false);
        Self { kernel, source, defines, architecture_specific, parameters }
    }

    /// Adds macros.
    pub(crate) fn with<const N: usize>(mut self, macros: [(&'static str, u64); N]) -> Self {
        self.defines.extend(macros);
        self
    }

    /// The compiler options for `architecture`.
    #[cfg(feature = "cuda")]
    pub fn compile_options(
        &self,
        architecture: ComputeCapability,
    ) -> gridguard::cuda::CompileOptions {
        let name = format!("{}.cu", self.kernel);
        let mut options = gridguard::cuda::CompileOptions::new(name, architecture);
        options.architecture_specific = self.architecture_specific;
        self.defines.iter().fold(options, |options, (name, value)| options.define(*name, value))
    }
}

/// The first 16 hexadecimal digits of a source's SHA-256, which identify the source in profiles.
pub(crate) fn source_hash(source: &str) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(source).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A 64-bit parameter, for example the number of items in a chunk.
pub(crate) const U64: Parameter = Parameter::of::<u64>();

/// Threads of a warp.
pub(crate) const WARP: u64 = 32;

/// The bytes of one load or store if rows are whole vectors.
pub(crate) const VECTOR_BYTES: u64 = 16;

/// Memory that a kernel accesses in vectors of 16 bytes, or else element by element.
pub(crate) const fn memory(in_vectors: bool) -> Parameter {
    if in_vectors { Parameter::AlignedMemory { bytes: VECTOR_BYTES } } else { Parameter::Memory }
}

/// The values of a kernel's launch parameters: the values `now`, replaced by the `given` ones of the same name.
pub(crate) fn replaced<const N: usize>(
    kernel: &'static str,
    now: [(&'static str, u64); N],
    given: &[(String, u64)],
) -> Result<[u64; N], KernelError> {
    let mut values = now.map(|(_, value)| value);
    for (name, value) in given {
        let place = now.iter().position(|(known, _)| known == name);
        let Some(place) = place.and_then(|place| values.get_mut(place)) else {
            let known =
                if N == 0 { "none".to_owned() } else { now.map(|(known, _)| known).join(", ") };
            return Err(KernelError::UnknownParameter { kernel, given: name.clone(), known });
        };
        *place = *value;
    }
    Ok(values)
}

/// The error of a launch parameter's value that a variant of a kernel does not support.
pub(crate) fn refused<T>(
    variant: &'static str,
    parameter: &'static str,
    given: u64,
    expected: impl Into<String>,
) -> Result<T, KernelError> {
    let expected = expected.into();
    Err(KernelError::LaunchParameter { variant, parameter, given, expected })
}

/// Launch parameters with owned names.
pub(crate) fn named<const N: usize>(parameters: [(&'static str, u64); N]) -> Vec<(String, u64)> {
    parameters.map(|(name, value)| (name.to_owned(), value)).into()
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

/// The prelude and files of `cu/` as one source, with the line numbers of each file.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argsort::{Argsort, Order};
    use crate::blocks::MAX_COLUMNS;
    use crate::geglu::Geglu;
    use crate::layer_norm::LayerNorm;
    use crate::rms_norm::RmsNorm;
    use crate::softmax::Softmax;
    use crate::temporal_attention::{Layout, Shape, TemporalAttention, Variant};

    fn named(parameters: &[(&str, u64)]) -> Vec<(String, u64)> {
        parameters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    /// Attention through shared memory, which has all launch parameters.
    fn attention() -> TemporalAttention {
        let device = DeviceLimits {
            compute_capability: ComputeCapability::new(8, 0),
            ..DeviceLimits::any_device()
        };
        let shape = Shape::new(15_360, 5, 16, 40).expect("legal");
        TemporalAttention::by_variant(shape, ElementType::F16, &device, Variant::Tiled)
            .expect("takes it")
            .with_layout(Layout::FoldedY)
    }

    #[test]
    fn a_source_has_the_first_digits_of_its_sha_256() {
        // As `printf abc | sha256sum` prints it.
        assert_eq!(source_hash("abc"), "ba7816bf8f01cfea");
    }

    #[test]
    fn kernels_of_rows_have_the_documented_blocks_alignment_and_limits() {
        fn check<O: Operation>(
            most_columns: u64,
            blocks: [[u64; 3]; 3],
            new: impl Fn(u64, u64, ElementType) -> Result<O, KernelError>,
        ) {
            let half = ElementType::F16;
            let new = |rows, columns| new(rows, columns, half);
            for [rows, columns, blocks] in blocks {
                let (request, batch) = new(rows, columns).expect("legal").grid();
                let along = request.grid.along(batch.axis());
                let name = format!("{} {rows}x{columns}", O::KERNEL);
                assert_eq!((along, batch.blocks(rows)), (blocks, Some(blocks)), "{name}");
            }
            let first = |columns| {
                let code = new(1, columns).expect("legal").code(&DeviceLimits::any_device());
                code.expect("any device").parameters[0]
            };
            // Rows of whole vectors are accessed in vectors.
            let vectors = O::KERNEL != "argsort";
            assert_eq!((first(64), first(63)), (memory(vectors), Parameter::Memory));
            assert!(new(1, 0).is_err() && new(1, most_columns + 1).is_err(), "{}", O::KERNEL);
            assert!(new(u64::MAX, 2).is_err() && new(0, 64).is_ok(), "{}", O::KERNEL);
        }
        // A row has its own block, or short rows share one; from 65,536 blocks on, the grid overflows.
        let long = [65_536, 4096, 65_536];
        check(
            32_768,
            [[65_536, 8192, 65_536], [1000, 100, 32], [0, 64, 0]],
            |rows, columns, element| Argsort::new(rows, columns, element, Order::Ascending),
        );
        check(MAX_COLUMNS, [[245_760, 1280, 81_920], [10, 5120, 10], [10, 63, 2]], Geglu::new);
        check(MAX_COLUMNS, [long, [1_966_080, 320, 122_880], [0, 64, 0]], LayerNorm::new);
        check(MAX_COLUMNS, [long, [10, 64, 3], [0, 64, 0]], RmsNorm::new);
        check(MAX_COLUMNS, [long, [1000, 64, 63], [0, 64, 0]], Softmax::new);
    }

    fn key_parts<O: Operation>(operation: &O) -> [String; 3] {
        [O::KERNEL.to_owned(), operation.variant(), operation.dtypes()]
    }

    #[test]
    fn the_variant_names_layout_and_options() {
        assert_eq!(key_parts(&attention()), ["temporal_attention", "tiled y", "f16"]);
        let masked = attention().causal().with_bias().with_strides();
        assert_eq!(key_parts(&masked)[1], "tiled y causal bias strided");
        let sort = Argsort::new(1, 8, ElementType::F32, Order::Descending).expect("legal");
        assert_eq!(key_parts(&sort), ["argsort", "descending", "f32"]);
    }

    #[test]
    fn every_candidate_is_supported_and_the_first_is_the_default() {
        let attention = attention();
        let candidates = attention.candidates();
        assert!(candidates.len() > 10);
        assert_eq!(candidates.first(), Some(&attention.parameters()));
        for parameters in &candidates {
            let taken = attention.with_parameters(parameters).expect("worth measuring");
            assert_eq!(taken.parameters(), *parameters);
        }
        let norm = RmsNorm::new(8, 1024, ElementType::F16).expect("legal");
        assert_eq!(norm.candidates(), [named(&[])]);
    }

    #[test]
    fn parameters_that_are_not_named_keep_their_values() {
        let other = attention().with_parameters(&named(&[("problems", 4)]));
        let expected = [("warps", 1), ("problems", 4), ("rounds", 1), ("stages", 1), ("flat", 0)];
        let expected = named(&expected);
        assert_eq!(other.expect("taken").parameters(), expected);
    }

    #[test]
    fn unknown_names_and_values_are_errors() {
        let refuse = |parameters| {
            let taken = attention().with_parameters(&named(parameters));
            taken.expect_err("not taken").to_string()
        };
        assert_eq!(
            refuse(&[("threads", 4)]),
            "temporal_attention has no launch parameter threads, it has warps, problems, rounds, \
             stages, flat"
        );
        assert_eq!(refuse(&[("warps", 9)]), "warps is 9, the tiled variant takes 1 here");
        let norm = RmsNorm::new(8, 1024, ElementType::F16).expect("legal");
        let error = norm.with_parameters(&named(&[("warps", 1)])).expect_err("has none");
        assert_eq!(error.to_string(), "rms_norm has no launch parameter warps, it has none");
    }
}
