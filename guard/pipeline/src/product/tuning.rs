//! Entries of products in profiles: the fastest of the library's algorithms.

use crate::product::algorithms::Product;
use crate::product::shape::ProductShape;
use gridguard::Guard;
use gridguard::profile::{Key, Match, Objective, Policy};

impl Product {
    /// The key of the product's entries in profiles. [`Key::source`] is the library's version, because
    /// another version may have other algorithms. [`Key::variant`] names bias and residual.
    pub fn key(&self, policy: Policy) -> Key {
        let ProductShape { bias, residual, .. } = *self.shape();
        let (major, minor, patch) = self.library.library.version();
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
            dtypes: self.element.to_owned(),
            policy,
            objective: Objective::Throughput,
        }
    }

    /// The shape of the product's entry in a profile: its sizes, and the most bytes of workspace.
    pub fn entry_shape(&self) -> Vec<(String, u64)> {
        NAMES.map(str::to_owned).into_iter().zip(self.sizes()).collect()
    }

    /// Chooses the algorithm of the guard's profile, measured by the default policy. Algorithm indices are
    /// only valid for the exact sizes.
    pub(crate) fn choose_tuned(&mut self, guard: &Guard) {
        let tuned = guard.tuned(&self.key(Policy::default()), &NAMES, &self.sizes());
        if tuned.matched != Match::Exact {
            return;
        }
        let algorithm = tuned.parameter(Self::ALGORITHM);
        if algorithm.is_none_or(|algorithm| self.choose(algorithm).is_err()) {
            tuned.refused();
        }
    }

    fn sizes(&self) -> [u64; 4] {
        let ProductShape { rows, inner, columns, .. } = *self.shape();
        [rows, inner, columns, self.allowed_workspace]
    }
}

/// The name in profiles.
const KERNEL: &str = "cublaslt";
const NAMES: [&str; 4] = ["rows", "inner", "columns", "workspace_bytes"];
