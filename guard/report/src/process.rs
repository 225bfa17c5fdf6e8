//! The report of one process that ran under `gridguard run`.

use gridguard::{Axis, DeviceLimits, Dim3, LaunchRequest};
use serde::{Deserialize, Serialize};

use crate::error::{Reason, ReportError};
use crate::frame::PythonFrame;
use crate::index::{IndexCoverage, IndexUse};
use crate::memory::MemoryUse;
use crate::nearness::Nearness;

/// The format of [`WatchReport`]. New fields do not change it.
pub const FORMAT: u32 = 1;

/// The most kernels that a report lists.
pub const MAX_KERNELS: usize = 4096;

/// The most bytes of a report. Reports stay far below, since their rows and names are limited.
pub const MAX_REPORT_BYTES: u64 = 64 << 20;

/// The launches and the memory of one process. A kernel node counts as one launch each time it is added to a graph
/// or set; replays of graphs are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchReport {
    /// [`FORMAT`] of the writer.
    pub format: u32,
    /// Whether it was written before the program started: by `gridguard run`, and again by the library when it is loaded.
    /// The end of the first process replaces it, or another process that launches.
    #[serde(default)]
    pub pending: bool,
    /// Whether the library was loaded into the process, and could see all of its launches.
    #[serde(default)]
    pub watched: bool,
    /// Why `watched` is false.
    #[serde(default)]
    pub not_watched: Vec<String>,
    /// The path of the program.
    pub program: String,
    /// The process id.
    pub process: u32,
    /// The devices that launched kernels or refused allocations.
    pub devices: Vec<DeviceLimits>,
    /// Launches that the driver accepted.
    pub launches: u64,
    /// Launches that the driver refused.
    pub refused: u64,
    /// Oversized launches that were made in parts, with rewritten kernels.
    #[serde(default)]
    pub fixed: u64,
    /// Accepted launches after the first refused one.
    pub launches_after_refusal: u64,
    /// Kernels that `kernels` leaves out. All kernels beyond the first 16,384 count as one.
    #[serde(default)]
    pub unlisted_kernels: u64,
    /// Accepted launches of those kernels.
    pub unlisted_launches: u64,
    /// The kernels, in the order of [`WatchReport::sort`].
    pub kernels: Vec<KernelUse>,
    /// The refused launches that were explained.
    pub refusals: Vec<RefusedLaunch>,
    /// Calls that the program lacks and that `--fix` made for it, so that launches of the kernels were accepted.
    #[serde(default)]
    pub missing_calls: Vec<String>,
    /// The kernels whose 32-bit indices wrapped, or will with a larger grid, if that was asked for.
    #[serde(default)]
    pub indices: Vec<IndexUse>,
    /// The kernels that were compared for `indices`, if that was asked for.
    pub index_coverage: Option<IndexCoverage>,
    /// The memory that the process allocated.
    #[serde(default)]
    pub memory: MemoryUse,
    /// The batch size that the launches were made with, if the user stated it.
    pub batch: Option<u64>,
}

/// The fields that reports of all formats have.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ReportHead {
    /// Its format.
    pub format: u32,
    /// The path of the program.
    pub program: String,
    /// The process id.
    pub process: u32,
    /// [`WatchReport::pending`].
    #[serde(default)]
    pub pending: bool,
}

/// The launches of all kernels with one name in equal images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelUse {
    /// The name in the device code.
    pub name: String,
    /// The demangled name, cut if it is long.
    pub demangled: String,
    /// A digest of the image; `None` if the image is unknown.
    pub image: Option<String>,
    /// Launches that the driver accepted.
    pub launches: u64,
    /// Launches that the driver refused.
    pub refused: u64,
    /// Oversized launches that were made in parts.
    #[serde(default)]
    pub fixed: u64,
    /// The largest accepted grid size along each axis.
    pub max_grid: Dim3,
    /// The most threads of a block.
    pub max_threads_per_block: u64,
    /// The most dynamic shared memory in bytes.
    pub max_dynamic_shared_bytes: u64,
}

/// A refused launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedLaunch {
    /// The kernel's name in the device code.
    pub kernel: String,
    /// The error code of the driver or the runtime.
    pub code: i32,
    /// Name, code and meaning of the error.
    pub error: String,
    /// The launch configuration.
    pub request: LaunchRequest,
    /// The broken rules, each with value, limit and remedy.
    pub violations: Vec<String>,
    /// The driver's own sentence, since CUDA 12.9.
    pub driver_log: Option<String>,
    /// Why the launch was not made in parts, if that was wanted.
    pub not_fixed: Option<String>,
    /// The Python frames of the thread, the innermost first.
    #[serde(default)]
    pub python: Vec<PythonFrame>,
    /// The host stack, the innermost frame first.
    pub stack: Vec<String>,
}

const NOT_LOADED: &str = "the library has not begun: the program's loader did not load it, or the program has not started";

impl WatchReport {
    /// Parses a report and sorts its kernels.
    ///
    /// # Errors
    ///
    /// [`ReportError`].
    pub fn parse(text: &[u8]) -> Result<Self, ReportError> {
        if u64::try_from(text.len()).is_ok_and(|bytes| bytes > MAX_REPORT_BYTES) {
            return Err(Reason::TooLarge(MAX_REPORT_BYTES).into());
        }
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let parsed: Result<Self, _> = serde_json::from_slice(text);
        // A newer format may have other fields.
        let format = match &parsed {
            Ok(report) => Some(report.format),
            Err(_) => serde_json::from_slice(text).ok().map(|Format { format }| format),
        };
        if let Some(format) = format.filter(|format| *format > FORMAT) {
            return Err(Reason::Newer { format, known: FORMAT }.into());
        }
        let mut report = parsed.map_err(Reason::Invalid)?;
        report.sort();
        Ok(report)
    }

    /// The report that `gridguard run` writes before the program starts.
    pub fn pending(program: String, process: u32) -> Self {
        let not_watched = vec![NOT_LOADED.to_owned()];
        Self { format: FORMAT, pending: true, program, process, not_watched, ..Self::default() }
    }

    /// Sorts the kernels, keeps the first [`MAX_KERNELS`], and counts the others.
    pub fn truncate(&mut self) {
        self.sort();
        for left_out in self.kernels.drain(MAX_KERNELS.min(self.kernels.len())..) {
            self.unlisted_kernels += 1;
            self.unlisted_launches += left_out.launches;
        }
    }

    /// Sorts the kernels: refused ones first, then the closest to a limit, then by name.
    pub fn sort(&mut self) {
        let limit = self.grid_limit();
        self.kernels.sort_by(|a, b| {
            let near = match (a.nearest_limit(limit), b.nearest_limit(limit)) {
                (Some(a), Some(b)) => a.compare(&b),
                (a, b) => a.is_none().cmp(&b.is_none()),
            };
            b.refused.cmp(&a.refused).then(near).then_with(|| a.name.cmp(&b.name))
        });
    }

    /// The largest grid that every device of the process accepts.
    pub fn grid_limit(&self) -> Dim3 {
        let any = DeviceLimits::any_device().max_grid;
        let limits = self.devices.iter().map(|device| device.max_grid);
        limits.reduce(|a, b| Dim3::new(a.x.min(b.x), a.y.min(b.y), a.z.min(b.z))).unwrap_or(any)
    }
}

impl KernelUse {
    /// The axis along which the largest grid is nearest to `limit`. Axes with one block do not count; `None` if all
    /// are such.
    ///
    /// ```
    /// use gridguard::{Axis, DeviceLimits, Dim3};
    /// use gridguard_report::KernelUse;
    ///
    /// let kernel = KernelUse {
    ///     name: "attention".into(),
    ///     demangled: "attention".into(),
    ///     image: None,
    ///     launches: 3,
    ///     refused: 0,
    ///     fixed: 0,
    ///     max_grid: Dim3::new(8, 60_948, 1),
    ///     max_threads_per_block: 128,
    ///     max_dynamic_shared_bytes: 0,
    /// };
    /// let near = kernel.nearest_limit(DeviceLimits::any_device().max_grid).expect("launched");
    /// assert_eq!((near.axis, near.percent(), near.is_near()), (Axis::Y, 93, true));
    /// assert_eq!(near.breaking_batch(6), 7);
    /// ```
    pub fn nearest_limit(&self, limit: Dim3) -> Option<Nearness> {
        let along = |axis| {
            let (blocks, limit) = (self.max_grid.along(axis), limit.along(axis));
            (blocks > 1).then_some(Nearness { axis, blocks, limit })
        };
        Axis::ALL.into_iter().filter_map(along).min_by(Nearness::compare)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn kernel(name: &str, refused: u64, max_grid: Dim3) -> KernelUse {
        KernelUse {
            name: name.into(),
            demangled: name.into(),
            image: None,
            launches: 1,
            refused,
            fixed: 0,
            max_grid,
            max_threads_per_block: 1,
            max_dynamic_shared_bytes: 0,
        }
    }

    #[test]
    fn refused_kernels_come_first_and_then_the_closest_to_a_limit() {
        let mut report = WatchReport {
            program: "p".into(),
            launches: 4,
            refused: 1,
            kernels: vec![
                kernel("far", 0, Dim3::new(1_000_000, 1, 1)),
                kernel("near", 0, Dim3::new(1, 1, 65_000)),
                kernel("refused", 1, Dim3::new(0, 0, 0)),
                kernel("half", 0, Dim3::new(1, 30_000, 1)),
            ],
            ..WatchReport::default()
        };
        report.sort();
        let names: Vec<_> = report.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["refused", "near", "half", "far"]);
        let nearest = |kernel: &KernelUse| kernel.nearest_limit(report.grid_limit());
        assert_eq!(nearest(&report.kernels[0]), None);
        assert_eq!(nearest(&kernel("one block", 0, Dim3::new(1, 1, 1))), None);
        let far = nearest(&report.kernels[3]).expect("launched");
        assert_eq!((far.axis, far.percent(), far.is_near()), (Axis::X, 0, false));
        let text = serde_json::to_string(&report).expect("JSON");
        assert_eq!(serde_json::from_str::<WatchReport>(&text).expect("a report"), report);
    }

    #[test]
    fn a_truncated_report_counts_the_kernels_that_it_leaves_out() {
        let kernels = (0..MAX_KERNELS + 3).map(|number| {
            kernel(&number.to_string(), u64::from(number == 4000), Dim3::new(1, 2, 1))
        });
        let mut report = WatchReport { kernels: kernels.collect(), ..WatchReport::default() };
        report.truncate();
        assert_eq!((report.kernels.len(), &*report.kernels[0].name), (MAX_KERNELS, "4000"));
        assert_eq!((report.unlisted_kernels, report.unlisted_launches), (3, 3));
    }

    #[test]
    fn the_head_of_a_report_of_any_format_is_read() {
        let head = |text: &str| serde_json::from_str::<ReportHead>(text).ok();
        let report = serde_json::to_string(&WatchReport::pending("p".into(), 7)).expect("JSON");
        let known = head(&report).expect("a report");
        assert_eq!((known.format, known.process, known.pending), (FORMAT, 7, true));
        let newer = report.replace("\"kernels\":[]", "\"kernels\":7");
        assert_eq!(head(&newer), Some(known));
        for other in ["", "{}", "[]", r#"{"format": 1, "name": "a package"}"#, &report[1..]] {
            assert_eq!(head(other), None, "{other}");
        }
    }

    #[test]
    fn a_report_without_memory_is_read() {
        let text = r#"{"format": 1, "program": "p", "process": 1, "devices": [], "launches": 0, "refused": 0,
            "launches_after_refusal": 0, "unlisted_launches": 0,  "kernels": [],
            "refusals": []}"#;
        let report = serde_json::from_str::<WatchReport>(text).expect("a report");
        assert_eq!(report.memory, MemoryUse::default());
    }
}
