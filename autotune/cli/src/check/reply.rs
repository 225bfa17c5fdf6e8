//! The reply of `gridguard check`, as text and as JSON.

use std::fmt::{self, Write};
use std::sync::Arc;

use gridguard::check::{Legality, Verdict};
use gridguard::image::KernelAttributes;
use gridguard::{DeviceLimits, IndexLimit, count};
use serde::Serialize;

use super::index::KernelIndex;
use super::kernel_image::ImageKernel;

const SHOWN: u64 = 16;

/// The launch on one device.
pub(super) struct Case {
    pub(super) device: Arc<DeviceLimits>,
    /// The kernel attributes of the options and the image.
    pub(super) stated: KernelAttributes,
    /// The kernel of the image, if there is an image.
    pub(super) kernel: Option<KernelReply>,
}

/// The kernel of an image, or why the device cannot use the image.
#[derive(Default, Serialize)]
pub(super) struct KernelReply {
    #[serde(flatten)]
    pub(super) kernel: Option<ImageKernel>,
    /// `None` if the file has no PTX of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<KernelIndex>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
    #[serde(skip)]
    pub(super) text: String,
}

impl Case {
    fn image(&self) -> Option<&ImageKernel> {
        self.kernel.as_ref()?.kernel.as_ref()
    }

    pub(super) fn name(&self) -> &str {
        self.image().map_or("", ImageKernel::name)
    }

    /// The unchecked rules; empty without an image.
    pub(super) fn unchecked(&self) -> String {
        self.image().map(ImageKernel::unchecked).unwrap_or_default()
    }

    /// The limits of the kernel's 32-bit indices.
    pub(super) fn index_limits(&self) -> Vec<IndexLimit> {
        let index = self.kernel.as_ref().and_then(|kernel| kernel.index.as_ref());
        index.map_or_else(Vec::new, |index| index.limits.clone())
    }

    pub(super) fn error(&self) -> Option<&str> {
        self.kernel.as_ref()?.error.as_deref()
    }
}

/// The document for one device.
#[derive(Serialize)]
pub(super) struct Reply<'a> {
    /// The device's name, if it is one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) gpu: Option<&'a str>,
    #[serde(flatten)]
    pub(super) verdict: &'a Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel: Option<&'a KernelReply>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) largest_batch: Option<LargestBatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hint: Option<&'a str>,
}

/// The largest batches in items; `None` for no limit.
#[derive(Clone, Copy, Serialize)]
pub(super) struct LargestBatch {
    pub(super) whole: Option<u64>,
    pub(super) in_chunks: Option<u64>,
    /// The next larger batch and its blocks, in one launch.
    #[serde(skip)]
    pub(super) broken: Option<(u64, u64)>,
}

impl fmt::Display for LargestBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = |most: Option<u64>| most.map_or("no limit".into(), |most| count(most, "item"));
        let (whole, in_chunks) = (items(self.whole), items(self.in_chunks));
        write!(f, "largest batch: {whole} in one launch, {in_chunks} in chunks")?;
        if let Some((items, blocks)) = self.broken {
            write!(f, "; {} would take {}", count(items, "item"), count(blocks, "block"))?;
        }
        writeln!(f)
    }
}

pub(super) const fn legality(verdict: &Verdict) -> &'static str {
    match verdict.legality {
        Legality::Legal => "legal",
        Legality::Chunked => "legal in chunks",
        _ => "rejected",
    }
}

pub(super) fn write_text(out: &mut impl Write, verdict: &Verdict, case: &Case) -> fmt::Result {
    writeln!(out, "{} ({})", legality(verdict), case.device.name)?;
    if let Some(kernel) = &case.kernel {
        out.write_str(&kernel.text)?;
    }
    if verdict.opts_in {
        writeln!(out, "  the kernel opts in to large shared memory, as the guard does for it")?;
    }
    for violation in &verdict.violations {
        writeln!(out, "  {}: {violation}", violation.rule)?;
    }
    let Some(plan) = &verdict.plan else {
        return Ok(());
    };
    writeln!(out, "plan: {}, {}", plan.strategy(), count(plan.len(), "launch"))?;
    for planned in plan.launches().take_while(|planned| planned.chunk.index < SHOWN) {
        let [x, y, z] = planned.launch.grid();
        let (start, end) = (planned.chunk.start, planned.chunk.end());
        writeln!(out, "  items {start}..{end}, grid {x},{y},{z}")?;
    }
    match plan.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}
