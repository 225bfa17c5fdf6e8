//! `gridguard tune --idle`, on simulated machines.

use crate::command::run;
use crate::doctor::machine::Machine;

const NORM: &str = "tune --idle --kernel rms_norm --shape 300x8 --profile p.ron";

#[test]
fn the_host_is_never_idle() {
    let folder = tempfile::tempdir().expect("a folder");
    run(folder.path(), &format!("{NORM} --device host"))
        .exits(2)
        .notes("--idle needs a device with a UUID, not the host");
}

#[test]
fn without_the_utilisation_of_the_device_nothing_is_measured() {
    for (script, why) in [
        ("echo 'Unable to determine the device handle'; exit 6", "nvidia-smi: "),
        ("echo '[N/A]'", "nvidia-smi reports the utilisation \"[N/A]\""),
        ("exit 0", "nvidia-smi reports the utilisation \"\""),
    ] {
        let ran = Machine::healthy().program("nvidia-smi", script).run(NORM).exits(3);
        let begin = "cannot see whether NVIDIA H200 (0) is idle: ";
        assert!(ran.err.contains(begin) && ran.err.contains(why), "{script}: {}", ran.err);
        ran.notes("run without --idle");
    }
}

#[test]
fn a_device_that_is_never_idle_is_left_alone_until_the_budget_ends() {
    let machine = Machine::healthy().program("nvidia-smi", "echo 7");
    let ran = machine.run(&format!("{NORM} --budget 1s")).exits(1);
    assert!(ran.out.contains("1 left for the next run"), "{}\n{}", ran.out, ran.err);
}
