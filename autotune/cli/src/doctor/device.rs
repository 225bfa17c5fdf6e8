//! What each device is, and who may use it.

use gridguard::ComputeCapability;
use gridguard::cuda::ComputeMode;

use super::finding::Finding;

/// What the driver tells of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) ordinal: usize,
    pub(super) name: String,
    pub(super) capability: ComputeCapability,
    pub(super) mode: Option<ComputeMode>,
    /// Free and total bytes, where a context could be made.
    pub(super) memory: Option<(u64, u64)>,
}

/// The oldest capability that gridguard's own kernels are compiled for.
const OLDEST: ComputeCapability = ComputeCapability::new(7, 5);
/// The oldest capability that multiplies bf16.
const BF16: ComputeCapability = ComputeCapability::new(8, 0);
/// Less than this share of the memory free is little.
const LITTLE: u64 = 10;

pub(super) fn subject(ordinal: usize) -> String {
    format!("device {ordinal}")
}

pub(super) fn findings(device: &Device) -> Vec<Finding> {
    let Device { ordinal, name, capability, mode, memory } = device;
    let memory_words =
        memory.map(|(free, total)| format!(", {} GiB free of {} GiB", gib(free), gib(total)));
    let what =
        format!("{name}, compute capability {capability}{}", memory_words.unwrap_or_default());
    let mut findings = vec![Finding::good(subject(*ordinal), what)];
    findings.extend(mode.and_then(|mode| of_mode(*ordinal, mode)));
    findings.extend(memory.and_then(|(free, total)| of_memory(*ordinal, free, total)));
    findings.extend(of_capability(*ordinal, *capability));
    findings
}

fn of_mode(ordinal: usize, mode: ComputeMode) -> Option<Finding> {
    let what = match mode {
        ComputeMode::Exclusive => "compute mode exclusive: one process at a time",
        ComputeMode::Prohibited => "compute mode prohibited: no process may use it",
        _ => return None,
    };
    let remedy = format!(
        "nvidia-smi -i {ordinal} --compute-mode=DEFAULT (nvidia-smi's own number of the GPU), as root"
    );
    Some(match mode {
        ComputeMode::Prohibited => Finding::bad(subject(ordinal), what, remedy),
        _ => Finding::warning(subject(ordinal), what, remedy),
    })
}

fn of_memory(ordinal: usize, free: u64, total: u64) -> Option<Finding> {
    let what = format!("only {} GiB of {} GiB are free", gib(free), gib(total));
    let remedy = "nvidia-smi names the processes that hold the rest";
    (free < total / LITTLE).then(|| Finding::warning(subject(ordinal), what, remedy))
}

fn of_capability(ordinal: usize, capability: ComputeCapability) -> Option<Finding> {
    let finding = |what: String, remedy: &str| Finding::warning(subject(ordinal), what, remedy);
    if capability < OLDEST {
        let what = format!("gridguard's own kernels are built for {OLDEST} and later");
        return Some(finding(what, "guard kernels of your own: they are served all the same"));
    }
    let remedy = "use f16 or f32 where gridguard's attention is to be fast";
    let what = || format!("no bf16 in tensor cores before compute capability {BF16}");
    (capability < BF16).then(|| finding(what(), remedy))
}

/// To a tenth.
pub(super) fn gib(bytes: u64) -> String {
    let tenths = bytes / ((1 << 30) / 10);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Level;

    fn device(capability: (u32, u32), mode: ComputeMode, free: u64) -> Vec<Finding> {
        findings(&Device {
            ordinal: 0,
            name: "NVIDIA L4".into(),
            capability: ComputeCapability::new(capability.0, capability.1),
            mode: Some(mode),
            memory: Some((free << 30, 24 << 30)),
        })
    }

    #[test]
    fn a_healthy_device_is_one_line() {
        let what = "NVIDIA L4, compute capability 8.9, 23.0 GiB free of 24.0 GiB";
        let healthy = device((8, 9), ComputeMode::Default, 23);
        assert_eq!(healthy, [Finding::good("device 0", what)]);
    }

    #[test]
    fn modes_memory_and_capability_are_judged() {
        let of = |capability, mode, free| device(capability, mode, free).remove(1);
        assert_eq!(of((8, 9), ComputeMode::Exclusive, 23).level, Level::Warning);
        assert_eq!(of((8, 9), ComputeMode::Prohibited, 23).level, Level::Bad);
        let little = of((8, 9), ComputeMode::Default, 2);
        assert_eq!(little.what, "only 2.0 GiB of 24.0 GiB are free");
        let turing = of((7, 5), ComputeMode::Default, 23);
        assert_eq!(turing.what, "no bf16 in tensor cores before compute capability 8.0");
        let volta = of((7, 0), ComputeMode::Default, 23);
        assert_eq!(volta.what, "gridguard's own kernels are built for 7.5 and later");
    }
}
