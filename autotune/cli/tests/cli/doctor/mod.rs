//! `gridguard doctor` on simulated machines.

mod hostile;
mod libraries;
pub(crate) mod machine;
mod torch;

use serde_json::json;

use self::machine::Machine;

/// The only line of the report that starts with `start`.
#[track_caller]
fn line<'a>(report: &'a str, start: &str) -> &'a str {
    let lines: Vec<&str> = report.lines().filter(|line| line.starts_with(start)).collect();
    let [line] = lines[..] else { panic!("{start:?}: {report}") };
    line
}

#[test]
fn a_healthy_machine_passes_the_smoke_test_with_exit_0() {
    let ran = Machine::healthy().doctor("").exits(0);
    assert!(
        line(&ran.out, "good     libcuda: ").ends_with("/doctor-libcuda.c/libcuda.so.1 is loaded")
    );
    let driver = line(&ran.out, "good     driver: ");
    assert!(
        driver.starts_with("good     driver: supports CUDA 13.0 (580.65.06), gridguard is built")
    );
    assert!(line(&ran.out, "good     nvrtc: 13.0, /").ends_with("/libnvrtc.so"));
    assert_eq!(line(&ran.out, "good     devices"), "good     devices: 1 device visible");
    let device = line(&ran.out, "good     device 0: NVIDIA");
    assert!(device.starts_with("good     device 0: NVIDIA H200, compute capability 9.0, "));
    line(&ran.out, "good     device 0: smoke test passed: 64 MiB in, kernel run, 64 MiB out");
    assert!(ran.out.ends_with(", 0 unknown, 0 bad\n"), "{}", ran.out);
    assert_eq!(ran.err, "");
}

#[test]
fn without_a_driver_the_rest_is_still_checked() {
    let ran = Machine::bare().program("nvidia-smi", "echo broken; exit 9").doctor("").exits(1);
    line(&ran.out, "bad      libcuda: no CUDA driver library found (tried libcuda.so.1");
    assert_eq!(line(&ran.out, "bad      nvidia"), "bad      nvidia-smi: fails: broken");
    line(&ran.out, "warning  nvrtc: does not load: /");
    assert_eq!(ran.out.matches("bad  ").count(), 2, "{}", ran.out);
    assert!(line(&ran.out, "bad      libcuda: ").contains("file too short"));
}

#[test]
fn json_has_counts_and_results_with_their_remedies() {
    let report = Machine::bare().doctor("--format json").exits(1).json();
    let findings = report["findings"].as_array().expect("findings");
    let count = |level: &str| findings.iter().filter(|one| one["level"] == level).count();
    for (key, level) in
        [("good", "good"), ("warnings", "warning"), ("unknown", "unknown"), ("bad", "bad")]
    {
        assert_eq!(report[key], json!(count(level)), "{report}");
    }
    assert_eq!(
        (&findings[0]["subject"], &findings[0]["level"]),
        (&json!("libcuda"), &json!("bad"))
    );
    for finding in findings {
        assert!(finding["what"].is_string());
        assert_eq!(finding["remedy"].is_string(), finding["level"] != "good");
    }
}

#[test]
fn a_device_that_refuses_processes_or_has_no_memory_is_reported() {
    let mode = |number| Machine::healthy().set("GRIDGUARD_FAKE_COMPUTE_MODE", number).doctor("");
    let prohibited = mode("2").exits(1).out;
    let what = "bad      device 0: compute mode prohibited: no process may use it";
    assert_eq!(line(&prohibited, "bad "), what);
    assert!(mode("3").exits(0).out.contains("warning  device 0: compute mode exclusive: "));
    let little = Machine::healthy().set("GRIDGUARD_FAKE_FREE_0", "2147483648").doctor("").exits(0);
    assert!(
        line(&little.out, "warning  device 0: ").starts_with("warning  device 0: only 2.0 GiB of ")
    );
    let none = Machine::healthy().set("GRIDGUARD_FAKE_ALLOC_LIMIT", "1048576").doctor("").exits(1);
    line(&none.out, "bad      device 0: smoke test failed: ");
}

#[test]
fn versions_that_do_not_match_are_reported() {
    let driver = |version| Machine::healthy().set("GRIDGUARD_FAKE_DRIVER_VERSION", version);
    let old = driver("11040").doctor("").exits(1);
    let what = "bad      driver: supports CUDA 11.4, gridguard needs 12.0 or later";
    assert_eq!(line(&old.out, "bad "), what);
    let minor = driver("12020").set("GRIDGUARD_FAKE_NVRTC_VERSION", "12080").doctor("").exits(0);
    assert!(line(&minor.out, "warning  nvrtc").contains("its PTX is newer than the driver"));
    let broken = Machine::healthy().set("GRIDGUARD_FAKE_INIT", "803").doctor("").exits(1);
    assert!(line(&broken.out, "bad      driver: cuInit returned ").contains("(803)"));
    let nvrtc =
        |version| Machine::healthy().set("GRIDGUARD_FAKE_NVRTC_VERSION", version).doctor("");
    assert!(nvrtc("14000").exits(0).out.contains("warning  nvrtc: 14.0, /"));
    assert!(nvrtc("12080").exits(0).out.contains("good     nvrtc: 12.8, /"));
}

#[test]
fn without_a_compiler_memory_is_still_copied() {
    let ran = Machine::without_compiler().doctor("").exits(0);
    assert!(line(&ran.out, "good     device 0: smoke test").contains("no kernel without NVRTC"));
}

#[test]
fn a_compiler_older_than_the_device_is_reported() {
    let ran = Machine::with_old_compiler().doctor("").exits(1);
    let refused = line(
        &ran.out,
        "bad      device 0: smoke test failed: smoke_test.cu did not compile for sm_90",
    );
    assert!(refused.contains("NVRTC_ERROR_INVALID_OPTION (5)"), "{refused}");
    ran.prints("-> NVRTC is older than the device ");
}

#[test]
fn usage_is_exit_2() {
    Machine::bare().doctor("--format ron").exits(2);
    Machine::bare().doctor("--patience soon").exits(2);
}

#[test]
fn what_hides_devices_is_named() {
    for (gpus, name, value, what) in [
        (
            1,
            "CUDA_VISIBLE_DEVICES",
            "MIG-4711",
            "0 of 1 GPU (nvidia-smi) visible, CUDA_VISIBLE_DEVICES=MIG-4711",
        ),
        (
            1,
            "CUDA_DEVICE_ORDER",
            "PCI",
            "CUDA_DEVICE_ORDER=\"PCI\" is not a valid value: cuInit fails",
        ),
    ] {
        let ran = Machine::healthy().gpus(gpus).set(name, value).doctor("").exits(1);
        assert_eq!(line(&ran.out, "bad      devices: "), format!("bad      devices: {what}"));
    }
}
