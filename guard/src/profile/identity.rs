//! Whose measurements a profile holds.

use serde::{Deserialize, Serialize};

use super::processor::Processor;
use crate::limits::{ComputeCapability, DeviceLimits};

/// What ran the launches that were timed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A CUDA device.
    #[default]
    Cuda,
    /// The processor, under the limits of a device.
    Host,
}

impl core::fmt::Display for Backend {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Cuda => "cuda",
            Self::Host => "host",
        })
    }
}

/// The device that a profile was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// What ran the launches.
    #[serde(default)]
    pub backend: Backend,
    /// The device's name as `cuDeviceGetName` answers it.
    pub name: String,
    /// Its compute capability.
    pub compute_capability: ComputeCapability,
    /// Multiprocessors; an instance of a device that was partitioned has fewer.
    pub multiprocessors: u64,
    /// Memory of the device in bytes.
    pub memory_bytes: u64,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// What ran the launches in the place of the device; none of a CUDA device, nor in the host's
    /// profiles of earlier versions, which therefore serve no host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<Processor>,
}

/// Why a profile is not one of a device: the first thing that differs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Times of the host say nothing of a device, nor the reverse.
    #[error("the profile was measured on backend {profile}, this is {device}: tune here")]
    Backend {
        /// The profile's.
        profile: Backend,
        /// The device's.
        device: Backend,
    },
    /// Another name, which is not among the aliases either.
    #[error(
        "the profile is of {profile:?}, the device is {device:?}: tune here, or declare an alias"
    )]
    Name {
        /// The profile's.
        profile: String,
        /// The device's.
        device: String,
    },
    /// Another compute capability.
    #[error("the profile is of compute capability {profile}, the device has {device}: tune here")]
    ComputeCapability {
        /// The profile's.
        profile: ComputeCapability,
        /// The device's.
        device: ComputeCapability,
    },
    /// Another number of multiprocessors.
    #[error("the profile is of {profile} multiprocessors, the device has {device}: tune here")]
    Multiprocessors {
        /// The profile's.
        profile: u64,
        /// The device's.
        device: u64,
    },
    /// Another L2 cache.
    #[error("the profile is of {profile} bytes of L2 cache, the device has {device}: tune here")]
    L2Bytes {
        /// The profile's.
        profile: u64,
        /// The device's.
        device: u64,
    },
    /// More memory or less, by more than a sixteenth.
    #[error("the profile is of {profile} bytes of memory, the device has {device}: tune here")]
    MemoryBytes {
        /// The profile's.
        profile: u64,
        /// The device's.
        device: u64,
    },
    /// Another processor of the host.
    #[error("the profile is of {}, this is {}: tune here", named(profile), named(device))]
    Processor {
        /// The profile's, where it names one.
        profile: Option<Processor>,
        /// The one that runs here, where it is the host that does.
        device: Option<Processor>,
    },
}

fn named(processor: &Option<Processor>) -> String {
    processor.as_ref().map_or_else(|| "a processor without a name".into(), Processor::to_string)
}

impl DeviceIdentity {
    /// The identity of a CUDA device.
    ///
    /// ```
    /// use gridguard::DeviceLimits;
    /// use gridguard::profile::DeviceIdentity;
    ///
    /// let device = DeviceIdentity::of(&DeviceLimits::any_device());
    /// assert_eq!(device.file_name(), "any-cuda-device.ron");
    /// assert!(device.on_host().file_name().starts_with("host-any-cuda-device-"));
    /// ```
    #[must_use]
    pub fn of(limits: &DeviceLimits) -> Self {
        Self {
            backend: Backend::Cuda,
            name: limits.name.clone(),
            compute_capability: limits.compute_capability,
            multiprocessors: limits.multiprocessors,
            memory_bytes: limits.memory_bytes,
            l2_bytes: limits.l2_bytes,
            processor: None,
        }
    }

    /// The identity of this process's host, which runs plans under the limits of this device.
    #[must_use]
    pub fn on_host(self) -> Self {
        let processor = Some(Processor::of_this_machine().clone());
        Self { backend: Backend::Host, processor, ..self }
    }

    /// The name of the device's file: lower case, with dashes, such as `nvidia-h200.ron`. The host's
    /// names the processor too, for machines often share their users' folders.
    #[must_use]
    pub fn file_name(&self) -> String {
        let prefix = match self.backend {
            Backend::Cuda => "",
            Backend::Host => "host ",
        };
        let processor = self.processor.as_ref().map(Processor::to_string).unwrap_or_default();
        let name = format!("{prefix}{} {processor}", self.name).to_lowercase();
        let words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let mut file = words.collect::<Vec<_>>().join("-");
        // File systems take 255 bytes, and a lock and a backup are named after the file.
        while file.len() > MAX_FILE_STEM_BYTES {
            file.pop();
        }
        file + ".ron"
    }

    /// Whether a profile of `self`, declared to hold for `aliases` too, serves `device`.
    ///
    /// Memory may differ by a sixteenth: drivers and error correction report different totals.
    ///
    /// # Errors
    ///
    /// The first thing that differs.
    pub fn serves(&self, aliases: &[String], device: &Self) -> Result<(), Mismatch> {
        // No `..`: what an identity is to hold as well must be compared as well.
        let Self {
            backend,
            name,
            compute_capability,
            multiprocessors,
            memory_bytes,
            l2_bytes,
            processor,
        } = self;
        if *backend != device.backend {
            return Err(Mismatch::Backend { profile: *backend, device: device.backend });
        }
        if *name != device.name && !aliases.contains(&device.name) {
            return Err(Mismatch::Name { profile: name.clone(), device: device.name.clone() });
        }
        if *compute_capability != device.compute_capability {
            let (profile, device) = (*compute_capability, device.compute_capability);
            return Err(Mismatch::ComputeCapability { profile, device });
        }
        if *multiprocessors != device.multiprocessors {
            let (profile, device) = (*multiprocessors, device.multiprocessors);
            return Err(Mismatch::Multiprocessors { profile, device });
        }
        if *l2_bytes != device.l2_bytes {
            return Err(Mismatch::L2Bytes { profile: *l2_bytes, device: device.l2_bytes });
        }
        let (profile, bytes) = (*memory_bytes, device.memory_bytes);
        if profile.abs_diff(bytes) > profile.max(bytes) / MEMORY_TOLERANCE {
            return Err(Mismatch::MemoryBytes { profile, device: bytes });
        }
        if *processor != device.processor {
            let (profile, device) = (processor.clone(), device.processor.clone());
            return Err(Mismatch::Processor { profile, device });
        }
        Ok(())
    }
}

/// Memory may differ by one part in so many.
const MEMORY_TOLERANCE: u64 = 16;
/// The longest name of a file without its extension.
const MAX_FILE_STEM_BYTES: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    fn h200() -> DeviceIdentity {
        DeviceIdentity {
            backend: Backend::Cuda,
            name: "NVIDIA H200".into(),
            compute_capability: ComputeCapability::new(9, 0),
            multiprocessors: 132,
            memory_bytes: 150_110_011_392,
            l2_bytes: 62_914_560,
            processor: None,
        }
    }

    #[test]
    fn a_profile_serves_its_own_device_and_its_aliases() {
        let nvl = DeviceIdentity { name: "NVIDIA H200 NVL".into(), ..h200() };
        assert_eq!(h200().serves(&[], &h200()), Ok(()));
        assert!(matches!(h200().serves(&[], &nvl), Err(Mismatch::Name { .. })));
        assert_eq!(h200().serves(&["NVIDIA H200 NVL".into()], &nvl), Ok(()));
    }

    #[test]
    fn each_other_field_tells_devices_apart() {
        let mismatch = |device: DeviceIdentity| h200().serves(&[], &device).expect_err("another");
        let cc = ComputeCapability::new(10, 0);
        let device = DeviceIdentity { compute_capability: cc, ..h200() };
        assert!(matches!(mismatch(device), Mismatch::ComputeCapability { .. }));
        let device = DeviceIdentity { multiprocessors: 66, ..h200() };
        assert_eq!(mismatch(device), Mismatch::Multiprocessors { profile: 132, device: 66 });
        let device = DeviceIdentity { l2_bytes: 1, ..h200() };
        assert_eq!(mismatch(device), Mismatch::L2Bytes { profile: 62_914_560, device: 1 });
        let device = h200().on_host();
        let (profile, host) = (Backend::Cuda, Backend::Host);
        assert_eq!(mismatch(device), Mismatch::Backend { profile, device: host });
    }

    #[test]
    fn another_processor_is_another_device_and_one_without_a_name_is_none_that_runs_here() {
        let on = |name: &str, threads| DeviceIdentity {
            processor: Some(Processor { name: name.into(), threads }),
            ..h200().on_host()
        };
        let (one, nameless) = (on("A 1", 2), DeviceIdentity { processor: None, ..on("", 0) });
        assert_eq!(one.serves(&[], &on("A 1", 2)), Ok(()));
        for other in [on("A 1", 4), on("A 2", 2), nameless.clone()] {
            let mismatch = other.serves(&[], &one).expect_err("another");
            let (profile, device) = (other.processor, one.processor.clone());
            assert_eq!(mismatch, Mismatch::Processor { profile, device });
        }
        assert_eq!(nameless.serves(&[], &nameless), Ok(()));
        assert_eq!(one.file_name(), "host-nvidia-h200-a-1-with-2-threads.ron");
        assert_eq!(nameless.file_name(), "host-nvidia-h200.ron");
    }

    #[test]
    fn memory_may_differ_by_a_sixteenth_and_no_more() {
        let with = |memory_bytes| DeviceIdentity { memory_bytes, ..h200() };
        assert_eq!(with(1600).serves(&[], &with(1500)), Ok(()));
        assert_eq!(with(1500).serves(&[], &with(1600)), Ok(()));
        let mismatch = with(1600).serves(&[], &with(1499));
        assert_eq!(mismatch, Err(Mismatch::MemoryBytes { profile: 1600, device: 1499 }));
    }

    #[test]
    fn a_name_that_is_no_path_makes_a_file_name() {
        let named = |name: &str| DeviceIdentity { name: name.into(), ..h200() }.file_name();
        assert_eq!(h200().file_name(), "nvidia-h200.ron");
        assert_eq!(named("../../etc/passwd"), "etc-passwd.ron");
        assert_eq!(
            named("NVIDIA H100 80GB HBM3 (MIG 1g.10gb)"),
            "nvidia-h100-80gb-hbm3-mig-1g-10gb.ron"
        );
        assert!(named(&"x".repeat(1000)).len() < 255);
    }
}
