//! The device and the software versions of a profile's measurements.

use core::cmp::Ordering;
use std::fs;
use std::thread::available_parallelism;

use derive_more::Display;
use once_cell::sync::OnceCell;
use serde::{Deserialize, Serialize};

use crate::launch::violation::count;
use crate::limits::{ComputeCapability, DeviceLimits};

/// The back end that ran the timed launches.
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[display(rename_all = "lowercase")]
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// A CUDA device.
    #[default]
    Cuda,
    /// The CPU, under the limits of a device.
    Host,
}

/// The device that a profile was measured on.
#[derive(Clone, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[display(
    "{}{name}, compute capability {compute_capability}, {multiprocessors} multiprocessors",
    match backend { Backend::Cuda => "", Backend::Host => "the host as " }
)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// The back end that ran the launches.
    #[serde(default)]
    pub backend: Backend,
    /// The device's name as `cuDeviceGetName` returns it.
    pub name: String,
    /// Its compute capability.
    pub compute_capability: ComputeCapability,
    /// Number of multiprocessors. An instance of a partitioned device has fewer than the device.
    pub multiprocessors: u64,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// L2 cache in bytes.
    pub l2_bytes: u64,
    /// The CPU that ran the launches. `None` for a CUDA device, and in host profiles of earlier versions,
    /// which match no host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<Processor>,
}

/// Why a profile does not apply to a device: the first difference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{property} is {profile} in the profile and {device} on this device: tune on this device{}",
    if *property == NAME { ", or add its name to the profile's aliases" } else { "" }
)]
pub struct DeviceMismatch {
    /// The property that differs, such as `compute capability`.
    pub property: &'static str,
    /// Its value in the profile.
    pub profile: String,
    /// Its value on the device.
    pub device: String,
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

    /// The name of the device's profile file, such as `nvidia-h200.ron`. The name of a host's file also has
    /// the processor, because machines often share a home folder.
    pub fn file_name(&self) -> String {
        let prefix = match self.backend {
            Backend::Cuda => "",
            Backend::Host => "host ",
        };
        let processor = self.processor.as_ref().map(Processor::to_string).unwrap_or_default();
        let name = format!("{prefix}{} {processor}", self.name).to_lowercase();
        let words = name.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        let mut file = words.collect::<Vec<_>>().join("-");
        // File systems allow 255 bytes, and lock and backup files append to this name.
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
        let bytes = [self.memory_bytes, device.memory_bytes];
        let mut pairs = self.properties().into_iter().zip(device.properties());
        let mismatch = pairs.find(|((property, own), (_, other))| match *property {
            NAME => own != other && !aliases.contains(&device.name),
            MEMORY => bytes[0].abs_diff(bytes[1]) > bytes[0].max(bytes[1]) / MEMORY_TOLERANCE,
            _ => own != other,
        });
        let Some(((property, profile), (_, device))) = mismatch else { return Ok(()) };
        Err(DeviceMismatch { property, profile, device })
    }

    /// The properties that must agree, with their values as text.
    fn properties(&self) -> [(&'static str, String); 7] {
        [
            ("the backend", self.backend.to_string()),
            (NAME, self.name.clone()),
            ("the compute capability", self.compute_capability.to_string()),
            ("the number of multiprocessors", self.multiprocessors.to_string()),
            ("the L2 cache in bytes", self.l2_bytes.to_string()),
            (MEMORY, self.memory_bytes.to_string()),
            (
                "the processor",
                self.processor.as_ref().map_or("unnamed".into(), Processor::to_string),
            ),
        ]
    }
}

/// A CPU and the number of its threads that a process may use.
///
/// ```
/// use gridguard::profile::Processor;
///
/// let processor = Processor::current();
/// assert!(!processor.name.is_empty() && processor.threads > 0);
/// ```
#[derive(Clone, Debug, Display, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[display("{name} with {}", count(*threads, "thread"))]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// The model in `/proc/cpuinfo`, or `unknown processor`.
    pub name: String,
    /// Threads that can run at the same time. Affinity and control groups limit them.
    pub threads: u64,
}

impl Processor {
    /// The CPU of this process. It is queried once, or until its name can be read.
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

/// The value with single spaces, without control characters, and shortened to the limit of names.
fn printable(value: &str) -> String {
    let words: Vec<&str> = value.split_whitespace().collect();
    words.join(" ").chars().filter(|c| !c.is_control()).take(MAX_MODEL_CHARACTERS).collect()
}

/// The software versions of measurements. An empty string means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Environment {
    /// The driver's CUDA version, as `13.0`; empty on the host.
    pub driver: String,
    /// The version of the device code's compiler with its build if known, as `13.0` or `13.0.88`; empty on the host.
    pub compiler: String,
    /// The version of the tuner, or of the crate that looks up entries.
    pub tuner: String,
}

impl Environment {
    /// The environment of the host: only this crate's version.
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
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let compiler = build_of(&maps, &compiler).unwrap_or(compiler);
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

/// The build of the loaded NVRTC, as `13.0.88`, by the name of its file. Builds of a version may make other code.
#[cfg(feature = "cuda")]
fn build_of(maps: &str, version: &str) -> Option<String> {
    let builds = maps.lines().filter_map(|line| line.rsplit_once("/libnvrtc.so."));
    let mut builds = builds.map(|(_, build)| build);
    let is_build = |build: &&str| {
        let rest = build.strip_prefix(version).and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    builds.find(is_build).map(str::to_owned)
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

/// Whether two versions have the same major number. An unknown version matches all.
pub(super) fn same_major(one: &str, other: &str) -> bool {
    one.is_empty() || other.is_empty() || one.split('.').next() == other.split('.').next()
}

/// Whether two versions are the same. An unknown version matches all, and an unknown build, as of `13.0`, each build.
pub(super) fn same(one: &str, other: &str) -> bool {
    let is_build_of = |long: &str, short: &str| {
        long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    one.is_empty() || other.is_empty() || is_build_of(one, other) || is_build_of(other, one)
}

/// Device memory may differ by 1/16.
const MEMORY_TOLERANCE: u64 = 16;
const NAME: &str = "the device name";
const MEMORY: &str = "the memory in bytes";
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
    #[cfg(feature = "cuda")]
    fn the_build_of_a_compiler_is_in_the_name_of_its_file() {
        let maps = "7f00-7f01 r-xp 0 08:01 9 /usr/lib/libc.so.6\n\
                    7f02-7f03 r-xp 0 08:01 7 /usr/local/cuda/lib64/libnvrtc.so.13.0.88\n";
        assert_eq!(build_of(maps, "13.0").as_deref(), Some("13.0.88"));
        assert_eq!(build_of(maps, "13"), None);
        assert_eq!(build_of(&maps.replace(".0.88", ""), "13.0"), None, "a name without a build");
        assert!(same("13.0", "13.0.88") && same("13.0.88", "13.0") && same("", "13.0.88"));
        assert!(!same("13.0.48", "13.0.88") && !same("13.0", "13.01"));
    }

    #[test]
    fn a_profile_applies_to_its_own_device_and_its_aliases() {
        let nvl = DeviceIdentity { name: "NVIDIA H200 NVL".into(), ..h200() };
        assert_eq!(h200().serves(&[], &h200()), Ok(()));
        let mismatch = h200().serves(&[], &nvl).expect_err("another name");
        assert_eq!(mismatch.property, NAME);
        assert_eq!(h200().serves(&["NVIDIA H200 NVL".into()], &nvl), Ok(()));
    }

    #[test]
    fn every_other_field_distinguishes_devices() {
        let differs = |device: DeviceIdentity, values: [&str; 3]| {
            let mismatch = h200().serves(&[], &device).expect_err("another device");
            let DeviceMismatch { property, profile, device } = &mismatch;
            assert_eq!([property, profile.as_str(), device], values);
        };
        let capability = ComputeCapability::new(10, 0);
        let device = DeviceIdentity { compute_capability: capability, ..h200() };
        differs(device, ["the compute capability", "9.0", "10.0"]);
        let device = DeviceIdentity { multiprocessors: 66, ..h200() };
        differs(device, ["the number of multiprocessors", "132", "66"]);
        let device = DeviceIdentity { l2_bytes: 1, ..h200() };
        differs(device, ["the L2 cache in bytes", "62914560", "1"]);
        differs(h200().on_host(), ["the backend", "cuda", "host"]);
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
            assert_eq!(
                (mismatch.property, &*mismatch.device),
                ("the processor", "A 1 with 2 threads")
            );
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
        let mismatch = with(1600).serves(&[], &with(1499)).expect_err("less");
        assert_eq!(
            mismatch.to_string(),
            "the memory in bytes is 1600 in the profile and 1499 on this device: tune on this device"
        );
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
