//! Runs the body of a test in a child process that finds the fake driver.

use std::any::type_name;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use crate::{assert_passed, fake_library};

/// Environment variable: the test whose body a child process runs.
const CHILD: &str = "GRIDGUARD_TEST_CHILD";
/// Environment variable: the case of the test that a child process runs.
const CASE: &str = "GRIDGUARD_TEST_CASE";
/// Environment variable: the log of the fake driver.
const LOG: &str = "GRIDGUARD_FAKE_LOG";

/// The driver that a child process finds.
#[derive(Clone, Copy, Debug)]
pub enum Driver {
    /// The whole fake driver.
    Whole,
    /// The fake NVRTC, and the whole fake driver.
    WithCompiler,
    /// A driver too old for clusters and parameter sizes.
    Old,
    /// A driver without `cuLaunchKernel`.
    Broken,
    /// Two drivers: cudarc loads another copy than the guard.
    Two,
    /// No driver. Empty files take its place, so that the loader does not find the machine's own.
    Missing,
}

/// Runs `body`, the body of a test, in a child process with `driver` and the environment variables
/// `settings`: the guard loads its driver once per process.
///
/// # Panics
///
/// If the driver cannot be built, or the test fails.
pub fn with_driver<B: FnOnce()>(driver: Driver, settings: &[(&str, &str)], body: B) {
    in_process_of::<B>(driver, settings, body);
}

/// [`with_driver`] for the test whose body `B` is, which `body` calls with what it needs.
///
/// # Panics
///
/// If the driver cannot be built, or the test fails.
pub fn in_process_of<B>(driver: Driver, settings: &[(&str, &str)], body: impl FnOnce()) {
    let test = test_of::<B>();
    if std::env::var_os(CHILD).is_some_and(|child| child == test) {
        return body();
    }
    let folder = tempfile::tempdir().expect("a folder for the log");
    let child = start(test, driver, settings, &folder.path().join("launches"));
    assert_passed(test, &child.wait_with_output().expect("it ends"));
}

/// [`with_driver`] for each of `cases`, in a process with its setting.
///
/// # Panics
///
/// If the driver cannot be built, or the test fails.
pub fn with_each<T, B: Fn(&T)>(driver: Driver, cases: &[((&str, &str), T)], body: B) {
    for (index, (setting, case)) in cases.iter().enumerate() {
        let index = index.to_string();
        // A child comes by every case.
        in_process_of::<B>(driver, &[*setting, (CASE, &index)], || {
            if std::env::var(CASE).is_ok_and(|of_child| of_child == index) {
                body(case);
            }
        });
    }
}

/// [`with_driver`] in `processes` child processes at the same time, which share one log.
///
/// # Panics
///
/// If the driver cannot be built, or the test fails in one of them.
pub fn in_processes<B: FnOnce()>(
    processes: usize,
    driver: Driver,
    settings: &[(&str, &str)],
    body: B,
) {
    let test = test_of::<B>();
    if std::env::var_os(CHILD).is_some_and(|child| child == test) {
        return body();
    }
    let folder = tempfile::tempdir().expect("a folder for the log");
    let log = folder.path().join("launches");
    let start = |_| start(test, driver, settings, &log);
    let children: Vec<Child> = (0..processes).map(start).collect();
    let ended = children.into_iter().map(Child::wait_with_output);
    let outputs: Vec<Output> = ended.map(|output| output.expect("it ends")).collect();
    outputs.iter().for_each(|output| assert_passed(test, output));
}

/// Starts this test program again for the body of one test.
fn start(test: &str, driver: Driver, settings: &[(&str, &str)], log: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CUDA", "NVIDIA", "GRIDGUARD"].iter().any(|prefix| text.starts_with(prefix)) {
            child.env_remove(&name);
        }
    }
    child
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .env("LD_LIBRARY_PATH", library_path(driver))
        .env(LOG, log)
        .envs(settings.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program runs again")
}

/// [`with_driver`] with the whole fake driver.
pub fn with_fake<B: FnOnce()>(settings: &[(&str, &str)], body: B) {
    with_driver(Driver::Whole, settings, body);
}

/// The launches that the fake driver accepted, in order.
#[must_use]
pub fn launches() -> Vec<String> {
    logged("launch ")
}

/// Accesses to memory that nothing orders after earlier ones on other streams.
#[must_use]
pub fn races() -> Vec<String> {
    logged("race ")
}

/// What each stream was given, by its number, if `GRIDGUARD_FAKE_LOG_WORK` is set, in order.
#[must_use]
pub fn work() -> Vec<String> {
    logged("work ")
}

/// The function attributes that were set, in order.
#[must_use]
pub fn set_attributes() -> Vec<String> {
    logged("attribute ")
}

/// The programs that the fake NVRTC compiled, in order.
#[must_use]
pub fn compilations() -> Vec<String> {
    logged("compile ")
}

/// How often this process initialised the driver.
#[must_use]
pub fn initialisations() -> usize {
    let own = std::process::id().to_string();
    logged("init ").into_iter().filter(|process| *process == own).count()
}

/// The occupancy queries, in order.
#[must_use]
pub fn occupancy_queries() -> Vec<String> {
    logged("occupancy ")
}

/// The devices whose modules were unloaded, in order.
#[must_use]
pub fn unloads() -> Vec<String> {
    logged("unload ")
}

fn logged(kind: &str) -> Vec<String> {
    let path = std::env::var_os(LOG).expect("the parent named the log");
    // The driver creates the file with the first line.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix(kind)).map(str::to_owned).collect()
}

/// The name of the test whose body `B` is, as the test runner has it.
fn test_of<B>() -> &'static str {
    let name = type_name::<B>();
    let (_, in_crate) = name.split_once("::").expect("a path");
    in_crate.strip_suffix("::{{closure}}").expect("the body is a closure of the test itself")
}

fn library_path(driver: Driver) -> std::ffi::OsString {
    let mut folders = vec![library_folder(driver)];
    if matches!(driver, Driver::WithCompiler) {
        folders.push(library_folder(Driver::Whole));
    }
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path));
    }
    std::env::join_paths(folders).expect("folders without a colon")
}

/// The folder of `driver` beside this test program, built once per run.
fn library_folder(driver: Driver) -> PathBuf {
    static BUILT: [OnceLock<PathBuf>; 6] = [const { OnceLock::new() }; 6];
    let (place, name) = match driver {
        Driver::Whole => (0, "whole"),
        Driver::Old => (1, "old"),
        Driver::Broken => (2, "broken"),
        Driver::Missing => (3, "missing"),
        Driver::Two => (4, "two"),
        Driver::WithCompiler => (5, "with-compiler"),
    };
    let built = BUILT[place].get_or_init(|| {
        let program = std::env::current_exe().expect("this program");
        let folder = program.with_file_name(format!("fake-driver-{name}"));
        std::fs::create_dir_all(&folder).expect("a folder for the libraries");
        let [library, link] = fake_library::DRIVER;
        let build = |switch| fake_library::build(&folder, "libcuda.c", library, link, switch);
        // Moved into its place, since another run may be using the old file.
        let copy_whole = |name| {
            let copy = folder.join(format!("copy-{}", std::process::id()));
            let whole = library_folder(Driver::Whole).join(library);
            std::fs::copy(whole, &copy).expect("another library");
            std::fs::rename(&copy, folder.join(name)).expect("it takes its place");
        };
        match driver {
            Driver::Whole => build(None),
            Driver::Old => build(Some("-DFAKE_OLD")),
            Driver::Broken => build(Some("-DFAKE_BROKEN")),
            Driver::Two => fake_library::DRIVER.into_iter().for_each(copy_whole),
            Driver::WithCompiler => {
                let [library, link, ..] = fake_library::COMPILER;
                fake_library::build(&folder, "libnvrtc.c", library, link, None);
            }
            Driver::Missing => {
                for name in fake_library::DRIVER.iter().chain(&fake_library::COMPILER) {
                    std::fs::write(folder.join(name), "").expect("an empty file");
                }
            }
        }
        folder
    });
    built.clone()
}
