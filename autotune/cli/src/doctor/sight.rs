//! Which devices are visible, and what hides the others.

use std::env;
use std::fs;
use std::path::Path;

use super::finding::Finding;
use super::smi::{Gpu, Smi};

const SUBJECT: &str = "devices";

/// What decides which devices a process sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// `CUDA_VISIBLE_DEVICES`, where it is set.
    pub(super) variable: Option<String>,
    /// `CUDA_DEVICE_ORDER`, where it is set.
    pub(super) order: Option<String>,
    /// `NVIDIA_VISIBLE_DEVICES`, by which a container is given its GPUs.
    pub(super) container: Option<String>,
    /// The machine's GPUs, where something tells.
    pub(super) present: Option<Present>,
    /// Devices that the driver shows, where it answers.
    pub(super) shown: Option<usize>,
}

/// GPUs of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Present {
    pub(super) count: usize,
    /// Empty where not known.
    pub(super) uuids: Vec<String>,
    pub(super) told_by: &'static str,
    /// Whether some are partitioned, so that a device is no GPU.
    pub(super) partitioned: bool,
    /// Whether they are of several models.
    pub(super) mixed: bool,
}

impl Present {
    /// The GPUs that `nvidia-smi` tells of, else those that have a device file.
    pub(super) fn gather(smi: &Smi) -> Option<Self> {
        if let Smi::Told(gpus, _) = smi {
            return Some(Self::of(gpus));
        }
        let files = fs::read_dir("/dev").ok()?.flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let count = names.filter(|name| is_device_file(name)).count();
        let (uuids, told_by) = (Vec::new(), "/dev/nvidia*");
        (count > 0).then_some(Self { count, uuids, told_by, partitioned: false, mixed: false })
    }

    fn of(gpus: &[Gpu]) -> Self {
        let mut names = gpus.iter().map(|gpu| &gpu.name);
        let first = names.next();
        Self {
            count: gpus.len(),
            uuids: gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
            told_by: "nvidia-smi",
            partitioned: gpus.iter().any(|gpu| gpu.mig),
            mixed: names.any(|name| Some(name) != first),
        }
    }
}

fn is_device_file(name: &str) -> bool {
    let number = name.strip_prefix("nvidia").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

/// Whether the kernel module is loaded.
pub(super) fn has_kernel_module() -> bool {
    Path::new("/proc/driver/nvidia/version").exists()
}

impl Sight {
    pub(super) fn gather(present: Option<Present>, shown: Option<usize>) -> Self {
        let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self {
            variable: variable("CUDA_VISIBLE_DEVICES"),
            order: variable("CUDA_DEVICE_ORDER"),
            container: variable("NVIDIA_VISIBLE_DEVICES"),
            present,
            shown,
        }
    }
}

pub(super) fn findings(sight: &Sight) -> Vec<Finding> {
    let fault = sight.variable.as_ref().and_then(|list| fault(list, sight.present.as_ref()));
    let of_list = fault.or_else(|| sight.shown.map(|shown| visible(shown, sight)));
    of_list.into_iter().chain(order(sight)).collect()
}

fn visible(shown: usize, sight: &Sight) -> Finding {
    let Sight { variable, present, container, .. } = sight;
    let more = present.as_ref().filter(|one| !one.partitioned && one.count > shown);
    let of = match more {
        Some(Present { count, told_by, .. }) => format!("{shown} of {} ({told_by})", gpus(*count)),
        None if shown == 1 => "1 device".to_owned(),
        None => format!("{shown} devices"),
    };
    let mut what = match variable {
        Some(list) => format!("{of} visible, CUDA_VISIBLE_DEVICES={list}"),
        None => format!("{of} visible"),
    };
    if shown > 0 {
        return match more {
            Some(_) if variable.is_none() => Finding::warning(SUBJECT, what, HIDDEN),
            _ => Finding::good(SUBJECT, what),
        };
    }
    let emptied = container.as_deref().filter(|list| ["", "void", "none"].contains(list));
    if let Some(list) = emptied {
        what.push_str(&format!(", NVIDIA_VISIBLE_DEVICES={list}"));
    }
    let partitioned = present.as_ref().is_some_and(|present| present.partitioned);
    let remedy = match () {
        () if variable.is_some() && more.is_some() => CHOOSE,
        () if partitioned => PARTITION,
        () => NONE,
    };
    Finding::bad(SUBJECT, what, remedy)
}

const CHOOSE: &str = "unset CUDA_VISIBLE_DEVICES, or take what it names from nvidia-smi -L";
const PARTITION: &str = "MIG is on and no instance is visible: make one (nvidia-smi mig -cgi 0 -C), \
                         and name it as nvidia-smi -L does in CUDA_VISIBLE_DEVICES";
const NONE: &str = "start the container with its GPUs (docker run --gpus all), ask the batch \
                    system for one (--gres=gpu:1), or look whether the driver is loaded \
                    (nvidia-smi, dmesg)";
const HIDDEN: &str = "something else than CUDA_VISIBLE_DEVICES hides them: the container's or the \
                      batch system's choice, or a GPU that failed (nvidia-smi, dmesg for Xid)";

/// Whether numbers mean the same GPUs to CUDA and to `nvidia-smi`.
fn order(sight: &Sight) -> Option<Finding> {
    const BY_PLACE: &str = "PCI_BUS_ID";
    let order = sight.order.as_deref();
    let mixed = sight.present.as_ref().is_some_and(|present| present.mixed);
    match order {
        Some(BY_PLACE) => None,
        None | Some("FASTEST_FIRST" | "") if !mixed => None,
        None | Some("FASTEST_FIRST" | "") => Some(Finding::warning(
            SUBJECT,
            "GPUs of several models: CUDA counts the fastest first, nvidia-smi by their slots",
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that both mean the same by a number",
        )),
        // Then cuInit answers 101 (H200).
        Some(other) => Some(Finding::bad(
            SUBJECT,
            format!("CUDA_DEVICE_ORDER={other:?} is none of CUDA's: the driver refuses to begin"),
            "set it to PCI_BUS_ID or FASTEST_FIRST, or unset it",
        )),
    }
}

/// The first thing wrong with a value of `CUDA_VISIBLE_DEVICES`: the driver reads no further.
fn fault(list: &str, present: Option<&Present>) -> Option<Finding> {
    let say = |what: String, remedy: &str| {
        Some(Finding::bad(SUBJECT, format!("CUDA_VISIBLE_DEVICES={list:?}: {what}"), remedy))
    };
    let name = match present {
        Some(Present { count, .. }) if *count > 1 => {
            format!("unset it, or name GPUs from 0 to {}", count - 1)
        }
        _ => "unset it, or name GPUs, such as CUDA_VISIBLE_DEVICES=0".to_owned(),
    };
    match list.trim() {
        "" => return say("it is set to nothing, which hides every device".into(), &name),
        "NoDevFiles" => return say("the batch system gave the job no GPU".into(), NO_GPU_ASKED),
        _ => {}
    }
    let entries: Vec<&str> = list.split(',').map(str::trim).collect();
    for (place, entry) in entries.iter().enumerate() {
        if entries.iter().take(place).any(|earlier| earlier == entry) {
            return say(format!("{entry} stands twice, which hides every device"), &name);
        }
        let hides =
            if place == 0 { "every device is hidden" } else { "it and the rest are hidden" };
        if let Some(what) = unknown(entry, present) {
            return say(format!("{what}: {hides}"), &name);
        }
    }
    None
}

const NO_GPU_ASKED: &str = "ask for one: sbatch or srun --gres=gpu:1";

/// Why an entry names no device, where it names none.
fn unknown(entry: &str, present: Option<&Present>) -> Option<String> {
    if entry.starts_with("MIG-") {
        return None;
    }
    if entry.starts_with("GPU-") {
        let uuids = present.map(|present| present.uuids.as_slice()).unwrap_or_default();
        let named = uuids.iter().filter(|uuid| uuid.starts_with(entry)).count();
        return match named {
            0 if !uuids.is_empty() => Some(format!("there is no GPU {entry}")),
            2.. => Some(format!("{entry} is the beginning of {named} GPUs' UUIDs")),
            _ => None,
        };
    }
    let Ok(ordinal) = entry.parse::<usize>() else {
        return Some(format!("{entry:?} is neither a number nor a UUID"));
    };
    let present = present.filter(|present| !present.partitioned && ordinal >= present.count)?;
    let Present { count, told_by, .. } = present;
    Some(format!("there is no GPU {ordinal}, {told_by} tells of {}", gpus(*count)))
}

fn gpus(count: usize) -> String {
    if count == 1 { "1 GPU".to_owned() } else { format!("{count} GPUs") }
}

#[cfg(test)]
mod tests;
