//! Reports as one page of HTML, without scripts and without anything from elsewhere.

use askama::Template;
use gridguard::Axis;

use crate::error::{Reason, ReportError};
use crate::nearness::Nearness;
use crate::process::{KernelUse, WatchReport};

/// The page of the reports of a run: refused and fixed launches, the distance of each kernel to the limits, and memory.
///
/// ```
/// use gridguard_report::{WatchReport, report_page};
///
/// let report = WatchReport { program: "<b>".into(), refused: 1, ..WatchReport::default() };
/// let page = report_page(&[report])?;
/// assert!(page.starts_with("<!DOCTYPE html>") && page.contains("&#60;b&#62;, process 0"));
/// # Ok::<(), gridguard_report::ReportError>(())
/// ```
///
/// # Errors
///
/// [`ReportError`].
pub fn report_page(reports: &[WatchReport]) -> Result<String, ReportError> {
    let page = ReportPage { processes: reports.iter().map(Process::new).collect() };
    Ok(printable(page.render().map_err(Reason::Page)?))
}

/// The page of a tuner: a table and a curve for each problem.
#[derive(Debug, Template)]
#[template(path = "tuning.html")]
pub struct TuningPage<'a> {
    /// The title.
    pub title: &'a str,
    /// What the tuner did, in one line.
    pub summary: &'a str,
    /// The problems.
    pub curves: &'a [TuningCurve],
}

/// What a tuner measured for a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TuningCurve {
    /// The problem.
    pub title: String,
    /// The table.
    pub text: String,
    /// The curve, an element `svg` whose texts are escaped.
    pub svg: Option<String>,
}

impl TuningPage<'_> {
    /// Writes the page.
    ///
    /// # Errors
    ///
    /// [`ReportError`].
    pub fn html(&self) -> Result<String, ReportError> {
        Ok(printable(self.render().map_err(Reason::Page)?))
    }
}

#[derive(Template)]
#[template(path = "report.html")]
struct ReportPage<'a> {
    processes: Vec<Process<'a>>,
}

struct Process<'a> {
    report: &'a WatchReport,
    totals: String,
    warnings: Vec<String>,
    fixed: Vec<&'a KernelUse>,
    kernels: Vec<Row<'a>>,
    left_out: usize,
    memory: Vec<String>,
}

struct Row<'a> {
    kernel: &'a KernelUse,
    axes: [Nearness; 3],
}

impl<'a> Process<'a> {
    fn new(report: &'a WatchReport) -> Self {
        let limits = report.grid_limit();
        let row = |kernel: &'a KernelUse| {
            let along = |axis| Nearness {
                axis,
                blocks: kernel.max_grid.along(axis),
                limit: limits.along(axis),
            };
            Row { kernel, axes: Axis::ALL.map(along) }
        };
        Self {
            report,
            totals: report.totals(),
            warnings: report.warnings(),
            fixed: report.kernels.iter().filter(|kernel| kernel.fixed > 0).take(SHOWN).collect(),
            kernels: report.kernels.iter().take(SHOWN).map(row).collect(),
            left_out: report.kernels.len().saturating_sub(SHOWN),
            memory: report.memory.summary(),
        }
    }
}

/// Removes control characters, also those that turn the direction of text, because names come from device code.
fn printable(mut page: String) -> String {
    let turns = |one| matches!(one, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    page.retain(|one| one == '\n' || !one.is_control() && !turns(one));
    page
}

/// Kernels of a process that are shown.
const SHOWN: usize = 200;

#[cfg(test)]
mod tests {
    use gridguard::{Dim3, LaunchRequest};

    use super::*;
    use crate::memory::{DeviceMemory, MemoryHeld, MemoryUse};
    use crate::{PythonFrame, RefusedLaunch};

    const HOSTILE: &str =
        "\"><script>alert(1)</script>\u{1b}[2J<img src=x onerror='alert(2)'>&amp;\u{202e}";

    fn kernel(name: &str, y: u64) -> KernelUse {
        KernelUse {
            name: name.into(),
            demangled: name.into(),
            image: None,
            launches: 7,
            refused: 1,
            fixed: 2,
            max_grid: Dim3::new(1, y, 1),
            max_threads_per_block: 1,
            max_dynamic_shared_bytes: 0,
        }
    }

    fn hostile() -> WatchReport {
        let text = || HOSTILE.to_owned();
        let held = MemoryHeld { bytes: 4, allocations: 1, peak_bytes: 8 };
        WatchReport {
            program: text(),
            refused: 1,
            kernels: vec![kernel(HOSTILE, 60_948)],
            refusals: vec![RefusedLaunch {
                kernel: text(),
                code: 1,
                error: text(),
                request: LaunchRequest::new(Dim3::new(1, 70_000, 1), Dim3::ONE),
                violations: vec![text()],
                driver_log: Some(text()),
                not_fixed: Some(text()),
                python: vec![PythonFrame { file: text(), line: 3, function: text() }],
                stack: vec![text()],
            }],
            memory: MemoryUse {
                devices: vec![DeviceMemory { device: 0, held }],
                ..MemoryUse::default()
            },
            ..WatchReport::default()
        }
    }

    #[test]
    fn names_are_escaped_everywhere() {
        let page = report_page(&[hostile()]).expect("a page");
        let tags: Vec<&str> = page
            .split('<')
            .skip(1)
            .map(|tag| tag.split([' ', '>']).next().unwrap_or_default())
            .collect();
        for tag in ["script", "img", "/script"] {
            assert!(!tags.contains(&tag), "{tag}: {page}");
        }
        assert_eq!(page.matches("alert(1)").count(), 11, "each text is there: {page}");
        assert!(
            !page.contains(['\u{1b}', '\u{202e}']) && page.contains("&#60;script&#62;"),
            "{page}"
        );
        assert!(!page.contains("http:") && !page.contains("https:"), "{page}");
    }

    #[test]
    fn a_page_shows_bars_memory_and_what_was_fixed() {
        let page = report_page(&[hostile(), WatchReport::pending("p".into(), 9)]).expect("a page");
        for part in [
            "value=\"93\"",
            "60948 of 65535",
            "2 made in parts",
            "memory of device 0: at most 8 bytes held, 4 bytes now",
            "grid 1 x 70000 x 1",
            "p, process 9",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn a_page_of_many_kernels_is_bounded() {
        let kernels = (0..5000).map(|number| kernel(&number.to_string(), 1)).collect();
        let page =
            report_page(&[WatchReport { kernels, ..WatchReport::default() }]).expect("a page");
        assert_eq!(page.matches("<tr>").count(), 1 + SHOWN);
        assert!(page.contains("4800 more kernels are not shown"), "{page}");
    }

    #[test]
    fn a_page_of_curves_escapes_all_but_the_curves() {
        let curve = TuningCurve {
            title: HOSTILE.into(),
            text: HOSTILE.into(),
            svg: Some("<svg></svg>".into()),
        };
        let curves = [curve.clone(), TuningCurve { svg: None, ..curve }];
        let page = TuningPage { title: HOSTILE, summary: HOSTILE, curves: &curves }
            .html()
            .expect("a page");
        assert!(!page.contains("<script") && !page.contains("<img"), "{page}");
        assert_eq!((page.matches("<svg>").count(), page.matches("alert(1)").count()), (1, 7));
    }
}
