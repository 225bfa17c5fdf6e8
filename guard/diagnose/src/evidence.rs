//! Facts about a failure besides its code or message, and how they rank its causes.

use core::fmt;

use super::capability::Capability;
use super::clue::{Clue, Row};
use super::failure::{Hint, KnownCause};
use super::remarks::Remarks;
use super::stated::WorkSizes;

/// Facts about a failure. Every field may be missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The device's name, such as `NVIDIA H200`.
    pub device_name: Option<String>,
    /// The failed launch.
    pub launch: Option<LaunchConfig>,
    /// The rules that the launch violates. Empty if it was checked and violates none.
    pub violated_rules: Option<Vec<ViolatedRule>>,
    /// The CUDA version that the driver supports.
    pub driver_cuda: Option<CudaVersion>,
    /// The CUDA version of the program, its PTX or its NVRTC.
    pub program_cuda: Option<CudaVersion>,
    /// Bytes requested from the allocator.
    pub requested_bytes: Option<u64>,
    /// Free bytes on the device.
    pub free_bytes: Option<u64>,
    /// Total bytes of the device.
    pub total_bytes: Option<u64>,
    /// Bytes reserved but unused by an allocator in this process.
    pub cached_bytes: Option<u64>,
    /// Bytes of the device that this process uses.
    pub process_bytes: Option<u64>,
    /// Bytes of local memory of each thread of the kernel that was launched.
    pub local_bytes_per_thread: Option<u64>,
    /// Threads that can be resident on the device.
    pub resident_threads: Option<u64>,
    /// Number of devices visible to the process.
    pub visible_devices: Option<usize>,
    /// The requested device ordinal.
    pub ordinal: Option<usize>,
    /// The device's compute capability.
    pub capability: Option<Capability>,
    /// Architectures of the program's machine code; empty if unknown.
    pub architectures: Vec<Capability>,
    /// The failed assertion of device code.
    pub assertion: Option<String>,
    /// Recent launches that may have failed, newest last.
    pub recent_launches: Vec<String>,
    /// The failed launch, if each launch was synchronized.
    pub faulting_launch: Option<String>,
    /// The sizes of the launch that the log states.
    pub launch_sizes: LaunchSizes,
    /// Clues in the log and its traceback.
    pub clues: Vec<Clue>,
    /// The driver's log about the failed call (`CUDA_LOG_FILE`).
    pub driver_log: Vec<String>,
    /// The Python program that failed.
    pub program: Option<String>,
    /// The kernel that the log names as the failed one.
    pub kernel: Option<String>,
    /// The most shared memory that a block can have on the device, in bytes, with opt-in.
    pub max_shared_bytes: Option<u64>,
    /// Further facts in the log.
    pub remarks: Remarks,
}

/// The configuration of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks of the grid on x, y and z.
    pub grid: [u64; 3],
    /// Threads of a block on x, y and z.
    pub block: [u64; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u64,
    /// Blocks of a cluster on x, y and z.
    pub cluster: Option<[u64; 3]>,
    /// Whether all blocks must be co-resident.
    pub cooperative: bool,
    /// Whether it may begin before the previous launch ends.
    pub dependent: bool,
    /// The kernel's parameters, in bytes; 0 if unknown.
    pub parameter_bytes: u64,
    /// The most threads of a block that the kernel's registers allow.
    pub kernel_threads: Option<u64>,
}

impl LaunchConfig {
    /// The launch as options of `gridguard check`.
    pub(super) fn options(&self) -> String {
        let sizes = |[x, y, z]: [u64; 3]| format!("{x},{y},{z}");
        let nonzero = |bytes: u64| (bytes > 0).then(|| bytes.to_string());
        let options = [
            ("--grid", Some(sizes(self.grid))),
            ("--block", Some(sizes(self.block))),
            ("--shared-mem", nonzero(self.shared_bytes)),
            ("--cluster", self.cluster.map(sizes)),
            ("--cooperative", self.cooperative.then(String::new)),
            ("--dependent", self.dependent.then(String::new)),
            ("--param-bytes", nonzero(self.parameter_bytes)),
            ("--kernel-max-threads", self.kernel_threads.map(|it| it.to_string())),
        ];
        let options = options.into_iter().filter_map(|(name, value)| {
            value.map(|value| format!("{name} {value}").trim_end().to_owned())
        });
        options.collect::<Vec<_>>().join(" ")
    }
}

/// Known sizes of a launch. An axis that is not stated is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchSizes {
    /// Blocks of the grid on x, y and z.
    pub grid: Option<[u64; 3]>,
    /// Threads of a block on x, y and z.
    pub block: Option<[u64; 3]>,
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: Option<u64>,
    /// The most threads of a block that the kernel's registers allow.
    pub kernel_threads: Option<u64>,
    /// Sizes of the work.
    pub(super) work: WorkSizes,
}

impl LaunchSizes {
    /// The known sizes, or else the sizes in `other`.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            grid: self.grid.or(other.grid),
            block: self.block.or(other.block),
            shared_bytes: self.shared_bytes.or(other.shared_bytes),
            kernel_threads: self.kernel_threads.or(other.kernel_threads),
            work: self.work.or(other.work),
        }
    }
}

/// A rule of launches that a launch violates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViolatedRule {
    /// The rule's id, such as `grid-dim-y`.
    pub id: String,
    /// The problem, with value and limit.
    pub what: String,
    /// How to fix it.
    pub remedy: String,
    /// The CUDA error codes that a launch violating the rule can end with.
    pub codes: &'static [i32],
}

/// A CUDA version as the driver encodes it: 1000 * major + 10 * minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub i32);

impl fmt::Display for CudaVersion {
    /// As `12.8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// The verdict of the evidence on a known cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Likely(String),
    Unlikely,
    Excluded(String),
}

use Verdict::{Excluded, Likely, Unlikely};

/// [`Likely`] if the cause applies, or else [`Excluded`].
fn decided(applies: bool, why: String, why_not: String) -> Option<Verdict> {
    Some(if applies { Likely(why) } else { Excluded(why_not) })
}

/// Host calls other than launches.
const HOST_CALLS: [Hint; 3] = [Hint::Copy, Hint::Allocation, Hint::Synchronization];

impl Evidence {
    /// Whether a known cause applies. `None` if the evidence does not decide.
    pub(super) fn weigh(&self, hint: Hint) -> Option<Verdict> {
        match hint {
            Hint::LaunchSize => self.sizes(),
            Hint::LaunchRule => None,
            Hint::SharedDevice => self.shared_device(),
            Hint::IndexOutOfRange => self.index_out_of_range(),
            Hint::TooLittleFree => self.too_little_free(),
            Hint::LittleFree => self.little_free(),
            Hint::Fragments => self.fragments(),
            Hint::LocalMemory => self.local_memory(),
            Hint::OtherProcess => self.other_process(),
            Hint::AbsurdSize => self.absurd_size(),
            Hint::Architecture => self.architecture(),
            Hint::DriverAge => self.driver_age(),
            Hint::NoDevice => self.no_device(),
            Hint::Ordinal => self.ordinal_is_visible(),
            Hint::EarlierKernel => self.earlier_kernel(),
            Hint::TensorVolume => self.tensor_volume(),
            Hint::MissingDriver => self.lib_cuda(),
            Hint::Need => self.remarks.need.map(|need| Likely(need.text())),
            Hint::GpuAge => self.gpu_age(),
            Hint::FailedAssertion => self.assertion.clone().map(Likely),
            _ => self.suggested(hint),
        }
    }

    /// The known cases of the failure with this number that the log suggests, and their clues. The most specific
    /// case comes first. Unless a launch was rejected, only cases of this number count.
    pub(super) fn cases(
        &self,
        number: Option<i32>,
        is_rejected_launch: bool,
    ) -> impl Iterator<Item = (KnownCause, &Clue)> {
        let applies = move |row: &Row| match row.only {
            Some(only) => Some(only) == number,
            None => is_rejected_launch,
        };
        let clues = self.clues.iter().filter(move |it| applies(it.row));
        clues.filter_map(|it| Some((it.row.case?, it)))
    }

    /// The failed host call.
    pub(super) fn host_call(&self) -> Option<Verdict> {
        HOST_CALLS.into_iter().find_map(|hint| self.suggested(hint))
    }

    pub(super) fn clue(&self, hint: Hint) -> Option<&Clue> {
        self.clues.iter().find(|clue| clue.row.hint == hint)
    }

    fn suggested(&self, hint: Hint) -> Option<Verdict> {
        Some(Likely(says(&self.clue(hint)?.text)))
    }

    /// Only decides whether there are violated rules. The rules are reported as separate causes.
    fn sizes(&self) -> Option<Verdict> {
        match &self.violated_rules {
            Some(rules) if rules.is_empty() => Some(Excluded(
                "the launch configuration: it was checked and violates no rule".into(),
            )),
            _ => self.host_call().map(|_| Unlikely),
        }
    }

    fn index_out_of_range(&self) -> Option<Verdict> {
        let assertion = self.assertion.as_ref()?;
        let condition = assertion.split_once("ssertion `")?.1.to_ascii_lowercase();
        let is_index = ["index", "idx", "ind ", "target", "class"];
        is_index.iter().any(|word| condition.contains(word)).then(|| Likely(assertion.clone()))
    }

    /// A small request fails only if the device was full.
    fn shared_device(&self) -> Option<Verdict> {
        const SMALL: Bytes = Bytes(64 << 20);
        let requested = Bytes(self.requested_bytes.filter(|_| self.free_bytes.is_none())?);
        (requested < SMALL)
            .then(|| Likely(format!("only {requested} were requested: the device was full before")))
    }

    fn earlier_kernel(&self) -> Option<Verdict> {
        if let Some(launch) = &self.faulting_launch {
            return Some(Likely(format!("the faulting launch is {launch}")));
        }
        let recent = self.recent_launches.join(", ");
        if recent.is_empty() {
            return self.host_call();
        }
        Some(Likely(format!("recent launches, newest last: {recent}")))
    }

    fn requested_and_free(&self) -> Option<(Bytes, Bytes)> {
        Some((Bytes(self.requested_bytes?), Bytes(self.free_bytes?)))
    }

    /// Requested and free bytes, if the request would have fit.
    fn enough_free(&self) -> Option<(Bytes, Bytes)> {
        self.requested_and_free().filter(|(requested, free)| requested <= free)
    }

    fn too_little_free(&self) -> Option<Verdict> {
        let (requested, free) = self.requested_and_free()?;
        let sizes = format!("{requested} were requested, {free} were free");
        decided(requested > free, sizes.clone(), format!("too little free memory: {sizes}"))
    }

    /// Handles and workspaces of libraries take some hundred MiB.
    fn little_free(&self) -> Option<Verdict> {
        const PLENTY: Bytes = Bytes(1 << 30);
        let free = Bytes(self.free_bytes?);
        let why_not = format!("too little free memory: {free} were free");
        decided(free < PLENTY, format!("only {free} were free"), why_not)
    }

    fn fragments(&self) -> Option<Verdict> {
        let requested = Bytes(self.requested_bytes?);
        let cached = self.cached_bytes.map(Bytes).filter(|cached| *cached >= requested);
        if let Some(cached) = cached {
            let why = format!("{cached} are reserved but unused, {requested} were requested");
            return Some(Likely(why));
        }
        let (_, free) = self.enough_free()?;
        let why = format!("{free} were free, enough for {requested} in one contiguous block");
        Some(Likely(why))
    }

    fn local_memory(&self) -> Option<Verdict> {
        if let (Some(bytes), Some(threads)) = (self.local_bytes_per_thread, self.resident_threads) {
            let total = Bytes(bytes.saturating_mul(threads));
            return Some(Likely(format!(
                "the kernel's {bytes} bytes per thread x {threads} resident threads = {total}"
            )));
        }
        let Some((requested, free)) = self.enough_free() else {
            return self.suggested(Hint::LocalMemory);
        };
        Some(Likely(format!("an allocation of {requested} failed while {free} were free")))
    }

    fn other_process(&self) -> Option<Verdict> {
        let (total, free, own) = (self.total_bytes?, self.free_bytes?, self.process_bytes?);
        let others = total.saturating_sub(free).saturating_sub(own);
        // Contexts and rounding leave a small difference.
        let is_notable = others > total / 8;
        let [total, free, own, others] = [total, free, own, others].map(Bytes);
        decided(
            is_notable,
            format!(
                "of {total}, this process uses {own}, {free} were free and others use {others}"
            ),
            format!("another process: this one uses {own} of {total}"),
        )
    }

    fn absurd_size(&self) -> Option<Verdict> {
        let total = Bytes(self.total_bytes.filter(|bytes| *bytes > 0)?);
        let requested = Bytes(self.requested_bytes?);
        decided(
            requested > total,
            format!("{requested} were requested, the device has {total} in total"),
            format!("a miscalculated size: {requested} is within the device's {total}"),
        )
    }

    fn architecture(&self) -> Option<Verdict> {
        let (device, newest) = (self.capability?, self.architectures.iter().max()?);
        Some(match self.architectures.iter().find(|code| device.runs(**code)) {
            Some(code) => Excluded(format!(
                "a missing architecture: code for {} runs on compute capability {device}",
                code.sm()
            )),
            None => Likely(format!(
                "the device has compute capability {device}, the program has code for {}, up to \
                 {newest}",
                self.architectures.iter().map(|it| it.sm()).collect::<Vec<_>>().join(", ")
            )),
        })
    }

    fn driver_age(&self) -> Option<Verdict> {
        let Some(driver_cuda) = self.driver_cuda else {
            // Code that was just compiled is not damaged.
            return self.suggested(Hint::RunTimeCompiler);
        };
        let supports = format!("supports CUDA {driver_cuda}");
        let Some(program) = self.program_cuda else {
            return Some(Likely(format!("the driver {supports}")));
        };
        let versions = format!("{supports}, the program needs {program}");
        let why_not = format!("an old driver: it {versions}");
        decided(driver_cuda < program, format!("the driver {versions}"), why_not)
    }

    /// TensorRT prints the size and its bound.
    fn tensor_volume(&self) -> Option<Verdict> {
        let bound = self.launch_sizes.work.bound?;
        Some(Likely(format!("the log gives the bound: max_num_tokens must be below {bound}")))
    }

    /// Libraries leave out what GPUs before Ampere lack.
    fn gpu_age(&self) -> Option<Verdict> {
        const AMPERE: Capability = Capability(8, 0);
        let named = self.remarks.gpu.as_ref().map(|(name, it)| (format!("{name}, "), *it));
        let (name, capability) = named.or_else(|| Some((String::new(), self.capability?)))?;
        let why = format!("the log names {name}compute capability {capability}");
        (capability < AMPERE).then_some(Likely(why))
    }

    /// A device that was found needs a loaded libcuda.
    fn lib_cuda(&self) -> Option<Verdict> {
        let device = self.capability?;
        Some(Excluded(format!(
            "a missing libcuda: the log names a device of compute capability {device}"
        )))
    }

    fn no_device(&self) -> Option<Verdict> {
        let count = self.visible_devices?;
        let why_not = format!("hidden devices: {count} visible");
        decided(count == 0, "the driver reports 0 devices".into(), why_not)
    }

    fn ordinal_is_visible(&self) -> Option<Verdict> {
        let (ordinal, count) = (self.ordinal?, self.visible_devices?);
        decided(
            ordinal >= count,
            format!("device {ordinal} was requested, {count} devices are visible"),
            format!("the device number: device {ordinal} is one of the {count} visible"),
        )
    }
}

pub(super) fn says(line: &str) -> String {
    format!("the log says `{line}`")
}

/// Bytes, displayed with a binary unit.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
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
    fn bytes_are_displayed_with_a_binary_unit() {
        let texts = [0, 1023, 1024, 20 << 30, u64::MAX].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(texts, ["0 bytes", "1023 bytes", "1.00 KiB", "20.00 GiB", "16384.00 PiB"]);
    }

    #[test]
    fn a_launch_becomes_options_of_the_check_command() {
        let (grid, block) = ([1, 76_800, 1], [128, 1, 1]);
        let launch = LaunchConfig { grid, block, ..LaunchConfig::default() };
        let plain = "--grid 1,76800,1 --block 128,1,1";
        assert_eq!(launch.options(), plain);
        let (cluster, kernel_threads) = (Some([2, 1, 1]), Some(512));
        let full = LaunchConfig {
            shared_bytes: 16_384,
            cluster,
            cooperative: true,
            dependent: true,
            parameter_bytes: 8,
            kernel_threads,
            ..launch
        };
        let options = "--shared-mem 16384 --cluster 2,1,1 --cooperative --dependent --param-bytes 8 \
                       --kernel-max-threads 512";
        assert_eq!(full.options(), format!("{plain} {options}"));
    }

    #[test]
    fn machine_code_runs_on_its_own_generation_only() {
        let weigh = |major, minor| {
            let evidence = Evidence {
                capability: Some(Capability(major, minor)),
                architectures: vec![Capability(8, 0), Capability(9, 0)],
                ..Evidence::default()
            };
            evidence.weigh(Hint::Architecture)
        };
        assert!(matches!(weigh(8, 9), Some(Excluded(_))));
        assert!(matches!(weigh(7, 5), Some(Likely(_))));
        assert!(matches!(weigh(12, 0), Some(Likely(_))));
    }
}
