//! `gridguard limits`: the limits of devices and of the GPUs in the catalogue.

use std::fmt::{self, Display, Write};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use gridguard::catalog::{self, Fact, Gpu};
use gridguard::{DeviceLimits, cuda};
use serde::Serialize;

use crate::device::DeviceChoice;
use crate::error::{CommandError, Exit};
use crate::output::{self, note, text};

#[derive(Args)]
pub(crate) struct Limits {
    #[command(flatten)]
    device: DeviceChoice,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// RON too, and indented JSON, because limits are kept as files.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
    Ron,
}

/// Limits, with their sources for a GPU of the catalogue.
#[derive(Serialize)]
struct LimitsWithSources<'a> {
    #[serde(flatten)]
    limits: &'a DeviceLimits,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<FactWithSource<'a>>,
}

#[derive(Serialize)]
struct FactWithSource<'a> {
    name: &'a str,
    value: u64,
    title: &'a str,
    url: &'a str,
}

impl Limits {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        match (&self.device.gpu, self.device.limits()?) {
            (Some(name), _) => {
                let gpu = catalog::gpu(name)?;
                self.print_one(&gpu.limits, &gpu.facts)?;
            }
            (None, Some(limits)) => self.print_one(&limits, &[])?,
            (None, None) => self.print_all()?,
        }
        Ok(Exit::Yes)
    }

    fn print_one<'a>(
        &self,
        limits: &'a DeviceLimits,
        facts: &'a [Fact],
    ) -> Result<(), CommandError> {
        let source = |fact: &'a Fact| FactWithSource {
            name: fact.name,
            value: fact.value,
            title: &fact.source.title,
            url: &fact.source.url,
        };
        let document = LimitsWithSources { limits, sources: facts.iter().map(source).collect() };
        self.print(text(|f| write_text(f, limits, facts)), &document, limits)
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
        self.print(text(|f| write_list(f, &present, gpus)), &all, &all)
    }

    fn print(
        &self,
        text: impl Display,
        json: &impl Serialize,
        ron: &impl Serialize,
    ) -> Result<(), CommandError> {
        let failed = |form: &str, error: &dyn Display| {
            CommandError::Failed(format!("cannot write the limits as {form}: {error}"))
        };
        match self.format {
            Format::Text => output::print(text),
            Format::Json => {
                let json = serde_json::to_string_pretty(json);
                output::write(&(json.map_err(|error| failed("JSON", &error))? + "\n"))
            }
            Format::Ron => {
                let ron = ron::ser::to_string_pretty(ron, ron::ser::PrettyConfig::new());
                output::write(&(ron.map_err(|error| failed("RON", &error))? + "\n"))
            }
        }
    }
}

fn write_text(out: &mut impl Write, limits: &DeviceLimits, facts: &[Fact]) -> fmt::Result {
    writeln!(out, "{}, compute capability {}", limits.name, limits.compute_capability)?;
    let mut row = |label: &str, value: &dyn Display, name: &str| {
        let value = value.to_string();
        match facts.iter().find(|fact| fact.name == name) {
            Some(fact) => writeln!(out, "{label:30} {value:24} {}", fact.source.title),
            None => writeln!(out, "{label:30} {value}"),
        }
    };
    // A limit under its own name in the catalogue.
    macro_rules! field {
        ($label:literal, $field:ident) => {
            row($label, &limits.$field, stringify!($field))
        };
    }
    let yes_no = |flag| if flag { "yes" } else { "no" };
    let dims = |dim: gridguard::Dim3| format!("{}, {}, {}", dim.x, dim.y, dim.z);
    row("grid, blocks on x, y, z", &dims(limits.max_grid), "max_grid_y")?;
    row("block, threads on x, y, z", &dims(limits.max_block), "max_block_x")?;
    field!("threads per block", max_threads_per_block)?;
    field!("threads per warp", warp_size)?;
    field!("registers per block", max_registers_per_block)?;
    field!("shared memory per block, bytes", max_shared_bytes_per_block)?;
    field!("  after opt-in", max_shared_bytes_per_block_opt_in)?;
    field!("  reserved", reserved_shared_bytes_per_block)?;
    field!("kernel parameters, bytes", max_parameter_bytes)?;
    row("cooperative launch", &yes_no(limits.cooperative_launch), "cooperative_launch")?;
    row("clusters", &yes_no(limits.cluster_launch), "cluster_launch")?;
    field!("  portable size, blocks", max_portable_cluster_blocks)?;
    field!("multiprocessors", multiprocessors)?;
    field!("  threads", max_threads_per_multiprocessor)?;
    field!("  blocks", max_blocks_per_multiprocessor)?;
    field!("  registers", registers_per_multiprocessor)?;
    field!("  shared memory, bytes", shared_bytes_per_multiprocessor)?;
    field!("register allocation unit", register_allocation_unit)?;
    field!("L2 cache, bytes", l2_bytes)?;
    field!("memory, bytes", memory_bytes)
}

fn write_list(out: &mut impl Write, present: &[Arc<DeviceLimits>], gpus: &[Gpu]) -> fmt::Result {
    let row = |out: &mut dyn Write, limits: &DeviceLimits, call: &str| {
        let DeviceLimits { name, compute_capability, multiprocessors, .. } = limits;
        let capability = compute_capability.to_string();
        writeln!(out, "{name:30} {capability:>4}  {multiprocessors:>4} multiprocessors  {call}")
    };
    if !present.is_empty() {
        writeln!(out, "devices of this machine")?;
    }
    for (ordinal, limits) in present.iter().enumerate() {
        row(out, limits, &format!("--device {ordinal}"))?;
    }
    writeln!(out, "catalogue")?;
    for gpu in gpus {
        row(out, &gpu.limits, &format!("--gpu {}", gpu.aliases.join(", ")))?;
    }
    Ok(())
}
