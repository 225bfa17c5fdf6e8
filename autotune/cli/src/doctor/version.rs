//! The driver, its compiler and what this program was built for, held against each other.

use std::path::PathBuf;

use gridguard::cuda::{Compiler, NvrtcUnavailable};
use gridguard::diagnose::{Diagnosis, LogScanner, diagnose};

use super::examine::{Fault, Kind};
use super::finding::Finding;
use super::library;

const DRIVER: &str = "driver";
const NVRTC: &str = "nvrtc";

/// A CUDA version as `cuDriverGetVersion` counts, in words: `12.8` for 12080.
pub(super) fn words(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// The version of a major and a minor number.
pub(super) fn number(major: u32, minor: u32) -> i32 {
    let whole = major.saturating_mul(1000).saturating_add(minor.saturating_mul(10));
    i32::try_from(whole).unwrap_or(i32::MAX)
}

/// The driver's version against the bindings'; `release` is the driver's own, where it is known.
pub(super) fn of_driver(version: i32, bindings: i32, release: Option<&str>) -> Finding {
    let release = release.map(|release| format!(" ({release})")).unwrap_or_default();
    let what = format!(
        "supports CUDA {}{release}, gridguard is built for {}",
        words(version),
        words(bindings)
    );
    if version < bindings {
        let remedy = "update the driver, or build gridguard with CUDARC_CUDA_VERSION of the driver";
        return Finding::warning(DRIVER, what, remedy);
    }
    Finding::good(DRIVER, what)
}

/// Why the driver does not serve although its library was found.
pub(super) fn of_fault(fault: &Fault) -> Option<Finding> {
    let Fault { kind, what, remedy } = fault;
    match kind {
        // Said of the library.
        Kind::Missing | Kind::Incomplete | Kind::Divided => None,
        Kind::TooOld => Some(Finding::bad(DRIVER, what.as_str(), "update the driver")),
        Kind::Failed => Some(Finding::bad(DRIVER, what.as_str(), remedy.as_str())),
    }
}

/// The likeliest cause of a failure and the way out of it.
pub(super) fn remedy(diagnosis: Option<Diagnosis>) -> String {
    let cause = diagnosis.and_then(|diagnosis| diagnosis.causes.into_iter().next());
    cause.map_or_else(
        || "gridguard explain tells more of the message".to_owned(),
        |cause| format!("{}: {}", cause.what, cause.remedy),
    )
}

/// The likeliest cause of what a message tells and the way out of it, where that has a name.
pub(super) fn meaning(words: &str) -> Option<String> {
    let mut log = LogScanner::for_question();
    words.lines().for_each(|line| log.line(line));
    let found = log.findings().into_iter().next()?;
    Some(remedy(Some(diagnose(&found.failure, &found.evidence))))
}

/// NVRTC as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nvrtc {
    Missing,
    Broken(String),
    Found { path: PathBuf, version: i32 },
}

impl Nvrtc {
    pub(super) fn gather() -> Self {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => return Self::unavailable(&error),
        };
        match compiler.version() {
            Ok((major, minor)) => {
                let path = library::loaded("libnvrtc.so");
                let path = path.unwrap_or_else(|| compiler.library().into());
                Self::Found { path, version: number(major, minor) }
            }
            Err(error) => Self::Broken(error.to_string()),
        }
    }

    /// Missing, or there but none that loads.
    fn unavailable(error: &NvrtcUnavailable) -> Self {
        let NvrtcUnavailable::LibraryMissing { tried } = error else {
            return Self::Broken(error.to_string());
        };
        let broken = tried.iter().find(|(_, words)| !words.contains("No such file"));
        broken.map_or(Self::Missing, |(name, words)| match words.contains(name.as_str()) {
            true => Self::Broken(words.clone()),
            false => Self::Broken(format!("{name}: {words}")),
        })
    }
}

/// NVRTC against the driver's version, where there is one.
pub(super) fn of_nvrtc(nvrtc: &Nvrtc, driver: Option<i32>) -> Finding {
    let (path, version) = match nvrtc {
        Nvrtc::Missing => return Finding::warning(NVRTC, NO_NVRTC, INSTALL),
        Nvrtc::Broken(why) => {
            return Finding::warning(NVRTC, format!("it does not load: {why}"), INSTALL);
        }
        Nvrtc::Found { path, version } => (path.display(), *version),
    };
    let found = format!("{}, {path}", words(version));
    match driver {
        Some(driver) if version / 1000 > driver / 1000 => Finding::warning(
            NVRTC,
            format!(
                "{found}: its code is newer than the driver, which supports CUDA {}",
                words(driver)
            ),
            format!("install NVRTC {}, or update the driver", driver / 1000),
        ),
        Some(driver) if version > driver => Finding::warning(
            NVRTC,
            format!(
                "{found}: its machine code runs here, its PTX is newer than the driver, which \
                 supports CUDA {}",
                words(driver)
            ),
            "compile for the device's own architecture, as gridguard does, or update the driver",
        ),
        _ => Finding::good(NVRTC, found),
    }
}

const NO_NVRTC: &str = "no libnvrtc on the loader's path, nor in a toolkit at CUDA_HOME, CUDA_PATH \
                        or /usr/local/cuda";
const INSTALL: &str = "install the CUDA toolkit's libnvrtc (or pip install nvidia-cuda-nvrtc) and \
                       add its folder to LD_LIBRARY_PATH: gridguard tune and gridguard's own \
                       kernels need it, the guard of other kernels does not";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    #[test]
    fn a_driver_serves_bindings_up_to_its_own_version() {
        let found = of_driver(13_000, 12_000, Some("580.65.06"));
        let what = "supports CUDA 13.0 (580.65.06), gridguard is built for 12.0";
        assert_eq!(found, Finding::good(DRIVER, what));
        assert_eq!(of_driver(12_040, 12_080, None).level, Level::Warning);
    }

    #[test]
    fn a_compiler_warns_where_its_code_or_its_ptx_is_newer_than_the_driver() {
        let nvrtc = |version| Nvrtc::Found { path: "/l/libnvrtc.so.12".into(), version };
        let judged = |version, driver| of_nvrtc(&nvrtc(version), driver);
        assert_eq!(judged(12_080, None), Finding::good(NVRTC, "12.8, /l/libnvrtc.so.12"));
        assert_eq!(judged(12_080, Some(13_000)).level, Level::Good);
        assert!(judged(12_080, Some(12_020)).what.contains("its PTX is newer"));
        assert!(judged(13_000, Some(12_080)).what.contains("its code is newer"));
        assert_eq!(of_nvrtc(&Nvrtc::Missing, None).level, Level::Warning);
    }

    #[test]
    fn a_compiler_that_is_there_and_does_not_load_is_not_called_missing() {
        let of = |tried: &[(&str, &str)]| {
            let tried =
                tried.iter().map(|(name, words)| ((*name).into(), (*words).into())).collect();
            Nvrtc::unavailable(&NvrtcUnavailable::LibraryMissing { tried })
        };
        let absent = ("libnvrtc.so.13", "libnvrtc.so.13: cannot open: No such file or directory");
        assert_eq!(of(&[absent]), Nvrtc::Missing);
        let words = "/l/libnvrtc.so: file too short";
        assert_eq!(of(&[absent, ("libnvrtc.so", words)]), Nvrtc::Broken(words.into()));
    }

    #[test]
    fn versions_are_counted_as_the_driver_does() {
        assert_eq!((number(12, 8), number(13, 0)), (12_080, 13_000));
        assert_eq!(words(number(11, 4)), "11.4");
    }
}
