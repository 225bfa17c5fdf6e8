//! What hides devices.

use super::line;
use super::machine::Machine;

#[test]
fn what_hides_devices_is_named() {
    for (list, what) in [
        ("", "it is set to nothing, which hides every device"),
        ("0,2", "there is no GPU 2, nvidia-smi tells of 2 GPUs: it and the rest are hidden"),
        ("9", "there is no GPU 9, nvidia-smi tells of 2 GPUs: every device is hidden"),
        ("-1", "\"-1\" is neither a number nor a UUID: every device is hidden"),
        ("0,0", "0 stands twice, which hides every device"),
        ("NoDevFiles", "the batch system gave the job no GPU"),
        ("GPU-unknown", "there is no GPU GPU-unknown: every device is hidden"),
    ] {
        let ran = Machine::healthy().gpus(2).set("CUDA_VISIBLE_DEVICES", list).doctor(&[]).exits(1);
        let expected = format!("bad      devices: CUDA_VISIBLE_DEVICES={list:?}: {what}");
        assert_eq!(line(&ran.out, "bad "), expected);
        // The driver tells its version whatever it shows.
        assert!(line(&ran.out, "good     driver").contains("supports CUDA "), "{}", ran.out);
    }
}

#[test]
fn a_choice_is_good() {
    for (list, of) in
        [("1", "1 of 2 GPUs (nvidia-smi)"), ("1,0", "2 devices"), ("0, 1", "2 devices")]
    {
        let ran = Machine::healthy().gpus(2).set("CUDA_VISIBLE_DEVICES", list).doctor(&[]).exits(0);
        let expected = format!("good     devices: {of} visible, CUDA_VISIBLE_DEVICES={list}");
        assert_eq!(line(&ran.out, "good     devices"), expected);
    }
}

#[test]
fn an_instance_that_is_none_leaves_no_device() {
    let machine = Machine::healthy().set("CUDA_VISIBLE_DEVICES", "MIG-4711");
    let ran = machine.doctor(&[]).exits(1);
    let what = "bad      devices: 0 of 1 GPU (nvidia-smi) visible, CUDA_VISIBLE_DEVICES=MIG-4711";
    assert_eq!(line(&ran.out, "bad "), what);
    assert!(ran.out.contains("-> unset CUDA_VISIBLE_DEVICES, or take "), "{}", ran.out);
}

#[test]
fn a_container_without_gpus_says_so() {
    let machine = Machine::healthy().gpus(0).set("NVIDIA_VISIBLE_DEVICES", "void");
    let ran = machine.doctor(&[]).exits(1);
    let what = "bad      devices: 0 devices visible, NVIDIA_VISIBLE_DEVICES=void";
    assert_eq!(line(&ran.out, "bad "), what);
}

#[test]
fn an_order_that_is_none_is_bad() {
    let ran = Machine::healthy().set("CUDA_DEVICE_ORDER", "PCI").doctor(&[]).exits(1);
    let what = "bad      devices: CUDA_DEVICE_ORDER=\"PCI\" is none of CUDA's: the driver \
                refuses to begin";
    assert_eq!(line(&ran.out, "bad "), what);
}
