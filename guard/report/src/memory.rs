//! The memory that a watched process allocated, and the allocations that the driver refused.

use core::fmt;
use gridguard::count;

use serde::{Deserialize, Serialize};

use crate::frame::PythonFrame;

/// The memory that one process allocated through the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUse {
    /// Device memory by device, in the order of their numbers.
    pub devices: Vec<DeviceMemory>,
    /// Managed memory.
    pub managed: MemoryHeld,
    /// Pinned host memory.
    pub pinned: MemoryHeld,
    /// Allocations beyond the number that is tracked. No other number includes them.
    pub untracked: u64,
    /// Allocations that failed because memory ran out.
    pub refused: u64,
    /// Refused allocations that one of the same kind and size followed with success.
    pub retried: u64,
    /// The refused allocations that were explained.
    pub refusals: Vec<RefusedAllocation>,
}

/// The memory of one device that the process held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceMemory {
    /// The device's number in the process.
    pub device: u32,
    /// The amount.
    pub held: MemoryHeld,
}

/// An amount of allocated memory. Memory that a framework caches counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryHeld {
    /// Bytes at present.
    pub bytes: u64,
    /// Allocations at present.
    pub allocations: u64,
    /// The most bytes at any time.
    pub peak_bytes: u64,
}

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum MemoryKind {
    /// Memory of a device.
    Device,
    /// Managed memory, which migrates between host and devices.
    Managed,
    /// Pinned host memory.
    Pinned,
}

/// An allocation that failed because memory ran out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedAllocation {
    /// The function of the driver.
    pub function: String,
    /// Its error code.
    pub code: i32,
    /// The error's name, code and meaning.
    pub error: String,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The requested bytes.
    pub requested_bytes: u64,
    /// The name of the device.
    pub device_name: String,
    /// The device's memory, if the driver reported it.
    pub device: Option<DeviceFree>,
    /// The memory of this kind that the process held; device memory only of this device.
    pub held: MemoryHeld,
    /// The largest parts of `held`, by the place of allocation.
    pub largest: Vec<AllocationGroup>,
    /// The Python frames of the thread, the innermost first.
    #[serde(default)]
    pub python: Vec<PythonFrame>,
    /// The host stack, the innermost frame first.
    pub stack: Vec<String>,
}

/// The free memory of a device at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFree {
    /// Free bytes.
    pub free_bytes: u64,
    /// All bytes.
    pub total_bytes: u64,
    /// Unused bytes that the device's memory pool keeps for later stream-ordered allocations.
    pub pool_unused_bytes: u64,
}

/// Live allocations with one call stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationGroup {
    /// Their bytes.
    pub bytes: u64,
    /// Their number.
    pub allocations: u64,
    /// The host stack, the innermost frame first; empty if it was not sampled.
    pub stack: Vec<String>,
}

/// Displays a number of bytes in the largest binary unit: `20.00 GiB`.
///
/// ```
/// use gridguard_report::Bytes;
///
/// assert_eq!(Bytes(21_474_836_480).to_string(), "20.00 GiB");
/// assert_eq!(Bytes(640).to_string(), "640 bytes");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl MemoryUse {
    /// The lines of a summary; none for a process that allocated nothing.
    pub fn summary(&self) -> Vec<String> {
        let Self { devices, managed, pinned, untracked, refused, retried, .. } = self;
        let of_devices = devices.iter().map(|one| (format!("device {}", one.device), &one.held));
        let others =
            [("managed memory".to_owned(), managed), ("pinned host memory".to_owned(), pinned)];
        let mut lines: Vec<_> = of_devices
            .chain(others)
            .filter(|(_, held)| held.peak_bytes > 0)
            .map(|(what, held)| {
                let (peak, now) = (Bytes(held.peak_bytes), Bytes(held.bytes));
                format!("memory of {what}: at most {peak} held, {now} now")
            })
            .collect();
        if *untracked > 0 {
            let allocations = count(*untracked, "allocation");
            lines.push(format!("memory of {allocations} beyond the tracked ones is not counted"));
        }
        if *refused > 0 {
            lines.push(format!(
                "out of memory: {refused} refused, of which {retried} were followed by a success of the \
                 same size"
            ));
        }
        lines
    }
}

impl RefusedAllocation {
    /// The explanation, as titles and texts, without the stack.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let Self { kind, requested_bytes, device_name, device, held, .. } = self;
        let mut lines =
            vec![("request", format!("{} of {}", exact(*requested_bytes), kind.name()))];
        let free =
            device.map_or_else(String::new, |DeviceFree { free_bytes, total_bytes, .. }| {
                format!(": {} free of {}", exact(free_bytes), Bytes(total_bytes))
            });
        lines.push(("device", format!("{device_name}{free}")));
        let MemoryHeld { bytes, allocations, peak_bytes } = *held;
        lines.push((
            "process",
            format!(
                "holds {} in {}, at most {} so far; memory that a framework caches (PyTorch's freed tensors) \
                 counts as held",
                exact(bytes),
                count(allocations, "allocation"),
                Bytes(peak_bytes),
            ),
        ));
        let unused = device.map_or(0, |device| device.pool_unused_bytes);
        if unused > 0 {
            let unused = exact(unused);
            lines.push(("pool", format!("the device's memory pool keeps {unused} unused")));
        }
        if let Some(other) = self.other_bytes() {
            lines.push((
                "others",
                format!(
                    "about {}: other processes, and this one's contexts and code (an estimate: total - \
                     free - held)",
                    Bytes(other)
                ),
            ));
        }
        for (place, group) in self.largest.iter().enumerate() {
            let title = if place == 0 { "largest" } else { "" };
            lines.push((title, group.to_string()));
            lines.extend(group.stack.iter().map(|frame| ("", format!("  {frame}"))));
        }
        lines.push(("next", self.remedy()));
        lines
    }

    /// An estimate of the memory of other processes, and of the contexts and the code of this one:
    /// total - free - held. `None` if it is unknown, and for other kinds than device memory.
    pub fn other_bytes(&self) -> Option<u64> {
        let DeviceFree { free_bytes, total_bytes, pool_unused_bytes } = self.device?;
        let used = total_bytes.checked_sub(free_bytes)?;
        let own = self.held.bytes.checked_add(pool_unused_bytes)?;
        (self.kind == MemoryKind::Device).then(|| used.checked_sub(own)).flatten()
    }

    fn remedy(&self) -> String {
        let received = "the program received the error, and may try again";
        let Some(DeviceFree { free_bytes, .. }) =
            self.device.filter(|_| self.kind != MemoryKind::Pinned)
        else {
            return format!("{received}; else allocate less, or free what is no longer needed");
        };
        if free_bytes >= self.requested_bytes {
            return format!(
                "{received}: as much is free now, so another process may have freed it since, or the driver \
                 needs it in larger units"
            );
        }
        let missing = Bytes(self.requested_bytes.saturating_sub(free_bytes));
        let by_others = self.other_bytes().is_some_and(|other| Bytes(other) >= missing);
        let others =
            if by_others { ", stop other processes on the device (nvidia-smi)" } else { "" };
        format!(
            "{received}; {missing} are missing: smaller batches or chunks, free a framework's cache \
             (torch.cuda.empty_cache()){others}"
        )
    }
}

impl MemoryKind {
    /// The name in a text, for example `device memory`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device memory",
            Self::Managed => "managed memory",
            Self::Pinned => "pinned host memory",
        }
    }
}

impl fmt::Display for AllocationGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, allocations, stack } = self;
        let allocations = count(*allocations, "allocation");
        let from = if stack.is_empty() { ", whose stack was not sampled" } else { ", from" };
        write!(f, "{} in {allocations}{from}", Bytes(*bytes))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        let unit = UNITS.iter().find(|(bits, _)| self.0 >> bits > 0);
        match unit {
            Some((bits, name)) => {
                let (whole, rest) = (self.0 >> bits, self.0 & ((1 << bits) - 1));
                // Rounded down: free memory must not be overstated.
                let hundredths = (u128::from(rest) * 100) >> bits;
                write!(f, "{whole}.{hundredths:02} {name}")
            }
            None if self.0 == 1 => write!(f, "1 byte"),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

/// `20.00 GiB (21474836480 bytes)`.
fn exact(bytes: u64) -> String {
    match bytes {
        0..1024 => Bytes(bytes).to_string(),
        _ => format!("{} ({bytes} bytes)", Bytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn refused(requested_bytes: u64, free_bytes: u64, held_bytes: u64) -> RefusedAllocation {
        RefusedAllocation {
            function: "cuMemAlloc_v2".into(),
            code: 2,
            error: "CUDA_ERROR_OUT_OF_MEMORY (2), out of memory".into(),
            kind: MemoryKind::Device,
            requested_bytes,
            device_name: "NVIDIA H200".into(),
            device: Some(DeviceFree { free_bytes, total_bytes: 140 * GIB, pool_unused_bytes: 0 }),
            held: MemoryHeld { bytes: held_bytes, allocations: 2, peak_bytes: held_bytes },
            largest: Vec::new(),
            python: Vec::new(),
            stack: Vec::new(),
        }
    }

    #[test]
    fn bytes_are_shown_in_the_largest_unit_and_not_rounded_up() {
        let cases = [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1536, "1.50 KiB"),
            ((1 << 20) - 1, "1023.99 KiB"),
            (3 << 40, "3.00 TiB"),
            (u64::MAX, "16777215.99 TiB"),
        ];
        for (bytes, text) in cases {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn memory_of_others_is_estimated() {
        assert_eq!(refused(20 * GIB, 10 * GIB, 100 * GIB).other_bytes(), Some(30 * GIB));
        assert_eq!(refused(20 * GIB, 10 * GIB, 200 * GIB).other_bytes(), None, "more than is used");
        let unknown = RefusedAllocation { device: None, ..refused(GIB, 0, 0) };
        assert_eq!(unknown.other_bytes(), None);
        let pooled = DeviceFree { free_bytes: 0, total_bytes: 140 * GIB, pool_unused_bytes: GIB };
        let pooled = RefusedAllocation { device: Some(pooled), ..refused(GIB, 0, 100 * GIB) };
        assert_eq!(pooled.other_bytes(), Some(39 * GIB));
    }

    #[test]
    fn the_remedy_depends_on_the_missing_bytes() {
        let by_others = refused(20 * GIB, 10 * GIB, 100 * GIB).remedy();
        assert!(by_others.contains("; 10.00 GiB are missing") && by_others.contains("nvidia-smi"));
        let by_itself = refused(20 * GIB, 10 * GIB, 129 * GIB).remedy();
        assert!(!by_itself.contains("nvidia-smi"), "{by_itself}");
        assert!(refused(GIB, 10 * GIB, GIB).remedy().contains("as much is free now"));
    }

    #[test]
    fn a_process_without_allocations_has_no_summary() {
        assert_eq!(MemoryUse::default().summary(), Vec::<String>::new());
        let held = MemoryHeld { bytes: GIB, allocations: 1, peak_bytes: 3 * GIB };
        let memory = MemoryUse {
            devices: vec![DeviceMemory { device: 1, held }],
            refused: 3,
            retried: 2,
            ..MemoryUse::default()
        };
        assert_eq!(
            memory.summary(),
            [
                "memory of device 1: at most 3.00 GiB held, 1.00 GiB now",
                "out of memory: 3 refused, of which 2 were followed by a success of the same size",
            ]
        );
    }
}
