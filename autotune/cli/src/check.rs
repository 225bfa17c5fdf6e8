//! `gridguard check`: whether a launch is legal, and how to split it where it is not.

use std::fmt::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use gridguard::check::{BatchDescription, KernelDescription, LaunchDescription, Outcome, Verdict};
use gridguard::{Axis, DeviceLimits, Dim3};

use crate::device::DeviceChoice;
use crate::error::{CommandError, Exit};
use crate::output::OutputArgs;
use crate::requests;

#[derive(Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["grid", "requests"]))]
#[command(group = clap::ArgGroup::new("whose").required(true).args(["gpu", "device"]))]
pub(crate) struct Check {
    #[command(flatten)]
    device: DeviceChoice,
    /// Blocks of the grid
    #[arg(long, value_name = "X,Y,Z", requires = "block")]
    grid: Option<Size>,
    /// Threads of a block
    #[arg(long, value_name = "X,Y,Z", requires = "grid")]
    block: Option<Size>,
    /// Dynamic shared memory of a block
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared_mem: u64,
    /// Blocks of a cluster
    #[arg(long, value_name = "X,Y,Z")]
    cluster: Option<Size>,
    /// The launch is cooperative
    #[arg(long)]
    cooperative: bool,
    /// The launch may begin before the one before it has ended
    #[arg(long)]
    dependent: bool,
    /// Bytes of kernel parameters
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    param_bytes: u64,
    /// Registers of a thread
    #[arg(long, value_name = "N", default_value_t = 0)]
    registers: u64,
    /// Static shared memory of the kernel
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    static_shared_mem: u64,
    /// Dynamic shared memory that the kernel opted in to
    #[arg(long, value_name = "BYTES")]
    kernel_max_shared_mem: Option<u64>,
    /// Threads of a block that the kernel takes, by its launch bounds
    #[arg(long, value_name = "N")]
    kernel_max_threads: Option<u64>,
    /// The axis of the grid whose items are independent
    #[arg(long, value_name = "x|y|z", value_enum, requires = "items")]
    batch_axis: Option<AxisName>,
    /// Items along the batch axis
    #[arg(long, value_name = "N", requires = "batch_axis")]
    items: Option<u64>,
    /// Blocks of an item
    #[arg(long, value_name = "K", default_value_t = 1, requires = "batch_axis")]
    blocks_per_item: u64,
    /// Chunks start at multiples of so many items
    #[arg(long, value_name = "A", default_value_t = 1, requires = "batch_axis")]
    align: u64,
    /// Elements that an item addresses, for --index-bits 32
    #[arg(long, value_name = "E", default_value_t = 0, requires = "batch_axis")]
    elements_per_item: u64,
    /// Bits of the kernel's index arithmetic: 32 or 64
    #[arg(long, value_name = "BITS", default_value_t = 64, requires = "batch_axis")]
    index_bits: u32,
    /// Workspace that an item of a launch needs
    #[arg(long, value_name = "BYTES", default_value_t = 0, requires = "batch_axis")]
    workspace_per_item: u64,
    /// Memory for workspace; without it all that the device has
    #[arg(long, value_name = "BYTES", requires = "batch_axis")]
    memory: Option<u64>,
    /// One JSON request a line, from a file or - for standard input; answers one JSON verdict a
    /// line
    #[arg(long, value_name = "FILE|-", conflicts_with_all = OF_ONE_LAUNCH)]
    requests: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum AxisName {
    X,
    Y,
    Z,
}

impl From<AxisName> for Axis {
    fn from(name: AxisName) -> Self {
        match name {
            AxisName::X => Self::X,
            AxisName::Y => Self::Y,
            AxisName::Z => Self::Z,
        }
    }
}

/// `X`, `X,Y` or `X,Y,Z`; what is left out is 1.
#[derive(Clone, Copy)]
struct Size(Dim3);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number =
            |part: &str| part.trim().parse::<u64>().map_err(|error| format!("{part:?}: {error}"));
        let parts: Vec<u64> = text.split(',').map(number).collect::<Result<_, _>>()?;
        match *parts.as_slice() {
            [x] => Ok(Self(Dim3::new(x, 1, 1))),
            [x, y] => Ok(Self(Dim3::new(x, y, 1))),
            [x, y, z] => Ok(Self(Dim3::new(x, y, z))),
            _ => Err("expected are one to three numbers, as X,Y,Z".into()),
        }
    }
}

impl Check {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let Some(limits) = self.device.limits()? else {
            // The group of arguments asks for one of them.
            return Ok(Exit::InvalidInput);
        };
        match &self.requests {
            Some(path) => requests::answer(path, &limits),
            None => self.answer_one(&limits),
        }
    }

    fn answer_one(&self, limits: &Arc<DeviceLimits>) -> Result<Exit, CommandError> {
        let verdict = self.description().check(limits)?;
        self.output.print(&verdict, fmt::from_fn(|f| write_text(f, &verdict, limits)))?;
        Ok(answer_of(verdict.outcome))
    }

    fn description(&self) -> LaunchDescription {
        let batch = self.batch_axis.map(|axis| BatchDescription {
            axis: axis.into(),
            items: self.items.unwrap_or(0),
            blocks_per_item: self.blocks_per_item,
            align: self.align,
            elements_per_item: self.elements_per_item,
            index_bits: self.index_bits,
            workspace_bytes_per_item: self.workspace_per_item,
            memory_bytes: self.memory,
        });
        let size = |size: Option<Size>| size.map_or(Dim3::ONE, |size| size.0);
        LaunchDescription {
            name: String::new(),
            grid: size(self.grid),
            block: size(self.block),
            dynamic_shared_bytes: self.shared_mem,
            cluster: self.cluster.map(|size| size.0),
            cooperative: self.cooperative,
            parameter_bytes: self.param_bytes,
            priority: None,
            dependent: self.dependent,
            kernel: KernelDescription {
                max_threads_per_block: self.kernel_max_threads,
                registers_per_thread: self.registers,
                static_shared_bytes: self.static_shared_mem,
                max_dynamic_shared_bytes: self.kernel_max_shared_mem,
            },
            batch,
        }
    }
}

pub(crate) const fn answer_of(outcome: Outcome) -> Exit {
    match outcome {
        Outcome::Legal | Outcome::Chunked => Exit::Yes,
        _ => Exit::No,
    }
}

/// What is said of one launch, and within a request where there are several.
const OF_ONE_LAUNCH: [&str; 11] = [
    "block",
    "shared_mem",
    "cluster",
    "cooperative",
    "dependent",
    "param_bytes",
    "registers",
    "static_shared_mem",
    "kernel_max_shared_mem",
    "kernel_max_threads",
    "batch_axis",
];
/// Launches of a plan that are shown; the rest is counted.
const SHOWN: usize = 16;

fn write_text(out: &mut impl Write, verdict: &Verdict, limits: &DeviceLimits) -> fmt::Result {
    let word = match verdict.outcome {
        Outcome::Legal => "legal",
        Outcome::Chunked => "legal in chunks",
        _ => "rejected",
    };
    writeln!(out, "{word} ({})", limits.name)?;
    for violation in &verdict.violations {
        writeln!(out, "  {}: {violation}", violation.rule)?;
    }
    let Some(plan) = &verdict.plan else {
        return Ok(());
    };
    let plural = if plan.len() == 1 { "" } else { "es" };
    writeln!(out, "plan: {}, {} launch{plural}", plan.strategy, plan.len())?;
    for launch in plan.launches.iter().take(SHOWN) {
        let [x, y, z] = launch.grid;
        let end = launch.start.saturating_add(launch.items);
        writeln!(out, "  items {}..{end}, grid {x},{y},{z}", launch.start)?;
    }
    let shown = u64::try_from(plan.launches.len().min(SHOWN)).unwrap_or(u64::MAX);
    match plan.len() - shown {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more"),
    }
}
