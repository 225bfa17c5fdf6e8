//! `gridguard doctor --torch` with fake Pythons.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use super::line;
use super::machine::Machine;
use crate::command::{Ran, command};

/// The result of the probe for a wheel on a machine with one device.
fn wheel(cuda: &str, architectures: &str) -> String {
    format!(
        "{{\"python\": \"3.12.1\", \"version\": \"2.8.0\", \"cuda\": \"{cuda}\", \"hip\": null, \
         \"available\": true, \"devices\": 1, \"architectures\": [{architectures}], \
         \"cudnn\": 91002, \"warnings\": []}}"
    )
}

#[test]
fn a_python_that_crashes_is_bad_and_one_with_unexpected_output_is_unknown() {
    let python = |script: &str, code| {
        Machine::healthy().program("python3", script).doctor("--torch").exits(code).out
    };
    let crashed = python("echo symbol not found >&2; kill -SEGV $$", 1);
    let crash = line(&crashed, "bad      torch: python3 crashed while importing torch: signal: 11");
    assert!(crash.ends_with(", symbol not found"), "{crash}");
    let garbage = python("echo hello", 3);
    assert_eq!(
        line(&garbage, "unknown "),
        "unknown  torch: unexpected output of python3: \"hello\""
    );
    for script in ["echo 'gridguard-doctor {'", "echo 'gridguard-doctor {}'", "exit 0"] {
        line(&python(script, 3), "unknown  torch: unexpected output of python3");
    }
    let endless = "while :; do echo nonsense || exit 1; done";
    line(&python(endless, 1), "bad      torch: python3 crashed");
    let absent = Machine::healthy().doctor("--torch no-python").exits(3);
    line(&absent.out, "unknown  torch: no-python does not start: ");
}

#[test]
fn a_python_that_hangs_is_not_waited_for() {
    let begun = Instant::now();
    // Without a driver, so that nothing else may take its time.
    let machine = Machine::bare().program("python3", "exec /bin/sleep 600");
    let out = machine.doctor("--torch --patience 10s").exits(1).out;
    assert_eq!(line(&out, "unknown "), "unknown  torch: python3 did not respond within 10s");
    assert!(begun.elapsed() < Duration::from_secs(300));
}

#[test]
fn a_virtual_environment_is_named_by_its_folder() {
    let machine = Machine::healthy();
    let environment = machine.folder().join("my env");
    fs::create_dir_all(environment.join("bin")).expect("a folder");
    let answer = wheel("12.8", "\"sm_90\"");
    let machine =
        machine.program("my env/bin/python", &format!("echo 'gridguard-doctor {answer}'"));
    for path in [environment.clone(), environment.join("bin/python")] {
        let path = path.to_str().expect("text");
        let out = machine.doctor(&["--torch", path]).exits(0).out;
        line(&out, "good     torch: 2.8.0 for CUDA 12.8");
    }
}

#[test]
fn nothing_of_the_working_directory_is_executed() {
    let itself = "import os, sys; sys.stdout.write(os.path.dirname(sys.executable))";
    let told = Command::new("python3").args(["-c", itself]).output().expect("there is a Python 3");
    let programs = String::from_utf8(told.stdout).expect("UTF-8");
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().canonicalize().expect("a folder");
    let ran = folder.join("ran");
    for name in ["json", "linecache", "sitecustomize", "torch", "usercustomize", "warnings"] {
        let trap = format!("open({ran:?}, 'a').write('{name} ')\n");
        fs::write(folder.join(name).with_extension("py"), trap).expect("a module");
    }
    fs::create_dir_all(folder.join("python3.d/bin")).expect("a folder");
    for name in ["nvidia-smi", "ldconfig", "python3", "python3.d/bin/python"] {
        let (path, trap) = (folder.join(name), format!("#!/bin/sh\necho {name} >> {ran:?}\n"));
        fs::write(&path, trap).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it may run");
    }
    let run = |args: &str, path: &str, python_path: &str| -> Ran {
        let mut command = command(&folder, args);
        command.env("PATH", path).env("PYTHONPATH", python_path);
        command.output().expect("the command runs").into()
    };
    let commands = ["", "doctor --torch", "bug-report"];
    for args in commands {
        run(args, &format!(".:{programs}:"), "");
        run(args, &programs, ":");
        run(args, "", ".");
    }
    // A folder with the name of the default is no virtual environment.
    fs::remove_file(folder.join("python3")).expect("a file");
    fs::rename(folder.join("python3.d"), folder.join("python3")).expect("a folder");
    let found = run("doctor --torch", &programs, "");
    found.prints("bad      torch: programs of this folder import ./torch.py instead of PyTorch\n");
    assert!(found.out.matches(" torch: ").count() > 1, "{}", found.out);
    assert_eq!(fs::read_to_string(&ran).ok(), None);
}

#[test]
fn without_a_driver_a_wheel_is_still_described() {
    let out = Machine::bare().torch(&wheel("12.8", "\"sm_90\"")).doctor("--torch").exits(1).out;
    line(&out, "good     torch: 2.8.0 for CUDA 12.8, cuDNN 9.10.2");
    assert_eq!(out.matches("torch: ").count(), 1, "{out}");
}
