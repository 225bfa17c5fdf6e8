//! `gridguard limits`: what a device allows.

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

/// RON besides, and JSON over several lines: limits are what people keep as files.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
    Ron,
}

/// Limits, with the sources of a GPU of the catalogue.
#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    limits: &'a DeviceLimits,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sources: Vec<SourceRecord<'a>>,
}

#[derive(Serialize)]
struct SourceRecord<'a> {
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
            Format::Json => writeln!(out, "{}", json(&Record::new(limits, facts))?),
            Format::Ron => writeln!(out, "{}", ron(limits)?),
        })
    }

    /// The catalogue, and the devices of this machine where there are some.
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

impl<'a> Record<'a> {
    fn new(limits: &'a DeviceLimits, facts: &'a [Fact]) -> Self {
        let source = |fact: &'a Fact| SourceRecord {
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
    let yes_no = |flag| if flag { "yes" } else { "no" };
    let dims = |dim: gridguard::Dim3| format!("{}, {}, {}", dim.x, dim.y, dim.z);
    let rows: [(&str, String, &str); 20] = [
        ("grid, blocks on x, y, z", dims(limits.max_grid), "max_grid_y"),
        ("block, threads on x, y, z", dims(limits.max_block), "max_block_x"),
        ("threads a block", limits.max_threads_per_block.to_string(), "max_threads_per_block"),
        ("warp, threads", limits.warp_size.to_string(), "warp_size"),
        (
            "registers a block",
            limits.max_registers_per_block.to_string(),
            "max_registers_per_block",
        ),
        (
            "shared memory a block, bytes",
            limits.max_shared_bytes_per_block.to_string(),
            "max_shared_bytes_per_block",
        ),
        (
            "  after opt-in",
            limits.max_shared_bytes_per_block_opt_in.to_string(),
            "max_shared_bytes_per_block_opt_in",
        ),
        (
            "  reserved",
            limits.reserved_shared_bytes_per_block.to_string(),
            "reserved_shared_bytes_per_block",
        ),
        ("kernel parameters, bytes", limits.max_parameter_bytes.to_string(), "max_parameter_bytes"),
        ("cooperative launch", yes_no(limits.cooperative_launch).into(), "cooperative_launch"),
        ("clusters", yes_no(limits.cluster_launch).into(), "cluster_launch"),
        (
            "  portable size, blocks",
            limits.max_portable_cluster_blocks.to_string(),
            "max_portable_cluster_blocks",
        ),
        ("multiprocessors", limits.multiprocessors.to_string(), "multiprocessors"),
        (
            "  threads",
            limits.max_threads_per_multiprocessor.to_string(),
            "max_threads_per_multiprocessor",
        ),
        (
            "  blocks",
            limits.max_blocks_per_multiprocessor.to_string(),
            "max_blocks_per_multiprocessor",
        ),
        (
            "  registers",
            limits.registers_per_multiprocessor.to_string(),
            "registers_per_multiprocessor",
        ),
        (
            "  shared memory, bytes",
            limits.shared_bytes_per_multiprocessor.to_string(),
            "shared_bytes_per_multiprocessor",
        ),
        (
            "register unit of a warp",
            limits.register_allocation_unit.to_string(),
            "register_allocation_unit",
        ),
        ("L2 cache, bytes", limits.l2_bytes.to_string(), "l2_bytes"),
        ("memory, bytes", limits.memory_bytes.to_string(), "memory_bytes"),
    ];
    for (label, value, name) in rows {
        let source = facts.iter().find(|fact| fact.name == name);
        match source {
            Some(fact) => writeln!(out, "{label:30} {value:24} {}", fact.source.title)?,
            None => writeln!(out, "{label:30} {value}")?,
        }
    }
    Ok(())
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
