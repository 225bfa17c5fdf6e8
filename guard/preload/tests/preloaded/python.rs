//! Python frames of refused launches, with the interpreters of this machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gridguard_report::PythonFrame;
use serde_json::{Value, json};

use crate::programs::{
    Driver, clean_environment, launcher, library, preloaded, reported, run, torn_python,
};

/// The interpreters by version: `python3.10` to `python3.14` in the folders of `PATH` and of pyenv, and those that the
/// variable `GRIDGUARD_TEST_PYTHONS` names.
fn interpreters() -> BTreeMap<String, PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let pyenv = fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        pyenv.map(|version| version.path().join("bin")).chain(std::env::split_paths(&path));
    let named = std::env::var_os("GRIDGUARD_TEST_PYTHONS").unwrap_or_default();
    let programs = folders
        .flat_map(|folder| (10..=14).map(move |minor| folder.join(format!("python3.{minor}"))));
    let programs =
        programs.filter(|program| program.is_file()).chain(std::env::split_paths(&named));
    let version = |program: &Path| {
        let print = "import sys, ctypes; print('%d.%d' % sys.version_info[:2])";
        let output = Command::new(program).args(["-c", print]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let known = programs.filter_map(|program| Some((version(&program)?, program)));
    let found: BTreeMap<_, _> = known.collect();
    assert!(!found.is_empty(), "a python3.10 to python3.14 with ctypes is needed");
    found
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python").join(name)
}

/// Runs a program with an interpreter, the library and the fake driver.
fn python(interpreter: &Path, folder: &Path) -> Command {
    let mut command = Command::new(interpreter);
    clean_environment(&mut command, Driver::Whole);
    command.current_dir(folder).env("LD_PRELOAD", library());
    command
}

#[test]
fn the_frames_are_those_that_python_sees() {
    for (version, interpreter) in interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = python(&interpreter, folder.path());
        let (ran, report) = reported(command.arg(source("launches.py")));
        assert!(ran.status.success(), "{version}: {}", ran.err);
        let seen: Vec<Value> =
            ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((report.refusals.len(), seen.len()), (13, 13), "{version}: {}", ran.err);
        for (refusal, seen) in report.refusals.iter().zip(seen) {
            assert_eq!(seen["kernel"], refusal.kernel, "{version}");
            let frames: Vec<PythonFrame> = serde_json::from_value(seen["frames"].clone()).unwrap();
            assert_eq!(refusal.python, frames, "{version}: {}", refusal.kernel);
            let is_python =
                |frame: &String| frame.contains("in libpython") || frame.contains("in python3");
            assert!(!refusal.stack.iter().any(is_python), "{version}: {:?}", refusal.stack);
        }
    }
}

#[test]
fn one_line_names_the_frame_of_the_program() {
    for (version, interpreter) in interpreters() {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(source("launches.py"), folder.path().join("train.py")).unwrap();
        let mut command = python(&interpreter, folder.path());
        let err = run(command.arg("train.py")).err;
        let name = if version == "3.10" { "" } else { "Model." };
        let line = 1 + fs::read_to_string(source("launches.py"))
            .unwrap()
            .lines()
            .position(|line| line.contains("seen(\"method\")"))
            .unwrap();
        let expected = format!("  python    train.py:{line} in {name}forward\n  stack     ");
        assert!(err.contains(&expected), "{version}: {expected}{err}");
        let name = if name.is_empty() { "ordered" } else { "callback.<locals>.ordered" };
        let summary = format!(" in {name}: grid.y is 70000 blocks");
        let is_told = |line: &str| {
            line.starts_with("  refused: callback, 1 time at train.py:") && line.contains(&summary)
        };
        assert!(err.lines().any(is_told), "{version}: {err}");
    }
}

/// Runs `skipped.py` with the launcher of Triton. Returns standard error, and the launches that reached the driver.
fn triton(interpreter: &Path, words: &[&str], fix: bool) -> (String, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let (name, log) = (words[0], folder.path().join("log"));
    let mut command = python(interpreter, folder.path());
    command.arg(source("skipped.py")).arg(name).arg(launcher(name)).args(&words[1..]);
    command.env("GRIDGUARD_FAKE_LOG", &log).env("GRIDGUARD_RUN_FIX", if fix { "1" } else { "0" });
    let with = run(&mut command);
    assert!(with.status.success(), "{}", with.err);
    let log = fs::read_to_string(&log).unwrap();
    let without = run(command.env_remove("LD_PRELOAD").env_remove("GRIDGUARD_FAKE_LOG"));
    assert_eq!(with.out, without.out);
    (with.err, log.lines().filter(|line| line.starts_with("launch ")).map(str::to_owned).collect())
}

#[test]
fn launches_that_triton_skips_are_named_and_fixed() {
    for (version, interpreter) in interpreters() {
        for name in ["__triton_launcher", "cuda_utils", "_C"] {
            let grids = [name, "65536,32767,1", "65536,32768,1", "16384,16384,16", "65535,65535,1"];
            let (err, launches) = triton(&interpreter, &grids, false);
            assert_eq!(launches.len(), 1, "{version}: {launches:?}");
            for line in [
                "gridguard: launch refused: never launched, and no error says so\n  kernel    count\n",
                "  rule      grid-product: 65536 x 32768 x 1 are 2147483648 blocks, which the launcher ",
                "skipped.py:",
                "gridguard: 1 launch of 1 kernel accepted, 3 refused\n",
            ] {
                assert!(err.contains(line), "{version}: {line}\n{err}");
            }
            // The last grid is also too large for the driver.
            let grids = [&grids[..], &["65536,65536,4"]].concat();
            let (err, launches) = triton(&interpreter, &grids, true);
            assert!(err.contains("1 launch of 1 kernel accepted, 0 refused, 4 fixed"), "{err}");
            assert!(launches[1].contains("grid=65536,32768,1"), "{launches:?}");
            assert!(launches[4..].iter().all(|line| line.contains("count__gridguard_")));
            if name != "_C" {
                let (err, launches) = triton(&interpreter, &[name, "65536,32768,1,2"], true);
                assert!(launches[0].contains("grid=131072,32768,1"), "{launches:?}{err}");
            }
        }
    }
}

#[test]
fn launches_are_named_and_fixed_in_threads_in_a_child_and_for_an_old_launcher() {
    let (_, interpreter) = interpreters().pop_last().unwrap();
    let launched = |how: &str, fix| {
        let grids = ["__triton_launcher", how, "65536,32768,1", "65535,65535,1"];
        triton(&interpreter, &grids, fix)
    };
    for how in ["threads", "forked"] {
        let (err, launches) = launched(how, false);
        assert!(err.contains("gridguard: 0 launches of 1 kernel accepted, 2 refused\n"), "{err}");
        assert!(launches.is_empty(), "{how}: {launches:?}");
        let (err, launches) = launched(how, true);
        assert!(err.contains("accepted, 0 refused, 2 fixed\n"), "{how}: {err}");
        assert_eq!(launches.len(), 2, "{how}");
    }
    assert_eq!(launched("silent", true).1.len(), 2);
    // Neither the kernel nor the sizes are known.
    for fix in [false, true] {
        let (err, launches) = launched("before", fix);
        assert!(err.contains("rule      grid-product: 65536 x 32768 x 1 are "), "{err}");
        assert!(launches.is_empty(), "{launches:?}");
    }
}

#[test]
fn of_drawn_launches_those_that_triton_skips_are_named() {
    let (_, interpreter) = interpreters().pop_last().unwrap();
    let (err, launches) = triton(&interpreter, &["__triton_launcher", "draw"], false);
    assert!(err.contains("gridguard: 100000 launches of 1 kernel accepted, 1000 refused"), "{err}");
    assert_eq!(launches.len(), 100_000);
    let (err, launches) = triton(&interpreter, &["__triton_launcher", "draw"], true);
    assert!(err.contains("100000 launches of 1 kernel accepted, 0 refused, 1000 fixed"), "{err}");
    assert_eq!(launches.len(), 101_000);
}

#[test]
fn the_python_package_gives_the_refused_launches_of_a_block() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels/python/gridguard");
    for (version, interpreter) in interpreters() {
        let folder = tempfile::tempdir().unwrap();
        let watching = |command: &mut Command| {
            run(command
                .env("PYTHONDONTWRITEBYTECODE", "1")
                .arg(source("watching.py"))
                .arg(&package))
        };
        let mut command = python(&interpreter, folder.path());
        let ran = watching(&mut command);
        let lines: Vec<&str> = ran.out.lines().filter(|line| line.starts_with('[')).collect();
        assert_eq!((ran.status.success(), lines.len()), (true, 2), "{version}: {}", ran.err);
        let refused: Value = serde_json::from_str(lines[0]).unwrap();
        let (method, thread) = (&refused[0], &refused[1]);
        assert_eq!(
            (&method[0], &method[1], &method[2]),
            (&"method".into(), &3.into(), &json!([1, 70000, 1]))
        );
        assert_eq!((&thread[0], &thread[1]), (&"thread".into(), &1.into()), "{version}: {thread}");
        assert_eq!((&method[3], &thread[3]), (&true.into(), &false.into()), "{version}");
        assert_eq!(thread[4], "in_thread", "{version}");
        assert!(
            method[5].as_str().unwrap().contains("forward: grid.y is 70000 blocks"),
            "{method}"
        );
        assert_eq!((refused.as_array().unwrap().len(), lines[1]), (2, "[]"), "{version}");
        let mut command = python(&interpreter, folder.path());
        let alone = watching(command.env_remove("LD_PRELOAD"));
        assert!(
            alone.err.contains("start it with `gridguard run -- python3 ...`"),
            "{version}: {}",
            alone.err
        );
    }
}

#[test]
fn the_broken_memory_of_an_interpreter_is_no_fault() {
    for minor in 10..=14 {
        let libraries = std::env::join_paths([library(), torn_python(minor)]).unwrap();
        for seed in 0..30 {
            let mut command = preloaded(Driver::Whole, "dlsym refused good");
            let ran = run(command.env("LD_PRELOAD", &libraries).env("SEED", seed.to_string()));
            assert!(ran.status.success(), "3.{minor}, {seed}: {ran:?}");
            assert!(ran.err.contains("  rule      grid-dim-y: "), "3.{minor}, {seed}: {}", ran.err);
        }
    }
}

/// The offsets in the library are those of the headers of each interpreter that has some.
#[test]
fn the_offsets_are_those_of_pythons_headers() {
    let table = include_str!("../../src/process/python/layout.rs");
    let mut compared = 0;
    for (version, interpreter) in interpreters() {
        let print = "import sysconfig; print(sysconfig.get_path('include'))";
        let output = Command::new(&interpreter).args(["-c", print]).output().unwrap();
        let headers = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        if !headers.join("internal").is_dir() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("layout");
        let mut gcc = Command::new("gcc");
        gcc.args(["-w", "-o"])
            .args([&program, &source("layout.c")])
            .arg("-I")
            .arg(&headers)
            .arg("-I")
            .arg(headers.join(".."));
        let compiled = gcc.output().unwrap();
        assert!(compiled.status.success(), "{version}: {compiled:?}");
        let row = run(&mut Command::new(&program)).out;
        assert!(table.contains(row.trim()), "{version}: {row}");
        compared += 1;
    }
    assert!(compared > 0, "an interpreter with headers is needed");
}
