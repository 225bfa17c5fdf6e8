//! Writes the totals, the warnings and the summary of a report as text.

use core::fmt::{self, Write};

use crate::process::{KernelUse, WatchReport};

impl WatchReport {
    /// The launches of the process in one line.
    #[must_use]
    pub fn totals(&self) -> String {
        let listed = u64::try_from(self.kernels.len()).unwrap_or(u64::MAX);
        let kernels = count(self.unlisted_kernels.saturating_add(listed), "kernel", "kernels");
        let launches = count(self.launches, "launch", "launches");
        let fixed = match self.fixed {
            0 => String::new(),
            fixed => format!(", {fixed} fixed"),
        };
        format!("{launches} of {kernels} accepted, {} refused{fixed}", self.refused)
    }

    /// What makes the results of the program or the numbers of the report doubtful.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let after = self.launches_after_refusal;
        let stale = (self.refused > 0 && after > 0).then(|| {
            format!(
                "the program went on with {} after the first refused one: unless it handled the error, its \
                 results are stale",
                count(after, "launch", "launches")
            )
        });
        let unwatched = (self.unwatched_functions > 0)
            .then(|| "launches by a further or newer driver library were not watched".to_owned());
        stale.into_iter().chain(unwatched).collect()
    }

    /// The summary that a watched program prints at its end.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_summary(&mut text);
        text
    }

    fn write_summary(&self, out: &mut String) -> fmt::Result {
        writeln!(out, "gridguard: {}", self.totals())?;
        self.warnings().iter().try_for_each(|line| writeln!(out, "  warning: {line}"))?;
        self.memory.summary().iter().try_for_each(|line| writeln!(out, "  {line}"))?;
        let limits = self.grid_limit();
        for kernel in self.kernels.iter().take(SHOWN) {
            let KernelUse { launches, refused, fixed, max_grid, .. } = kernel;
            write!(out, "  {}: {}", kernel.demangled, count(*launches, "launch", "launches"))?;
            for (launches, what) in [(refused, "refused"), (fixed, "fixed")] {
                if *launches > 0 {
                    write!(out, ", {launches} {what}")?;
                }
            }
            if *launches > 0 {
                write!(out, ", grids up to {max_grid}")?;
                if let Some((axis, factor)) = kernel.headroom(limits) {
                    write!(out, ", exceeds grid.{axis} at {factor:.2} times its largest size")?;
                }
            }
            writeln!(out)?;
        }
        if let Some(more) = self.kernels.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            writeln!(out, "  and {more} more kernels, which the report of --report lists")?;
        }
        if self.unlisted_launches > 0 {
            let launches = count(self.unlisted_launches, "launch", "launches");
            writeln!(out, "  and {launches} of further kernels, which no report lists")?;
        }
        Ok(())
    }
}

/// `1 launch`, `2 launches`.
fn count(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Kernels of the summary.
const SHOWN: usize = 10;
