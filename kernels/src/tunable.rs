//! What a tuner may vary about an operation, and its key in profiles.

use gridguard::DeviceLimits;
use gridguard::profile::{Key, Named, Objective, Policy};
use sha2::{Digest, Sha256};

use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::Operation;

/// An operation whose launches can be tuned and looked up in a profile.
///
/// ```
/// use gridguard::DeviceLimits;
/// use gridguard::profile::{Objective, Policy};
/// use gridguard_kernels::rms_norm::RmsNorm;
/// use gridguard_kernels::{ElementType, Tunable};
///
/// let norm = RmsNorm::new(65_536, 4096, ElementType::F16)?;
/// assert_eq!(norm.sizes(), [("rows", 65_536), ("columns", 4096)]);
/// let device = DeviceLimits::any_device();
/// let key = norm.key(&device, Policy::default(), Objective::default())?;
/// assert_eq!((&*key.kernel, &*key.dtypes, key.source.len()), ("rms_norm", "f16", 16));
/// # Ok::<(), gridguard_kernels::KernelError>(())
/// ```
pub trait Tunable: Operation + Clone {
    /// The kernel's name in profiles.
    const KERNEL: &'static str;
    /// The names of the sizes, the number of items first.
    const SIZES: &'static [&'static str];

    /// The values of [`Self::SIZES`].
    fn size_values(&self) -> Vec<u64>;

    /// The type of the tensors' elements.
    fn element(&self) -> ElementType;

    /// The same operation over another number of items, such as one chunk's.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`] if 64 bits cannot count the bytes of a tensor.
    fn with_items(&self, items: u64) -> Result<Self, KernelError>;

    /// The sizes with their names, the number of items first.
    fn sizes(&self) -> Vec<(&'static str, u64)> {
        Self::SIZES.iter().copied().zip(self.size_values()).collect()
    }

    /// The types of the tensors, such as `f16` or `f16 i64`.
    fn dtypes(&self) -> String {
        self.element().to_string()
    }

    /// The implementation and its options, for kernels that have several; else empty.
    fn variant(&self) -> String {
        String::new()
    }

    /// The launch parameters; empty if there are none.
    fn parameters(&self) -> Named {
        Named::new()
    }

    /// Sets of launch parameters worth measuring, the default first. One empty set if there are no
    /// launch parameters.
    fn candidates(&self) -> Vec<Named> {
        vec![Named::new()]
    }

    /// The same operation with other launch parameters. Those not named keep their values.
    ///
    /// # Errors
    ///
    /// [`KernelError::UnknownParameter`] for an unknown name, [`KernelError::LaunchParameter`] for a
    /// value that the kernel does not support.
    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        match parameters.first() {
            None => Ok(self.clone()),
            Some((given, _)) => {
                let (kernel, given) = (Self::KERNEL, given.clone());
                Err(KernelError::UnknownParameter { kernel, given, known: "none" })
            }
        }
    }

    /// The key of this operation in profiles, for a device with these limits.
    ///
    /// # Errors
    ///
    /// Those of [`Operation::code`].
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

/// The first 16 hexadecimal digits of a source's SHA-256, which identify the source in profiles.
pub(crate) fn source_hash(source: &str) -> String {
    Sha256::digest(source).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argsort::{Argsort, Order};
    use crate::element::ElementType;
    use crate::get_rows::GetRows;
    use crate::index::IndexType;
    use crate::rms_norm::RmsNorm;
    use crate::temporal_attention::{Layout, Shape, TemporalAttention, Variant};

    fn named(parameters: &[(&str, u64)]) -> Named {
        parameters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    /// Attention through shared memory, which has all launch parameters.
    fn attention() -> TemporalAttention {
        let device = DeviceLimits {
            compute_capability: gridguard::ComputeCapability::new(8, 0),
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

    fn key_parts<O: Tunable>(operation: &O) -> [String; 3] {
        [O::KERNEL.to_owned(), operation.variant(), operation.dtypes()]
    }

    #[test]
    fn what_makes_other_code_faster_is_part_of_the_variant() {
        assert_eq!(key_parts(&attention()), ["temporal_attention", "tiled y", "f16"]);
        let masked = attention().causal().with_bias().with_strides();
        assert_eq!(key_parts(&masked)[1], "tiled y causal bias strided");
        let sort = Argsort::new(1, 8, ElementType::F32, Order::Descending).expect("legal");
        assert_eq!(key_parts(&sort), ["argsort", "descending", "f32"]);
        let rows = GetRows::new(1, 8, 9, ElementType::Bf16, IndexType::I64).expect("legal");
        assert_eq!(key_parts(&rows), ["get_rows", "", "bf16 i64"]);
    }

    #[test]
    fn other_items_change_the_first_size_alone() {
        let part = attention().with_items(100).expect("fewer");
        let sizes = [("items", 100), ("heads", 5), ("frames", 16), ("head_dim", 40)];
        assert_eq!(part.sizes(), sizes);
        assert_eq!(part.request().grid.y, 500);
        let norm = RmsNorm::new(8, 1024, ElementType::F16).expect("legal");
        assert_eq!(norm.with_items(3).expect("fewer").sizes(), [("rows", 3), ("columns", 1024)]);
        assert!(norm.with_items(u64::MAX).is_err());
    }

    #[test]
    fn every_candidate_can_be_taken_and_the_first_is_the_default() {
        let attention = attention();
        let candidates = Tunable::candidates(&attention);
        assert!(candidates.len() > 10);
        assert_eq!(candidates.first(), Some(&Tunable::parameters(&attention)));
        for parameters in &candidates {
            let taken = Tunable::with_parameters(&attention, parameters).expect("worth measuring");
            assert_eq!(Tunable::parameters(&taken), *parameters);
        }
        let norm = RmsNorm::new(8, 1024, ElementType::F16).expect("legal");
        assert_eq!(norm.candidates(), [named(&[])]);
    }

    #[test]
    fn parameters_not_named_stay_as_they_are() {
        let other = Tunable::with_parameters(&attention(), &named(&[("problems", 4)]));
        let expected = named(&[("warps", 1), ("problems", 4), ("rounds", 1), ("stages", 1)]);
        assert_eq!(Tunable::parameters(&other.expect("taken")), expected);
    }

    #[test]
    fn unknown_names_and_values_are_errors() {
        let refuse = |parameters| {
            let taken = Tunable::with_parameters(&attention(), &named(parameters));
            taken.expect_err("not taken").to_string()
        };
        assert_eq!(
            refuse(&[("threads", 4)]),
            "temporal_attention has no launch parameter threads, it has warps, problems, rounds, \
             stages"
        );
        assert_eq!(refuse(&[("warps", 9)]), "warps is 9, the tiled variant takes 1 here");
        let norm = RmsNorm::new(8, 1024, ElementType::F16).expect("legal");
        let error = norm.with_parameters(&named(&[("warps", 1)])).expect_err("has none");
        assert_eq!(error.to_string(), "rms_norm has no launch parameter warps, it has none");
    }
}
