//! Builds the programs and drivers of the tests, and runs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use gridguard_report::WatchReport;
use gridguard_test_support::fake_library::{self, DRIVER};

/// A driver that a program finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    /// The whole fake driver.
    Whole,
    /// One without `cuFuncGetName` and `cuGetProcAddress`.
    Old,
    /// One without `cuLaunchKernel`.
    Broken,
    /// The whole one, whose symbols have a version.
    Versioned,
    /// None: an empty file takes its place.
    Missing,
}

/// What a program printed, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ran {
    pub(crate) status: std::process::ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The library under test, which cargo built beside this program.
pub(crate) fn library() -> PathBuf {
    let path = std::env::current_exe().unwrap().with_file_name("libgridguard_preload.so");
    assert!(path.is_file(), "{} is missing", path.display());
    path
}

/// The command `launches WAY ACTION...` with this driver, without the library.
pub(crate) fn plain(driver: Driver, words: &str) -> Command {
    let (way, _) = words.split_once(' ').unwrap();
    let program = if way == "linked" { "linked" } else { "launches" };
    clean(driver, program, words)
}

/// The command `loads LOOKUP IMAGE ACTION...` with the library.
pub(crate) fn loads(words: &str) -> Command {
    let mut command = clean(Driver::Whole, "loads", words);
    command.env("LD_PRELOAD", library());
    command
}

/// The command `loads LOOKUP IMAGE ACTION...` with the library and the fake NVRTC, which the program looks up or links.
pub(crate) fn compiles(words: &str, is_linked: bool) -> Command {
    let program = if is_linked { "loads-linked" } else { "loads" };
    let mut command = clean(Driver::Whole, program, words);
    let folders = [driver_folder(Driver::Whole), compiler_folder()];
    command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
    command.env("LD_PRELOAD", library());
    command
}

/// A shared object in `folder` that has the image in the file `image`.
pub(crate) fn object_with(folder: &Path, image: &Path) -> PathBuf {
    let (source, object) = (folder.join("image.S"), folder.join("image.so"));
    let text = format!(
        ".section .nv_fatbin, \"a\"\n.globl image\n.p2align 3\nimage: .incbin \"{}\"\n\
         .section .note.GNU-stack, \"\"\n",
        image.display()
    );
    std::fs::write(&source, text).unwrap();
    let output = Command::new("gcc").args(["-shared", "-o"]).args([&object, &source]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    object
}

/// The command `graphs LOOKUP ACTION...` with the library.
pub(crate) fn graphs(driver: Driver, words: &str) -> Command {
    let mut command = clean(driver, "graphs", words);
    command.env("LD_PRELOAD", library());
    command
}

/// The command `PROGRAM ACTION...` with the fake runtime, without the library. The program is `runtime`, or
/// `runtime-linked`, which links one,
/// or `runtime-static`, which contains one.
pub(crate) fn with_runtime(words: &str) -> Command {
    let (program, words) = words.split_once(' ').unwrap();
    let mut command = clean(Driver::Whole, program, words);
    let folders = [driver_folder(Driver::Whole), runtime_folder()];
    command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
    command
}

/// The command `allocates LOOKUP ACTION...`, without the library.
pub(crate) fn allocates(words: &str) -> Command {
    let mut command = clean(Driver::Whole, "allocates", words);
    command.env("PLUGIN", built().join("allocates-plugin.so"));
    command
}

/// The command with this driver, and without variables that change it.
fn clean(driver: Driver, program: &str, words: &str) -> Command {
    let mut command = Command::new(built().join(program));
    clean_environment(&mut command, driver);
    command.args(words.split(' '));
    command
}

/// Lets the command find this driver, and removes variables that change what it does.
pub(crate) fn clean_environment(command: &mut Command, driver: Driver) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CUDA", "GRIDGUARD", "LD_"].iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.env("LD_LIBRARY_PATH", driver_folder(driver));
}

/// The same with the library.
pub(crate) fn preloaded(driver: Driver, words: &str) -> Command {
    let mut command = plain(driver, words);
    command.env("LD_PRELOAD", library());
    command
}

/// The same in a shell that allows no file to have any contents.
pub(crate) fn without_room(command: &Command) -> Command {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\""]).arg(command.get_program());
    limited.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    limited
}

/// Runs a command to its end.
pub(crate) fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { status, out: text(stdout), err: text(stderr) }
}

/// Runs a command that has the library to its end, and reads its report.
pub(crate) fn reported(command: &mut Command) -> (Ran, WatchReport) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let ran = run(command.env("GRIDGUARD_RUN_REPORT", &path));
    (ran, WatchReport::parse(&std::fs::read(&path).unwrap()).unwrap())
}

/// Runs `launches WAY ACTION...` with and without the library, and checks that both print and return the
/// same. What the library wrote to standard error is returned.
#[track_caller]
pub(crate) fn watched(driver: Driver, words: &str) -> String {
    same(&mut plain(driver, words), &mut preloaded(driver, words))
}

/// Runs a command without the library and one with it, and checks that both print and return the same. What
/// the second wrote to standard error is returned.
#[track_caller]
pub(crate) fn same(without: &mut Command, with: &mut Command) -> String {
    let (without, with) = (run(without), run(with));
    assert_eq!((&with.out, with.status), (&without.out, without.status), "{}", with.err);
    assert_eq!(without.err, "");
    with.err
}

/// The lines of a message without those of the stack, which differ from machine to machine.
pub(crate) fn without_stack(err: &str) -> String {
    let mut in_stack = false;
    let kept = err.lines().filter(|line| {
        in_stack = line.starts_with("  stack") || (in_stack && line.starts_with("            "));
        !in_stack && !line.starts_with("  library")
    });
    kept.map(|line| format!("{line}\n")).collect()
}

/// The file of another driver library than the whole one.
pub(crate) fn other_driver() -> PathBuf {
    driver_folder(Driver::Old).join(DRIVER[0])
}

/// A program that opens a plugin, which launches an oversized grid. `flags` is `local` or `deep`.
pub(crate) fn opener(flags: &str) -> Command {
    let mut command = clean(Driver::Whole, "opener", flags);
    command.env("PLUGIN", built().join("opened.so"));
    command
}

/// A program or library of the tests: `ptxas`, a stand-in; `interposer.so` and `tracer.so`, which intercept the driver and
/// the runtime, too; `plugin.so`, which links another runtime than the programs do.
pub(crate) fn test_program(name: &str) -> PathBuf {
    built().join(name)
}

fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preloaded");
        std::fs::create_dir_all(&folder).unwrap();
        compile(&folder, "launches", "launches.c", &["-lpthread"]);
        let driver = driver_folder(Driver::Whole);
        let link = format!("-L{}", driver.display());
        compile(&folder, "linked", "launches.c", &["-DLINKED", &link, "-lcuda", "-lpthread"]);
        // Calls functions without prototypes.
        compile(&folder, "loads", "loads.c", &["-std=gnu11", "-lpthread"]);
        let compilers = format!("-L{}", compiler_folder().display());
        let linked = ["-std=gnu11", "-DLINKED", &compilers, "-l:libnvrtc.so.13", "-lpthread"];
        compile(&folder, "loads-linked", "loads.c", &linked);
        compile(&folder, "graphs", "graphs.c", &["-std=gnu11"]);
        let allocates = ["-std=gnu11", "-rdynamic", "-lpthread"];
        compile(&folder, "allocates", "allocates.c", &allocates);
        let plugin = ["-std=gnu11", "-DPLUGIN", "-shared", "-fPIC"];
        compile(&folder, "allocates-plugin.so", "allocates.c", &plugin);
        compile(&folder, "opener", "plugin.c", &["-std=gnu11"]);
        let plugin = ["-std=gnu11", "-DPLUGIN", "-shared", "-fPIC"];
        compile(&folder, "opened.so", "plugin.c", &plugin);
        compile(&folder, "ptxas", "ptxas.c", &[]);
        compile(&folder, "interposer.so", "interposer.c", &["-shared", "-fPIC"]);
        compile(&folder, "tracer.so", "tracer.c", &["-shared", "-fPIC"]);
        let runtimes = format!("-L{}", runtime_folder().display());
        let linked = ["-DLINKED", "-rdynamic", &runtimes, "-l:libcudart.so.13"];
        compile(&folder, "runtime-linked", "runtime.c", &linked);
        compile(&folder, "runtime", "runtime.c", &[]);
        let within = fake_library::source("libcudart.c").display().to_string();
        compile(&folder, "runtime-static", "runtime.c", &["-DLINKED", &within]);
        let plugin = ["-DPLUGIN", "-shared", "-fPIC", &runtimes, "-l:libcudart.so.12"];
        compile(&folder, "plugin.so", "runtime.c", &plugin);
        folder
    })
}

/// The stand-in for Python 3.`minor` with broken memory.
pub(crate) fn torn_python(minor: u8) -> PathBuf {
    let name = format!("torn-{minor}.so");
    let version = format!("-DVERSION={minor}");
    compile(built(), &name, "../python/torn.c", &[&version, "-shared", "-fPIC"]);
    built().join(name)
}

/// An extension module for Python with the launcher of Triton (`__triton_launcher`, or the later `cuda_utils`) or PyTorch (`_C`).
pub(crate) fn launcher(module: &str) -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let options = ["-shared", "-fPIC", "-fwrapv"];
        for (name, which) in
            [("__triton_launcher", "-O1"), ("cuda_utils", "-DLATER"), ("_C", "-DPYTORCH")]
        {
            let options = [&options[..], &[which]].concat();
            compile(built(), &format!("{name}.so"), "../python/launcher.c", &options);
        }
    });
    built().join(format!("{module}.so"))
}

fn compile(folder: &Path, name: &str, source: &str, options: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    // Built under another name and moved, since another run may be using the old file.
    let fresh = folder.join(format!("{name}-{}", std::process::id()));
    let output = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&fresh, &source])
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(&fresh, folder.join(name)).unwrap();
}

/// The folder of the fake NVRTC.
fn compiler_folder() -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiler");
    BUILT.get_or_init(|| {
        let option = Some("-Wl,-soname,libnvrtc.so.13");
        fake_library::build(&folder, "libnvrtc.c", "libnvrtc.so.13", "libnvrtc.so", option);
        compile(&folder, "libnvJitLink.so.13", "linker.c", &["-shared", "-fPIC"]);
    });
    folder
}

/// The folder of two fake runtimes, whose symbols have versions as NVIDIA's have.
fn runtime_folder() -> PathBuf {
    static BUILT: OnceLock<()> = OnceLock::new();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("runtimes");
    BUILT.get_or_init(|| {
        for version in [12, 13] {
            let name = format!("libcudart.so.{version}");
            let versioned = format!("-Wl,--default-symver,-soname,{name}");
            let link = format!("{name}.0");
            fake_library::build(&folder, "libcudart.c", &name, &link, Some(&versioned));
        }
    });
    folder
}

fn driver_folder(driver: Driver) -> PathBuf {
    static BUILT: [OnceLock<()>; 5] = [const { OnceLock::new() }; 5];
    let (place, name, option) = match driver {
        Driver::Whole => (0, "whole", None),
        Driver::Old => (1, "old", Some("-DFAKE_OLD")),
        Driver::Broken => (2, "broken", Some("-DFAKE_BROKEN")),
        Driver::Versioned => (3, "versioned", Some("-Wl,--default-symver,-soname,libcuda.so.1")),
        Driver::Missing => (4, "missing", None),
    };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("driver-{name}"));
    BUILT[place].get_or_init(|| {
        let [library, link] = DRIVER;
        if driver == Driver::Missing {
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(library), "").unwrap();
        } else {
            fake_library::build(&folder, "libcuda.c", library, link, option);
        }
    });
    folder
}
