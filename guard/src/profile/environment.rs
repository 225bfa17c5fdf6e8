//! What a profile was measured with, and what a difference means.

use core::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// Versions of what stands between a kernel and its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The CUDA version of the driver, as `13.0`; empty where not known, and on the host.
    #[serde(default)]
    pub driver: String,
    /// The version of the compiler of the device code, as `13.0`; empty where not known.
    #[serde(default)]
    pub compiler: String,
    /// The version of the tuner, or of the crate that serves; empty where not known.
    #[serde(default)]
    pub tuner: String,
}

impl Environment {
    /// That of the host: this crate's version alone.
    #[must_use]
    pub fn of_host() -> Self {
        let tuner = env!("CARGO_PKG_VERSION").to_owned();
        Self { tuner, ..Self::default() }
    }

    /// That of this machine's CUDA driver, and of its NVRTC where there is one.
    ///
    /// # Errors
    ///
    /// [`CudaError`](crate::cuda::CudaError) where there is no driver.
    #[cfg(feature = "cuda")]
    pub fn of_cuda() -> Result<Self, crate::cuda::error::CudaError> {
        let driver = crate::cuda::query::driver_version()?;
        let driver = format!("{}.{}", driver / 1000, driver % 1000 / 10);
        let version =
            crate::cuda::nvrtc::Compiler::find().ok().and_then(|found| found.version().ok());
        let compiler = version.map(|(major, minor)| format!("{major}.{minor}")).unwrap_or_default();
        Ok(Self { driver, compiler, ..Self::of_host() })
    }

    /// Of each version the later one.
    pub(super) fn latest(&self, other: &Self) -> Self {
        let Self { driver, compiler, tuner } = self;
        Self {
            driver: later(driver, &other.driver),
            compiler: later(compiler, &other.compiler),
            tuner: later(tuner, &other.tuner),
        }
    }
}

fn later(one: &str, other: &str) -> String {
    match compare(one, other) {
        Ordering::Less => other.to_owned(),
        Ordering::Equal | Ordering::Greater => one.to_owned(),
    }
}

/// By their numbers, and where these agree by their text: a total order.
fn compare(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        version.split('.').map(|number| number.parse().unwrap_or(0)).collect()
    };
    numbers(one).cmp(&numbers(other)).then_with(|| one.cmp(other))
}

/// Whether two versions have the same major number; one that is not known agrees with all.
pub(super) fn same_major(one: &str, other: &str) -> bool {
    let major = |version: &str| version.split('.').next().map(str::to_owned);
    one.is_empty() || other.is_empty() || major(one) == major(other)
}

/// Whether two versions are the same; one that is not known agrees with all.
pub(super) fn same(one: &str, other: &str) -> bool {
    one.is_empty() || other.is_empty() || one == other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(later("9.2", "12.10"), "12.10");
        assert_eq!(later("12.9", "12.10"), "12.10");
        assert_eq!(later("13.0", ""), "13.0");
    }

    #[test]
    fn the_major_version_is_what_stands_before_the_first_dot() {
        assert!(same_major("13.0", "13.1"));
        assert!(!same_major("13.0", "1.3"));
        assert!(same_major("13.0", ""), "not known");
        assert!(!same("13.0", "13.1"));
    }
}
