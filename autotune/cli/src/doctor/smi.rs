//! What `nvidia-smi` tells: GPUs that the driver may hide from this process, and what ails them.

use std::io;
use std::process::Command;
use std::time::Duration;

use super::child::{self, Ended};
use super::finding::Finding;
use super::python::short;
use super::version;

/// A healthy one answers within a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// What each GPU is asked; old ones know the first fields only.
const FIELDS: &str = "index,uuid,name,driver_version";
const LATER_FIELDS: &str = "mig.mode.current,ecc.errors.uncorrected.volatile.total";

/// What `nvidia-smi` answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Smi {
    /// There is none.
    Absent,
    /// It failed, in its own words.
    Failed(String),
    /// GPUs, and what else it said.
    Told(Vec<Gpu>, Vec<String>),
}

/// A GPU of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) index: String,
    pub(super) uuid: String,
    pub(super) name: String,
    /// The driver's own version, such as 580.65.06.
    pub(super) driver: String,
    /// Whether it is partitioned.
    pub(super) mig: bool,
    /// Errors of its memory since the driver was loaded, that could not be corrected.
    pub(super) uncorrected: u64,
    /// What it says in the place of an answer, such as `GPU is lost`.
    pub(super) fault: Option<String>,
}

/// Asks it, which may take `within`, and not more than a healthy one does by far.
pub(super) fn ask(within: Duration) -> Smi {
    let within = within.min(PATIENCE);
    match ask_for(&format!("{FIELDS},{LATER_FIELDS}"), within) {
        Smi::Failed(words) if words.contains("not a valid field") => ask_for(FIELDS, within),
        smi => smi,
    }
}

fn ask_for(fields: &str, within: Duration) -> Smi {
    let mut command = Command::new("nvidia-smi");
    command.arg(format!("--query-gpu={fields}")).arg("--format=csv,noheader");
    match child::run(command, within) {
        Ended::Unstarted(error) if error.kind() == io::ErrorKind::NotFound => Smi::Absent,
        Ended::Unstarted(error) => Smi::Failed(error.to_string()),
        Ended::Late => {
            Smi::Failed(format!("no answer within {}", humantime::format_duration(within)))
        }
        Ended::Exited { status, out, .. } if status.success() => read(&out),
        Ended::Exited { out, err, status } => {
            let said = if out.trim().is_empty() { err } else { out };
            match said.trim() {
                "" => Smi::Failed(status.to_string()),
                NO_DEVICES => Smi::Told(Vec::new(), Vec::new()),
                // The first line says what, the next ones which versions.
                said => Smi::Failed(short(&said.lines().collect::<Vec<_>>().join("; "))),
            }
        }
    }
}

const NO_DEVICES: &str = "No devices were found";

fn read(answer: &str) -> Smi {
    let (mut gpus, mut rest) = (Vec::new(), Vec::new());
    for line in answer.lines().map(str::trim).filter(|line| !line.is_empty() && *line != NO_DEVICES)
    {
        match gpu(line) {
            Some(gpu) => gpus.push(gpu),
            None => rest.push(short(line)),
        }
    }
    if gpus.is_empty() && !rest.is_empty() {
        return Smi::Failed(format!("it says {:?}", rest.join("; ")));
    }
    Smi::Told(gpus, rest)
}

fn gpu(line: &str) -> Option<Gpu> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, uuid, name, driver, later @ ..] = fields.as_slice() else { return None };
    index.parse::<u32>().ok()?;
    let own = |text: &&str| (*text).to_owned();
    let is_fault = |text: &&&str| {
        text.starts_with('[') && ["lost", "reset", "Error"].iter().any(|word| text.contains(word))
    };
    let fault = fields.iter().take(4).chain(later).find(is_fault);
    Some(Gpu {
        index: own(index),
        uuid: own(uuid),
        name: own(name),
        driver: own(driver),
        mig: later.first().is_some_and(|mig| *mig == "Enabled"),
        uncorrected: later.get(1).and_then(|count| count.parse().ok()).unwrap_or(0),
        fault: fault.map(|text| text.trim_matches(['[', ']']).to_owned()),
    })
}

/// What is to be said of it: nothing where all is well. A failure is worse where the driver fails too.
pub(super) fn findings(smi: &Smi, driver_serves: bool) -> Vec<Finding> {
    const SUBJECT: &str = "nvidia-smi";
    match smi {
        Smi::Absent => Vec::new(),
        Smi::Failed(words) => {
            let remedy = version::meaning(words).unwrap_or_else(|| FALLBACK.to_owned());
            let judged = if driver_serves { Finding::warning } else { Finding::bad };
            vec![judged(SUBJECT, format!("it fails: {words}"), remedy)]
        }
        Smi::Told(gpus, words) => {
            let warn = |words: &String| {
                let remedy = "nvidia-smi -q tells more of it";
                Finding::warning(SUBJECT, format!("it warns: {words}"), remedy)
            };
            gpus.iter().flat_map(of_gpu).chain(words.iter().map(warn)).collect()
        }
    }
}

const FALLBACK: &str = "run it by hand; dmesg | grep -i nvrm says what the kernel's part of the \
                        driver has to say";

fn of_gpu(gpu: &Gpu) -> Vec<Finding> {
    let Gpu { index, mig, uncorrected, fault, .. } = gpu;
    let subject = format!("gpu {index}");
    let fault = fault.as_ref().map(|words| {
        let remedy = format!(
            "look for an Xid (dmesg | grep -i xid), reset it (nvidia-smi -i {index} --gpu-reset) or \
             reboot"
        );
        Finding::bad(subject.as_str(), format!("nvidia-smi says {words}"), remedy)
    });
    let errors = (*uncorrected > 0).then(|| {
        let what = format!("{uncorrected} errors of its memory that could not be corrected");
        let remedy = format!(
            "what was computed since may be wrong: reset it (nvidia-smi -i {index} --gpu-reset) or \
             reboot, and have it replaced where they come back (nvidia-smi -q -d ECC)"
        );
        Finding::bad(subject.as_str(), what, remedy)
    });
    let partitioned = mig.then(|| {
        Finding::warning(
            subject.as_str(),
            "MIG is on: a process sees one instance, with its share of memory and multiprocessors",
            format!(
                "choose the instance by its UUID (nvidia-smi -L) in CUDA_VISIBLE_DEVICES, or switch \
                 MIG off (nvidia-smi -i {index} -mig 0)"
            ),
        )
    });
    fault.into_iter().chain(errors).chain(partitioned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    const LINE: &str = "0, GPU-8a56, NVIDIA H200, 580.65.06, [N/A], 0\n";

    #[test]
    fn its_lines_are_gpus_and_nothing_else_is_a_failure() {
        let Smi::Told(gpus, rest) = read(&format!(
            "{LINE}1, GPU-77, NVIDIA H200, 580.65.06, Enabled, 0\nWARNING: infoROM is corrupted\n"
        )) else {
            panic!("two GPUs");
        };
        assert_eq!(gpus.iter().map(|gpu| gpu.mig).collect::<Vec<_>>(), [false, true]);
        assert_eq!(rest, ["WARNING: infoROM is corrupted"]);
        assert_eq!(read("garbage"), Smi::Failed("it says \"garbage\"".into()));
        assert_eq!(read("No devices were found"), Smi::Told(Vec::new(), Vec::new()));
        // An old one knows fewer fields.
        assert!(
            matches!(read("0, GPU-1, Tesla K80, 418.87"), Smi::Told(gpus, _) if gpus.len() == 1)
        );
    }

    #[test]
    fn partitions_warn_and_a_failure_is_as_bad_as_the_driver() {
        let partitioned = read("3, GPU-1, NVIDIA A100, 580.65.06, Enabled, 0");
        assert_eq!(findings(&partitioned, true)[0].subject, "gpu 3");
        assert_eq!(findings(&read(LINE), true), []);
        let failed = Smi::Failed("Driver/library version mismatch".into());
        assert_eq!(findings(&failed, true)[0].level, Level::Warning);
        let failed = &findings(&failed, false)[0];
        assert_eq!(failed.level, Level::Bad);
        assert!(failed.remedy.as_ref().is_some_and(|it| it.contains("start the machine anew")));
    }

    #[test]
    fn a_gpu_that_is_lost_or_has_lost_memory_is_bad() {
        let lost = findings(&read("1, GPU-1, [GPU is lost], 580.65.06, [N/A], [N/A]"), true);
        assert_eq!(
            (lost[0].level, lost[0].what.as_str()),
            (Level::Bad, "nvidia-smi says GPU is lost")
        );
        let errors = findings(&read("0, GPU-1, NVIDIA H200, 580.65.06, Disabled, 12"), true);
        assert_eq!(errors[0].what, "12 errors of its memory that could not be corrected");
        let unsupported = "0, GPU-1, NVIDIA GeForce RTX 4090, 580.65.06, [N/A], [Not Supported]";
        assert_eq!(findings(&read(unsupported), true), []);
    }
}
