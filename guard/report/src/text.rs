//! Writes the totals, the warnings and the summary of a report as text.

use gridguard::count;
use std::path::Path;

use crate::frame::PythonFrame;
use crate::index::{IndexCoverage, IndexUse};
use crate::nearness::Nearness;
use crate::process::{KernelUse, RefusedLaunch, WatchReport};

impl WatchReport {
    /// The launches of the process in one line.
    pub fn totals(&self) -> String {
        let listed = u64::try_from(self.kernels.len()).unwrap_or(u64::MAX);
        let kernels = count(self.unlisted_kernels.saturating_add(listed), "kernel");
        let launches = count(self.launches, "launch");
        let fixed = match self.fixed {
            0 => String::new(),
            fixed => format!(", {fixed} fixed"),
        };
        format!("{launches} of {kernels} accepted, {} refused{fixed}", self.refused)
    }

    /// What makes the results of the program or the numbers of the report doubtful.
    pub fn warnings(&self) -> Vec<String> {
        let missing = self.missing_calls.iter().map(|call| format!("the program lacks {call}"));
        let unseen = self.not_watched.iter().map(|why| format!("not watched: {why}"));
        self.stale().into_iter().chain(missing).chain(unseen).collect()
    }

    fn stale(&self) -> Option<String> {
        let after = self.launches_after_refusal;
        (self.refused > 0 && after > 0).then(|| {
            format!(
                "the program went on with {} after the first refused one: unless it handled the error, its \
                 results are stale",
                count(after, "launch")
            )
        })
    }

    /// The 32-bit indices that wrapped, or will with a larger grid, and what was compared, a line each.
    pub fn index_lines(&self) -> Vec<String> {
        let wrapped = self.wrapping_kernels().into_iter().map(|row| format!("wraps: {row}"));
        let near = self.next_wraps().map(|row| format!("near: {row}"));
        wrapped.chain(near).chain(self.index_coverage.map(coverage)).collect()
    }

    /// The summary that a watched program prints at its end: at most 32 lines.
    pub fn summary(&self) -> String {
        let mut lines = vec![format!("gridguard: {}", self.totals())];
        let mut section = |title: &str, mut rows: Vec<String>, most: usize| {
            let left_out = rows.len().saturating_sub(most);
            rows.truncate(most);
            lines.extend(rows.into_iter().map(|row| format!("  {title}{row}")));
            if left_out > 0 {
                lines.push(format!("  {title}{left_out} more, which the report of --report lists"));
            }
        };
        section("warning: ", self.stale().into_iter().collect(), 1);
        section("", self.memory.summary(), 3);
        section("refused: ", self.refused_kernels(), 6);
        section("fixed: ", self.fixed_kernels(), 3);
        section("fixed: the program lacks ", self.missing_calls.clone(), 3);
        section("wraps: ", self.wrapping_kernels(), 3);
        section("", self.index_coverage.map(coverage).into_iter().collect(), 1);
        section("near: ", self.near_kernels(), 4);
        if self.unlisted_launches > 0 {
            let launches = count(self.unlisted_launches, "launch");
            lines.push(format!("  and {launches} of further kernels, which no report lists"));
        }
        lines.join("\n") + "\n"
    }

    /// For each refused kernel: how often, from where, why, and why it was not fixed.
    fn refused_kernels(&self) -> Vec<String> {
        let refused = self.kernels.iter().filter(|kernel| kernel.refused > 0);
        let row = |kernel: &KernelUse| {
            let times = count(kernel.refused, "time");
            let mut row = format!("{}, {times}", short(&kernel.demangled));
            let explained = self.refusals.iter().find(|refusal| refusal.kernel == kernel.name);
            if let Some(RefusedLaunch { python, violations, error, not_fixed, .. }) = explained {
                let own = PythonFrame::of_program(python);
                let folder = own.and_then(|frame| Path::new(&frame.file).parent());
                row.extend(own.map(|frame| format!(" at {}", frame.below(folder))));
                // The remedy follows the colon.
                let problem = violations.first().and_then(|rule| rule.split(": ").next());
                row += &format!(": {}", problem.unwrap_or(error));
                row.extend(not_fixed.iter().map(|why| format!("; not fixed: {why}")));
            }
            row
        };
        refused.map(row).collect()
    }

    fn fixed_kernels(&self) -> Vec<String> {
        let fixed = self.kernels.iter().filter(|kernel| kernel.fixed > 0);
        let row = |kernel: &KernelUse| {
            let launches = count(kernel.fixed, "launch");
            format!("{}, {launches} made in parts", short(&kernel.demangled))
        };
        fixed.map(row).collect()
    }

    /// The kernels that were neither refused nor fixed, and whose grid is near to a limit, the nearest first.
    fn near_kernels(&self) -> Vec<String> {
        let limits = self.grid_limit();
        let others = self.kernels.iter().filter(|kernel| kernel.refused + kernel.fixed == 0);
        let row = |kernel: &KernelUse| {
            let near = kernel.nearest_limit(limits).filter(Nearness::is_near)?;
            let Nearness { axis, blocks, limit } = near;
            let (name, percent) = (short(&kernel.demangled), near.percent());
            let breaks = self.size_that(near, "breaks");
            Some(format!(
                "grid.{axis} of {name} is at {percent} % of its limit, {blocks} of {limit} blocks: {breaks}"
            ))
        };
        // Wraps that come next, before refusals that come next: nothing reports them.
        self.next_wraps().chain(others.filter_map(row)).collect()
    }

    /// The kernels whose 32-bit indices wrapped.
    fn wrapping_kernels(&self) -> Vec<String> {
        let wrapped = |one: &IndexUse| {
            let (name, wrap) = (short(&one.kernel), one.wraps.first()?);
            Some(format!("a 32-bit index of {name} with a grid of {}: {}", one.grid(), short(wrap)))
        };
        self.indices.iter().filter_map(wrapped).collect()
    }

    fn next_wraps(&self) -> impl Iterator<Item = String> {
        self.indices.iter().filter_map(|one| {
            let near = one.next?;
            let Nearness { axis, blocks, limit } = near;
            let (name, wraps) = (short(&one.kernel), self.size_that(near, "wraps"));
            let from = limit.saturating_add(1);
            Some(format!(
                "a 32-bit index of {name} wraps from {from} blocks on {axis}, of which it had {blocks}: {wraps}"
            ))
        })
    }

    /// The smallest size that breaks a limit of a kernel, or wraps.
    fn size_that(&self, near: Nearness, breaks: &str) -> String {
        match self.batch {
            Some(batch) => format!("{breaks} at batch {}", near.breaking_batch(batch)),
            None => {
                // Below ten, since the kernel is near.
                let hundredths = u128::from(near.limit) * 100 / u128::from(near.blocks.max(1));
                let (whole, part) = (hundredths / 100, hundredths % 100);
                format!("{breaks} above {whole}.{part:02} times its size")
            }
        }
    }
}

/// What was compared. Kernels without PTX may wrap unnoticed.
fn coverage(of: IndexCoverage) -> String {
    let IndexCoverage { kernels, launches, kernels_without_ptx, .. } = of;
    let IndexCoverage { kernels_in_part, kernels_unknown, .. } = of;
    let mut line =
        format!("indices: {} of {} compared", count(launches, "launch"), count(kernels, "kernel"));
    if kernels_in_part > 0 {
        line += &format!(" ({kernels_in_part} in part)");
    }
    if kernels_unknown > 0 {
        line += &format!(", unknown for {kernels_unknown}");
    }
    if kernels_without_ptx > 0 {
        line += &format!(", no usable PTX for {}", count(kernels_without_ptx, "other"));
    }
    line
}

/// A name for one line.
fn short(name: &str) -> String {
    let printable: String = name.chars().filter(|one| !one.is_control()).collect();
    match printable.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}...", &printable[..end]),
        None => printable,
    }
}

/// Characters of a kernel's name.
const LONGEST_NAME: usize = 80;

#[cfg(test)]
mod tests {
    use gridguard::{Axis, Dim3, LaunchRequest};

    use super::*;

    fn kernel(name: &str, refused: u64, fixed: u64, y: u64) -> KernelUse {
        KernelUse { fixed, ..crate::process::tests::kernel(name, refused, Dim3::new(1, y, 1)) }
    }

    fn report(kernels: Vec<KernelUse>) -> WatchReport {
        let frame = |file: &str| PythonFrame { file: file.into(), line: 42, function: "f".into() };
        let refusal = |kernel: &KernelUse| RefusedLaunch {
            kernel: kernel.name.clone(),
            code: 1,
            error: "CUDA_ERROR_INVALID_VALUE".into(),
            request: LaunchRequest::new(Dim3::new(1, 70_000, 1), Dim3::ONE),
            violations: vec!["grid.y is 70000 blocks: split it".into()],
            driver_log: None,
            not_fixed: Some("no PTX".into()),
            python: vec![frame("<string>"), frame("train.py")],
            stack: Vec::new(),
        };
        let refusals = kernels.iter().filter(|one| one.refused > 0).map(refusal).collect();
        let mut report =
            WatchReport { launches: 9, refused: 3, kernels, refusals, ..Default::default() };
        report.sort();
        report
    }

    #[test]
    fn the_summary_says_what_was_refused_and_what_is_near() {
        let kernels = vec![
            kernel("far", 0, 0, 6000),
            kernel("attention", 0, 0, 60_948),
            kernel("rows", 3, 0, 9),
            kernel("touch", 0, 2, 60_000),
        ];
        let mut report = report(kernels);
        let expected = |breaks: &str| {
            format!(
                "gridguard: 9 launches of 4 kernels accepted, 3 refused\n  \
                 refused: rows, 3 times at train.py:42 in f: grid.y is 70000 blocks; \
                 not fixed: no PTX\n  \
                 fixed: touch, 2 launches made in parts\n  \
                 near: grid.y of attention is at 93 % of its limit, 60948 of 65535 blocks: {breaks}\n"
            )
        };
        assert_eq!(report.summary(), expected("breaks above 1.07 times its size"));
        report.batch = Some(6);
        assert_eq!(report.summary(), expected("breaks at batch 7"));
    }

    #[test]
    fn a_batch_breaks_at_the_first_size_that_exceeds_the_limit() {
        for (batch, blocks, breaks) in [(1, 65_535, 2), (65_535, 65_535, 65_536), (3, 21_845, 10)] {
            let mut report = report(vec![kernel("k", 0, 0, blocks)]);
            report.batch = Some(batch);
            let summary = report.summary();
            assert!(summary.ends_with(&format!(": breaks at batch {breaks}\n")), "{summary}");
        }
    }

    #[test]
    fn indices_that_wrapped_and_those_that_come_next_are_in_the_summary() {
        let index = |kernel: &str, y, wraps: &[&str], limit: Option<u64>| IndexUse {
            kernel: kernel.into(),
            request: LaunchRequest::new(Dim3::new(1, y, 1), Dim3::ONE),
            wraps: wraps.iter().map(|&wrap| wrap.to_owned()).collect(),
            next: limit.map(|limit| Nearness { axis: Axis::Y, blocks: y, limit }),
        };
        let wrapped = index("rows", 40_000, &["blockIdx.y * 65536 reaches 2621374464"], None);
        let next = index("scan", 20_000, &[], Some(32_768));
        let nearer = index("scan", 30_000, &[], Some(32_768));
        assert!(wrapped.is_worse_than(&next) && !next.is_worse_than(&wrapped));
        assert!(nearer.is_worse_than(&next) && !next.is_worse_than(&nearer));
        let report = WatchReport {
            launches: 2,
            batch: Some(5),
            indices: vec![wrapped, next],
            index_coverage: Some(IndexCoverage {
                kernels: 2,
                launches: 9,
                kernels_without_ptx: 1,
                kernels_in_part: 1,
                kernels_unknown: 1,
            }),
            ..WatchReport::default()
        };
        assert_eq!(
            report.summary(),
            "gridguard: 2 launches of 0 kernels accepted, 0 refused\n  \
             wraps: a 32-bit index of rows with a grid of 1 x 40000 x 1: blockIdx.y * 65536 reaches \
             2621374464\n  \
             indices: 9 launches of 2 kernels compared (1 in part), unknown for 1, no usable PTX for 1 other\n  \
             near: a 32-bit index of scan wraps from 32769 blocks on y, of which it had 20000: wraps at \
             batch 9\n"
        );
        let lines = report.index_lines();
        assert!(
            lines.len() == 3 && lines[0].starts_with("wraps: a 32-bit index of rows"),
            "{lines:?}"
        );
        let text = serde_json::to_vec(&report).expect("JSON");
        assert_eq!(WatchReport::parse(&text).expect("a report"), report);
    }

    #[test]
    fn the_summary_of_many_kernels_has_few_lines() {
        let kernels = (0..900).map(|number| {
            let kinds = [(1, 0, 9), (0, 1, 9), (0, 0, 60_000)];
            let (refused, fixed, y) = kinds[number % 3];
            kernel(&format!("k{number}\n").repeat(100), refused, fixed, y)
        });
        let mut report = report(kernels.collect());
        report.launches_after_refusal = 1;
        (report.unlisted_launches, report.fixed) = (1, 300);
        let summary = report.summary();
        assert_eq!(summary.lines().count(), 19, "{summary}");
        assert!(summary.lines().all(|line| line.chars().count() < 300), "{summary}");
        assert!(summary.contains("  refused: 294 more, which the report"), "{summary}");
    }
}
