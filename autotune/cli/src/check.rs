//! `gridguard check`: checks whether a launch is legal, and how to split it if it is not.

use std::fmt::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::{PossibleValuesParser, RangedU64ValueParser, TypedValueParser};
use gridguard::check::{CheckRequest, Legality, Verdict};
use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, KernelLimits, LaunchRequest};

use crate::device::DeviceChoice;
use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, count, text};
use crate::requests;

#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["grid", "requests"]))]
#[command(group = clap::ArgGroup::new("whose").required(true).args(["gpu", "device"]))]
pub(crate) struct Check {
    #[command(flatten)]
    device: DeviceChoice,
    /// Blocks of the grid
    #[arg(long, value_name = "X,Y,Z", requires = "block", value_parser = size)]
    grid: Option<Dim3>,
    /// Threads of a block
    #[arg(long, value_name = "X,Y,Z", requires = "grid", value_parser = size)]
    block: Option<Dim3>,
    /// Dynamic shared memory per block
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared_mem: u64,
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
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    param_bytes: u64,
    /// Registers per thread
    #[arg(long, value_name = "N", default_value_t = 0)]
    registers: u64,
    /// Local memory per thread
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    local_mem: u64,
    /// Static shared memory of the kernel
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    static_shared_mem: u64,
    /// Dynamic shared memory that the kernel opted in to
    #[arg(long, value_name = "BYTES")]
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
    #[arg(long, value_name = "BYTES", default_value_t = 0, requires = "batch_axis")]
    workspace_per_item: u64,
    /// Memory available for workspace; by default the whole memory of the device
    #[arg(long, value_name = "BYTES", requires = "batch_axis")]
    memory: Option<u64>,
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
        let Some(limits) = self.device.limits()? else {
            // The group of arguments asks for one of them.
            return Ok(Exit::InvalidInput);
        };
        match &self.requests {
            Some(path) => requests::check_lines(path, &limits),
            None => self.check_one(&limits),
        }
    }

    fn check_one(&self, limits: &Arc<DeviceLimits>) -> Result<Exit, CommandError> {
        let verdict = self.request(limits).check(limits);
        self.output.print(&verdict, text(|f| write_text(f, &verdict, limits)))?;
        Ok(verdict.legality.into())
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
        let batch = self.batch_axis.map(|axis| self.batch(axis, device));
        CheckRequest { name: String::new(), request, kernel, batch }
    }

    fn batch(&self, axis: Axis, device: &DeviceLimits) -> BatchAxis {
        let mut batch = BatchAxis::new(axis, self.items.unwrap_or(0))
            .blocks_per_item(self.blocks_per_item)
            .align(self.align);
        if self.index_bits == "32" {
            batch = batch.index_32_bits(self.elements_per_item.unwrap_or(1));
        }
        let memory = self.memory.unwrap_or(device.memory_bytes);
        batch.workspace(self.workspace_per_item, memory)
    }
}

/// Arguments that describe one launch, and belong into each request of `--requests`.
const LAUNCH_ARGUMENTS: [&str; 12] = [
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
];
/// Launches of a plan that are shown; the rest is counted.
const SHOWN: u64 = 16;

fn write_text(out: &mut impl Write, verdict: &Verdict, limits: &DeviceLimits) -> fmt::Result {
    let legality = match verdict.legality {
        Legality::Legal => "legal",
        Legality::Chunked => "legal in chunks",
        _ => "rejected",
    };
    writeln!(out, "{legality} ({})", limits.name)?;
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
