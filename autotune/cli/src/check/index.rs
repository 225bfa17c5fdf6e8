//! What the PTX of a file says about the 32-bit indices of a kernel in a launch.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use gridguard::{Axis, Dim3, IndexLimit, count};
use gridguard_index::{EntryIndex, Size, Sizes, Verdict, Wrap};
use serde::Serialize;

use crate::error::CommandError;
use crate::ptx::index::{set_launch, set_parameters};

/// The indices of a kernel.
#[derive(Clone, Debug, Serialize)]
pub(super) struct KernelIndex {
    /// The first size of an axis that makes an index wrap, if the other axes are unchanged.
    wraps_from: BTreeMap<&'static str, u64>,
    /// Indices that wrap in this launch or for some values of parameters, with the condition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    wraps_if: Vec<String>,
    /// Why it is not known whether more indices wrap.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
    #[serde(skip)]
    pub(super) limits: Vec<IndexLimit>,
}

impl KernelIndex {
    /// The indices of `entry` in a launch, with parameters as `given` on the command line.
    pub(super) fn new(
        mut entry: EntryIndex,
        (grid, block): (Dim3, Dim3),
        given: &[String],
    ) -> Result<Self, CommandError> {
        let mut sizes = Sizes::default();
        set_parameters(&mut sizes, &entry, given)?;
        let limits = entry.limits(&sizes).into_iter().map(IndexLimit::from);
        let limits: Vec<IndexLimit> = limits.collect();
        set_launch(&mut sizes, [Some(grid), Some(block)]);
        let mut wraps_from = BTreeMap::new();
        for axis in Axis::ALL {
            let all = u64::from(u32::MAX);
            let along = limits.iter().filter(|limit| limit.depends_on(axis));
            let most =
                along.map(|limit| limit.most_blocks(axis, grid.with(axis, all), block)).min();
            if let Some(most) = most.filter(|most| *most < all) {
                wraps_from.insert(axis.letter(), most + 1);
            }
        }
        let (mut wraps_if, mut unknown) = (Vec::new(), None);
        match entry.verdict(&sizes) {
            Verdict::Safe => {}
            Verdict::Unknown(doubt) => unknown = Some(doubt.to_string()),
            Verdict::Wraps(wraps) => {
                let is_limited = |wrap: &&Wrap| !limits.is_empty() && depends_on_grid(wrap);
                let others = wraps.iter().filter(|wrap| !is_limited(wrap));
                wraps_if.extend(
                    others.map(|wrap| format!("{} wraps if {}", wrap.expression, wrap.formula)),
                );
            }
        }
        Ok(Self { wraps_from, wraps_if, unknown, limits })
    }
}

impl fmt::Display for KernelIndex {
    /// Indented lines, none if no index wraps.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.wraps_from.is_empty() {
            f.write_str("  32-bit indices wrap")?;
            for (place, (axis, blocks)) in self.wraps_from.iter().enumerate() {
                let and = if place > 0 { "," } else { "" };
                write!(f, "{and} from {} on {axis}", count(*blocks, "block"))?;
            }
            f.write_char('\n')?;
        }
        for wrap in &self.wraps_if {
            writeln!(f, "  a 32-bit index: {wrap}")?;
        }
        match &self.unknown {
            Some(reason) => writeln!(f, "  it is unknown whether 32-bit indices wrap: {reason}"),
            None => Ok(()),
        }
    }
}

/// Whether the grid alone decides: all other sizes of the formula are known.
fn depends_on_grid(wrap: &Wrap) -> bool {
    wrap.first.iter().any(|first| matches!(first.size, Size::Grid(_)))
}
