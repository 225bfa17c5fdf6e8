//! What `nvidia-smi` tells: GPUs that the driver may hide from this process.

use std::process::Command;
use std::time::Duration;

use super::child::{self, Ended};
use super::finding::Finding;

/// A healthy one answers within a second.
const PATIENCE: Duration = Duration::from_secs(5);

/// What `nvidia-smi` answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Smi {
    /// There is none.
    Absent,
    /// It failed, in its own words.
    Failed(String),
    Told(Vec<Gpu>),
}

/// A GPU of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) index: String,
    pub(super) uuid: String,
    /// The driver's own version, such as 580.65.06.
    pub(super) driver: String,
    /// Whether it is partitioned.
    pub(super) mig: bool,
}

pub(super) fn ask() -> Smi {
    let mut command = Command::new("nvidia-smi");
    command.arg("--query-gpu=index,uuid,driver_version,mig.mode.current");
    command.arg("--format=csv,noheader");
    match child::run(command, PATIENCE) {
        Ended::Unstarted(_) => Smi::Absent,
        Ended::Late => Smi::Failed(format!("no answer within {} s", PATIENCE.as_secs())),
        Ended::Exited { status, out, .. } if status.success() => read(&out),
        Ended::Exited { out, err, status } => {
            let said = child::last_line(&out).or_else(|| child::last_line(&err));
            Smi::Failed(said.map_or_else(|| status.to_string(), str::to_owned))
        }
    }
}

fn read(answer: &str) -> Smi {
    let lines = answer.lines().map(str::trim).filter(|line| !line.is_empty());
    let gpus: Option<Vec<Gpu>> = lines.map(gpu).collect();
    match gpus {
        Some(gpus) => Smi::Told(gpus),
        None => Smi::Failed(format!("it says {:?}", child::last_line(answer).unwrap_or_default())),
    }
}

fn gpu(line: &str) -> Option<Gpu> {
    let mut fields = line.split(',').map(str::trim);
    let (index, uuid, driver, mig) =
        (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    index.parse::<u32>().ok()?;
    let own = |text: &str| text.to_owned();
    Some(Gpu { index: own(index), uuid: own(uuid), driver: own(driver), mig: mig == "Enabled" })
}

/// What is to be said of it: nothing where all is well. A failure is worse where the driver fails too.
pub(super) fn findings(smi: &Smi, driver_serves: bool) -> Vec<Finding> {
    match smi {
        Smi::Absent => Vec::new(),
        Smi::Failed(words) => {
            let remedy = "the library and the kernel module must be of one version: reboot after \
                          an update, or load the module (modprobe nvidia); dmesg says more";
            let judged = if driver_serves { Finding::warning } else { Finding::bad };
            vec![judged("nvidia-smi", format!("it fails: {words}"), remedy)]
        }
        Smi::Told(gpus) => gpus.iter().filter(|gpu| gpu.mig).map(partitioned).collect(),
    }
}

fn partitioned(gpu: &Gpu) -> Finding {
    let Gpu { index, .. } = gpu;
    Finding::warning(
        format!("gpu {index}"),
        "MIG is on: a process sees one instance, with its share of memory and multiprocessors",
        format!(
            "choose the instance by its UUID (nvidia-smi -L) in CUDA_VISIBLE_DEVICES, or switch \
             MIG off (nvidia-smi -i {index} -mig 0)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    const LINE: &str = "0, GPU-8a56, 580.65.06, [N/A]\n";

    #[test]
    fn its_lines_are_gpus_and_anything_else_is_a_failure() {
        let Smi::Told(gpus) = read(&format!("{LINE}1, GPU-77, 580.65.06, Enabled\n")) else {
            panic!("two GPUs");
        };
        assert_eq!(gpus.iter().map(|gpu| gpu.mig).collect::<Vec<_>>(), [false, true]);
        assert_eq!(
            read("No devices were found"),
            Smi::Failed("it says \"No devices were found\"".into())
        );
        assert_eq!(read(""), Smi::Told(Vec::new()));
    }

    #[test]
    fn partitions_warn_and_a_failure_is_as_bad_as_the_driver() {
        let partitioned = read("3, GPU-1, 580.65.06, Enabled");
        assert_eq!(findings(&partitioned, true)[0].subject, "gpu 3");
        assert_eq!(findings(&read(LINE), true), []);
        let failed = Smi::Failed("Driver/library version mismatch".into());
        assert_eq!(findings(&failed, true)[0].level, Level::Warning);
        assert_eq!(findings(&failed, false)[0].level, Level::Bad);
    }
}
