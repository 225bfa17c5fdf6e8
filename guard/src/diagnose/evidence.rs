//! What else is known of a failure, and what it says of the usual causes.

use core::fmt;
use std::sync::Arc;

use super::failure::Hint;
use crate::launch::request::LaunchRequest;
use crate::launch::rule::Rule;
use crate::launch::violation::Violations;
use crate::limits::{ComputeCapability, DeviceLimits};

/// What is known beside the failure itself. All of it may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The device's limits.
    pub device: Option<Arc<DeviceLimits>>,
    /// The launch that failed.
    pub request: Option<LaunchRequest>,
    /// What is wrong with that launch; empty where it was checked and is legal.
    pub violations: Option<Violations>,
    /// The CUDA that the driver supports.
    pub driver_cuda: Option<CudaVersion>,
    /// The CUDA that the program, its PTX or its NVRTC was built with.
    pub program_cuda: Option<CudaVersion>,
    /// Bytes that were asked for.
    pub requested_bytes: Option<u64>,
    /// Bytes of the device that were free.
    pub free_bytes: Option<u64>,
    /// Bytes of the device.
    pub total_bytes: Option<u64>,
    /// Bytes that an allocator of the process holds without use.
    pub cached_bytes: Option<u64>,
    /// Bytes of the device that this process holds.
    pub process_bytes: Option<u64>,
    /// Devices that the process sees.
    pub visible_devices: Option<usize>,
    /// The ordinal that was asked for.
    pub ordinal: Option<usize>,
    /// The device's compute capability.
    pub capability: Option<ComputeCapability>,
    /// Architectures that the program has machine code for; empty where not known.
    pub architectures: Vec<ComputeCapability>,
    /// The assertion of device code that failed.
    pub assertion: Option<String>,
    /// Recent launches that can have failed, the newest last.
    pub recent_launches: Vec<String>,
    /// The launch that failed, where it was waited for at once.
    pub at_fault: Option<String>,
}

/// A version of CUDA, as the driver counts it: 1000 * major + 10 * minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub i32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// What evidence says of a usual cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It is so, or likely, because.
    Likely(String),
    /// It is not so, because.
    Excluded(String),
    /// Nothing is known.
    Open,
}

use Judgement::{Excluded, Likely, Open};

impl Evidence {
    pub(super) fn judge(&self, hint: Hint) -> Judgement {
        match hint {
            Hint::Sizes => self.sizes(),
            Hint::Rules => Open,
            Hint::TooLittleFree => self.too_little_free(),
            Hint::LittleFree => self.little_free(),
            Hint::Fragments => self.fragments(),
            Hint::LocalMemory => self.local_memory(),
            Hint::OtherProcess => self.other_process(),
            Hint::AbsurdSize => self.absurd_size(),
            Hint::Architecture => self.architecture(),
            Hint::DriverAge => self.driver_age(),
            Hint::NoDevice => match self.visible_devices {
                Some(0) => Likely("the driver shows 0 devices".into()),
                Some(count) => Excluded(format!("hidden devices: {count} visible")),
                None => Open,
            },
            Hint::Ordinal => self.ordinal_is_visible(),
            Hint::EarlierLaunch => self.earlier_launch(),
            Hint::Assertion => self.assertion.clone().map_or(Open, Likely),
        }
    }

    /// Violations are causes of their own; here only whether there are none.
    fn sizes(&self) -> Judgement {
        match &self.violations {
            Some(violations) if violations.is_empty() => {
                Excluded("the sizes of the launch: they were checked and break no rule".into())
            }
            _ => Open,
        }
    }

    fn earlier_launch(&self) -> Judgement {
        match &self.at_fault {
            Some(launch) => Likely(format!("the launch at fault is {launch}")),
            None if self.recent_launches.is_empty() => Open,
            None => Likely(format!(
                "recent launches, the newest last: {}",
                self.recent_launches.join(", ")
            )),
        }
    }

    fn too_little_free(&self) -> Judgement {
        match (self.requested_bytes, self.free_bytes) {
            (Some(requested), Some(free)) if requested > free => {
                Likely(format!("{} were asked for, {} were free", Bytes(requested), Bytes(free)))
            }
            (Some(requested), Some(free)) => Excluded(format!(
                "too little free memory: {} were asked for, {} were free",
                Bytes(requested),
                Bytes(free)
            )),
            _ => Open,
        }
    }

    /// Handles and workspaces of libraries take some hundred MiB.
    fn little_free(&self) -> Judgement {
        const PLENTY: u64 = 1 << 30;
        match self.free_bytes {
            Some(free) if free < PLENTY => Likely(format!("{} were free", Bytes(free))),
            Some(free) => Excluded(format!("want of memory: {} were free", Bytes(free))),
            None => Open,
        }
    }

    fn is_plentiful(&self) -> Option<(Bytes, Bytes)> {
        let (requested, free) = (self.requested_bytes?, self.free_bytes?);
        (requested <= free).then_some((Bytes(requested), Bytes(free)))
    }

    fn fragments(&self) -> Judgement {
        if let (Some(requested), Some(cached)) = (self.requested_bytes, self.cached_bytes)
            && cached >= requested
        {
            return Likely(format!(
                "{} are held back without use, {} were asked for",
                Bytes(cached),
                Bytes(requested)
            ));
        }
        self.is_plentiful().map_or(Open, |(requested, free)| {
            Likely(format!("{free} were free, which would have held {requested} in one piece"))
        })
    }

    fn local_memory(&self) -> Judgement {
        self.is_plentiful().map_or(Open, |(requested, free)| {
            Likely(format!("{requested} were refused while {free} were free"))
        })
    }

    fn other_process(&self) -> Judgement {
        let (Some(total), Some(free), Some(own)) =
            (self.total_bytes, self.free_bytes, self.process_bytes)
        else {
            return Open;
        };
        let others = total.saturating_sub(free).saturating_sub(own);
        // Contexts and rounding leave a gap that means nothing.
        if others > total / 8 {
            Likely(format!(
                "of {} this process has {} and {} were free: others have {}",
                Bytes(total),
                Bytes(own),
                Bytes(free),
                Bytes(others)
            ))
        } else {
            Excluded(format!("another process: this one has {} of {}", Bytes(own), Bytes(total)))
        }
    }

    fn absurd_size(&self) -> Judgement {
        let device = self.device.as_ref().map(|device| device.memory_bytes);
        let total = self.total_bytes.or(device).filter(|bytes| *bytes > 0);
        match (self.requested_bytes, total) {
            (Some(requested), Some(total)) if requested > total => Likely(format!(
                "{} were asked for, the device has {} in all",
                Bytes(requested),
                Bytes(total)
            )),
            (Some(_), Some(total)) => {
                Excluded(format!("a size that wrapped: the device has {} in all", Bytes(total)))
            }
            _ => Open,
        }
    }

    fn architecture(&self) -> Judgement {
        let capability = self.capability.or(self.device.as_ref().map(|it| it.compute_capability));
        let (Some(capability), Some(newest)) = (capability, self.architectures.iter().max()) else {
            return Open;
        };
        // Machine code serves its own generation, from its own variant upwards.
        let serves =
            |it: &&ComputeCapability| it.major == capability.major && it.minor <= capability.minor;
        match self.architectures.iter().find(serves) {
            Some(fit) => Excluded(format!(
                "another architecture: the code for {} serves compute capability {capability}",
                fit.sm()
            )),
            None => Likely(format!(
                "the device has compute capability {capability}, the program has code for {}, up \
                 to {newest}",
                self.architectures.iter().map(|it| it.sm()).collect::<Vec<_>>().join(", ")
            )),
        }
    }

    fn driver_age(&self) -> Judgement {
        match (self.driver_cuda, self.program_cuda) {
            (Some(driver), Some(program)) if driver < program => {
                Likely(format!("the driver supports CUDA {driver}, the program needs {program}"))
            }
            (Some(driver), Some(program)) => Excluded(format!(
                "an old driver: it supports CUDA {driver}, the program needs {program}"
            )),
            (Some(driver), None) => Likely(format!("the driver supports CUDA {driver}")),
            _ => Open,
        }
    }

    fn ordinal_is_visible(&self) -> Judgement {
        match (self.ordinal, self.visible_devices) {
            (Some(ordinal), Some(count)) if ordinal >= count => {
                Likely(format!("device {ordinal} was asked for, the driver shows {count}"))
            }
            (Some(ordinal), Some(count)) => {
                Excluded(format!("the number: device {ordinal} is one of the {count} visible"))
            }
            _ => Open,
        }
    }
}

/// The numbers by which CUDA refuses a launch that breaks `rule`, the driver's own first; none
/// where nothing checks.
pub(crate) const fn answers(rule: Rule) -> &'static [i32] {
    match rule {
        Rule::GridDimX
        | Rule::GridDimY
        | Rule::GridDimZ
        | Rule::GridDimZero
        | Rule::BlockDimX
        | Rule::BlockDimY
        | Rule::BlockDimZ
        | Rule::BlockDimZero
        | Rule::ThreadsPerBlock
        | Rule::KernelThreadsPerBlock => &[1, 9],
        // A cooperative launch without room for one block is too large.
        Rule::SharedMemoryTotal | Rule::DynamicSharedMemoryOptIn => &[1, 9, 720],
        Rule::RegistersPerBlock => &[701, 720],
        Rule::ClusterUnsupported | Rule::CooperativeUnsupported => &[801, 1, 9, 912],
        Rule::DependentUnsupported => &[801, 1, 9],
        Rule::ClusterSize | Rule::ClusterDividesGrid | Rule::ClusterRequired => &[912, 1, 9],
        Rule::ClusterResidency => &[912],
        Rule::CooperativeResidency => &[720],
        Rule::ParameterBytes => &[1, 701],
        Rule::IndexWidth => &[700, 719],
        Rule::WorkspaceMemory => &[2],
        Rule::BatchCoversGrid
        | Rule::SplitCooperative
        | Rule::SplitCluster
        | Rule::SplitAlignment
        | Rule::SplitItem
        | Rule::FoldUnavailable => &[],
    }
}

/// Bytes as people read them.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 5] =
            [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let Some((unit, shift)) = UNITS.into_iter().find(|(_, shift)| self.0 >> shift > 0) else {
            return write!(f, "{} bytes", self.0);
        };
        let half = 1 << (shift - 1);
        let hundredths = (u128::from(self.0) * 100 + half) >> shift;
        write!(f, "{}.{:02} {unit}", hundredths / 100, hundredths % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_as_people_write_them() {
        let texts = [0, 1023, 1024, 20 << 30, u64::MAX].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(texts, ["0 bytes", "1023 bytes", "1.00 KiB", "20.00 GiB", "16384.00 PiB"]);
    }

    #[test]
    fn the_first_answer_to_a_broken_rule_is_the_driver_s() {
        for rule in Rule::ALL {
            if let Some(code) = rule.driver_code() {
                assert_eq!(answers(*rule).first(), Some(&code), "{rule}");
            }
        }
    }

    #[test]
    fn machine_code_serves_its_own_generation_only() {
        let judge = |major, minor| {
            let evidence = Evidence {
                capability: Some(ComputeCapability::new(major, minor)),
                architectures: vec![ComputeCapability::new(8, 0), ComputeCapability::new(9, 0)],
                ..Evidence::default()
            };
            evidence.judge(Hint::Architecture)
        };
        assert!(matches!(judge(8, 9), Excluded(_)));
        assert!(matches!(judge(7, 5), Likely(_)));
        assert!(matches!(judge(12, 0), Likely(_)));
    }
}
