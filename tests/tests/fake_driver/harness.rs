//! Builds the fake driver and runs each test's body in a process that finds it.

use std::any::type_name;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use gridguard_tests::assert_passed;

use crate::fake_library;

/// Names the test whose body a child process runs.
const CHILD: &str = "GRIDGUARD_TEST_CHILD";
/// Where the fake driver writes a line for each launch.
const LOG: &str = "GRIDGUARD_FAKE_LOG";

/// Which driver the process finds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Driver {
    /// The fake one, whole.
    Whole,
    /// The same, and the fake compiler beside it.
    WithCompiler,
    /// One that is too old for clusters and parameter sizes.
    Old,
    /// One without `cuLaunchKernel`.
    Broken,
    /// Two: cudarc finds another copy.
    Two,
    /// None. Files that are no libraries stand in the way, so that the loader does not go on to
    /// the driver that the machine may have.
    Missing,
}

/// Runs `body`, the body of a test, in a process of its own that finds `driver` and `settings` in
/// its environment: the guard finds its driver once for the process.
pub(crate) fn with_driver<B: FnOnce()>(driver: Driver, settings: &[(&str, &str)], body: B) {
    let test = test_of::<B>();
    if std::env::var_os(CHILD).is_some_and(|child| child == test) {
        return body();
    }
    let folder = tempfile::tempdir().expect("a folder for the log");
    let child = start(test, driver, settings, &folder.path().join("launches"));
    assert_passed(test, &child.wait_with_output().expect("it ends"));
}

/// [`with_driver`] in so many processes at the same time, which have one log.
pub(crate) fn in_processes<B: FnOnce()>(
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

/// Starts this program again for the body of one test.
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
pub(crate) fn with_fake<B: FnOnce()>(settings: &[(&str, &str)], body: B) {
    with_driver(Driver::Whole, settings, body);
}

/// The launches that the fake driver accepted in this process, in order.
pub(crate) fn launches() -> Vec<String> {
    logged("launch ")
}

/// The function attributes that were set in this process, in order.
pub(crate) fn set_attributes() -> Vec<String> {
    logged("attribute ")
}

/// Programs that the fake compiler compiled, in order.
pub(crate) fn compilations() -> Vec<String> {
    logged("compile ")
}

/// How often the driver was initialised in this process.
pub(crate) fn initialisations() -> usize {
    let own = std::process::id().to_string();
    logged("init ").into_iter().filter(|process| *process == own).count()
}

/// The questions about residency in this process, in order.
pub(crate) fn occupancy_questions() -> Vec<String> {
    logged("occupancy ")
}

/// The devices from which modules were unloaded in this process, in order.
pub(crate) fn unloads() -> Vec<String> {
    logged("unload ")
}

fn logged(kind: &str) -> Vec<String> {
    let path = std::env::var_os(LOG).expect("the parent named the log");
    // The driver makes the file with the first line.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix(kind)).map(str::to_owned).collect()
}

/// The test whose body `B` is, as the test runner names it.
fn test_of<B>() -> &'static str {
    let name = type_name::<B>();
    let (_, in_crate) = name.split_once("::").expect("a path");
    in_crate.strip_suffix("::{{closure}}").expect("the body is a closure of the test itself")
}

fn library_path(driver: Driver) -> std::ffi::OsString {
    let mut folders = vec![library_folder(driver)];
    if let Some(path) = std::env::var_os("LD_LIBRARY_PATH") {
        folders.extend(std::env::split_paths(&path));
    }
    std::env::join_paths(folders).expect("folders without a colon")
}

/// The folder in which `driver` lies, built once for each run.
fn library_folder(driver: Driver) -> PathBuf {
    static BUILT: [OnceLock<PathBuf>; 6] = [const { OnceLock::new() }; 6];
    let (place, name, switch) = match driver {
        Driver::Whole => (0, "whole", None),
        Driver::Old => (1, "old", Some("-DFAKE_OLD")),
        Driver::Broken => (2, "broken", Some("-DFAKE_BROKEN")),
        Driver::Missing => (3, "missing", None),
        Driver::Two => (4, "two", None),
        Driver::WithCompiler => (5, "with-compiler", None),
    };
    let built = BUILT[place].get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fake-driver-{name}"));
        if matches!(driver, Driver::Missing) {
            std::fs::create_dir_all(&folder).expect("a folder for the files");
            for name in fake_library::DRIVER.iter().chain(&fake_library::COMPILER) {
                std::fs::write(folder.join(name), "").expect("an empty file");
            }
        } else {
            let [library, link] = fake_library::DRIVER;
            fake_library::build(&folder, "libcuda.c", library, link, switch);
            if matches!(driver, Driver::Two) {
                let copy = folder.join(format!("copy-{}", std::process::id()));
                std::fs::copy(folder.join(library), &copy).expect("another library");
                std::fs::rename(&copy, folder.join(link)).expect("it takes the link's place");
            }
            if matches!(driver, Driver::WithCompiler) {
                let [library, link, ..] = fake_library::COMPILER;
                fake_library::build(&folder, "libnvrtc.c", library, link, None);
            }
        }
        folder
    });
    built.clone()
}
