//! Checks which devices are visible to CUDA, and why others are hidden.

use std::env;
use std::fs;

use gridguard::count;

use super::finding::{Finding, Subject};
use super::smi::Smi;

const DEVICES: Subject = Subject::new("devices");

/// The settings that hide devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VisibleDevices {
    /// `CUDA_VISIBLE_DEVICES`.
    pub(super) variable: Option<String>,
    /// `CUDA_DEVICE_ORDER`.
    pub(super) order: Option<String>,
    /// `NVIDIA_VISIBLE_DEVICES`, which selects the GPUs of a container.
    pub(super) container: Option<String>,
    /// The GPUs of the machine, if known.
    pub(super) installed: Option<InstalledGpus>,
    /// The devices of the driver; `None` if it cannot be used.
    pub(super) visible: Option<usize>,
}

/// The GPUs of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstalledGpus {
    count: usize,
    /// Empty if unknown.
    uuids: Vec<String>,
    source: &'static str,
    /// Whether MIG is enabled on a GPU, so that CUDA devices are not GPUs.
    has_mig: bool,
}

impl InstalledGpus {
    /// The GPUs of `nvidia-smi`, or else the device files.
    pub(super) fn find(smi: &Smi) -> Option<Self> {
        if let Smi::Gpus(gpus, _) = smi {
            return Some(Self {
                count: gpus.len(),
                uuids: gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
                source: "nvidia-smi",
                has_mig: gpus.iter().any(|gpu| gpu.mig),
            });
        }
        let files = fs::read_dir("/dev").ok()?.flatten();
        let names = files.filter_map(|file| file.file_name().into_string().ok());
        let count = names.filter(|name| is_device_file(name)).count();
        let (uuids, source) = (Vec::new(), "/dev/nvidia*");
        (count > 0).then_some(Self { count, uuids, source, has_mig: false })
    }
}

fn is_device_file(name: &str) -> bool {
    let number = name.strip_prefix("nvidia").unwrap_or_default();
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

impl VisibleDevices {
    pub(super) fn new(installed: Option<InstalledGpus>, visible: Option<usize>) -> Self {
        let variable = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Self {
            variable: variable("CUDA_VISIBLE_DEVICES"),
            order: variable("CUDA_DEVICE_ORDER"),
            container: variable("NVIDIA_VISIBLE_DEVICES"),
            installed,
            visible,
        }
    }

    pub(super) fn check(&self) -> Vec<Finding> {
        let list = self.variable.as_ref().and_then(|list| self.check_list(list));
        let count = || self.visible.map(|visible| self.check_count(visible));
        list.or_else(count).into_iter().chain(self.check_order()).collect()
    }

    fn check_count(&self, visible: usize) -> Finding {
        let installed = self.installed.as_ref().filter(|all| !all.has_mig && all.count > visible);
        let mut what = match installed {
            Some(all) => format!("{visible} of {} ({}) visible", gpus(all.count), all.source),
            None => format!("{} visible", count(visible, "device")),
        };
        if let Some(list) = &self.variable {
            what += &format!(", CUDA_VISIBLE_DEVICES={list}");
        }
        if visible > 0 {
            let is_hidden = installed.is_some() && self.variable.is_none();
            return if is_hidden { DEVICES.warning(what, HIDDEN) } else { DEVICES.good(what) };
        }
        let container = self.container.as_deref();
        if let Some(list) = container.filter(|list| ["", "void", "none"].contains(list)) {
            what += &format!(", NVIDIA_VISIBLE_DEVICES={list}");
        }
        let remedy = match &self.installed {
            Some(_) if self.variable.is_some() && installed.is_some() => WRONG_LIST,
            Some(all) if all.has_mig => NO_INSTANCE,
            _ => NO_DEVICE,
        };
        DEVICES.bad(what, remedy)
    }

    fn check_order(&self) -> Option<Finding> {
        let valid = ["PCI_BUS_ID", "FASTEST_FIRST", ""];
        let order = self.order.as_ref().filter(|order| !valid.contains(&order.as_str()))?;
        // cuInit then returns CUDA_ERROR_INVALID_DEVICE (seen on H200).
        Some(DEVICES.bad(
            format!("CUDA_DEVICE_ORDER={order:?} is not a valid value: cuInit fails"),
            "set it to PCI_BUS_ID or FASTEST_FIRST, or unset it",
        ))
    }

    /// The first fault of `CUDA_VISIBLE_DEVICES`; the driver ignores the rest.
    fn check_list(&self, list: &str) -> Option<Finding> {
        let bad = |what: &str, remedy: &str| {
            Some(DEVICES.bad(format!("CUDA_VISIBLE_DEVICES={list:?}: {what}"), remedy))
        };
        let remedy = match &self.installed {
            Some(all) if all.count > 1 => {
                format!("unset it, or list GPUs from 0 to {}", all.count - 1)
            }
            _ => "unset it, or list GPUs, such as CUDA_VISIBLE_DEVICES=0".to_owned(),
        };
        match list.trim() {
            "" => return bad("an empty list hides all devices", &remedy),
            "NoDevFiles" => {
                let what = "the batch system allocated no GPU to the job";
                return bad(what, "request one: sbatch or srun --gres=gpu:1");
            }
            _ => {}
        }
        let entries: Vec<&str> = list.split(',').map(str::trim).collect();
        entries.iter().enumerate().find_map(|(index, entry)| {
            if entries.iter().take(index).any(|earlier| earlier == entry) {
                return bad(&format!("{entry} is listed twice, which hides all devices"), &remedy);
            }
            let what = self.unknown_entry(entry)?;
            let hidden = if index == 0 { "all devices" } else { "it and the rest" };
            bad(&format!("{what}, which hides {hidden}"), &remedy)
        })
    }

    /// Why an entry does not name a device.
    fn unknown_entry(&self, entry: &str) -> Option<String> {
        if entry.starts_with("MIG-") {
            return None;
        }
        if entry.starts_with("GPU-") {
            let uuids = self.installed.as_ref().map_or(&[][..], |all| &all.uuids);
            return match uuids.iter().filter(|uuid| uuid.starts_with(entry)).count() {
                0 if !uuids.is_empty() => Some(format!("there is no GPU {entry}")),
                count @ 2.. => Some(format!("{entry} matches the UUIDs of {count} GPUs")),
                _ => None,
            };
        }
        let Ok(ordinal) = entry.parse::<usize>() else {
            return Some(format!("{entry:?} is neither a number nor a UUID"));
        };
        let all = self.installed.as_ref().filter(|all| !all.has_mig && ordinal >= all.count)?;
        Some(format!("there is no GPU {ordinal} ({} lists {})", all.source, gpus(all.count)))
    }
}

fn gpus(number: usize) -> String {
    count(number, "GPU")
}

const WRONG_LIST: &str = "unset CUDA_VISIBLE_DEVICES, or list devices as nvidia-smi -L names them";
const NO_INSTANCE: &str = "MIG is enabled and no instance is visible: create one (nvidia-smi mig \
                           -cgi 0 -C), and set CUDA_VISIBLE_DEVICES to its UUID (nvidia-smi -L)";
const NO_DEVICE: &str = "start the container with its GPUs (docker run --gpus all), request one \
                         from the batch system (--gres=gpu:1), or check that the driver is loaded \
                         (nvidia-smi, dmesg)";
const HIDDEN: &str = "CUDA_VISIBLE_DEVICES does not hide the others: the container or the batch \
                      system does, or a GPU has failed (nvidia-smi, dmesg for Xid)";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn two() -> Option<InstalledGpus> {
        let uuids = vec!["GPU-aa11".into(), "GPU-ab22".into()];
        Some(InstalledGpus { count: 2, uuids, source: "nvidia-smi", has_mig: false })
    }

    fn check(variable: Option<&str>, visible: usize) -> Finding {
        let variable = variable.map(str::to_owned);
        let devices = VisibleDevices {
            variable,
            installed: two(),
            visible: Some(visible),
            ..VisibleDevices::default()
        };
        let mut results = devices.check();
        assert_eq!(results.len(), 1);
        results.remove(0)
    }

    #[test]
    fn a_list_that_hides_devices_is_bad() {
        for (list, what) in [
            ("", "an empty list hides all devices"),
            ("2", "there is no GPU 2 (nvidia-smi lists 2 GPUs), which hides all devices"),
            ("0,7", "there is no GPU 7 (nvidia-smi lists 2 GPUs), which hides it and the rest"),
            ("1,1", "1 is listed twice, which hides all devices"),
            ("-1", "\"-1\" is neither a number nor a UUID, which hides all devices"),
            ("0,,1", "\"\" is neither a number nor a UUID, which hides it and the rest"),
            ("0 1", "\"0 1\" is neither a number nor a UUID, which hides all devices"),
            ("GPU-cc", "there is no GPU GPU-cc, which hides all devices"),
            ("GPU-a", "GPU-a matches the UUIDs of 2 GPUs, which hides all devices"),
        ] {
            let result = check(Some(list), 0);
            assert_eq!(result.what, format!("CUDA_VISIBLE_DEVICES={list:?}: {what}"));
            assert_eq!(result.level, Level::Bad);
            assert_eq!(result.remedy.as_deref(), Some("unset it, or list GPUs from 0 to 1"));
        }
        let slurm = check(Some("NoDevFiles"), 0);
        assert!(slurm.what.ends_with("allocated no GPU to the job"), "{}", slurm.what);
    }

    #[test]
    fn hidden_devices_are_good_only_if_a_list_hides_them() {
        assert_eq!(check(None, 2), DEVICES.good("2 devices visible"));
        for (list, visible, count) in [
            ("GPU-ab", 1, "1 of 2 GPUs (nvidia-smi)"),
            ("0, 1", 2, "2 devices"),
            ("1,0", 2, "2 devices"),
        ] {
            let what = format!("{count} visible, CUDA_VISIBLE_DEVICES={list}");
            assert_eq!(check(Some(list), visible), DEVICES.good(what));
        }
        assert_eq!(check(None, 1).level, Level::Warning);
        assert_eq!(check(None, 0).level, Level::Bad);
        let absent = check(Some("MIG-1"), 0);
        assert_eq!((absent.level, absent.remedy.as_deref()), (Level::Bad, Some(WRONG_LIST)));
    }

    #[test]
    fn a_container_without_gpus_and_gpus_without_instances_have_their_own_messages() {
        let none = VisibleDevices { visible: Some(0), ..VisibleDevices::default() };
        let container = VisibleDevices { container: Some("void".into()), ..none.clone() };
        assert_eq!(container.check()[0].what, "0 devices visible, NVIDIA_VISIBLE_DEVICES=void");
        let installed = two().map(|all| InstalledGpus { has_mig: true, ..all });
        let mig = VisibleDevices { installed, ..none };
        assert_eq!(mig.check()[0].remedy.as_deref(), Some(NO_INSTANCE));
        // A container may get its GPUs in another way.
        let other = VisibleDevices { visible: Some(1), ..container };
        assert_eq!(other.check(), [DEVICES.good("1 device visible")]);
    }

    #[test]
    fn without_a_driver_only_an_invalid_list_is_reported() {
        let list = |list: &str| {
            VisibleDevices { variable: Some(list.into()), ..VisibleDevices::default() }.check()
        };
        assert_eq!(VisibleDevices::default().check(), []);
        assert_eq!(list("0,1"), []);
        assert_eq!(list("one").len(), 1);
    }

    #[test]
    fn a_device_file_has_a_number() {
        let names = ["nvidia0", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia"];
        assert_eq!(names.map(is_device_file), [true, true, false, false, false]);
    }
}
