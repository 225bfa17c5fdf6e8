//! `gridguard check`: checks whether a launch is legal, and how to split it if it is not.

use std::fmt::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use gridguard::check::{CheckRequest, Legality, Verdict};
use gridguard::{
    Axis, BatchAxis, DeviceLimits, Dim3, KernelLimits, LaunchRequest, Remedy, catalog, cuda,
};
use serde::Serialize;

use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, Table, count, text};
use crate::requests;

#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["grid", "requests"]))]
#[command(group = clap::ArgGroup::new("whose").required(true).multiple(false).args(["gpu", "device"]))]
pub(crate) struct Check {
    /// GPUs of the catalogue, by name or alias, such as h200 or rtx-4090; any of a compute capability, as
    /// sm_86; or any. Of several, a table shows where the launch fits
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    gpu: Vec<String>,
    /// Device of this machine, by ordinal
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// Blocks of the grid
    #[arg(long, value_name = "X,Y,Z", requires = "block", value_parser = size)]
    grid: Option<Dim3>,
    /// Threads of a block
    #[arg(long, value_name = "X,Y,Z", requires = "grid", value_parser = size)]
    block: Option<Dim3>,
    /// Dynamic shared memory per block, such as 65536 or 64KiB
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    shared_mem: u64,
    /// Check as for a kernel that does not opt in to large dynamic shared memory: the guard opts in
    /// where it is needed
    #[arg(long, conflicts_with = "kernel_max_shared_mem")]
    no_opt_in: bool,
    /// Blocks of a cluster
    #[arg(long, value_name = "X,Y,Z", value_parser = size)]
    cluster: Option<Dim3>,
    /// The launch is cooperative
    #[arg(long)]
    cooperative: bool,
    /// The launch may start before the previous one has ended (programmatic dependent launch)
    #[arg(long)]
    dependent: bool,
    /// Bytes of kernel parameters
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    param_bytes: u64,
    /// Registers per thread
    #[arg(long, value_name = "N", default_value_t = 0)]
    registers: u64,
    /// Local memory per thread
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    local_mem: u64,
    /// Static shared memory of the kernel
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    static_shared_mem: u64,
    /// Dynamic shared memory that the kernel opted in to
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    kernel_max_shared_mem: Option<u64>,
    /// Maximum threads per block by the kernel's launch bounds
    #[arg(long, value_name = "N")]
    kernel_max_threads: Option<u64>,
    /// The axis of the grid whose items are independent
    #[arg(long, value_name = "x|y|z", requires = "items", value_parser = axis())]
    batch_axis: Option<Axis>,
    /// Items along the batch axis
    #[arg(long, value_name = "N", requires = "batch_axis")]
    items: Option<u64>,
    /// Blocks per item
    #[arg(long, value_name = "K", default_value_t = 1, requires = "batch_axis", value_parser = from_1())]
    blocks_per_item: u64,
    /// Chunks start only at multiples of so many items
    #[arg(long, value_name = "A", default_value_t = 1, requires = "batch_axis", value_parser = from_1())]
    align: u64,
    /// Elements that an item addresses, for --index-bits 32
    #[arg(long, value_name = "E", requires = "batch_axis", value_parser = from_1())]
    #[arg(required_if_eq("index_bits", "32"))]
    elements_per_item: Option<u64>,
    /// Width of the kernel's index arithmetic
    #[arg(long, value_name = "BITS", default_value = "64", requires = "batch_axis")]
    #[arg(value_parser = ["32", "64"])]
    index_bits: String,
    /// Workspace per item
    #[arg(long, value_name = "BYTES", default_value = "0", requires = "batch_axis", value_parser = bytes)]
    workspace_per_item: u64,
    /// Memory available for workspace; by default the whole memory of the device
    #[arg(long, value_name = "BYTES", requires = "batch_axis", value_parser = bytes)]
    memory: Option<u64>,
    /// Also find the largest batch whose launch is legal
    #[arg(long, requires = "batch_axis")]
    max_items: bool,
    /// Reads one JSON request per line from a file, or - for standard input; writes one JSON verdict
    /// per line
    #[arg(long, value_name = "FILE|-", conflicts_with_all = LAUNCH_ARGUMENTS)]
    requests: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// A number of at least 1.
fn from_1() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..)
}

/// A number of bytes, such as `100`, `100KiB` or `2Gi`; `K` without an `i` counts in thousands.
fn bytes(text: &str) -> Result<u64, String> {
    parse_size::parse_size(text).map_err(|error| error.to_string())
}

fn axis() -> impl TypedValueParser<Value = Axis> {
    PossibleValuesParser::new(Axis::ALL.map(Axis::letter)).map(|name| match name.as_str() {
        "x" => Axis::X,
        "y" => Axis::Y,
        _ => Axis::Z,
    })
}

/// `X`, `X,Y` or `X,Y,Z`; omitted numbers are 1.
fn size(text: &str) -> Result<Dim3, String> {
    let number =
        |part: &str| part.trim().parse::<u64>().map_err(|error| format!("{part:?}: {error}"));
    let parts: Vec<u64> = text.split(',').map(number).collect::<Result<_, _>>()?;
    match *parts.as_slice() {
        [x] => Ok(Dim3::new(x, 1, 1)),
        [x, y] => Ok(Dim3::new(x, y, 1)),
        [x, y, z] => Ok(Dim3::new(x, y, z)),
        _ => Err("expected one to three numbers, as X,Y,Z".into()),
    }
}

impl Check {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let devices = match self.device {
            Some(ordinal) => vec![cuda::device_limits(ordinal)?],
            None => self.gpu.iter().map(|name| catalog::limits(name)).collect::<Result<_, _>>()?,
        };
        match (&self.requests, devices.as_slice()) {
            (Some(path), [device]) => requests::check_lines(path, device, !self.no_opt_in),
            (Some(_), _) => Err(CommandError::Invalid("--requests takes one --gpu".into())),
            (None, [device]) => self.check_one(device),
            (None, devices) => self.check_each(devices),
        }
    }

    fn check_one(&self, device: &Arc<DeviceLimits>) -> Result<Exit, CommandError> {
        let verdict = self.verdict(device);
        let largest = self.max_items.then(|| self.largest_batch(device));
        let hint = self.hint(&verdict);
        self.output.print(
            &Reply { verdict: &verdict, largest_batch: largest, hint: hint.as_deref() },
            text(|f| {
                write_text(f, &verdict, device)?;
                largest.map_or(Ok(()), |largest| write!(f, "{largest}"))?;
                hint.as_ref().map_or(Ok(()), |hint| writeln!(f, "{hint}"))
            }),
        )?;
        Ok(verdict.legality.into())
    }

    /// One row for each device. The exit code is that of the worst.
    fn check_each(&self, devices: &[Arc<DeviceLimits>]) -> Result<Exit, CommandError> {
        let verdicts: Vec<_> =
            devices.iter().map(|device| (device, self.verdict(device))).collect();
        let rows: Vec<_> = verdicts
            .iter()
            .map(|(device, verdict)| DeviceReply { gpu: &device.name, verdict })
            .collect();
        let mut table = Table::new(["GPU", "verdict", ">launches", "first violation"]);
        for (device, verdict) in &verdicts {
            let launches =
                verdict.plan.as_ref().map_or_else(String::new, |plan| plan.len().to_string());
            let first = verdict.violations.iter().next().map(ToString::to_string);
            let verdict = legality(verdict).to_owned();
            table.push([device.name.clone(), verdict, launches, first.unwrap_or_default()]);
        }
        self.output.print(&rows, table)?;
        Ok(verdicts.iter().map(|(_, verdict)| verdict.legality.into()).max().unwrap_or(Exit::Yes))
    }

    fn verdict(&self, device: &DeviceLimits) -> Verdict {
        self.verdict_of(&self.request(device), device)
    }

    fn verdict_of(&self, request: &CheckRequest, device: &DeviceLimits) -> Verdict {
        if self.no_opt_in { request.check(device) } else { request.check_with_opt_in(device) }
    }

    /// The option that would make a rejected launch legal.
    fn hint(&self, verdict: &Verdict) -> Option<String> {
        let [violation] = verdict.violations.iter().as_slice() else { return None };
        let axis = violation.axis?;
        (self.batch_axis.is_none() && matches!(violation.remedy, Remedy::SplitAxis { .. })).then(
            || {
                format!(
                    "if the blocks along {axis} are independent items, it is legal in chunks: add \
                 --batch-axis {axis} --items {}",
                    violation.requested
                )
            },
        )
    }

    /// The largest batches that are legal on `device`, where the grid has as many blocks as they need.
    fn largest_batch(&self, device: &DeviceLimits) -> LargestBatch {
        let axis = self.batch_axis.unwrap_or(Axis::X);
        // The blocks of fewer items may not be a multiple of the cluster.
        let unit = self.cluster.map_or(1, |cluster| cluster.along(axis).max(1));
        let of = |items: u64| {
            let mut request = self.request(device);
            let batch = self.batch(axis, items, device);
            let blocks = batch.blocks(items).unwrap_or(u64::MAX);
            request.request.grid = request.request.grid.with(axis, blocks);
            request.batch = Some(batch);
            (self.verdict_of(&request, device).legality, blocks)
        };
        let whole = largest(unit, |items| of(items).0 == Legality::Legal);
        let in_chunks = largest(unit, |items| of(items).0 != Legality::Rejected);
        let broken = whole.map(|items| items.saturating_add(unit));
        LargestBatch { whole, in_chunks, broken: broken.map(|items| (items, of(items).1)) }
    }

    fn request(&self, device: &DeviceLimits) -> CheckRequest {
        let [grid, block] = [self.grid, self.block].map(|size| size.unwrap_or(Dim3::ONE));
        let mut request = LaunchRequest::new(grid, block)
            .dynamic_shared_bytes(self.shared_mem)
            .parameter_bytes(self.param_bytes);
        request.cluster = self.cluster;
        request.cooperative = self.cooperative;
        request.dependent = self.dependent;
        let kernel = KernelLimits {
            max_threads_per_block: self.kernel_max_threads,
            registers_per_thread: self.registers,
            local_bytes_per_thread: self.local_mem,
            static_shared_bytes: self.static_shared_mem,
            max_dynamic_shared_bytes: self.kernel_max_shared_mem,
            ..KernelLimits::default()
        };
        let items = self.items.unwrap_or(0);
        let batch = self.batch_axis.map(|axis| self.batch(axis, items, device));
        CheckRequest { name: String::new(), request, kernel, batch }
    }

    fn batch(&self, axis: Axis, items: u64, device: &DeviceLimits) -> BatchAxis {
        let mut batch =
            BatchAxis::new(axis, items).blocks_per_item(self.blocks_per_item).align(self.align);
        if self.index_bits == "32" {
            batch = batch.index_32_bits(self.elements_per_item.unwrap_or(1));
        }
        let memory = self.memory.unwrap_or(device.memory_bytes);
        batch.workspace(self.workspace_per_item, memory)
    }
}

/// Arguments that describe one launch, and belong into each request of `--requests`.
const LAUNCH_ARGUMENTS: [&str; 13] = [
    "block",
    "shared_mem",
    "cluster",
    "cooperative",
    "dependent",
    "param_bytes",
    "registers",
    "local_mem",
    "static_shared_mem",
    "kernel_max_shared_mem",
    "kernel_max_threads",
    "batch_axis",
    "max_items",
];
/// Launches of a plan that are shown; the rest is counted.
const SHOWN: u64 = 16;

/// The document for one device.
#[derive(Serialize)]
struct Reply<'a> {
    #[serde(flatten)]
    verdict: &'a Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_batch: Option<LargestBatch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
}

/// The document for one of several devices.
#[derive(Serialize)]
struct DeviceReply<'a> {
    gpu: &'a str,
    #[serde(flatten)]
    verdict: &'a Verdict,
}

/// The largest batches in items; `None` for no limit.
#[derive(Clone, Copy, Serialize)]
struct LargestBatch {
    whole: Option<u64>,
    in_chunks: Option<u64>,
    /// The next larger batch and its blocks, in one launch.
    #[serde(skip)]
    broken: Option<(u64, u64)>,
}

impl fmt::Display for LargestBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items =
            |most: Option<u64>| most.map_or("no limit".into(), |most| format!("{most} items"));
        let (whole, in_chunks) = (items(self.whole), items(self.in_chunks));
        write!(f, "largest batch: {whole} in one launch, {in_chunks} in chunks")?;
        match self.broken {
            Some((items, blocks)) => writeln!(f, "; {items} items are {blocks} blocks"),
            None => writeln!(f),
        }
    }
}

/// The largest multiple of `unit` up to [`MOST_ITEMS`] for which `is_legal` holds, as it does for all
/// smaller ones; `None` if it holds for all.
fn largest(unit: u64, is_legal: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut legal, mut illegal) = (0, MOST_ITEMS / unit);
    if is_legal(illegal * unit) {
        return None;
    }
    while illegal.saturating_sub(legal) > 1 {
        let middle = legal.midpoint(illegal);
        if is_legal(middle * unit) {
            legal = middle;
        } else {
            illegal = middle;
        }
    }
    Some(legal * unit)
}

/// More items than memory holds.
const MOST_ITEMS: u64 = 1 << 48;

const fn legality(verdict: &Verdict) -> &'static str {
    match verdict.legality {
        Legality::Legal => "legal",
        Legality::Chunked => "legal in chunks",
        _ => "rejected",
    }
}

fn write_text(out: &mut impl Write, verdict: &Verdict, limits: &DeviceLimits) -> fmt::Result {
    writeln!(out, "{} ({})", legality(verdict), limits.name)?;
    if verdict.opts_in {
        writeln!(out, "  the kernel opts in to large shared memory, as the guard does for it")?;
    }
    for violation in &verdict.violations {
        writeln!(out, "  {}: {violation}", violation.rule)?;
    }
    let Some(plan) = &verdict.plan else {
        return Ok(());
    };
    writeln!(out, "plan: {}, {}", plan.strategy(), count(plan.len(), "launch", "launches"))?;
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
