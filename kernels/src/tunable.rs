//! What a tuner may vary of an operation, and what a profile remembers of it.

use gridguard::DeviceLimits;
use gridguard::profile::{Key, Named, Objective, Policy};
use sha2::{Digest, Sha256};

use crate::error::KernelError;
use crate::operation::Operation;

/// An operation whose launches may be tuned.
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
    /// The name in profiles.
    const KERNEL: &'static str;

    /// The sizes with their names, in the order of the kernel; the items first.
    fn sizes(&self) -> Vec<(&'static str, u64)>;

    /// The types of the tensors, such as `f16` or `f16 i64`.
    fn dtypes(&self) -> String;

    /// The same with another number of items, such as those of one chunk.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`] past 64 bits.
    fn with_items(&self, items: u64) -> Result<Self, KernelError>;

    /// Which of several implementations serves, and how; empty where there is one.
    fn variant(&self) -> String {
        String::new()
    }

    /// The launch parameters; empty where there are none.
    fn parameters(&self) -> Named {
        Named::new()
    }

    /// Launch parameters worth measuring, the default first; one empty set where there are none.
    fn candidates(&self) -> Vec<Named> {
        vec![Named::new()]
    }

    /// The same with other launch parameters; those not named stay as they are.
    ///
    /// # Errors
    ///
    /// [`KernelError::UnknownParameter`] for a name that the kernel does not know,
    /// [`KernelError::LaunchParameter`] for a value that it does not take.
    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        match parameters.first() {
            None => Ok(self.clone()),
            Some((name, _)) => Err(unknown_parameter(Self::KERNEL, name, "none")),
        }
    }

    /// What a profile stores its choices under.
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
            source: hash_of(self.code(device)?.source),
            variant: self.variant(),
            dtypes: self.dtypes(),
            policy,
            objective,
        })
    }
}

pub(crate) fn unknown_parameter(
    kernel: &'static str,
    given: &str,
    known: &'static str,
) -> KernelError {
    KernelError::UnknownParameter { kernel, given: given.to_owned(), known }
}

/// The first 16 hexadecimal digits of a source's SHA-256: enough to tell its versions apart.
fn hash_of(source: &str) -> String {
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
        assert_eq!(hash_of("abc"), "ba7816bf8f01cfea");
    }

    fn key_words<O: Tunable>(operation: &O) -> [String; 3] {
        [O::KERNEL.to_owned(), operation.variant(), operation.dtypes()]
    }

    #[test]
    fn what_makes_other_code_faster_is_part_of_the_variant() {
        assert_eq!(key_words(&attention()), ["temporal_attention", "tiled y", "f16"]);
        let masked = attention().causal().with_bias().with_strides();
        assert_eq!(key_words(&masked)[1], "tiled y causal bias strided");
        let sort = Argsort::new(1, 8, ElementType::F32, Order::Descending).expect("legal");
        assert_eq!(key_words(&sort), ["argsort", "descending", "f32"]);
        let rows = GetRows::new(1, 8, 9, ElementType::Bf16, IndexType::I64).expect("legal");
        assert_eq!(key_words(&rows), ["get_rows", "", "bf16 i64"]);
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
