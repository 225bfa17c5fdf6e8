//! Queries the CUDA driver, and checks whether gridguard can use it.

use std::fs;
use std::path::{Path, PathBuf};

use gridguard::cuda::{self, CudaError, CudaErrorKind};
use gridguard_diagnose::CudaVersion;
use gridguard_report::Diagnose;
use serde::{Deserialize, Serialize};

use super::finding::{Finding, Subject, remedy};

pub(super) const LIBCUDA: Subject = Subject::new("libcuda");
pub(super) const DRIVER: Subject = Subject::new("driver");

/// The state of the driver, without its devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Driver {
    pub(super) loaded: Option<PathBuf>,
    pub(super) version: Option<i32>,
    /// The number of devices; `None` if the driver cannot be used.
    pub(super) devices: Option<usize>,
    /// Why the library or the driver cannot be used. Without a library there is no remedy yet: it depends on the
    /// machine.
    pub(super) fault: Option<Finding>,
}

impl Driver {
    pub(super) fn query() -> Self {
        let devices = cuda::driver_version().and_then(|_| cuda::device_count());
        let loaded = loaded_library("libcuda.so");
        let driver = Self { loaded, version: cuda::driver_version().ok(), ..Self::default() };
        match devices {
            Ok(count) => Self { devices: Some(count), ..driver },
            Err(error) => match error.kind() {
                CudaErrorKind::NoDevice { driver_version, .. } => {
                    let version = driver.version.or(*driver_version);
                    Self { version, devices: Some(0), ..driver }
                }
                _ => Self { fault: Some(fault(&error)), ..driver },
            },
        }
    }

    /// Whether the driver supports this program. Ignores faults of the library.
    ///
    /// `bindings` is the CUDA version of the bindings, `release` the version of the driver.
    pub(super) fn check(&self, bindings: i32, release: Option<&str>) -> Option<Finding> {
        if let Some(fault) = &self.fault {
            return Some(fault.clone()).filter(|fault| !LIBCUDA.is_of(fault));
        }
        let version = self.version?;
        let release = release.map(|release| format!(" ({release})")).unwrap_or_default();
        let [supported, built] = [version, bindings].map(CudaVersion);
        let what = format!("supports CUDA {supported}{release}, gridguard is built for {built}");
        let remedy = "update the driver, or build gridguard with CUDARC_CUDA_VERSION of the driver";
        Some(if version < bindings { DRIVER.warning(what, remedy) } else { DRIVER.good(what) })
    }
}

fn fault(error: &CudaError) -> Finding {
    let (what, remedy) = (error.to_string(), remedy(error.diagnosis()));
    match error.kind() {
        CudaErrorKind::LibraryMissing { .. } => {
            Finding { remedy: None, ..LIBCUDA.bad(what, remedy) }
        }
        CudaErrorKind::SymbolMissing { .. } => {
            LIBCUDA.bad(what, "update the driver; if it is new, another library shadows its own")
        }
        CudaErrorKind::OtherLibrary { .. } => {
            LIBCUDA.bad(what, "remove the folder of the other one from LD_LIBRARY_PATH")
        }
        CudaErrorKind::TooOld { version, oldest } => {
            let [version, oldest] = [*version, *oldest].map(CudaVersion);
            let what = format!("supports CUDA {version}, gridguard needs {oldest} or later");
            DRIVER.bad(what, "update the driver")
        }
        CudaErrorKind::InitFailed(error) => DRIVER.bad(error.to_string(), remedy),
        _ => DRIVER.bad(what, remedy),
    }
}

/// A CUDA version as `cuDriverGetVersion` encodes it: 12080 for 12.8.
pub(super) fn version_number(major: u32, minor: u32) -> i32 {
    let number = major.saturating_mul(1000).saturating_add(minor.saturating_mul(10));
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The first mapped file of this process whose name starts with `name`.
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
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn a_driver_supports_bindings_up_to_its_own_version() {
        let driver = |version| Driver { version: Some(version), ..Driver::default() };
        let result = driver(13_000).check(12_000, Some("580.65.06")).expect("a version");
        let what = "supports CUDA 13.0 (580.65.06), gridguard is built for 12.0";
        assert_eq!(result, DRIVER.good(what));
        let older = driver(12_040).check(12_080, None).expect("a version");
        assert_eq!(older.level, Level::Warning);
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
