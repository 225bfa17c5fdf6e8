//! What hides devices, as the driver sees it.

use super::line;
use super::machine::Machine;

const LIST: &str = "CUDA_VISIBLE_DEVICES";

#[test]
fn what_hides_devices_is_named() {
    for (gpus, variable, value, what) in [
        (
            2,
            LIST,
            "",
            "bad      devices: CUDA_VISIBLE_DEVICES=\"\": an empty list hides all devices",
        ),
        (
            2,
            LIST,
            "0,2",
            "bad      devices: CUDA_VISIBLE_DEVICES=\"0,2\": there is no GPU 2 (nvidia-smi lists 2 GPUs), which \
             hides it and the rest",
        ),
        (
            2,
            LIST,
            "0,0",
            "bad      devices: CUDA_VISIBLE_DEVICES=\"0,0\": 0 is listed twice, which hides all devices",
        ),
        (
            2,
            LIST,
            "1",
            "good     devices: 1 of 2 GPUs (nvidia-smi) visible, CUDA_VISIBLE_DEVICES=1",
        ),
        (2, LIST, "0, 1", "good     devices: 2 devices visible, CUDA_VISIBLE_DEVICES=0, 1"),
        (
            1,
            LIST,
            "MIG-4711",
            "bad      devices: 0 of 1 GPU (nvidia-smi) visible, CUDA_VISIBLE_DEVICES=MIG-4711",
        ),
        (
            0,
            "NVIDIA_VISIBLE_DEVICES",
            "void",
            "bad      devices: 0 devices visible, NVIDIA_VISIBLE_DEVICES=void",
        ),
        (
            1,
            "CUDA_DEVICE_ORDER",
            "PCI",
            "bad      devices: CUDA_DEVICE_ORDER=\"PCI\" is not a valid value: cuInit fails",
        ),
    ] {
        let code = i32::from(what.starts_with("bad"));
        let ran = Machine::healthy().gpus(gpus).set(variable, value).doctor("").exits(code);
        assert_eq!(line(&ran.out, &what[..16]), what);
        if variable == LIST {
            // The driver reports its version even if no device is visible.
            assert!(line(&ran.out, "good     driver").contains("supports CUDA "), "{}", ran.out);
        }
    }
}
