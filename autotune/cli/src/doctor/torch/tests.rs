//! Tests of wheels against drivers and devices.

use super::super::finding::Level;
use super::*;

fn machine(driver: i32, major: u32, minor: u32) -> Machine {
    let capability = ComputeCapability::new(major, minor);
    Machine { driver: Some(driver), devices: vec![Device { name: "a GPU".into(), capability }] }
}

fn wheel(cuda: &str, architectures: &[&str]) -> Torch {
    Torch {
        version: format!("2.8.0+cu{}", cuda.replace('.', "")),
        cuda: Some(cuda.into()),
        cudnn: Some(91_002),
        architectures: architectures.iter().map(ToString::to_string).collect(),
        available: true,
        devices: 1,
        ..Torch::default()
    }
}

fn check_one(torch: Torch, machine: &Machine) -> Vec<Finding> {
    check(&Ok(torch), "python3", machine)
}

#[test]
fn a_wheel_that_fits_is_good() {
    let found = check_one(wheel("12.8", &["sm_80", "sm_90"]), &machine(13_000, 9, 0));
    let wheel = TORCH.good("2.8.0+cu128 for CUDA 12.8, cuDNN 9.10.2");
    assert_eq!(found, [wheel, TORCH.good("has code for a GPU (sm_90)")]);
}

#[test]
fn a_wheel_newer_than_the_driver_is_bad_only_across_major_versions() {
    let across = check_one(wheel("13.0", &["sm_90"]), &machine(12_080, 9, 0)).remove(0);
    assert_eq!(across.level, Level::Bad);
    assert!(across.what.ends_with("newer than the driver, which supports CUDA 12.8"));
    let remedy = across.remedy.expect("one");
    assert!(
        remedy.starts_with("update the driver, or pip install ") && remedy.ends_with("/whl/cu128")
    );
    let within = check_one(wheel("12.8", &["sm_90"]), &machine(12_020, 9, 0)).remove(0);
    assert_eq!(within.level, Level::Warning);
}

#[test]
fn machine_code_runs_on_later_minor_capabilities_and_ptx_on_any_later_one() {
    for (names, device, best) in [
        (&["sm_80", "sm_86", "sm_90"][..], (8, 6), Some("sm_86")),
        (&["sm_86", "sm_80"], (8, 9), Some("sm_80")),
        (&["sm_90"], (8, 9), None),
        (&["sm_90", "compute_90"], (12, 0), Some("compute_90")),
        (&["sm_120", "compute_120"], (12, 0), Some("sm_120")),
        (&["compute_80", "sm_80"], (8, 9), Some("sm_80")),
        (&["sm_90a"], (9, 0), Some("sm_90a")),
        (&["sm_100a", "compute_90a"], (10, 3), None),
        (&["sm_100f"], (10, 3), Some("sm_100f")),
        (&["compute_100"], (9, 0), None),
        (&["nonsense", "sm_", "sm_x1", "sm_90x"], (9, 0), None),
    ] {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        assert_eq!(best_code(&names, device.into()), best, "{names:?}");
    }
}

#[test]
fn a_missing_architecture_is_bad_and_ptx_only_if_the_driver_is_too_old_for_it() {
    let last = |torch, machine: &Machine| check_one(torch, machine).remove(1);
    let none = last(wheel("12.4", &["sm_80", "sm_90"]), &machine(13_000, 12, 0));
    assert_eq!(none.what, "has no code for a GPU (sm_120), only for sm_80 sm_90");
    assert_eq!(none.level, Level::Bad);
    let ptx = &["sm_80", "compute_80"];
    assert_eq!(last(wheel("12.4", ptx), &machine(13_000, 9, 0)).level, Level::Warning);
    assert_eq!(last(wheel("12.4", ptx), &machine(12_020, 9, 0)).level, Level::Bad);
}

#[test]
fn no_cuda_no_torch_and_no_devices_each_have_their_own_message() {
    let machine = machine(12_080, 9, 0);
    let one = |torch| {
        let mut found = check_one(torch, &machine);
        assert_eq!(found.len(), 1);
        found.remove(0)
    };
    let cpu = Torch { version: "2.8.0+cpu".into(), ..Torch::default() };
    let rocm = Torch { hip: Some("6.4".into()), ..cpu.clone() };
    assert_eq!(one(cpu).what, "2.8.0+cpu is built for the CPU only");
    assert_eq!(one(rocm).what, "2.8.0+cpu is built for ROCm 6.4, not for CUDA");
    let missing = Torch { missing: true, python: "3.12.1".into(), ..Torch::default() };
    let absent = one(missing.clone());
    assert_eq!(absent.what, "not installed in python3 (3.12.1)");
    assert_eq!(absent.level, Level::Unknown);
    let two = one(Torch { python: "2.7.18".into(), ..missing });
    assert_eq!(two.what, "python3 is Python 2.7.18, PyTorch needs Python 3");
    let words = "OSError: libcudnn.so.9: cannot open shared object file: No such file or directory";
    let broken = one(Torch { error: Some(words.into()), ..Torch::default() });
    assert!(broken.remedy.is_some_and(|remedy| remedy.contains("nvidia-cudnn")));
    let warnings = vec!["CUDA initialization:\n unknown error".into()];
    let blind = Torch { available: false, warnings, ..wheel("12.8", &["sm_90"]) };
    let found = check_one(blind.clone(), &machine).remove(2);
    let what = "finds no device, the driver lists 1: CUDA initialization: unknown error";
    assert_eq!((found.level, found.what.as_str()), (Level::Bad, what));
    assert_eq!(check_one(blind, &Machine::default()).len(), 1, "the checks of the driver say why");
}

#[test]
fn the_advised_wheel_has_code_for_the_device_and_is_supported_by_the_driver() {
    let wheel = |driver, major, minor| {
        install_for(Some(driver), Some(ComputeCapability::new(major, minor)))
    };
    for (driver, (major, minor), tag) in [
        (13_000, (9, 0), "cu130"),
        (12_080, (9, 0), "cu128"),
        (12_020, (9, 0), "cu121"),
        (12_000, (8, 6), "cu118"),
        (12_060, (12, 0), "cu128"),
        (13_000, (6, 1), "cu126"),
        (13_000, (7, 0), "cu126"),
        (11_080, (8, 0), "cu118"),
    ] {
        let advice = wheel(driver, major, minor);
        assert!(advice.starts_with("pip install ") && advice.ends_with(tag), "{driver}: {advice}");
    }
    let blackwell = wheel(11_080, 12, 0);
    assert!(blackwell.starts_with("update the driver to one for CUDA 12.8 or later, then pip"));
    assert!(wheel(13_000, 3, 5).starts_with("no wheel has code for sm_35"));
    assert!(install_for(None, None).ends_with("cu130"));
}

#[test]
fn cudnn_versions_are_encoded_in_two_ways() {
    assert_eq!([90_100, 91_002, 8902].map(cudnn_text), ["9.1.0", "9.10.2", "8.9.2"]);
}
