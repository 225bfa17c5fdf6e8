//! Which libcuda is loaded and whether another shadows it, and whether NVRTC can be used.

use std::env;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gridguard::cuda::{Compiler, NvrtcUnavailable};

use super::child::{self, ChildEnd};
use super::driver::{Driver, DriverFault, FaultKind, loaded_library, version_number, version_text};
use super::result::CheckResult;

const LIBCUDA: &str = "libcuda";
const NVRTC: &str = "nvrtc";
/// The names of the driver library; most programs load the first one.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// `ldconfig` only reads one file.
const LDCONFIG_LIMIT: Duration = Duration::from_secs(2);

/// Files named like the driver library, each with its canonical path: first those of the first name,
/// in the order of the loader's search.
pub(super) type LibraryFiles = Vec<(PathBuf, PathBuf)>;

/// What is known about the driver library.
#[derive(Clone, Debug, Default)]
pub(super) struct LibcudaFacts {
    pub(super) files: LibraryFiles,
    pub(super) driver: Driver,
    pub(super) platform: Platform,
}

/// What indicates that there is a GPU even if the library is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Platform {
    #[default]
    NoGpu,
    /// The kernel module is loaded, or device files exist.
    KernelModule,
    /// Windows Subsystem for Linux.
    Wsl,
}

impl Platform {
    pub(super) fn detect(has_module: bool) -> Self {
        match () {
            () if has_module => Self::KernelModule,
            () if Path::new("/dev/dxg").exists() => Self::Wsl,
            () => Self::NoGpu,
        }
    }
}

/// Searches `LD_LIBRARY_PATH` and the loader's cache.
pub(super) fn find_libcuda() -> LibraryFiles {
    let folders: Vec<PathBuf> = env::var_os("LD_LIBRARY_PATH")
        .map(|path| env::split_paths(&path).filter(|one| !one.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    let cache = loader_cache();
    let mut files = LibraryFiles::new();
    for name in NAMES {
        let in_folders = folders.iter().map(|folder| folder.join(name));
        let paths = in_folders.chain(cached_paths(&cache, name)).filter(|path| !is_32_bit(path));
        files.extend(paths.filter_map(|path| path.canonicalize().ok().map(|real| (path, real))));
    }
    files
}

/// The loader skips libraries for 32 bits.
fn is_32_bit(path: &Path) -> bool {
    let mut start = [0; 5];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"\x7fELF\x01"
}

/// The output of `ldconfig -p`; empty if it fails.
fn loader_cache() -> String {
    for program in ["ldconfig", "/sbin/ldconfig"] {
        let mut command = Command::new(program);
        command.arg("-p");
        let output = child::run(command, LDCONFIG_LIMIT, |_| false);
        if matches!(output.end, ChildEnd::Exited(status) if status.success()) {
            return output.out;
        }
    }
    String::new()
}

/// The cached paths of `name`, without those for 32 bits.
fn cached_paths(cache: &str, name: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let (file, rest) = line.trim().split_once(' ')?;
        let (kind, path) = rest.split_once(" => ")?;
        (file == name && kind != "(libc6)").then(|| PathBuf::from(path))
    };
    cache.lines().filter_map(path).collect()
}

pub(super) fn check_libcuda(facts: &LibcudaFacts) -> Option<CheckResult> {
    let Driver { loaded, fault, .. } = &facts.driver;
    let first = |name| {
        let is_named = |path: &&Path| path.file_name().is_some_and(|it| it == name);
        facts.files.iter().map(|(path, _)| path.as_path()).find(is_named)
    };
    // A program gets a stub by either name.
    let mut candidates = loaded.as_deref().into_iter().chain(NAMES.into_iter().filter_map(first));
    if let Some(stub) = candidates.find(|path| is_in_folder(path, "stubs")) {
        let what = format!("{} is found first, a stub for linking only", stub.display());
        return Some(CheckResult::bad(LIBCUDA, what, STUB));
    }
    if let Some(result) = fault.as_ref().and_then(|fault| library_fault(fault, facts)) {
        return Some(result);
    }
    let loaded = loaded.as_deref().or(first(NAMES[0]))?;
    let is_compat = is_in_folder(loaded, "compat");
    let mut what = format!("{} is loaded", loaded.display());
    if is_compat {
        what += ", newer than the kernel module (forward compatibility)";
    }
    let others = other_files(&facts.files);
    if others.is_empty() {
        return Some(CheckResult::good(LIBCUDA, what));
    }
    let others: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
    what += &format!("; also found: {}", others.join(", "));
    Some(match facts.platform {
        _ if is_compat => CheckResult::good(LIBCUDA, what),
        Platform::Wsl => CheckResult::warning(LIBCUDA, what, SEVERAL_IN_WSL),
        _ => CheckResult::warning(LIBCUDA, what, SEVERAL),
    })
}

fn library_fault(fault: &DriverFault, facts: &LibcudaFacts) -> Option<CheckResult> {
    let remedy = match (fault.kind, facts.platform) {
        (FaultKind::Missing, _) if !facts.files.is_empty() => DAMAGED,
        (FaultKind::Missing, Platform::KernelModule) => NO_LIBRARY,
        (FaultKind::Missing, Platform::Wsl) => NO_LIBRARY_IN_WSL,
        (FaultKind::Missing, Platform::NoGpu) => NO_GPU,
        (FaultKind::Incomplete, _) => {
            "update the driver; if it is new, another library shadows its own"
        }
        (FaultKind::Divided, _) => "remove the folder of the other one from LD_LIBRARY_PATH",
        (FaultKind::TooOld | FaultKind::Failed, _) => return None,
    };
    Some(CheckResult::bad(LIBCUDA, &fault.what, remedy))
}

/// Other files of the same name as the first. A stub that is not found first does no harm.
fn other_files(files: &LibraryFiles) -> Vec<&Path> {
    let Some((first, real)) = files.first() else { return Vec::new() };
    let mut seen = vec![real];
    let mut others = Vec::new();
    for (path, real) in files {
        let is_named = path.file_name() == first.file_name();
        if is_named && !is_in_folder(path, "stubs") && !seen.contains(&real) {
            seen.push(real);
            others.push(path.as_path());
        }
    }
    others
}

fn is_in_folder(path: &Path, name: &str) -> bool {
    path.parent().is_some_and(|folder| folder.components().any(|part| part.as_os_str() == name))
}

/// The NVRTC library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Nvrtc {
    Missing,
    Broken(String),
    Found { path: PathBuf, version: i32 },
}

impl Nvrtc {
    pub(super) fn find() -> Self {
        let compiler = match Compiler::find() {
            Ok(compiler) => compiler,
            Err(error) => return Self::from(&error),
        };
        match compiler.version() {
            Ok((major, minor)) => {
                let path = loaded_library("libnvrtc.so");
                let path = path.unwrap_or_else(|| compiler.library().into());
                Self::Found { path, version: version_number(major, minor) }
            }
            Err(error) => Self::Broken(error.to_string()),
        }
    }

    /// Compares NVRTC with the CUDA version that the driver supports.
    pub(super) fn check(&self, driver: Option<i32>) -> CheckResult {
        let (path, version) = match self {
            Self::Missing => return CheckResult::warning(NVRTC, NO_NVRTC, INSTALL_NVRTC),
            Self::Broken(why) => {
                let what = format!("does not load: {why}");
                return CheckResult::warning(NVRTC, what, INSTALL_NVRTC);
            }
            Self::Found { path, version } => (path.display(), *version),
        };
        let found = format!("{}, {path}", version_text(version));
        let Some(driver) = driver.filter(|driver| version > *driver) else {
            return CheckResult::good(NVRTC, found);
        };
        let supports =
            format!("newer than the driver, which supports CUDA {}", version_text(driver));
        if version / 1000 > driver / 1000 {
            let what = format!("{found}: its code is {supports}");
            let remedy = format!("install NVRTC {}, or update the driver", driver / 1000);
            return CheckResult::warning(NVRTC, what, remedy);
        }
        let what = format!("{found}: its machine code runs here, its PTX is {supports}");
        let remedy = "compile for the device's own architecture, as gridguard does, or update the \
                      driver";
        CheckResult::warning(NVRTC, what, remedy)
    }
}

impl From<&NvrtcUnavailable> for Nvrtc {
    fn from(error: &NvrtcUnavailable) -> Self {
        let NvrtcUnavailable::LibraryMissing { tried } = error else {
            return Self::Broken(error.to_string());
        };
        let broken = tried.iter().find(|(_, message)| !message.contains("No such file"));
        broken.map_or(Self::Missing, |(name, message)| match message.contains(name.as_str()) {
            true => Self::Broken(message.clone()),
            false => Self::Broken(format!("{name}: {message}")),
        })
    }
}

const STUB: &str = "remove the toolkit's stubs folder from LD_LIBRARY_PATH and from ldconfig";
const SEVERAL: &str = "a program with another search path loads another one: keep only the library \
                       of the running driver";
const SEVERAL_IN_WSL: &str = "the library of Windows, in /usr/lib/wsl/lib, must be loaded: uninstall \
                              the Linux driver";
const DAMAGED: &str = "the file is damaged or for another architecture: reinstall the driver, and \
                       remove the file's folder from LD_LIBRARY_PATH";
const NO_LIBRARY: &str = "the kernel module is loaded but its library is missing: start the \
                          container with its GPUs (docker run --gpus all, NVIDIA Container \
                          Toolkit), or add the folder of libcuda.so.1 to LD_LIBRARY_PATH";
const NO_LIBRARY_IN_WSL: &str = "add /usr/lib/wsl/lib to LD_LIBRARY_PATH, and install the driver in \
                                 Windows only";
const NO_GPU: &str = "with a GPU, install the NVIDIA driver or start the container with its GPUs \
                      (docker run --gpus all); without one, gridguard limits, check and explain \
                      still work with --gpu NAME, and gridguard tune with --device host";
const NO_NVRTC: &str = "no libnvrtc on the loader's path, nor in a toolkit at CUDA_HOME, CUDA_PATH \
                        or /usr/local/cuda";
const INSTALL_NVRTC: &str = "install the CUDA toolkit's libnvrtc (or pip install \
                             nvidia-cuda-nvrtc) and add its folder to LD_LIBRARY_PATH: gridguard \
                             tune and gridguard's own kernels need it, other kernels do not";

#[cfg(test)]
mod tests {
    use super::super::result::Level;
    use super::*;

    fn facts(files: &[(&str, &str)]) -> LibcudaFacts {
        let pair = |(path, real): &(&str, &str)| (PathBuf::from(path), PathBuf::from(real));
        LibcudaFacts { files: files.iter().map(pair).collect(), ..LibcudaFacts::default() }
    }

    fn check(files: &[(&str, &str)]) -> CheckResult {
        check_libcuda(&facts(files)).expect("a library")
    }

    const REAL: (&str, &str) = ("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.580");

    #[test]
    fn a_stub_is_bad_only_if_it_is_found_first() {
        for name in NAMES {
            let stub = format!("/usr/local/cuda/lib64/stubs/{name}");
            let first = check(&[(stub.as_str(), stub.as_str()), REAL]);
            assert_eq!(first.level, Level::Bad);
            assert_eq!(first.what, format!("{stub} is found first, a stub for linking only"));
            let link = (REAL.0.strip_suffix(".1").expect("a suffix"), REAL.1);
            let later = check(&[REAL, link, (stub.as_str(), stub.as_str())]);
            assert_eq!(later, CheckResult::good(LIBCUDA, "/usr/lib/libcuda.so.1 is loaded"));
        }
    }

    #[test]
    fn several_files_warn_and_links_to_one_do_not() {
        let one = ("/a/libcuda.so.1", "/a/libcuda.so.580");
        let good = CheckResult::good(LIBCUDA, "/a/libcuda.so.1 is loaded");
        assert_eq!(check(&[one, ("/b/libcuda.so.1", one.1)]), good);
        let other = ("/b/libcuda.so.1", "/b/libcuda.so.550");
        let two = check(&[one, other, ("/c/libcuda.so.1", other.1)]);
        assert_eq!(two.level, Level::Warning);
        assert_eq!(two.what, "/a/libcuda.so.1 is loaded; also found: /b/libcuda.so.1");
        // A link for the linker does not shadow anything.
        assert_eq!(check(&[one, ("/b/libcuda.so", "/b/x")]), good);
    }

    #[test]
    fn a_forward_compatible_driver_may_shadow_the_machine_s() {
        let compat =
            ("/usr/local/cuda/compat/libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.580");
        let what = "/usr/local/cuda/compat/libcuda.so.1 is loaded, newer than the kernel module \
                    (forward compatibility); also found: /usr/lib/libcuda.so.1";
        assert_eq!(check(&[compat, REAL]), CheckResult::good(LIBCUDA, what));
    }

    #[test]
    fn a_missing_library_is_one_result_with_the_remedy_for_the_platform() {
        let what = "no CUDA driver library found (tried libcuda.so.1)".to_owned();
        let fault = DriverFault { kind: FaultKind::Missing, what, remedy: String::new() };
        let driver = Driver { fault: Some(fault), ..Driver::default() };
        for (files, platform, word) in [
            (&[][..], Platform::NoGpu, "--device host"),
            (&[], Platform::KernelModule, "--gpus all"),
            (&[], Platform::Wsl, "wsl"),
            (&[REAL], Platform::KernelModule, "damaged"),
        ] {
            let facts = LibcudaFacts { driver: driver.clone(), platform, ..facts(files) };
            let result = check_libcuda(&facts).expect("a fault");
            assert_eq!(result.what, "no CUDA driver library found (tried libcuda.so.1)");
            assert!(result.remedy.is_some_and(|remedy| remedy.contains(word)), "{word}");
        }
    }

    #[test]
    fn the_loader_s_cache_is_read_without_libraries_for_32_bits() {
        let cache = "2 libs found in cache\n\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n\
                     \tlibcuda.so.1 (libc6) => /lib32/libcuda.so.1\n\
                     \tlibcuda.so (libc6,x86-64) => /lib/libcuda.so\n";
        assert_eq!(cached_paths(cache, NAMES[0]), [PathBuf::from("/lib/libcuda.so.1")]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("libcuda.so.1");
        for (start, is_skipped) in
            [(b"\x7fELF\x01rest".as_slice(), true), (b"\x7fELF\x02rest", false), (b"", false)]
        {
            std::fs::write(&path, start).expect("a file");
            assert_eq!(is_32_bit(&path), is_skipped);
        }
    }

    #[test]
    fn nvrtc_warns_if_its_code_or_its_ptx_is_newer_than_the_driver() {
        let check = |version, driver| {
            Nvrtc::Found { path: "/l/libnvrtc.so.12".into(), version }.check(driver)
        };
        assert_eq!(check(12_080, None), CheckResult::good(NVRTC, "12.8, /l/libnvrtc.so.12"));
        assert_eq!(check(12_080, Some(13_000)).level, Level::Good);
        assert!(check(12_080, Some(12_020)).what.contains("its PTX is newer"));
        assert!(check(13_000, Some(12_080)).what.contains("its code is newer"));
        assert_eq!(Nvrtc::Missing.check(None).level, Level::Warning);
    }

    #[test]
    fn an_nvrtc_that_does_not_load_is_not_reported_as_missing() {
        let nvrtc = |tried: &[(&str, &str)]| {
            let tried = tried.iter().map(|(name, why)| ((*name).into(), (*why).into())).collect();
            Nvrtc::from(&NvrtcUnavailable::LibraryMissing { tried })
        };
        let absent = ("libnvrtc.so.13", "libnvrtc.so.13: cannot open: No such file or directory");
        assert_eq!(nvrtc(&[absent]), Nvrtc::Missing);
        let message = "/l/libnvrtc.so: file too short";
        assert_eq!(nvrtc(&[absent, ("libnvrtc.so", message)]), Nvrtc::Broken(message.into()));
    }
}
