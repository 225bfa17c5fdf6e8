//! The device and the software versions that a profile was measured with.

use core::cmp::Ordering;
use core::fmt;
use std::fs;
use std::thread::available_parallelism;

use once_cell::sync::OnceCell;
use serde::{Deserialize, Serialize};

use crate::limits::{ComputeCapability, DeviceLimits};

/// What ran the timed launches.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A CUDA device.
    #[default]
    Cuda,
    /// The CPU, under the limits of a device.
    Host,
}

impl fmt::Display for Backend {
    /// `cuda`, `host`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The device that a profile was measured on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// What ran the launches.
    #[serde(default)]
    pub backend: Backend,
    /// The device's name as `cuDeviceGetName` returns it.
    pub name: String,
    /// Its compute capability.
    pub compute_capability: ComputeCapability,
    /// Number of multiprocessors; an instance of a partitioned device has fewer.
    pub multiprocessors: u64,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// The CPU that ran the launches; `None` for a CUDA device, and in host profiles of earlier
    /// versions, which no host matches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<Processor>,
}

/// Why a profile does not apply to a device: the first difference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceMismatch {
    /// Times of the host do not apply to a device, nor the reverse.
    #[error("the profile was measured on backend {profile}, this is {device}: tune here")]
    Backend {
        /// The profile's.
        profile: Backend,
        /// The device's.
        device: Backend,
    },
    /// The device's name is neither the profile's nor one of its aliases.
    #[error("the profile is for {profile:?}, the device is {device:?}: tune here or add an alias")]
    Name {
        /// The profile's.
        profile: String,
        /// The device's.
        device: String,
    },
    /// The compute capability differs.
    #[error("the profile is for compute capability {profile}, the device has {device}: tune here")]
    ComputeCapability {
        /// The profile's.
        profile: ComputeCapability,
        /// The device's.
        device: ComputeCapability,
    },
    /// The number of multiprocessors differs.
    #[error("the profile is for {profile} multiprocessors, the device has {device}: tune here")]
    Multiprocessors {
        /// The profile's.
        profile: u64,
        /// The device's.
        device: u64,
    },
    /// The size of the L2 cache differs.
    #[error("the profile is for {profile} bytes of L2 cache, the device has {device}: tune here")]
    L2Bytes {
        /// The profile's.
        profile: u64,
        /// The device's.
        device: u64,
    },
    /// Device memory differs by more than a sixteenth.
    #[error("the profile is for {profile} bytes of memory, the device has {device}: tune here")]
    MemoryBytes {
        /// The profile's.
        profile: u64,
        /// The device's.
        device: u64,
    },
    /// The host's processor differs.
    #[error("the profile is for {}, this is {}: tune here", named(profile), named(device))]
    Processor {
        /// The profile's, if it names one.
        profile: Option<Processor>,
        /// The one of this machine.
        device: Option<Processor>,
    },
}

fn named(processor: &Option<Processor>) -> String {
    processor.as_ref().map_or_else(|| "an unnamed processor".into(), Processor::to_string)
}

impl DeviceIdentity {
    /// The identity of a CUDA device.
    ///
    /// ```
    /// use gridguard::DeviceLimits;
    /// use gridguard::profile::DeviceIdentity;
    ///
    /// let device = DeviceIdentity::new(&DeviceLimits::any_device());
    /// assert_eq!(device.file_name(), "generic-cuda-device.ron");
    /// assert!(device.on_host().file_name().starts_with("host-generic-cuda-device-"));
    /// ```
    #[must_use]
    pub fn new(limits: &DeviceLimits) -> Self {
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

    /// The identity of this machine's CPU, which runs plans under the limits of this device.
    #[must_use]
    pub fn on_host(self) -> Self {
        let processor = Some(Processor::current());
        Self { backend: Backend::Host, processor, ..self }
    }

    /// The name of the device's file: lower case with dashes, such as `nvidia-h200.ron`. A host's
    /// file also names the processor, because machines often share a home folder.
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
        // File systems allow 255 bytes, and the lock and backup files append to this name.
        while file.len() > MAX_FILE_STEM_BYTES {
            file.pop();
        }
        file + ".ron"
    }

    /// Checks that a profile of `self`, with these aliases, applies to `device`.
    ///
    /// Memory may differ by a sixteenth: drivers and error correction report different totals.
    ///
    /// # Errors
    ///
    /// The first difference.
    pub fn serves(&self, aliases: &[String], device: &Self) -> Result<(), DeviceMismatch> {
        // No `..`, so that a new field cannot be forgotten here.
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
            return Err(DeviceMismatch::Backend { profile: *backend, device: device.backend });
        }
        if *name != device.name && !aliases.contains(&device.name) {
            return Err(DeviceMismatch::Name {
                profile: name.clone(),
                device: device.name.clone(),
            });
        }
        if *compute_capability != device.compute_capability {
            let (profile, device) = (*compute_capability, device.compute_capability);
            return Err(DeviceMismatch::ComputeCapability { profile, device });
        }
        if *multiprocessors != device.multiprocessors {
            let (profile, device) = (*multiprocessors, device.multiprocessors);
            return Err(DeviceMismatch::Multiprocessors { profile, device });
        }
        if *l2_bytes != device.l2_bytes {
            return Err(DeviceMismatch::L2Bytes { profile: *l2_bytes, device: device.l2_bytes });
        }
        let (profile, bytes) = (*memory_bytes, device.memory_bytes);
        if profile.abs_diff(bytes) > profile.max(bytes) / MEMORY_TOLERANCE {
            return Err(DeviceMismatch::MemoryBytes { profile, device: bytes });
        }
        if *processor != device.processor {
            let (profile, device) = (processor.clone(), device.processor.clone());
            return Err(DeviceMismatch::Processor { profile, device });
        }
        Ok(())
    }
}

impl fmt::Display for DeviceIdentity {
    /// `NVIDIA H200, backend cuda, compute capability 9.0, 132 multiprocessors`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { backend, name, compute_capability, multiprocessors, .. } = self;
        write!(
            f,
            "{name}, backend {backend}, compute capability {compute_capability}, \
             {multiprocessors} multiprocessors"
        )
    }
}

/// A CPU and how many of its threads a process may use.
///
/// ```
/// use gridguard::profile::Processor;
///
/// let processor = Processor::current();
/// assert!(!processor.name.is_empty() && processor.threads > 0);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// The model as in `/proc/cpuinfo`, or `unknown processor`.
    pub name: String,
    /// Threads that can run at the same time, as limited by affinity and control groups.
    pub threads: u64,
}

impl Processor {
    /// The CPU of this process, queried once; again if its name could not be read.
    pub fn current() -> Self {
        static CURRENT: OnceCell<Processor> = OnceCell::new();
        let query = || {
            let name = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| model(&text));
            let threads = available_parallelism().map_or(1, |threads| threads.get());
            let threads = u64::try_from(threads).unwrap_or(u64::MAX);
            match name {
                Some(name) => Ok(Self { name, threads }),
                None => Err(Self { name: UNKNOWN.to_owned(), threads }),
            }
        };
        CURRENT.get_or_try_init(query).cloned().unwrap_or_else(|unknown| unknown)
    }
}

impl fmt::Display for Processor {
    /// `AMD EPYC 9654 96-Core Processor with 192 threads`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, threads } = self;
        write!(f, "{name} with {threads} thread{}", if *threads == 1 { "" } else { "s" })
    }
}

/// The processor's model in the text of `/proc/cpuinfo`.
fn model(text: &str) -> Option<String> {
    let value = |wanted: &str| {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let mut values =
            fields.filter(|(name, _)| name.trim() == wanted).map(|(_, value)| printable(value));
        values.find(|value| !value.is_empty())
    };
    let numbered = || {
        // Arm processors are identified by numbers.
        let (implementer, part) = (value("CPU implementer")?, value("CPU part")?);
        Some(format!("Arm processor {implementer} {part}"))
    };
    value("model name").or_else(numbered).or_else(|| value("cpu"))
}

/// The value with single spaces, without control characters, and shortened to a name's limit.
fn printable(value: &str) -> String {
    let words: Vec<&str> = value.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).take(MAX_MODEL_CHARACTERS).collect()
}

/// The software versions that a profile was measured with; an empty string means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Environment {
    /// The driver's CUDA version, as `13.0`; empty on the host.
    pub driver: String,
    /// The version of the device code's compiler, as `13.0`; empty on the host.
    pub compiler: String,
    /// The version of the tuner, or of the crate that looks up.
    pub tuner: String,
}

impl Environment {
    /// The environment of the host: this crate's version alone.
    #[must_use]
    pub fn host() -> Self {
        let tuner = env!("CARGO_PKG_VERSION").to_owned();
        Self { tuner, ..Self::default() }
    }

    /// The versions of this machine's CUDA driver, and of NVRTC if it is installed.
    ///
    /// # Errors
    ///
    /// [`CudaError`](crate::cuda::CudaError) if there is no driver.
    #[cfg(feature = "cuda")]
    pub fn cuda() -> Result<Self, crate::cuda::error::CudaError> {
        let driver = crate::cuda::driver::query::driver_version()?;
        let driver = format!("{}.{}", driver / 1000, driver % 1000 / 10);
        let version = crate::cuda::driver::nvrtc::Compiler::find()
            .ok()
            .and_then(|found| found.version().ok());
        let compiler = version.map(|(major, minor)| format!("{major}.{minor}")).unwrap_or_default();
        Ok(Self { driver, compiler, ..Self::host() })
    }

    /// The later of each version.
    pub(super) fn latest(&self, other: &Self) -> Self {
        let Self { driver, compiler, tuner } = self;
        Self {
            driver: later(driver, &other.driver),
            compiler: later(compiler, &other.compiler),
            tuner: later(tuner, &other.tuner),
        }
    }
}

fn later(one: &str, other: &str) -> String {
    match compare(one, other) {
        Ordering::Less => other.to_owned(),
        Ordering::Equal | Ordering::Greater => one.to_owned(),
    }
}

/// Compares by number, then by text: a total order.
fn compare(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        version.split('.').map(|number| number.parse().unwrap_or(0)).collect()
    };
    numbers(one).cmp(&numbers(other)).then_with(|| one.cmp(other))
}

/// Whether two versions have the same major number; an unknown version matches all.
pub(super) fn same_major(one: &str, other: &str) -> bool {
    one.is_empty() || other.is_empty() || one.split('.').next() == other.split('.').next()
}

/// Whether two versions are the same; an unknown version matches all.
pub(super) fn same(one: &str, other: &str) -> bool {
    one.is_empty() || other.is_empty() || one == other
}

/// Device memory may differ by one part in so many.
const MEMORY_TOLERANCE: u64 = 16;
/// The most bytes of a file name without its extension.
const MAX_FILE_STEM_BYTES: usize = 200;
const UNKNOWN: &str = "unknown processor";
/// The most characters of a processor's name: a quarter of the bytes allowed in a header.
const MAX_MODEL_CHARACTERS: usize = 64;

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
    fn a_profile_applies_to_its_own_device_and_its_aliases() {
        let nvl = DeviceIdentity { name: "NVIDIA H200 NVL".into(), ..h200() };
        assert_eq!(h200().serves(&[], &h200()), Ok(()));
        assert!(matches!(h200().serves(&[], &nvl), Err(DeviceMismatch::Name { .. })));
        assert_eq!(h200().serves(&["NVIDIA H200 NVL".into()], &nvl), Ok(()));
    }

    #[test]
    fn every_other_field_distinguishes_devices() {
        let mismatch = |device: DeviceIdentity| h200().serves(&[], &device).expect_err("another");
        let cc = ComputeCapability::new(10, 0);
        let device = DeviceIdentity { compute_capability: cc, ..h200() };
        assert!(matches!(mismatch(device), DeviceMismatch::ComputeCapability { .. }));
        let device = DeviceIdentity { multiprocessors: 66, ..h200() };
        assert_eq!(mismatch(device), DeviceMismatch::Multiprocessors { profile: 132, device: 66 });
        let device = DeviceIdentity { l2_bytes: 1, ..h200() };
        assert_eq!(mismatch(device), DeviceMismatch::L2Bytes { profile: 62_914_560, device: 1 });
        let device = h200().on_host();
        let (profile, host) = (Backend::Cuda, Backend::Host);
        assert_eq!(mismatch(device), DeviceMismatch::Backend { profile, device: host });
    }

    #[test]
    fn a_host_profile_applies_only_to_its_own_named_processor() {
        let on = |name: &str, threads| DeviceIdentity {
            processor: Some(Processor { name: name.into(), threads }),
            ..h200().on_host()
        };
        let (one, nameless) = (on("A 1", 2), DeviceIdentity { processor: None, ..on("", 0) });
        assert_eq!(one.serves(&[], &on("A 1", 2)), Ok(()));
        for other in [on("A 1", 4), on("A 2", 2), nameless.clone()] {
            let mismatch = other.serves(&[], &one).expect_err("another");
            let (profile, device) = (other.processor, one.processor.clone());
            assert_eq!(mismatch, DeviceMismatch::Processor { profile, device });
        }
        assert_eq!(nameless.serves(&[], &nameless), Ok(()));
        assert_eq!(one.file_name(), "host-nvidia-h200-a-1-with-2-threads.ron");
        assert_eq!(nameless.file_name(), "host-nvidia-h200.ron");
    }

    #[test]
    fn memory_may_differ_by_a_sixteenth_at_most() {
        let with = |memory_bytes| DeviceIdentity { memory_bytes, ..h200() };
        assert_eq!(with(1600).serves(&[], &with(1500)), Ok(()));
        assert_eq!(with(1500).serves(&[], &with(1600)), Ok(()));
        let mismatch = with(1600).serves(&[], &with(1499));
        assert_eq!(mismatch, Err(DeviceMismatch::MemoryBytes { profile: 1600, device: 1499 }));
    }

    #[test]
    fn any_device_name_becomes_a_valid_file_name() {
        let named = |name: &str| DeviceIdentity { name: name.into(), ..h200() }.file_name();
        assert_eq!(h200().file_name(), "nvidia-h200.ron");
        assert_eq!(named("../../etc/passwd"), "etc-passwd.ron");
        assert_eq!(
            named("NVIDIA H100 80GB HBM3 (MIG 1g.10gb)"),
            "nvidia-h100-80gb-hbm3-mig-1g-10gb.ron"
        );
        assert!(named(&"x".repeat(1000)).len() < 255);
    }

    #[test]
    fn the_processor_model_is_read_from_cpuinfo() {
        let named = |text: &str| model(text).unwrap_or_default();
        let x86 = "processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC 9654  96-Core Processor\n";
        assert_eq!(named(&x86.repeat(2)), "AMD EPYC 9654 96-Core Processor");
        let arm =
            "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x0\nCPU part\t: 0xd4f\n";
        assert_eq!(named(arm), "Arm processor 0x41 0xd4f");
        assert_eq!(named("cpu\t\t: POWER9, altivec supported\n"), "POWER9, altivec supported");
        assert_eq!(model("model name\t:\n\nprocessor : 0\n"), None);
        let long = format!("model name : {}\u{7}", "\u{1f4bb}".repeat(1000));
        assert_eq!(named(&long).len(), 256);
    }

    #[test]
    fn a_processor_is_displayed_with_its_threads() {
        let processor = |threads| Processor { name: UNKNOWN.into(), threads }.to_string();
        assert_eq!(processor(1), "unknown processor with 1 thread");
        assert_eq!(processor(2), "unknown processor with 2 threads");
    }

    #[test]
    fn versions_compare_by_number() {
        assert_eq!(later("9.2", "12.10"), "12.10");
        assert_eq!(later("12.9", "12.10"), "12.10");
        assert_eq!(later("13.0", ""), "13.0");
    }

    #[test]
    fn the_major_version_is_the_part_before_the_first_dot() {
        assert!(same_major("13.0", "13.1"));
        assert!(!same_major("13.0", "1.3"));
        assert!(same_major("13.0", ""), "unknown");
        assert!(!same("13.0", "13.1"));
    }
}
