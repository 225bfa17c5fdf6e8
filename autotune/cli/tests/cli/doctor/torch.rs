//! `gridguard doctor --torch` with fake Pythons.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use super::line;
use super::machine::Machine;

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
fn a_real_python_runs_the_probe() {
    let itself = "import sys; sys.stdout.write(sys.executable)";
    let told = Command::new("python3").args(["-c", itself]).output().expect("there is a Python 3");
    let python = String::from_utf8(told.stdout).expect("UTF-8");
    // A folder with a file that is no PyTorch: the working directory comes first in Python's path.
    let machine = Machine::bare();
    fs::write(machine.folder().join("torch.py"), "x = 1\n").expect("a file");
    let out = machine.doctor(&["--torch", &python]).exits(1).out;
    assert!(line(&out, "bad      torch: ").ends_with("torch.py instead"), "{out}");
}

#[test]
fn without_a_driver_a_wheel_is_still_described() {
    let out = Machine::bare().torch(&wheel("12.8", "\"sm_90\"")).doctor("--torch").exits(1).out;
    line(&out, "good     torch: 2.8.0 for CUDA 12.8, cuDNN 9.10.2");
    assert_eq!(out.matches("torch: ").count(), 1, "{out}");
}
