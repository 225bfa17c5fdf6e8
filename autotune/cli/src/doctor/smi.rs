//! Reads the GPUs of the machine and their faults from `nvidia-smi`.

use std::io;
use std::process::Command;
use std::time::Duration;

use super::child::{self, ChildError, ChildOutput};
use super::finding::{Finding, Subject, remedy_of_message, shorten};

/// `nvidia-smi` takes less than a second on a healthy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(5);
/// Queried fields. Old versions lack the later ones.
const FIELDS: &str = "index,uuid,name,driver_version";
const LATER_FIELDS: &str = "mig.mode.current,ecc.errors.uncorrected.volatile.total";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Smi {
    Absent,
    Failed(String),
    Gpus(Vec<Gpu>, Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gpu {
    pub(super) index: String,
    pub(super) uuid: String,
    pub(super) name: String,
    /// The version of the driver, such as 580.65.06.
    pub(super) driver: String,
    pub(super) mig: bool,
    /// Uncorrectable memory errors since the driver was loaded.
    pub(super) uncorrected: u64,
    /// An error instead of a value, for example `GPU is lost`.
    pub(super) fault: Option<String>,
}

pub(super) fn query(limit: Duration) -> Smi {
    let limit = limit.min(LIMIT);
    match query_fields(&format!("{FIELDS},{LATER_FIELDS}"), limit) {
        Smi::Failed(message) if message.contains("not a valid field") => {
            query_fields(FIELDS, limit)
        }
        smi => smi,
    }
}

/// Runs `nvidia-smi`.
pub(crate) fn ask(args: &[&str], limit: Duration) -> ChildOutput {
    let mut command = Command::new("nvidia-smi");
    command.args(args);
    child::run(command, limit, |_| false)
}

fn query_fields(fields: &str, limit: Duration) -> Smi {
    let output = ask(&[&format!("--query-gpu={fields}"), "--format=csv,noheader"], limit);
    match output.end {
        Ok(()) => parse(&output.out),
        Err(ChildError::NotStarted(error)) if error.kind() == io::ErrorKind::NotFound => {
            Smi::Absent
        }
        Err(ChildError::Crashed(how)) => {
            let text = if output.out.trim().is_empty() { output.err } else { output.out };
            match text.trim() {
                "" => Smi::Failed(how),
                NO_DEVICES => Smi::Gpus(Vec::new(), Vec::new()),
                // The first line is the error, the next ones the versions.
                text => Smi::Failed(shorten(&text.lines().collect::<Vec<_>>().join("; "))),
            }
        }
        Err(error) => Smi::Failed(error.to_string()),
    }
}

const NO_DEVICES: &str = "No devices were found";

fn parse(output: &str) -> Smi {
    let (mut gpus, mut warnings) = (Vec::new(), Vec::new());
    for line in output.lines().map(str::trim).filter(|line| !line.is_empty() && *line != NO_DEVICES)
    {
        match gpu(line) {
            Some(gpu) => gpus.push(gpu),
            None => warnings.push(shorten(line)),
        }
    }
    if gpus.is_empty() && !warnings.is_empty() {
        return Smi::Failed(ChildError::Unexpected(warnings.join("; ")).to_string());
    }
    Smi::Gpus(gpus, warnings)
}

fn gpu(line: &str) -> Option<Gpu> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, uuid, name, driver, later @ ..] = fields.as_slice() else { return None };
    index.parse::<u32>().ok()?;
    let own = |text: &&str| (*text).to_owned();
    let is_fault = |text: &&&str| {
        text.starts_with('[') && ["lost", "reset", "Error"].iter().any(|word| text.contains(word))
    };
    let fault = fields.iter().find(is_fault);
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

/// The reported faults. A failure of `nvidia-smi` itself is bad only if the driver cannot be used either.
pub(super) fn check(smi: &Smi, is_driver_usable: bool) -> Vec<Finding> {
    match smi {
        Smi::Absent => Vec::new(),
        Smi::Failed(message) => {
            let remedy = remedy_of_message(message).unwrap_or_else(|| RUN_BY_HAND.to_owned());
            let what = format!("fails: {message}");
            vec![if is_driver_usable { SMI.warning(what, remedy) } else { SMI.bad(what, remedy) }]
        }
        Smi::Gpus(gpus, warnings) => {
            let warning =
                |message| SMI.warning(format!("warns: {message}"), "nvidia-smi -q shows details");
            gpus.iter().flat_map(check_gpu).chain(warnings.iter().map(warning)).collect()
        }
    }
}

fn check_gpu(gpu: &Gpu) -> Vec<Finding> {
    let Gpu { index, mig, uncorrected, fault, .. } = gpu;
    let subject = Subject::numbered("gpu", index);
    let reset = format!("reset it (nvidia-smi -i {index} --gpu-reset) or reboot");
    let mut findings = Vec::new();
    if let Some(fault) = fault {
        let remedy = format!("look for an Xid error (dmesg | grep -i xid), {reset}");
        findings.push(subject.bad(format!("nvidia-smi reports: {fault}"), remedy));
    }
    if *uncorrected > 0 {
        let remedy = format!(
            "results computed since then may be wrong: {reset}, and replace it if the errors come \
             back (nvidia-smi -q -d ECC)"
        );
        findings.push(subject.bad(format!("{uncorrected} uncorrectable memory errors"), remedy));
    }
    if *mig {
        let what = "MIG is enabled: a process uses one instance, with its part of the \
                    multiprocessors and the memory";
        let remedy = format!(
            "set CUDA_VISIBLE_DEVICES to the instance's UUID (nvidia-smi -L), or disable MIG \
             (nvidia-smi -i {index} -mig 0)"
        );
        findings.push(subject.warning(what, remedy));
    }
    findings
}

const SMI: Subject = Subject::new("nvidia-smi");
const RUN_BY_HAND: &str =
    "run it by hand; dmesg | grep -i nvrm shows the messages of the kernel module";

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    const LINE: &str = "0, GPU-8a56, NVIDIA H200, 580.65.06, [N/A], 0\n";

    #[test]
    fn mig_warns_and_a_failure_is_bad_only_without_a_driver() {
        let partitioned = parse("3, GPU-1, NVIDIA A100, 580.65.06, Enabled, 0");
        assert_eq!(check(&partitioned, true)[0].subject, "gpu 3");
        assert_eq!(check(&parse(LINE), true), []);
        let unsupported = "0, GPU-1, NVIDIA GeForce RTX 4090, 580.65.06, [N/A], [Not Supported]";
        assert_eq!(check(&parse(unsupported), true), []);
        let failed = Smi::Failed("Driver/library version mismatch".into());
        assert_eq!(check(&failed, true)[0].level, Level::Warning);
        let failed = &check(&failed, false)[0];
        assert_eq!(failed.level, Level::Bad);
        assert_ne!(failed.remedy.as_deref(), Some(RUN_BY_HAND), "the message is known");
    }
}
