//! What the CUDA driver reports about itself, and whether gridguard can use it.

use std::fs;
use std::path::{Path, PathBuf};

use gridguard::cuda::{self, CudaError, DriverUnavailable};
use serde::{Deserialize, Serialize};

use super::result::{CheckResult, remedy};

pub(super) const DRIVER: &str = "driver";

/// What the driver reports before any device is queried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Driver {
    /// The file that is loaded as libcuda.
    pub(super) loaded: Option<PathBuf>,
    /// The CUDA version that it supports.
    pub(super) version: Option<i32>,
    /// The number of devices; `None` if the driver cannot be used.
    pub(super) devices: Option<usize>,
    /// Why the driver cannot be used.
    pub(super) fault: Option<DriverFault>,
}

/// Why a driver cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DriverFault {
    pub(super) kind: FaultKind,
    pub(super) what: String,
    pub(super) remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FaultKind {
    /// No library can be loaded.
    Missing,
    /// The library lacks a function.
    Incomplete,
    /// The two names of the library lead to different files.
    Divided,
    TooOld,
    /// It cannot be initialised, or fails later.
    Failed,
}

impl Driver {
    /// Queries the driver, which may hang or crash.
    pub(super) fn query() -> Self {
        let version = cuda::driver_version();
        let loaded = loaded_library("libcuda.so");
        let no_device = |error: &CudaError| match error {
            CudaError::Unavailable(DriverUnavailable::NoDevice { driver_version, .. }) => {
                Some(*driver_version)
            }
            _ => None,
        };
        let (version, devices) = match version {
            Ok(version) => (Some(version), cuda::device_count()),
            Err(error) => (no_device(&error).flatten(), Err(error)),
        };
        let (devices, fault) = match devices {
            Ok(count) => (Some(count), None),
            Err(error) if no_device(&error).is_some() => (Some(0), None),
            Err(error) => (None, Some(DriverFault::from(error))),
        };
        Self { loaded, version, devices, fault }
    }

    /// Whether the driver supports this program. A fault of the library is not reported here.
    ///
    /// `bindings` is the CUDA version of the bindings, `release` the driver's own version.
    pub(super) fn check(&self, bindings: i32, release: Option<&str>) -> Option<CheckResult> {
        if let Some(DriverFault { kind, what, remedy }) = &self.fault {
            return match kind {
                FaultKind::Missing | FaultKind::Incomplete | FaultKind::Divided => None,
                FaultKind::TooOld => Some(CheckResult::bad(DRIVER, what, "update the driver")),
                FaultKind::Failed => Some(CheckResult::bad(DRIVER, what, remedy)),
            };
        }
        let version = self.version?;
        let release = release.map(|release| format!(" ({release})")).unwrap_or_default();
        let [supported, built] = [version, bindings].map(version_text);
        let what = format!("supports CUDA {supported}{release}, gridguard is built for {built}");
        Some(match version < bindings {
            true => CheckResult::warning(
                DRIVER,
                what,
                "update the driver, or build gridguard with CUDARC_CUDA_VERSION of the driver",
            ),
            false => CheckResult::good(DRIVER, what),
        })
    }
}

impl From<CudaError> for DriverFault {
    fn from(error: CudaError) -> Self {
        let kind = match &error {
            CudaError::Unavailable(DriverUnavailable::LibraryMissing { .. }) => FaultKind::Missing,
            CudaError::Unavailable(DriverUnavailable::SymbolMissing { .. }) => {
                FaultKind::Incomplete
            }
            CudaError::Unavailable(DriverUnavailable::OtherLibrary { .. }) => FaultKind::Divided,
            CudaError::Unavailable(DriverUnavailable::TooOld { .. }) => FaultKind::TooOld,
            _ => FaultKind::Failed,
        };
        let what = match &error {
            CudaError::Unavailable(DriverUnavailable::InitFailed(error)) => error.to_string(),
            CudaError::Unavailable(DriverUnavailable::TooOld { version, oldest }) => {
                let [version, oldest] = [*version, *oldest].map(version_text);
                format!("supports CUDA {version}, gridguard needs {oldest} or later")
            }
            error => error.to_string(),
        };
        Self { kind, what, remedy: remedy(error.diagnosis()) }
    }
}

/// A CUDA version as `cuDriverGetVersion` encodes it, as text: `12.8` for 12080.
pub(super) fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// A CUDA version as `cuDriverGetVersion` encodes it: 12080 for 12.8.
pub(super) fn version_number(major: u32, minor: u32) -> i32 {
    let number = major.saturating_mul(1000).saturating_add(minor.saturating_mul(10));
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The first file that this process has mapped whose name starts with `name`.
pub(super) fn loaded_library(name: &str) -> Option<PathBuf> {
    mapped_file(&fs::read_to_string("/proc/self/maps").ok()?, name)
}

fn mapped_file(maps: &str, name: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    let is_named = |path: &Path| {
        path.file_name().and_then(|file| file.to_str()).is_some_and(|file| file.starts_with(name))
    };
    paths.map(PathBuf::from).find(|path| is_named(path))
}

#[cfg(test)]
mod tests {
    use super::super::result::Level;
    use super::*;

    #[test]
    fn a_driver_supports_bindings_up_to_its_own_version() {
        let driver = |version| Driver { version: Some(version), ..Driver::default() };
        let result = driver(13_000).check(12_000, Some("580.65.06")).expect("a version");
        let what = "supports CUDA 13.0 (580.65.06), gridguard is built for 12.0";
        assert_eq!(result, CheckResult::good(DRIVER, what));
        let older = driver(12_040).check(12_080, None).expect("a version");
        assert_eq!(older.level, Level::Warning);
    }

    #[test]
    fn versions_are_encoded_as_by_the_driver() {
        assert_eq!((version_number(12, 8), version_number(13, 0)), (12_080, 13_000));
        assert_eq!(version_text(11_040), "11.4");
    }

    #[test]
    fn the_loaded_library_is_found_among_the_mapped_files() {
        let maps = "7f00-7f01 r--p 00000000 08:01 12  /usr/lib/libc.so.6\n\
                    7f02-7f03 r-xp 00000000 08:01 13  /usr/lib/libcuda.so.580.65.06\n";
        let path = mapped_file(maps, "libcuda.so");
        assert_eq!(path, Some("/usr/lib/libcuda.so.580.65.06".into()));
        assert_eq!(mapped_file(maps, "libnvrtc.so"), None);
    }
}
