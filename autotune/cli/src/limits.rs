//! `gridguard limits`: the limits of devices and of the GPUs in the catalogue.

use std::fmt::Display;
use std::io::{self, Write};

use clap::{Args, ValueEnum};
use gridguard::catalog::{self, Fact, Gpu};
use gridguard::{DeviceLimits, cuda};
use serde::Serialize;

use crate::device::DeviceChoice;
use crate::error::{CommandError, Exit};
use crate::output::note;

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
        let mut out = io::stdout().lock();
        let written = match (&self.device.gpu, self.device.limits()?) {
            (Some(name), _) => {
                let gpu = catalog::gpu(name)?;
                self.write_one(&mut out, &gpu.limits, &gpu.facts)
            }
            (None, Some(limits)) => self.write_one(&mut out, &limits, &[]),
            (None, None) => return self.list(&mut out),
        }?;
        CommandError::check_write(written.and_then(|()| out.flush()), "writing the limits")?;
        Ok(Exit::Yes)
    }

    fn write_one(
        &self,
        out: &mut impl Write,
        limits: &DeviceLimits,
        facts: &[Fact],
    ) -> Result<io::Result<()>, CommandError> {
        Ok(match self.format {
            Format::Text => write_text(out, limits, facts),
            Format::Json => writeln!(out, "{}", json(&LimitsWithSources::new(limits, facts))?),
            Format::Ron => writeln!(out, "{}", ron(limits)?),
        })
    }

    /// Lists the catalogue and the devices of this machine, if any.
    fn list(&self, out: &mut impl Write) -> Result<Exit, CommandError> {
        let gpus = catalog::gpus()?;
        let present: Vec<_> = match cuda::device_count() {
            Ok(count) => (0..count).map(cuda::device_limits).collect::<Result<_, _>>()?,
            Err(reason) => {
                note(format_args!("no device of this machine: {reason}"));
                Vec::new()
            }
        };
        let all: Vec<&DeviceLimits> = present
            .iter()
            .map(|limits| &**limits)
            .chain(gpus.iter().map(|gpu| &*gpu.limits))
            .collect();
        let written = match self.format {
            Format::Text => write_list(out, &present, gpus),
            Format::Json => writeln!(out, "{}", json(&all)?),
            Format::Ron => writeln!(out, "{}", ron(&all)?),
        };
        CommandError::check_write(written.and_then(|()| out.flush()), "writing the limits")?;
        Ok(Exit::Yes)
    }
}

impl<'a> LimitsWithSources<'a> {
    fn new(limits: &'a DeviceLimits, facts: &'a [Fact]) -> Self {
        let source = |fact: &'a Fact| FactWithSource {
            name: fact.name,
            value: fact.value,
            title: &fact.source.title,
            url: &fact.source.url,
        };
        Self { limits, sources: facts.iter().map(source).collect() }
    }
}

fn json<T: Serialize>(value: &T) -> Result<String, CommandError> {
    serde_json::to_string_pretty(value)
        .map_err(|error| CommandError::Failed(format!("cannot write the limits as JSON: {error}")))
}

fn ron<T: Serialize>(value: &T) -> Result<String, CommandError> {
    ron::ser::to_string_pretty(value, ron::ser::PrettyConfig::new())
        .map_err(|error| CommandError::Failed(format!("cannot write the limits as RON: {error}")))
}

fn write_text(out: &mut impl Write, limits: &DeviceLimits, facts: &[Fact]) -> io::Result<()> {
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

fn write_list(
    out: &mut impl Write,
    present: &[std::sync::Arc<DeviceLimits>],
    gpus: &[Gpu],
) -> io::Result<()> {
    let row = |out: &mut dyn Write, limits: &DeviceLimits, call: &str| {
        writeln!(
            out,
            "{:30} {:>4}  {:>4} multiprocessors  {call}",
            limits.name,
            limits.compute_capability.to_string(),
            limits.multiprocessors
        )
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
