//! Which devices are visible, and what hides the others.

use std::fs;
use std::path::Path;

use super::finding::Finding;
use super::smi::Smi;

const SUBJECT: &str = "devices";

/// What decides which devices a process sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    /// `CUDA_VISIBLE_DEVICES`, where it is set.
    pub(super) variable: Option<String>,
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
}

impl Present {
    /// The GPUs that `nvidia-smi` tells of, else those that have a device file.
    pub(super) fn gather(smi: &Smi) -> Option<Self> {
        if let Smi::Told(gpus) = smi {
            let uuids = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
            let partitioned = gpus.iter().any(|gpu| gpu.mig);
            return Some(Self { count: gpus.len(), uuids, told_by: "nvidia-smi", partitioned });
        }
        let files = fs::read_dir("/dev").ok()?.flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let count = names.filter(|name| is_device_file(name)).count();
        let told_by = "/dev/nvidia*";
        (count > 0).then(|| Self { count, uuids: Vec::new(), told_by, partitioned: false })
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

pub(super) fn findings(sight: &Sight) -> Vec<Finding> {
    if let Some(list) = &sight.variable
        && let Some(finding) = fault(list, sight.present.as_ref())
    {
        return vec![finding];
    }
    let Some(shown) = sight.shown else { return Vec::new() };
    vec![visible(shown, sight)]
}

fn visible(shown: usize, sight: &Sight) -> Finding {
    let Sight { variable, present, .. } = sight;
    let more = present.as_ref().filter(|one| !one.partitioned && one.count > shown);
    let of = match more {
        Some(Present { count, told_by, .. }) => format!("{shown} of {count} GPUs ({told_by})"),
        None if shown == 1 => "1 device".to_owned(),
        None => format!("{shown} devices"),
    };
    let what = match variable {
        Some(list) => format!("{of} visible, CUDA_VISIBLE_DEVICES={list}"),
        None => format!("{of} visible"),
    };
    match shown {
        0 => Finding::bad(SUBJECT, what, NONE),
        _ if variable.is_none() && more.is_some() => Finding::warning(SUBJECT, what, HIDDEN),
        _ => Finding::good(SUBJECT, what),
    }
}

const NONE: &str = "start the container with its GPUs (docker run --gpus all), ask the batch \
                    system for one (--gres=gpu:1), or look whether the driver is loaded \
                    (nvidia-smi, dmesg)";
const HIDDEN: &str = "something else than CUDA_VISIBLE_DEVICES hides them: the container's or the \
                      batch system's choice, or a GPU that failed (nvidia-smi, dmesg for Xid)";

/// The first thing wrong with a value of `CUDA_VISIBLE_DEVICES`: the driver reads no further.
fn fault(list: &str, present: Option<&Present>) -> Option<Finding> {
    let say = |what: String| {
        let name = match present {
            Some(Present { count, .. }) if *count > 1 => {
                format!("unset it, or name GPUs from 0 to {}", count - 1)
            }
            _ => "unset it, or name GPUs, such as CUDA_VISIBLE_DEVICES=0".to_owned(),
        };
        Some(Finding::bad(SUBJECT, format!("CUDA_VISIBLE_DEVICES={list:?}: {what}"), name))
    };
    if list.trim().is_empty() {
        return say("it is set to nothing, which hides every device".into());
    }
    let entries: Vec<&str> = list.split(',').map(str::trim).collect();
    for (place, entry) in entries.iter().enumerate() {
        if entries.iter().take(place).any(|earlier| earlier == entry) {
            return say(format!("{entry} stands twice, which hides every device"));
        }
        let hides =
            if place == 0 { "every device is hidden" } else { "it and the rest are hidden" };
        if let Some(what) = unknown(entry, present) {
            return say(format!("{what}: {hides}"));
        }
    }
    None
}

/// Why an entry names no device, where it names none.
fn unknown(entry: &str, present: Option<&Present>) -> Option<String> {
    if entry.starts_with("MIG-") {
        return None;
    }
    if entry.starts_with("GPU-") {
        let uuids = present.map(|present| present.uuids.as_slice()).unwrap_or_default();
        let missing = !uuids.is_empty() && !uuids.iter().any(|uuid| uuid.starts_with(entry));
        return missing.then(|| format!("there is no GPU {entry}"));
    }
    let Ok(ordinal) = entry.parse::<usize>() else {
        return Some(format!("{entry:?} is neither a number nor a UUID"));
    };
    let present = present.filter(|present| !present.partitioned && ordinal >= present.count)?;
    let Present { count, told_by, .. } = present;
    let gpus = if *count == 1 { "GPU" } else { "GPUs" };
    Some(format!("there is no GPU {ordinal}, {told_by} tells of {count} {gpus}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn two() -> Option<Present> {
        let uuids = vec!["GPU-aa11".into(), "GPU-bb22".into()];
        Some(Present { count: 2, uuids, told_by: "nvidia-smi", partitioned: false })
    }

    fn sight(variable: Option<&str>, shown: usize) -> Finding {
        let variable = variable.map(str::to_owned);
        let mut found = findings(&Sight { variable, present: two(), shown: Some(shown) });
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    #[test]
    fn what_hides_devices_is_said_plainly() {
        for (list, what) in [
            ("", "it is set to nothing, which hides every device"),
            ("2", "there is no GPU 2, nvidia-smi tells of 2 GPUs: every device is hidden"),
            ("0,7", "there is no GPU 7, nvidia-smi tells of 2 GPUs: it and the rest are hidden"),
            ("1,1", "1 stands twice, which hides every device"),
            ("-1", "\"-1\" is neither a number nor a UUID: every device is hidden"),
            ("GPU-cc", "there is no GPU GPU-cc: every device is hidden"),
        ] {
            let found = sight(Some(list), 0);
            assert_eq!(found.what, format!("CUDA_VISIBLE_DEVICES={list:?}: {what}"));
            assert_eq!(found.level, Level::Bad);
            assert_eq!(found.remedy.as_deref(), Some("unset it, or name GPUs from 0 to 1"));
        }
    }

    #[test]
    fn a_choice_of_devices_is_good_and_devices_that_are_missing_without_one_are_not() {
        assert_eq!(sight(None, 2), Finding::good(SUBJECT, "2 devices visible"));
        let chosen = sight(Some("GPU-bb"), 1);
        let what = "1 of 2 GPUs (nvidia-smi) visible, CUDA_VISIBLE_DEVICES=GPU-bb";
        assert_eq!(chosen, Finding::good(SUBJECT, what));
        assert_eq!(sight(None, 1).level, Level::Warning);
        assert_eq!(sight(None, 0).level, Level::Bad);
    }

    #[test]
    fn without_a_driver_only_a_bad_list_is_worth_a_word() {
        let list = |list: &str| Sight { variable: Some(list.into()), ..Sight::default() };
        assert_eq!(findings(&Sight::default()), []);
        assert_eq!(findings(&list("0,1")), []);
        assert_eq!(findings(&list("one")).len(), 1);
    }

    #[test]
    fn device_files_are_those_with_a_number() {
        let names = ["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia"];
        assert_eq!(names.map(is_device_file), [true, true, false, false, false]);
    }
}
