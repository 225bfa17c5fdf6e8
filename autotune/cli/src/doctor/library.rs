//! Which files the loader finds for the driver library, and which one serves.

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::child::{self, Ended};
use super::examine::{Driver, Fault, Kind};
use super::finding::Finding;

const SUBJECT: &str = "libcuda";
/// Names of the driver library: most programs ask for the first, some for the second.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// `ldconfig` reads one file.
const PATIENCE: Duration = Duration::from_secs(2);

/// Files of the driver library in the order in which the loader takes them, those of each name
/// together, each with the file that it comes to.
pub(super) type Files = Vec<(PathBuf, PathBuf)>;

/// What is known of the driver library.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    pub(super) files: Files,
    /// What the driver says of itself, where it says something.
    pub(super) driver: Driver,
    /// What speaks for a GPU where the library is missing.
    pub(super) evidence: Evidence,
}

/// What a machine with a GPU has beside the library.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Evidence {
    #[default]
    None,
    /// The kernel module or its device files.
    Module,
    /// Windows' GPU in its Linux.
    Windows,
}

impl Evidence {
    pub(super) fn gather(has_module: bool) -> Self {
        match () {
            () if has_module => Self::Module,
            () if Path::new("/dev/dxg").exists() => Self::Windows,
            () => Self::None,
        }
    }
}

/// The file whose name begins with `name` among those that this process has mapped.
pub(super) fn loaded(name: &str) -> Option<PathBuf> {
    mapped(&fs::read_to_string("/proc/self/maps").ok()?, name)
}

fn mapped(maps: &str, name: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(|line| line.find('/').and_then(|at| line.get(at..)));
    let is_named = |path: &Path| {
        path.file_name().and_then(|file| file.to_str()).is_some_and(|file| file.starts_with(name))
    };
    paths.map(PathBuf::from).find(|path| is_named(path))
}

/// The files that there are.
pub(super) fn files() -> Files {
    let folders: Vec<PathBuf> = env::var_os("LD_LIBRARY_PATH")
        .map(|path| env::split_paths(&path).filter(|one| !one.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    let cache = cache();
    let mut files = Files::new();
    for name in NAMES {
        let of_folders = folders.iter().map(|folder| folder.join(name));
        let paths = of_folders.chain(cached(&cache, name)).filter(|path| !is_of_32_bits(path));
        files.extend(paths.filter_map(|path| path.canonicalize().ok().map(|real| (path, real))));
    }
    files
}

/// Whether it is a library for 32 bits, which the loader passes over.
fn is_of_32_bits(path: &Path) -> bool {
    let mut start = [0; 5];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"\x7fELF\x01"
}

/// What `ldconfig` tells of the system's own folders; empty where it does not.
fn cache() -> String {
    for program in ["ldconfig", "/sbin/ldconfig"] {
        let mut command = Command::new(program);
        command.arg("-p");
        if let Ended::Exited { out, status, .. } = child::run(command, PATIENCE)
            && status.success()
        {
            return out;
        }
    }
    String::new()
}

/// The paths of `name`, without those for 32 bits.
fn cached(cache: &str, name: &str) -> Vec<PathBuf> {
    let of_line = |line: &str| {
        let (file, rest) = line.trim().split_once(' ')?;
        let (kind, path) = rest.split_once(" => ")?;
        (file == name && kind != "(libc6)").then(|| PathBuf::from(path))
    };
    cache.lines().filter_map(of_line).collect()
}

pub(super) fn findings(search: &Search) -> Vec<Finding> {
    let Driver { loaded, fault, .. } = &search.driver;
    if let Some(stub) = stub(search) {
        let what = format!("{} comes first, a stub that links and does nothing", stub.display());
        return vec![Finding::bad(SUBJECT, what, STUB)];
    }
    if let Some(finding) = fault.as_ref().and_then(|fault| missing(fault, search)) {
        return vec![finding];
    }
    let Some(serving) = loaded.as_deref().or(first(search, NAMES[0])) else { return Vec::new() };
    let kind = match is_compat(serving) {
        true => " serves, newer than the kernel module (forward compatibility)",
        false => "",
    };
    let others = others(search);
    if others.is_empty() {
        return vec![Finding::good(SUBJECT, format!("{}{kind}", serving.display()))];
    }
    let others: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
    let others = others.join(", ");
    if !kind.is_empty() {
        let what = format!("{}{kind}; beside {others}", serving.display());
        return vec![Finding::good(SUBJECT, what)];
    }
    let what = format!("{} serves, and there is also {others}", serving.display());
    let remedy = if search.evidence == Evidence::Windows { SEVERAL_IN_WINDOWS } else { SEVERAL };
    vec![Finding::warning(SUBJECT, what, remedy)]
}

/// The file that the loader takes for `name`.
fn first<'a>(search: &'a Search, name: &str) -> Option<&'a Path> {
    let is_named = |path: &&PathBuf| path.file_name().is_some_and(|it| it == name);
    search.files.iter().map(|(path, _)| path).find(is_named).map(PathBuf::as_path)
}

/// A stub that programs get, by whichever name they ask: this one's own bindings ask for either.
fn stub(search: &Search) -> Option<&Path> {
    let asked = NAMES.iter().filter_map(|name| first(search, name));
    search.driver.loaded.as_deref().into_iter().chain(asked).find(|path| is_stub(path))
}

fn missing(fault: &Fault, search: &Search) -> Option<Finding> {
    let remedy = match (fault.kind, search.evidence) {
        (Kind::Missing, _) if !search.files.is_empty() => BROKEN,
        (Kind::Missing, Evidence::Module) => IN_A_CONTAINER,
        (Kind::Missing, Evidence::Windows) => IN_WINDOWS,
        (Kind::Missing, Evidence::None) => NO_GPU,
        (Kind::Incomplete, _) => {
            "update the driver; where it is new, another library stands before it"
        }
        (Kind::Divided, _) => "take the other one off LD_LIBRARY_PATH",
        (Kind::TooOld | Kind::Failed, _) => return None,
    };
    Some(Finding::bad(SUBJECT, fault.what.clone(), remedy))
}

/// Further files of the same name as the first one, which are other files; stubs behind do no harm.
fn others(search: &Search) -> Vec<&Path> {
    let Some((first, real)) = search.files.first() else { return Vec::new() };
    let rest = search.files.iter().skip(1);
    let other = rest.filter(|(path, _)| path.file_name() == first.file_name() && !is_stub(path));
    let mut found: Vec<&Path> = Vec::new();
    let mut seen = vec![real];
    for (path, other) in other {
        if !seen.contains(&other) {
            seen.push(other);
            found.push(path);
        }
    }
    found
}

/// Whether it is in the folder `compat` of a toolkit.
fn is_compat(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.components().any(|part| part.as_os_str() == "compat"))
}

fn is_stub(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.components().any(|part| part.as_os_str() == "stubs"))
}

const STUB: &str = "take the toolkit's folder stubs out of LD_LIBRARY_PATH and ldconfig: it is \
                    for linking alone";
const SEVERAL: &str = "a program with another search path loads another driver library: keep the \
                       one of the driver that runs";
const SEVERAL_IN_WINDOWS: &str = "the one of Windows, in /usr/lib/wsl/lib, has to serve: uninstall the \
                                  driver in Linux";
const BROKEN: &str = "the file is damaged, or for another machine: install the driver anew, and take \
                      the file's folder out of LD_LIBRARY_PATH";
const IN_A_CONTAINER: &str = "the kernel's part of the driver is here, its library is not: start \
                              the container with its GPUs (docker run --gpus all, NVIDIA \
                              Container Toolkit), or add the folder of libcuda.so.1 to \
                              LD_LIBRARY_PATH";
const IN_WINDOWS: &str = "add /usr/lib/wsl/lib to LD_LIBRARY_PATH, and install the driver in \
                          Windows only";
const NO_GPU: &str = "with a GPU install the NVIDIA driver, or start the container with its GPUs \
                      (docker run --gpus all); without one gridguard limits, check and explain \
                      serve all the same, with --gpu NAME, and gridguard tune with --device host";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn search(files: &[(&str, &str)]) -> Search {
        let pair = |(path, real): &(&str, &str)| (PathBuf::from(path), PathBuf::from(real));
        Search { files: files.iter().map(pair).collect(), ..Search::default() }
    }

    const REAL: (&str, &str) = ("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.580");

    #[test]
    fn a_stub_that_comes_first_is_bad_and_one_behind_is_not() {
        for name in NAMES {
            let stub = format!("/usr/local/cuda/lib64/stubs/{name}");
            let found = findings(&search(&[(stub.as_str(), stub.as_str()), REAL]));
            assert_eq!(found[0].level, Level::Bad);
            let what = format!("{stub} comes first, a stub that links and does nothing");
            assert_eq!(found[0].what, what);
            let link = (REAL.0.strip_suffix(".1").expect("ends so"), REAL.1);
            let behind = findings(&search(&[REAL, link, (stub.as_str(), stub.as_str())]));
            assert_eq!(behind, [Finding::good(SUBJECT, REAL.0)]);
        }
    }

    #[test]
    fn several_files_warn_and_links_to_one_do_not() {
        let one = ("/a/libcuda.so.1", "/a/libcuda.so.580");
        let good = [Finding::good(SUBJECT, one.0)];
        assert_eq!(findings(&search(&[one, ("/b/libcuda.so.1", one.1)])), good);
        let other = ("/b/libcuda.so.1", "/b/libcuda.so.550");
        let two = findings(&search(&[one, other, ("/c/libcuda.so.1", other.1)]));
        assert_eq!(two[0].level, Level::Warning);
        assert_eq!(two[0].what, "/a/libcuda.so.1 serves, and there is also /b/libcuda.so.1");
        // A link for the linker is no rival.
        assert_eq!(findings(&search(&[one, ("/b/libcuda.so", "/b/x")])), good);
    }

    #[test]
    fn a_driver_for_forward_compatibility_may_stand_before_the_machines() {
        let compat =
            ("/usr/local/cuda/compat/libcuda.so.1", "/usr/local/cuda/compat/libcuda.so.580");
        let found = findings(&search(&[compat, REAL]));
        let what = "/usr/local/cuda/compat/libcuda.so.1 serves, newer than the kernel module (forward \
                    compatibility); beside /usr/lib/libcuda.so.1";
        assert_eq!(found, [Finding::good(SUBJECT, what)]);
    }

    #[test]
    fn a_missing_library_is_one_finding_with_the_way_out_of_this_machine() {
        let what = "no CUDA driver library found (tried libcuda.so.1)".to_owned();
        let fault = Fault { kind: Kind::Missing, what, remedy: String::new() };
        let driver = Driver { fault: Some(fault), ..Driver::default() };
        let broken = search(&[REAL]);
        for (searched, evidence, word) in [
            (search(&[]), Evidence::None, "--device host"),
            (search(&[]), Evidence::Module, "--gpus all"),
            (search(&[]), Evidence::Windows, "wsl"),
            (broken, Evidence::Module, "damaged"),
        ] {
            let found = findings(&Search { driver: driver.clone(), evidence, ..searched });
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].what, "no CUDA driver library found (tried libcuda.so.1)");
            assert!(found[0].remedy.as_ref().is_some_and(|remedy| remedy.contains(word)), "{word}");
        }
    }

    #[test]
    fn the_loaders_cache_and_this_process_tell_paths() {
        let cache = "2 libs found in cache\n\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n\
                     \tlibcuda.so.1 (libc6) => /lib32/libcuda.so.1\n\
                     \tlibcuda.so (libc6,x86-64) => /lib/libcuda.so\n";
        assert_eq!(cached(cache, NAMES[0]), [PathBuf::from("/lib/libcuda.so.1")]);
        let maps = "7f00-7f01 r--p 00000000 08:01 12  /usr/lib/libc.so.6\n\
                    7f02-7f03 r-xp 00000000 08:01 13  /usr/lib/libcuda.so.580.65.06\n";
        let path = mapped(maps, "libcuda.so");
        assert_eq!(path, Some("/usr/lib/libcuda.so.580.65.06".into()));
        assert_eq!(mapped(maps, "libnvrtc.so"), None);
    }

    #[test]
    fn a_library_for_32_bits_is_passed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("libcuda.so.1");
        for (start, passed_over) in
            [(b"\x7fELF\x01rest".as_slice(), true), (b"\x7fELF\x02rest", false), (b"", false)]
        {
            fs::write(&path, start).expect("a file");
            assert_eq!(is_of_32_bits(&path), passed_over);
        }
    }
}
