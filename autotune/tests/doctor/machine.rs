//! Machines that are made up: a driver, a compiler and programs that only pretend.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::command::{Ran, command};

/// A machine with a library path and programs of its own.
pub(crate) struct Machine {
    folder: TempDir,
    libraries: Vec<PathBuf>,
    settings: Vec<(String, String)>,
}

impl Machine {
    /// Nothing of NVIDIA's. Files that are no libraries stand in the way of those that the machine
    /// may have.
    pub(crate) fn bare() -> Self {
        let machine = Self::with_libraries(&[missing()]);
        machine.program("nvidia-smi", "exit 127")
    }

    /// One H200, driver, compiler and `nvidia-smi`.
    pub(crate) fn healthy() -> Self {
        Self::with_libraries(&[built("libcuda.so.1"), built("libnvrtc.so")]).gpus(1)
    }

    /// A driver, but no compiler.
    pub(crate) fn without_compiler() -> Self {
        Self::with_libraries(&[built("libcuda.so.1"), missing()]).gpus(1)
    }

    fn with_libraries(libraries: &[PathBuf]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let machine = Self { folder, libraries: libraries.to_vec(), settings: Vec::new() };
        // What this machine's loader would find is none of the test's.
        machine.program("ldconfig", "exit 0")
    }

    /// `nvidia-smi` tells of so many GPUs.
    pub(crate) fn gpus(self, count: usize) -> Self {
        let line = |index| format!("echo '{index}, GPU-{index}{index}, 580.65.06, [N/A]'");
        let lines: Vec<String> = (0..count).map(line).collect();
        self.program("nvidia-smi", &lines.join("\n"))
            .set("GRIDGUARD_FAKE_DEVICES", &count.to_string())
    }

    /// The driver library comes first from a folder for linking.
    pub(crate) fn stubs_first(mut self) -> Self {
        let stubs = self.folder.path().join("stubs");
        fs::create_dir(&stubs).expect("a folder");
        let real = built("libcuda.so.1").join("libcuda.so.1");
        fs::copy(real, stubs.join("libcuda.so.1")).expect("a copy");
        self.libraries.insert(0, stubs);
        self
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    /// A shell script among the programs.
    pub(crate) fn program(self, name: &str, script: &str) -> Self {
        let path = self.folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
        self
    }

    /// A `python3` that says this of its torch.
    pub(crate) fn torch(self, answer: &str) -> Self {
        let script = format!("echo noise\ncat <<'END'\ngridguard-doctor {answer}\nEND");
        self.program("python3", &script.replace("cat", "/bin/cat"))
    }

    pub(crate) fn doctor(&self, args: &[&str]) -> Ran {
        let folder = self.folder.path();
        let mut command = command(folder, &[&["doctor"], args].concat());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if ["CUDA", "NVIDIA", "GRIDGUARD"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        let libraries = std::env::join_paths(&self.libraries).expect("folders without a colon");
        command.env("LD_LIBRARY_PATH", libraries).env("PATH", folder);
        command.env("GRIDGUARD_PROFILES", "off").envs(self.settings.iter().cloned());
        command.output().expect("the command runs").into()
    }
}

/// The folder of the fake `name`, built once for each run.
fn built(name: &str) -> PathBuf {
    static BUILT: [OnceLock<PathBuf>; 2] = [const { OnceLock::new() }; 2];
    let (place, source) =
        if name.starts_with("libcuda") { (0, "libcuda.c") } else { (1, "libnvrtc.c") };
    let folder = BUILT[place].get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{source}"));
        fs::create_dir_all(&folder).expect("a folder for the library");
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fake-driver").join(source);
        // Under another name first, since another run may be using the old one.
        let fresh = folder.join(format!("fresh-{}", std::process::id()));
        let output = Command::new("gcc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .args([&fresh, &source])
            .arg("-lpthread")
            .output()
            .expect("gcc builds the library");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "gcc failed:\n{errors}");
        fs::rename(&fresh, folder.join(name)).expect("the library takes its place");
        folder
    });
    folder.clone()
}

/// A folder of empty files in the place of all libraries.
fn missing() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doctor-missing");
    fs::create_dir_all(&folder).expect("a folder");
    let nvrtc = ["so", "so.13", "so.12", "so.11.2"].map(|end| format!("libnvrtc.{end}"));
    for name in nvrtc.iter().map(String::as_str).chain(["libcuda.so.1", "libcuda.so"]) {
        fs::write(folder.join(name), "").expect("an empty file");
    }
    folder
}
