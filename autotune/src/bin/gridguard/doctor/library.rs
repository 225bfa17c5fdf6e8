//! Which files the loader finds for the driver library, and which one serves.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gridguard::cuda::DriverUnavailable;

use super::child::{self, Ended};
use super::finding::Finding;

const SUBJECT: &str = "libcuda";
/// Names of the driver library, in the order in which they are looked for.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
/// `ldconfig` reads one file.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is known of the driver library.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// Files in the order in which the loader takes them, each with the file that it comes to.
    pub(super) files: Vec<(PathBuf, PathBuf)>,
    /// The file that this process loaded.
    pub(super) loaded: Option<PathBuf>,
    /// Why it does not serve, where it does not.
    pub(super) missing: Option<DriverUnavailable>,
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

impl Search {
    /// Looks, once the driver was asked, which loads its library.
    pub(super) fn gather(missing: Option<&DriverUnavailable>, has_module: bool) -> Self {
        let windows = Path::new("/dev/dxg").exists();
        let evidence = match () {
            () if has_module => Evidence::Module,
            () if windows => Evidence::Windows,
            () => Evidence::None,
        };
        Self { files: files(), loaded: loaded("libcuda.so"), missing: missing.cloned(), evidence }
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

fn files() -> Vec<(PathBuf, PathBuf)> {
    let folders: Vec<PathBuf> = env::var_os("LD_LIBRARY_PATH")
        .map(|path| env::split_paths(&path).filter(|one| !one.as_os_str().is_empty()).collect())
        .unwrap_or_default();
    let cache = cache();
    let mut files = Vec::new();
    for name in NAMES {
        let of_folders = folders.iter().map(|folder| folder.join(name));
        for path in of_folders.chain(cached(&cache, name)) {
            if let Ok(real) = path.canonicalize() {
                files.push((path, real));
            }
        }
    }
    files
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
    let first = search.files.first().map(|(path, _)| path);
    let serving = search.loaded.as_ref().or(first);
    if let Some(stub) = serving.filter(|path| is_stub(path)).or(first.filter(|path| is_stub(path)))
    {
        return vec![Finding::bad(
            SUBJECT,
            format!(
                "{} comes first, a stub that links and \
            does nothing",
                stub.display()
            ),
            STUB,
        )];
    }
    if let Some(finding) = search.missing.as_ref().and_then(|why| missing(why, search)) {
        return vec![finding];
    }
    let Some(serving) = serving else { return Vec::new() };
    let others = others(search);
    if others.is_empty() {
        return vec![Finding::good(SUBJECT, serving.display().to_string())];
    }
    let others: Vec<String> = others.iter().map(|path| path.display().to_string()).collect();
    let what = format!("{} serves, and there is also {}", serving.display(), others.join(", "));
    vec![Finding::warning(SUBJECT, what, SEVERAL)]
}

fn missing(why: &DriverUnavailable, search: &Search) -> Option<Finding> {
    let remedy = match (why, search.evidence) {
        (DriverUnavailable::LibraryMissing { .. }, Evidence::Module) => IN_A_CONTAINER,
        (DriverUnavailable::LibraryMissing { .. }, Evidence::Windows) => IN_WINDOWS,
        (DriverUnavailable::LibraryMissing { .. }, Evidence::None) => NO_GPU,
        (DriverUnavailable::SymbolMissing { .. }, _) => "update the driver",
        (DriverUnavailable::OtherLibrary { .. }, _) => "take the other one off LD_LIBRARY_PATH",
        _ => return None,
    };
    Some(Finding::bad(SUBJECT, why.to_string(), remedy))
}

/// Further files of the same name as the first one, which are other files; stubs behind do no harm.
fn others(search: &Search) -> Vec<&Path> {
    let Some((first, real)) = search.files.first() else { return Vec::new() };
    let rest = search.files.iter().skip(1);
    let other = rest.filter(|(path, _)| path.file_name() == first.file_name() && !is_stub(path));
    let mut found: Vec<&Path> = Vec::new();
    for (path, other) in other {
        if other != real && !found.contains(&path.as_path()) {
            found.push(path);
        }
    }
    found
}

fn is_stub(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.components().any(|part| part.as_os_str() == "stubs"))
}

const STUB: &str = "take the toolkit's folder stubs out of LD_LIBRARY_PATH and ldconfig: it is \
                    for linking alone";
const SEVERAL: &str = "a program with another search path loads another driver library: keep the \
                       one of the driver that runs";
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

    #[test]
    fn a_stub_that_comes_first_is_bad_and_one_behind_is_not() {
        let (real, stub) = ("/usr/lib/libcuda.so.1", "/usr/local/cuda/lib64/stubs/libcuda.so.1");
        let found = findings(&search(&[(stub, stub), (real, real)]));
        assert_eq!(found[0].level, Level::Bad);
        assert_eq!(
            found[0].what,
            format!("{stub} comes first, a stub that links and does nothing")
        );
        assert_eq!(
            findings(&search(&[(real, real), (stub, stub)])),
            [Finding::good(SUBJECT, real)]
        );
    }

    #[test]
    fn several_files_warn_and_links_to_one_do_not() {
        let one = ("/a/libcuda.so.1", "/a/libcuda.so.580");
        assert_eq!(findings(&search(&[one, ("/b/libcuda.so.1", one.1)]))[0].level, Level::Good);
        let two = findings(&search(&[one, ("/b/libcuda.so.1", "/b/libcuda.so.550")]));
        assert_eq!(two[0].level, Level::Warning);
        assert_eq!(two[0].what, "/a/libcuda.so.1 serves, and there is also /b/libcuda.so.1");
        // A link for the linker is no rival.
        assert_eq!(findings(&search(&[one, ("/b/libcuda.so", "/b/x")]))[0].level, Level::Good);
    }

    #[test]
    fn a_missing_library_is_one_finding_with_the_way_out_of_this_machine() {
        let tried = vec![("libcuda.so.1".to_owned(), "No such file".to_owned())];
        let missing = Some(DriverUnavailable::LibraryMissing { tried });
        for (evidence, word) in [
            (Evidence::None, "--device host"),
            (Evidence::Module, "--gpus all"),
            (Evidence::Windows, "wsl"),
        ] {
            let found = findings(&Search { missing: missing.clone(), evidence, ..search(&[]) });
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].what, "no CUDA driver library found (tried libcuda.so.1)");
            assert!(found[0].remedy.as_ref().is_some_and(|remedy| remedy.contains(word)));
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
}
