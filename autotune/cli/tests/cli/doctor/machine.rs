//! Simulated machines: a fake driver, a fake compiler, and fake programs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::command::{Ran, Words, command};

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

    /// A healthy machine whose driver does `body` where it is asked to `call`, a function of the
    /// driver with its parameters; the driver's own is then called `own`.
    pub(crate) fn with_driver_that(name: &str, call: &str, body: &str) -> Self {
        let (function, _) = call.split_once('(').expect("parameters");
        let source = format!(
            "#define {function} own\n#include \"libcuda.c\"\n#undef {function}\n#include <signal.h>\n\
             CUresult {call} {{ {body} }}\n"
        );
        let driver = compiled(name, &source, "libcuda.so.1");
        Self::with_libraries(&[driver, built("libnvrtc.so")]).gpus(1)
    }

    /// A healthy machine whose compiler has never heard of the device.
    pub(crate) fn with_old_compiler() -> Self {
        let source = "#define nvrtcCompileProgram compile\n#define nvrtcGetErrorString words\n\
                      #include \"libnvrtc.c\"\n#undef nvrtcCompileProgram\n\
                      #undef nvrtcGetErrorString\n\
                      nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char *const \
                      *options) { compile(program, count, options); return 5; }\n\
                      const char *nvrtcGetErrorString(nvrtcResult code) { return code == 5 ? \
                      \"NVRTC_ERROR_INVALID_OPTION\" : words(code); }\n";
        let compiler = compiled("old-nvrtc", source, "libnvrtc.so");
        Self::with_libraries(&[built("libcuda.so.1"), compiler]).gpus(1)
    }

    fn with_libraries(libraries: &[PathBuf]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let machine = Self { folder, libraries: libraries.to_vec(), settings: Vec::new() };
        // Hides the libraries of the real machine.
        machine.program("ldconfig", "exit 0")
    }

    /// `nvidia-smi` lists `count` GPUs.
    pub(crate) fn gpus(self, count: usize) -> Self {
        let line =
            |index| format!("echo '{index}, GPU-{index}{index}, NVIDIA H200, 580.65.06, [N/A], 0'");
        let lines: Vec<String> = (0..count).map(line).collect();
        self.program("nvidia-smi", &lines.join("\n"))
            .set("GRIDGUARD_FAKE_DEVICES", &count.to_string())
    }

    /// A folder on the library path before the others, with one file.
    pub(crate) fn library_first(mut self, folder: &str, name: &str, bytes: &[u8]) -> Self {
        let folder = self.folder.path().join(folder);
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join(name), bytes).expect("a file");
        self.libraries.insert(0, folder);
        self
    }

    /// The bytes of the fake driver, for a copy in another folder.
    pub(crate) fn driver_library() -> Vec<u8> {
        fs::read(built("libcuda.so.1").join("libcuda.so.1")).expect("it was built")
    }

    /// A stub library for linking. Each function returns an error.
    pub(crate) fn stub_library() -> Vec<u8> {
        let source = "int cuInit(unsigned flags) { (void)flags; return 34; }\n";
        fs::read(compiled("stub", source, "libcuda.so").join("libcuda.so")).expect("it was built")
    }

    /// A stub of the compiler. Each function returns the number of bytes that it prints.
    pub(crate) fn stub_compiler() -> Vec<u8> {
        let call =
            |name| format!("int nvrtc{name}(void) {{ return puts(\"a stub of nvrtc\"); }}\n");
        let calls = [
            "Version",
            "GetErrorString",
            "CreateProgram",
            "DestroyProgram",
            "CompileProgram",
            "GetPTX",
            "GetPTXSize",
            "GetCUBIN",
            "GetCUBINSize",
            "GetProgramLog",
            "GetProgramLogSize",
        ];
        let source = "#include <stdio.h>\n".to_owned() + &calls.map(call).concat();
        let folder = compiled("stub-nvrtc", &source, "libnvrtc.so");
        fs::read(folder.join("libnvrtc.so")).expect("it was built")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
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

    /// Runs `gridguard doctor`, which is patient unless `args` say how long.
    pub(crate) fn doctor(&self, args: &(impl Words + ?Sized)) -> Ran {
        let mut words = [&["doctor"], &*args.words()].concat();
        if !words.contains(&"--patience") {
            words.extend(["--patience", "10m"]);
        }
        self.run(&words)
    }

    pub(crate) fn run(&self, args: &(impl Words + ?Sized)) -> Ran {
        let folder = self.folder.path();
        let mut command = command(folder, args);
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
    let include = format!("#include \"{source}\"\n");
    BUILT[place].get_or_init(|| compiled(source, &include, name)).clone()
}

/// A folder with the library `name`, built of C that may include the fakes.
fn compiled(folder: &str, source: &str, name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("doctor-{folder}"));
    fs::create_dir_all(&folder).expect("a folder for the library");
    // Under names of its own first, since another run may be using the old one.
    let fresh = tempfile::tempdir_in(&folder).expect("a folder");
    let (input, output) = (fresh.path().join("library.c"), fresh.path().join(name));
    fs::write(&input, source).expect("the source is written");
    let fakes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guard/tests/fake-driver");
    let ran = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-I"])
        .args([&fakes, Path::new("-o"), &output, &input])
        .arg("-lpthread")
        .output()
        .expect("gcc builds the library");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "gcc failed:\n{errors}");
    fs::rename(&output, folder.join(name)).expect("the library takes its place");
    folder
}

/// A folder with empty files instead of libraries.
fn missing() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("doctor-missing");
    fs::create_dir_all(&folder).expect("a folder");
    let nvrtc = ["so", "so.13", "so.12", "so.11.2"].map(|end| format!("libnvrtc.{end}"));
    for name in nvrtc.iter().map(String::as_str).chain(["libcuda.so.1", "libcuda.so"]) {
        fs::write(folder.join(name), "").expect("an empty file");
    }
    folder
}
