//! Drivers that hang, crash and return wrong data, and a `nvidia-smi` that does not work.

use std::fs;

use super::line;
use super::machine::Machine;

const INIT: &str = "cuInit(unsigned flags)";
const COPY_IN: &str =
    "cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream handle)";
const COPY_OUT: &str =
    "cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream handle)";

/// What the doctor says of a machine that hangs, with the patience that is enough for this line about the rest.
fn patient(machine: &Machine, begin: &str) -> (&'static str, String) {
    let doctor =
        |patience| (patience, machine.doctor(&format!("--patience {patience}")).exits(1).out);
    let mut said = ["10s", "1m", "10m"].into_iter().map(doctor);
    said.find(|(_, out)| out.lines().any(|line| line.starts_with(begin))).expect("patience")
}

#[test]
fn a_driver_that_hangs_is_not_waited_for() {
    let hang = "(void)flags; for (;;) sleep(600);";
    let machine = Machine::with_driver_that("hangs", INIT, hang);
    let (patience, out) = patient(&machine, "good     nvrtc: 13.0, ");
    assert_eq!(line(&out, "bad "), format!("bad      driver: no response within {patience}"));
    // Everything else is still checked.
    line(&out, "good     libcuda: ");
}

#[test]
fn a_driver_that_crashes_does_not_stop_the_other_checks() {
    let machine = Machine::with_driver_that(
        "crashes",
        INIT,
        "(void)flags; *(volatile int *)0 = 1; return 0;",
    );
    let ran = machine.doctor("").exits(1);
    let crash = line(&ran.out, "bad      driver: querying it crashes the process: signal: 11");
    assert!(crash.ends_with("(SIGSEGV) (core dumped)") || crash.ends_with("(SIGSEGV)"), "{crash}");
    line(&ran.out, "good     nvrtc: 13.0, ");
}

#[test]
fn a_device_that_hangs_or_crashes_is_reported() {
    let on_device_1 = |what: &str| {
        format!("if (current()->device == 1) {{ {what} }} return own(to, from, bytes, handle);")
    };
    let hangs = on_device_1("for (;;) sleep(600);");
    let machine = Machine::with_driver_that("hangs-later", COPY_IN, &hangs).gpus(2);
    let begin = "bad      device 1: NVIDIA H200 did not finish the smoke test within ";
    let (patience, out) = patient(&machine, begin);
    line(&out, &format!("{begin}{patience}"));
    let crashes = on_device_1("raise(SIGABRT);");
    let machine = Machine::with_driver_that("crashes-later", COPY_IN, &crashes).gpus(2);
    let ran = machine.doctor("").exits(1);
    line(&ran.out, "bad      device 1: using NVIDIA H200 crashes the process: signal: 6");
}

#[test]
fn wrong_data_and_a_memory_error_are_bad() {
    let flips =
        "CUresult result = own(to, from, bytes, handle); ((char *)to)[40] ^= 1; return result;";
    let ran = Machine::with_driver_that("lies", COPY_OUT, flips).doctor("").exits(1);
    let what = "bad      device 0: smoke test failed: wrong data from word 5 of 64 MiB on";
    assert_eq!(line(&ran.out, "bad "), what);
    let machine = Machine::healthy().set("GRIDGUARD_FAKE_FAULT_LAUNCH", "0");
    let ran = machine.set("GRIDGUARD_FAKE_FAULT_CODE", "214").doctor("").exits(1);
    assert!(line(&ran.out, "bad      device 0: ").ends_with("(214) after a kernel"));
    ran.prints("Drain the device and reset it");
}

#[test]
fn too_little_free_memory_is_reported_as_such() {
    let machine = Machine::healthy().set("GRIDGUARD_FAKE_FREE_0", "1048576");
    let ran = machine.set("GRIDGUARD_FAKE_ALLOC_LIMIT", "1048576").doctor("").exits(1);
    let what = "bad      device 0: smoke test failed: 1 MiB free, 64 MiB needed";
    assert_eq!(line(&ran.out, "bad "), what);
}

#[test]
fn nvidia_smi_may_fail_and_warn() {
    let smi = |script: &str, args: &str, code| {
        Machine::healthy().program("nvidia-smi", script).doctor(args).exits(code).out
    };
    let mismatch = "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML \
                    library version: 580.65'; exit 18";
    let out = smi(mismatch, "", 0);
    let what = "warning  nvidia-smi: fails: Failed to initialize NVML: Driver/library version \
                mismatch; NVML library version: 580.65";
    assert_eq!(line(&out, "warning  nvidia-smi"), what);
    assert!(
        out.contains("-> The driver's user libraries and the loaded kernel module have different"),
        "{out}"
    );
    let out = smi("echo '\u{7f}\u{1}'; echo garbage", "", 0);
    assert!(line(&out, "warning  nvidia-smi: fails: unexpected output ").contains("garbage"));
    let warns =
        "echo '0, GPU-00, NVIDIA H200, 580.65.06, [N/A], 0'; echo 'WARNING: infoROM is corrupted'";
    let what = "warning  nvidia-smi: warns: WARNING: infoROM is corrupted";
    assert_eq!(line(&smi(warns, "", 0), "warning  nvidia-smi"), what);
    let old = "case $1 in *mig*) echo 'Field \"mig.mode.current\" is not a valid field to query.'; exit 2;; \
               esac; echo '0, GPU-00, NVIDIA H200, 580.65.06'";
    assert!(!smi(old, "", 0).contains("nvidia-smi"));
    let lost = "echo '0, GPU-00, [GPU is lost], 580.65.06, [N/A], [N/A]'";
    assert_eq!(line(&smi(lost, "", 1), "bad "), "bad      gpu 0: nvidia-smi reports: GPU is lost");
    let ecc = "echo '0, GPU-00, NVIDIA H200, 580.65.06, Disabled, 3'";
    let what = "bad      gpu 0: 3 uncorrectable memory errors";
    assert_eq!(line(&smi(ecc, "", 1), "bad "), what);
}

#[test]
fn nvidia_smi_that_hangs_is_not_waited_for() {
    let machine = Machine::bare().program("nvidia-smi", "exec /bin/sleep 600");
    let ran = machine.doctor("--patience 5s").exits(1);
    line(&ran.out, "bad      nvidia-smi: fails: no response within 5s");
}

#[test]
fn each_result_that_is_not_good_has_a_remedy() {
    let machines = [
        Machine::bare(),
        Machine::without_compiler(),
        Machine::healthy().set("GRIDGUARD_FAKE_INIT", "999"),
        Machine::healthy().set("GRIDGUARD_FAKE_INIT", "4711"),
        Machine::healthy().set("CUDA_VISIBLE_DEVICES", ""),
        Machine::healthy().program("python3", "exit 1"),
    ];
    for machine in machines {
        let out = machine.doctor("--torch").out;
        let lines: Vec<&str> = out.lines().collect();
        let (last, lines) = lines.split_last().expect("a report");
        assert!(last.ends_with(" bad"), "{out}");
        for (line, next) in lines.iter().zip(lines.iter().skip(1).chain([&""])) {
            let is_result = !line.starts_with(' ');
            let is_good = line.starts_with("good ");
            assert_eq!(next.starts_with("         -> "), is_result && !is_good, "{out}");
        }
    }
}

#[test]
fn a_cache_of_kernels_that_others_can_write_to_is_reported_and_not_used() {
    use std::os::unix::fs::PermissionsExt as _;

    let cache = tempfile::tempdir().expect("a folder");
    let set_mode = |mode| {
        fs::set_permissions(&cache, fs::Permissions::from_mode(mode)).expect("its mode");
    };
    let folder = cache.path().to_str().expect("a name");
    let machine = Machine::healthy().set("GRIDGUARD_CUBIN_CACHE", folder);
    let tune = "tune --kernel rms_norm --shape 300x8 --profile p.ron";
    let reason = format!("compiled kernels are not cached: {folder} has the mode 1777");
    set_mode(0o700);
    assert!(!machine.run(tune).err.contains("cached"));
    set_mode(0o1777);
    let before = fs::read_dir(&cache).expect("a folder").count();
    let ran = machine.run(tune);
    assert!(ran.err.starts_with(&reason), "{}", ran.err);
    assert_eq!(fs::read_dir(&cache).expect("a folder").count(), before);
}
