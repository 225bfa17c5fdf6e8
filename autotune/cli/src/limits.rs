//! `gridguard limits`: shows the limits of devices and of the GPUs in the catalogue.

use std::fmt::{self, Write};
use std::iter;
use std::sync::Arc;

use clap::Args;
use gridguard::catalog::{self, CatalogError, Fact, Gpu, Source};
use gridguard::{DeviceLimits, Dim3, cuda};
use serde_json::{Value, json};

use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, Table, note, text};
use crate::words::{Suggested, gpu_words, whole};

/// The arguments of subcommands that only need limits.
#[derive(Args)]
#[group(multiple = false)]
pub(crate) struct DeviceChoice {
    /// GPU of the catalogue, by name or alias, for example h200 or rtx-4090; sm_86 or 8.6 for the GPUs of that
    /// compute capability; or any
    #[arg(long, value_name = "NAME", value_parser = Suggested(gpu_words), hide_possible_values = true)]
    pub(crate) gpu: Option<String>,
    /// Ordinal of a device of this machine
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    pub(crate) device: Option<usize>,
}

impl DeviceChoice {
    /// The limits of the chosen device; `None` if none was chosen.
    pub(crate) fn limits(&self) -> Result<Option<Arc<DeviceLimits>>, CommandError> {
        match (&self.gpu, self.device) {
            (Some(name), _) => Ok(Some(catalog::limits(name)?)),
            (None, Some(ordinal)) => Ok(Some(cuda::device_limits(ordinal)?)),
            (None, None) => Ok(None),
        }
    }
}

#[derive(Args)]
pub(crate) struct Limits {
    /// GPU of the catalogue, by name or alias, for example h200 or rtx-4090; sm_86 or 8.6 for the GPUs of that
    /// compute capability; or any
    #[arg(value_name = "GPU", conflicts_with_all = ["gpu", "device", "compare"])]
    #[arg(value_parser = Suggested(gpu_words), hide_possible_values = true)]
    name: Option<String>,
    #[command(flatten)]
    device: DeviceChoice,
    /// Two or more GPUs of the catalogue to show side by side
    #[arg(long, value_name = "GPU", num_args = 2.., conflicts_with_all = ["gpu", "device"])]
    #[arg(value_parser = Suggested(gpu_words), hide_possible_values = true)]
    compare: Vec<String>,
    #[command(flatten)]
    output: OutputArgs,
}

impl Limits {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        match (self.name.as_ref().or(self.device.gpu.as_ref()), self.device.device) {
            (Some(name), _) => self.print_one(&Column::new(name)?)?,
            (None, Some(ordinal)) => {
                let limits = cuda::device_limits(ordinal)?;
                self.print_one(&Column { limits, facts: &[] })?;
            }
            (None, None) if self.compare.is_empty() => self.print_all()?,
            (None, None) => {
                let gpus = self.compare.iter().map(|name| Column::new(name));
                let gpus: Vec<_> = gpus.collect::<Result<_, _>>()?;
                let documents: Vec<_> = gpus.iter().map(Column::document).collect();
                self.output.print(&documents, text(|f| write_table(f, &gpus)))?;
            }
        }
        Ok(Exit::Yes)
    }

    fn print_one(&self, column: &Column) -> Result<(), CommandError> {
        let table = text(|f| write_table(f, core::slice::from_ref(column)));
        self.output.print(&column.document(), table)
    }

    /// Prints the catalogue and the devices of this machine, if any.
    fn print_all(&self) -> Result<(), CommandError> {
        let gpus = catalog::gpus()?;
        let present: Vec<_> = match cuda::device_count() {
            Ok(count) => (0..count).map(cuda::device_limits).collect::<Result<_, _>>()?,
            Err(reason) => {
                note(format_args!("no device of this machine: {reason}"));
                Vec::new()
            }
        };
        let listed = gpus.iter().map(|gpu| &*gpu.limits);
        let all: Vec<&DeviceLimits> =
            present.iter().map(|limits| &**limits).chain(listed).collect();
        self.output.print(&all, list(&present, gpus))
    }
}

/// A device, or a GPU of the catalogue with the sources of its limits.
struct Column {
    limits: Arc<DeviceLimits>,
    facts: &'static [Fact],
}

impl Column {
    fn new(name: &str) -> Result<Self, CatalogError> {
        let limits = catalog::limits(name)?;
        // Those of a compute capability are the limits of one of its GPUs, under another name.
        let is_source = |gpu: &&Gpu| {
            let named =
                DeviceLimits { name: limits.name.clone(), ..DeviceLimits::clone(&gpu.limits) };
            named == *limits
        };
        let facts =
            catalog::gpus()?.iter().find(is_source).map_or(&[][..], |gpu| gpu.facts.as_slice());
        Ok(Self { limits, facts })
    }

    /// The limits, and the sources of a GPU of the catalogue.
    fn document(&self) -> Value {
        let source = |fact: &Fact| {
            let Source { title, url } = &**fact.source.as_ref()?;
            Some(json!({ "name": fact.name, "value": fact.value, "title": title, "url": url }))
        };
        let sources: Vec<Value> = self.facts.iter().filter_map(source).collect();
        let mut document = json!(*self.limits);
        if !sources.is_empty() {
            document["sources"] = sources.into();
        }
        document
    }

    /// The value of a row with the number of its source. Adds the source to `sources`.
    fn cell(&self, (_, name, value): &Row, sources: &mut Vec<Arc<Source>>) -> String {
        let value = value(&self.limits);
        match self.facts.iter().find(|fact| fact.name == *name).map(|fact| &fact.source) {
            None => value,
            Some(None) => "unknown".into(),
            Some(Some(source)) => {
                let place = sources.iter().position(|known| known == source);
                let place = place.unwrap_or_else(|| {
                    sources.push(Arc::clone(source));
                    sources.len() - 1
                });
                format!("{value} [{}]", place + 1)
            }
        }
    }
}

/// A limit: its label, its fact in the catalogue if any, and its value.
type Row = (&'static str, &'static str, fn(&DeviceLimits) -> String);

/// A limit that is a fact of the same name in the catalogue.
macro_rules! row {
    ($label:literal, $field:ident) => {
        ($label, stringify!($field), |limits| limits.$field.to_string())
    };
}

const ROWS: [Row; 22] = [
    ("compute capability", "", |limits| limits.compute_capability.to_string()),
    ("grid, blocks on x, y, z", "max_grid_y", |limits| sizes(limits.max_grid)),
    ("block, threads on x, y, z", "max_block_x", |limits| sizes(limits.max_block)),
    row!("threads per block", max_threads_per_block),
    row!("threads per warp", warp_size),
    row!("registers per block", max_registers_per_block),
    row!("shared memory per block, bytes", max_shared_bytes_per_block),
    row!("  after opt-in", max_shared_bytes_per_block_opt_in),
    row!("  reserved", reserved_shared_bytes_per_block),
    ("local memory per thread, bytes", "", |limits| {
        limits.max_local_bytes_per_thread().to_string()
    }),
    row!("kernel parameters, bytes", max_parameter_bytes),
    ("cooperative launch", "cooperative_launch", |limits| yes_no(limits.cooperative_launch)),
    ("clusters", "cluster_launch", |limits| yes_no(limits.cluster_launch)),
    row!("  portable size, blocks", max_portable_cluster_blocks),
    row!("multiprocessors", multiprocessors),
    row!("  threads", max_threads_per_multiprocessor),
    row!("  blocks", max_blocks_per_multiprocessor),
    row!("  registers", registers_per_multiprocessor),
    row!("  shared memory, bytes", shared_bytes_per_multiprocessor),
    row!("register allocation unit", register_allocation_unit),
    row!("L2 cache, bytes", l2_bytes),
    row!("memory, bytes", memory_bytes),
];

fn sizes(dim: Dim3) -> String {
    format!("{}, {}, {}", dim.x, dim.y, dim.z)
}

fn yes_no(flag: bool) -> String {
    if flag { "yes".into() } else { "no".into() }
}

/// A table with a column for each device, and the sources as footnotes.
fn write_table(out: &mut impl Write, columns: &[Column]) -> fmt::Result {
    let mut sources = Vec::new();
    let names = columns.iter().map(|column| &*column.limits.name);
    let mut table = Table::new(iter::once(" ").chain(names));
    for row in &ROWS {
        let cells = columns.iter().map(|column| column.cell(row, &mut sources));
        table.push(iter::once(row.0.to_owned()).chain(cells));
    }
    write!(out, "{table}")?;
    if !sources.is_empty() {
        writeln!(out)?;
    }
    for (number, Source { title, url }) in (1..).zip(sources.iter().map(|source| &**source)) {
        let url = if url.is_empty() { String::new() } else { format!(", {url}") };
        writeln!(out, "[{number}] {title}{url}")?;
    }
    Ok(())
}

/// The catalogue, after the devices of this machine.
fn list(present: &[Arc<DeviceLimits>], gpus: &[Gpu]) -> Table {
    let mut table = Table::new(["name", ">capability", ">SMs", "--gpu"]);
    let mut push = |limits: &DeviceLimits, option| {
        let DeviceLimits { name, compute_capability, multiprocessors, .. } = limits;
        let name = name.strip_prefix("NVIDIA ").unwrap_or(name).to_owned();
        table.push([name, compute_capability.to_string(), multiprocessors.to_string(), option]);
    };
    for (ordinal, limits) in present.iter().enumerate() {
        push(limits, format!("--device {ordinal}"));
    }
    for gpu in gpus {
        push(&gpu.limits, gpu.aliases.first().cloned().unwrap_or_default());
    }
    table
}
