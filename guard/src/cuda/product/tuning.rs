//! Entries of products in profiles: which of the library's algorithms is fastest.

use super::launch::Product;
use super::shape::ProductShape;
use crate::guard::Guard;
use crate::profile::matching::Match;
use crate::profile::model::{Key, Named, Objective, Policy, value_of};

impl Product {
    /// The key of the product's entries in profiles. [`Key::source`] is the version of the library, whose
    /// algorithms another one may not have, and [`Key::variant`] says what is added to the product.
    #[must_use]
    pub fn key(&self, policy: Policy) -> Key {
        let ProductShape { element, bias, residual, .. } = *self.shape();
        let (major, minor, patch) = self.library_version();
        let added = match (bias, residual) {
            (false, false) => "",
            (true, false) => "bias",
            (false, true) => "residual",
            (true, true) => "bias, residual",
        };
        Key {
            kernel: KERNEL.to_owned(),
            source: format!("{major}.{minor}.{patch}"),
            variant: added.to_owned(),
            dtypes: element.to_string(),
            policy,
            objective: Objective::Throughput,
        }
    }

    /// The shape of the product's entry in a profile: its sizes, and the bytes of workspace that its
    /// algorithms may take.
    #[must_use]
    pub fn entry_shape(&self) -> Named {
        NAMES.map(str::to_owned).into_iter().zip(self.sizes()).collect()
    }

    /// Launches the algorithm that the guard's profile has for exactly this product from now on, if it has
    /// one, measured by the default policy. The algorithms of other sizes are others.
    pub(super) fn choose_tuned(&mut self, guard: &Guard) {
        let Some(profile) = guard.profile() else { return };
        let tuned = guard.tuned(&self.key(Policy::default()), &NAMES, &self.sizes());
        if tuned.matched != Match::Exact {
            return;
        }
        let algorithm = value_of(tuned.parameters(), PRODUCT_ALGORITHM);
        if algorithm.is_none_or(|algorithm| self.choose(algorithm).is_err()) {
            profile.refused();
        }
    }

    fn sizes(&self) -> [u64; 4] {
        let ProductShape { rows, inner, columns, .. } = *self.shape();
        [rows, inner, columns, self.allowed_workspace()]
    }
}

/// The launch parameter that is the index of an algorithm.
pub const PRODUCT_ALGORITHM: &str = "algorithm";
/// The name in profiles.
const KERNEL: &str = "cublaslt";
const NAMES: [&str; 4] = ["rows", "inner", "columns", "workspace_bytes"];
