//! Checks which libcuda is loaded, whether another shadows it, and whether NVRTC can be used.

use std::collections::HashSet;
use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gridguard::cuda::{Compiler, CudaErrorKind};
use gridguard_diagnose::CudaVersion;

use super::child;
use super::driver::{Driver, LIBCUDA, loaded_library, version_number};
use super::finding::{Finding, Subject};

const NVRTC: Subject = Subject::new("nvrtc");
/// The names of the driver library; most programs load the first one.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// `ldconfig` only reads one file.
const LDCONFIG_LIMIT: Duration = Duration::from_secs(2);

/// Files named like the driver library, each with its canonical path, in the order of the loader's search.
pub(super) type LibraryFiles = Vec<(PathBuf, PathBuf)>;

/// Signs of a GPU without a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Platform {
    NoGpu,
    /// The kernel module is loaded, or device files exist.
    KernelModule,
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
    let path = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders: Vec<PathBuf> =
        env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty()).collect();
    let cache = loader_cache();
    let in_order = |name| {
        let in_folders = folders.iter().map(move |folder| folder.join(name));
        in_folders.chain(cached_paths(&cache, name))
    };
    let paths = NAMES.into_iter().flat_map(in_order).filter(|path| !is_32_bit(path));
    paths.filter_map(|path| path.canonicalize().ok().map(|real| (path, real))).collect()
}

/// The loader skips libraries for 32 bits.
fn is_32_bit(path: &Path) -> bool {
    let mut start = [0; 5];
    // The file may be no library, or a pipe.
    let read = gridguard_files::open(path).map(|mut file| file.read_exact(&mut start));
    read.is_ok_and(|read| read.is_ok()) && start == *b"\x7fELF\x01"
}

/// The output of `ldconfig -p`; empty if it fails.
fn loader_cache() -> String {
    let list = |program| {
        let mut command = Command::new(program);
        command.arg("-p");
        child::run(command, LDCONFIG_LIMIT, |_| false)
    };
    let mut outputs = ["ldconfig", "/sbin/ldconfig"].into_iter().map(list);
    outputs.find(|output| output.end.is_ok()).map(|output| output.out).unwrap_or_default()
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

pub(super) fn check_libcuda(
    files: &LibraryFiles,
    driver: &Driver,
    platform: Platform,
) -> Option<Finding> {
    let first = |name| {
        let is_named = |path: &&Path| path.file_name().is_some_and(|it| it == name);
        files.iter().map(|(path, _)| path.as_path()).find(is_named)
    };
    let loaded = driver.loaded.as_deref();
    // A stub of either name is bad.
    let mut candidates = loaded.into_iter().chain(NAMES.into_iter().filter_map(first));
    if let Some(stub) = candidates.find(|path| is_in_folder(path, "stubs")) {
        let what = format!("{} is found first, a stub for linking only", stub.display());
        return Some(LIBCUDA.bad(what, STUB));
    }
    if let Some(fault) = driver.fault.clone().filter(|fault| LIBCUDA.is_of(fault)) {
        let remedy = match platform {
            _ if !files.is_empty() => DAMAGED,
            Platform::KernelModule => NO_LIBRARY,
            Platform::Wsl => NO_LIBRARY_IN_WSL,
            Platform::NoGpu => NO_GPU,
        };
        return Some(Finding { remedy: fault.remedy.or(Some(remedy.to_owned())), ..fault });
    }
    let loaded = loaded.or(first(NAMES[0]))?;
    let is_compat = is_in_folder(loaded, "compat");
    let mut what = format!("{} is loaded", loaded.display());
    if is_compat {
        what += ", newer than the kernel module (forward compatibility)";
    }
    let others = other_files(files);
    if others.is_empty() {
        return Some(LIBCUDA.good(what));
    }
    what += &format!("; also found: {}", others.join(", "));
    Some(match platform {
        _ if is_compat => LIBCUDA.good(what),
        Platform::Wsl => LIBCUDA.warning(what, SEVERAL_IN_WSL),
        _ => LIBCUDA.warning(what, SEVERAL),
    })
}

/// Other files of the same name as the first, without stubs.
fn other_files(files: &LibraryFiles) -> Vec<String> {
    let Some((first, real)) = files.first() else { return Vec::new() };
    let mut seen = HashSet::from([real]);
    let others = files.iter().filter(|(path, real)| {
        let is_named = path.file_name() == first.file_name();
        is_named && !is_in_folder(path, "stubs") && seen.insert(real)
    });
    others.map(|(path, _)| path.display().to_string()).collect()
}

fn is_in_folder(path: &Path, name: &str) -> bool {
    path.parent().is_some_and(|folder| folder.components().any(|part| part.as_os_str() == name))
}

/// The path and version of NVRTC, or why it does not load; `None` if it is missing.
pub(super) fn find_nvrtc() -> Result<(PathBuf, i32), Option<String>> {
    let compiler = Compiler::find().map_err(|error| why_unavailable(error.kind()))?;
    let (major, minor) = compiler.version().map_err(|error| Some(error.to_string()))?;
    let path = loaded_library("libnvrtc.so").unwrap_or_else(|| compiler.library().into());
    Ok((path, version_number(major, minor)))
}

fn why_unavailable(error: &CudaErrorKind) -> Option<String> {
    let CudaErrorKind::LibraryMissing { tried, .. } = error else {
        return Some(error.to_string());
    };
    let (name, message) = tried.iter().find(|(_, message)| !message.contains("No such file"))?;
    let is_named = message.contains(name.as_str());
    Some(if is_named { message.clone() } else { format!("{name}: {message}") })
}

/// Compares NVRTC with the CUDA version that the driver supports.
pub(super) fn check_nvrtc(
    nvrtc: &Result<(PathBuf, i32), Option<String>>,
    driver: Option<i32>,
) -> Finding {
    let (path, version) = match nvrtc {
        Ok((path, version)) => (path.display(), *version),
        Err(None) => return NVRTC.warning(NO_NVRTC, INSTALL_NVRTC),
        Err(Some(why)) => return NVRTC.warning(format!("does not load: {why}"), INSTALL_NVRTC),
    };
    let found = format!("{}, {path}", CudaVersion(version));
    let Some(driver) = driver.filter(|driver| version > *driver) else {
        return NVRTC.good(found);
    };
    let supports = format!("newer than the driver, which supports CUDA {}", CudaVersion(driver));
    if version / 1000 > driver / 1000 {
        let remedy = format!("install NVRTC {}, or update the driver", driver / 1000);
        return NVRTC.warning(format!("{found}: its code is {supports}"), remedy);
    }
    NVRTC.warning(
        format!("{found}: its machine code runs here, its PTX is {supports}"),
        "compile for the device's own architecture, as gridguard does, or update the driver",
    )
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
    use super::*;

    fn files(files: &[(&str, &str)]) -> LibraryFiles {
        files.iter().map(|(path, real)| (path.into(), real.into())).collect()
    }

    const REAL: (&str, &str) = ("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.580");

    #[test]
    fn a_missing_library_is_one_result_with_the_remedy_for_the_platform() {
        let what = "no CUDA driver library found (tried libcuda.so.1)";
        let fault = Finding { remedy: None, ..LIBCUDA.bad(what, "") };
        let driver = Driver { fault: Some(fault), ..Driver::default() };
        for (found, platform, word) in [
            (&[][..], Platform::NoGpu, "--device host"),
            (&[], Platform::KernelModule, "--gpus all"),
            (&[], Platform::Wsl, "wsl"),
            (&[REAL], Platform::KernelModule, "damaged"),
        ] {
            let finding = check_libcuda(&files(found), &driver, platform).expect("a fault");
            assert_eq!(finding.what, "no CUDA driver library found (tried libcuda.so.1)");
            assert!(finding.remedy.is_some_and(|remedy| remedy.contains(word)), "{word}");
        }
    }

    #[test]
    fn the_loader_s_cache_is_read_without_libraries_for_32_bits() {
        let cache = "2 libs found in cache\n\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n\
                     \tlibcuda.so.1 (libc6) => /lib32/libcuda.so.1\n\
                     \tlibcuda.so (libc6,x86-64) => /lib/libcuda.so\n";
        assert_eq!(cached_paths(cache, NAMES[0]), [PathBuf::from("/lib/libcuda.so.1")]);
    }

    #[test]
    fn an_nvrtc_that_does_not_load_is_not_reported_as_missing() {
        let nvrtc = |tried: &[(&str, &str)]| {
            let tried = tried.iter().map(|(name, why)| ((*name).into(), (*why).into())).collect();
            let of = gridguard::cuda::CudaLibrary::Nvrtc;
            why_unavailable(&CudaErrorKind::LibraryMissing { of, tried })
        };
        let absent = ("libnvrtc.so.13", "libnvrtc.so.13: cannot open: No such file or directory");
        assert_eq!(nvrtc(&[absent]), None);
        let message = "/l/libnvrtc.so: file too short";
        assert_eq!(nvrtc(&[absent, ("libnvrtc.so", message)]), Some(message.into()));
    }
}
