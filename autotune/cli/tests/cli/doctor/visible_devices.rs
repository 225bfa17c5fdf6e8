//! What hides devices.

use super::line;
use super::machine::Machine;

#[test]
fn an_invalid_list_is_reported() {
    for (list, what) in [
        ("", "an empty list hides all devices"),
        ("0,2", "there is no GPU 2 (nvidia-smi lists 2 GPUs), which hides it and the rest"),
        ("9", "there is no GPU 9 (nvidia-smi lists 2 GPUs), which hides all devices"),
        ("-1", "\"-1\" is neither a number nor a UUID, which hides all devices"),
        ("0,0", "0 is listed twice, which hides all devices"),
        ("NoDevFiles", "the batch system allocated no GPU to the job"),
        ("GPU-unknown", "there is no GPU GPU-unknown, which hides all devices"),
    ] {
        let ran = Machine::healthy().gpus(2).set("CUDA_VISIBLE_DEVICES", list).doctor("").exits(1);
        let expected = format!("bad      devices: CUDA_VISIBLE_DEVICES={list:?}: {what}");
        assert_eq!(line(&ran.out, "bad "), expected);
        // The driver reports its version even if no device is visible.
        assert!(line(&ran.out, "good     driver").contains("supports CUDA "), "{}", ran.out);
    }
}

#[test]
fn a_valid_list_is_good() {
    for (list, of) in
        [("1", "1 of 2 GPUs (nvidia-smi)"), ("1,0", "2 devices"), ("0, 1", "2 devices")]
    {
        let ran = Machine::healthy().gpus(2).set("CUDA_VISIBLE_DEVICES", list).doctor("").exits(0);
        let expected = format!("good     devices: {of} visible, CUDA_VISIBLE_DEVICES={list}");
        assert_eq!(line(&ran.out, "good     devices"), expected);
    }
}

#[test]
fn an_unknown_mig_instance_leaves_no_device() {
    let machine = Machine::healthy().set("CUDA_VISIBLE_DEVICES", "MIG-4711");
    let ran = machine.doctor("").exits(1);
    let what = "bad      devices: 0 of 1 GPU (nvidia-smi) visible, CUDA_VISIBLE_DEVICES=MIG-4711";
    assert_eq!(line(&ran.out, "bad "), what);
    assert!(ran.out.contains("-> unset CUDA_VISIBLE_DEVICES, or list "), "{}", ran.out);
}

#[test]
fn a_container_without_gpus_is_reported() {
    let machine = Machine::healthy().gpus(0).set("NVIDIA_VISIBLE_DEVICES", "void");
    let ran = machine.doctor("").exits(1);
    let what = "bad      devices: 0 devices visible, NVIDIA_VISIBLE_DEVICES=void";
    assert_eq!(line(&ran.out, "bad "), what);
}

#[test]
fn an_invalid_device_order_is_bad() {
    let ran = Machine::healthy().set("CUDA_DEVICE_ORDER", "PCI").doctor("").exits(1);
    let what = "bad      devices: CUDA_DEVICE_ORDER=\"PCI\" is not a valid value: cuInit \
                fails";
    assert_eq!(line(&ran.out, "bad "), what);
}
