//! `gridguard check`: checks whether a launch is legal, and how to split it.

mod index;
mod kernel_image;
mod reply;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use gridguard::check::{CheckRequest, Legality, Verdict};
use gridguard::image::KernelAttributes;
use gridguard::{
    Axis, BatchAxis, DeviceLimits, Dim3, KernelLimits, LaunchRequest, Remedy, Violations, catalog,
    cuda,
};

use crate::error::{CommandError, Exit};
use crate::measure::args::bytes;
use crate::output::{OutputArgs, Table, note, text};
use crate::requests;
use crate::words::{Suggested, from_1, gpu_words, size, whole};
use index::KernelIndex;
use kernel_image::{ImageArgs, KernelFile};
use reply::{Case, KernelReply, LargestBatch, Reply, legality, write_text};

/// A request of `--requests` with every field.
const REQUEST: &str = concat!(
    "A request, on one line; all but grid and block may be omitted:\n",
    include_str!("request.json")
);

#[derive(Args)]
#[command(after_long_help = REQUEST)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["grid", "requests", "image"]))]
#[command(group = clap::ArgGroup::new("whose").multiple(false).args(["gpu", "device"]))]
pub(crate) struct Check {
    /// GPUs of the catalogue, by name or alias, for example h200 or rtx-4090; sm_86 or 8.6 for the GPUs of that
    /// compute capability; or any. Several give a table
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = Suggested(gpu_words))]
    #[arg(hide_possible_values = true)]
    gpu: Vec<String>,
    /// Ordinal of a device of this machine
    #[arg(long, value_name = "N", value_parser = whole::<usize>)]
    device: Option<usize>,
    /// Size of the grid in blocks
    #[arg(long, value_name = "X,Y,Z", requires = "block", requires = "whose", value_parser = size)]
    grid: Option<Dim3>,
    /// Size of a block in threads
    #[arg(long, value_name = "X,Y,Z", requires = "grid", value_parser = size)]
    block: Option<Dim3>,
    /// Dynamic shared memory per block, for example 65536 or 64KiB
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    shared_mem: u64,
    /// The kernel does not opt in to large dynamic shared memory [default: it does as needed, like the guard's kernels]
    #[arg(long, hide_short_help = true, conflicts_with = "kernel_max_shared_mem")]
    no_opt_in: bool,
    /// Size of a cluster in blocks [default: no cluster]
    #[arg(long, hide_short_help = true, value_name = "X,Y,Z", value_parser = size)]
    cluster: Option<Dim3>,
    /// The launch is cooperative
    #[arg(long, hide_short_help = true)]
    cooperative: bool,
    /// The launch may start before the previous one has ended (programmatic dependent launch)
    #[arg(long, hide_short_help = true)]
    dependent: bool,
    #[command(flatten)]
    image: ImageArgs,
    /// Bytes of kernel parameters
    #[arg(long, hide_short_help = true, value_name = "BYTES", value_parser = bytes)]
    param_bytes: Option<u64>,
    /// Registers per thread of the kernel
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = whole::<u64>)]
    registers: Option<u64>,
    /// Local memory per thread of the kernel
    #[arg(long, hide_short_help = true, value_name = "BYTES", value_parser = bytes)]
    local_mem: Option<u64>,
    /// Static shared memory per block
    #[arg(long, hide_short_help = true, value_name = "BYTES", value_parser = bytes)]
    static_shared_mem: Option<u64>,
    /// Dynamic shared memory per block that the kernel opted in to
    #[arg(long, hide_short_help = true, value_name = "BYTES", value_parser = bytes)]
    kernel_max_shared_mem: Option<u64>,
    /// Most threads per block by the kernel's launch bounds
    #[arg(long, hide_short_help = true, value_name = "N", value_parser = whole::<u64>)]
    kernel_max_threads: Option<u64>,
    /// Grid axis with independent items
    #[arg(long, value_name = "x|y|z", requires = "items", value_parser = axis())]
    batch_axis: Option<Axis>,
    /// Items along the batch axis
    #[arg(long, value_name = "N", requires = "batch_axis", value_parser = whole::<u64>)]
    items: Option<u64>,
    /// Blocks per item
    #[arg(long, value_name = "K", default_value_t = 1, requires = "batch_axis", value_parser = from_1)]
    blocks_per_item: u64,
    /// Chunks start at multiples of this number of items
    #[arg(long, hide_short_help = true, value_name = "A", default_value_t = 1, requires = "batch_axis", value_parser = from_1)]
    align: u64,
    /// Elements addressed per item, for --index-bits 32
    #[arg(long, hide_short_help = true, value_name = "E", requires = "batch_axis", value_parser = from_1)]
    #[arg(required_if_eq("index_bits", "32"))]
    elements_per_item: Option<u64>,
    /// Width of the kernel's index arithmetic in bits
    #[arg(
        long,
        hide_short_help = true,
        value_name = "BITS",
        default_value = "64",
        requires = "batch_axis"
    )]
    #[arg(value_parser = ["32", "64"])]
    index_bits: String,
    /// Workspace memory per item
    #[arg(long, hide_short_help = true, value_name = "BYTES", default_value = "0", requires = "batch_axis", value_parser = bytes)]
    workspace_per_item: u64,
    /// Memory for the workspace [default: the whole memory of the device]
    #[arg(long, hide_short_help = true, value_name = "BYTES", requires = "batch_axis", value_parser = bytes)]
    memory: Option<u64>,
    /// Also find the largest legal batch
    #[arg(long, requires = "batch_axis")]
    max_items: bool,
    /// File with one JSON request per line, or - for standard input; writes one JSON verdict per line. --requests --help
    /// shows a request
    #[arg(long, value_name = "FILE|-", requires = "whose", conflicts_with_all = LAUNCH_ARGUMENTS)]
    #[arg(num_args = 0..=1, default_missing_value = "-")]
    requests: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

fn axis() -> impl TypedValueParser<Value = Axis> {
    PossibleValuesParser::new(Axis::ALL.map(Axis::letter)).map(|name| match name.as_str() {
        "x" => Axis::X,
        "y" => Axis::Y,
        _ => Axis::Z,
    })
}

impl Check {
    pub(crate) fn run(&self) -> Result<Exit, CommandError> {
        let devices = match self.device {
            Some(ordinal) => vec![cuda::device_limits(ordinal)?],
            None => self.gpu.iter().map(|name| catalog::limits(name)).collect::<Result<_, _>>()?,
        };
        if let Some(path) = &self.requests {
            let [device] = &devices[..] else {
                return Err(CommandError::invalid("--requests takes one --gpu"));
            };
            return requests::check_lines(path, device, !self.no_opt_in);
        }
        let bytes = self.image.image.as_deref().map(kernel_image::read).transpose()?;
        let file = self.image.image.as_ref().zip(bytes.as_ref());
        let file = file.map(|(path, bytes)| KernelFile::parse(path, bytes)).transpose()?;
        if let (None, Some(file)) = (self.grid, &file) {
            let devices: Vec<_> = devices.iter().map(|device| &**device).collect();
            let kernels = file.kernels(&devices, self.image.kernel.as_deref())?;
            if kernels.is_empty() {
                note(file.without_kernels(&devices));
            }
            self.output.print(&kernels, kernel_image::table(&kernels))?;
            return Ok(Exit::Yes);
        }
        let cases = devices.into_iter().map(|device| self.case(device, file.as_ref()));
        match &cases.collect::<Result<Vec<_>, _>>()?[..] {
            [case] => self.check_one(case),
            cases => self.check_each(cases),
        }
    }

    /// The launch on `device`, with the kernel attributes of the options and the file.
    fn case(
        &self,
        device: Arc<DeviceLimits>,
        file: Option<&KernelFile<'_>>,
    ) -> Result<Case, CommandError> {
        let Some(file) = file else {
            let stated = self.stated(KernelAttributes::default())?;
            return Ok(Case { device, stated, kernel: None });
        };
        let mut reply = KernelReply::default();
        let mut stated = KernelAttributes::default();
        match file.kernel(&device, self.image.kernel.as_deref())? {
            Ok(kernel) => {
                stated = self.stated(kernel.attributes.clone())?;
                let kernel = kernel.with_attributes(stated.clone());
                reply.text = file.describe(&kernel, &device);
                reply.kernel = Some(kernel);
                if let Some(entry) = file.index(&device, &stated.name) {
                    let launch = [self.grid, self.block].map(|size| size.unwrap_or(Dim3::ONE));
                    let index = KernelIndex::new(entry, launch.into(), &self.image.param)?;
                    reply.text += &index.to_string();
                    reply.index = Some(index);
                }
            }
            Err(error) => {
                reply.text = format!("  {error}\n");
                reply.error = Some(error);
            }
        }
        Ok(Case { device, stated, kernel: Some(reply) })
    }

    /// Completes the attributes of the image by the options, which may not contradict them.
    fn stated(&self, of_image: KernelAttributes) -> Result<KernelAttributes, CommandError> {
        let mut stated = of_image;
        for (option, number, of_image) in [
            ("registers", self.registers, &mut stated.registers_per_thread),
            ("local-mem", self.local_mem, &mut stated.local_bytes_per_thread),
            ("static-shared-mem", self.static_shared_mem, &mut stated.static_shared_bytes),
            ("param-bytes", self.param_bytes, &mut stated.parameter_bytes),
            ("kernel-max-threads", self.kernel_max_threads, &mut stated.max_threads_per_block),
        ] {
            match *of_image {
                Some(other) if number.is_some_and(|number| number != other) => {
                    let reason = format!("--{option} contradicts the image, which states {other}");
                    return Err(CommandError::invalid(reason));
                }
                _ => *of_image = number.or(*of_image),
            }
        }
        Ok(stated)
    }

    fn check_one(&self, case: &Case) -> Result<Exit, CommandError> {
        let verdict = self.verdict(case);
        let largest = self.max_items.then(|| self.largest_batch(case));
        let hints = [self.hint(&verdict), self.grid.and_then(skipped)];
        let hints: Vec<_> = hints.into_iter().flatten().collect();
        let hint = (!hints.is_empty()).then(|| hints.join("\n"));
        let kernel = case.kernel.as_ref();
        self.output.print(
            &Reply {
                gpu: None,
                verdict: &verdict,
                kernel,
                largest_batch: largest,
                hint: hint.as_deref(),
            },
            text(|f| {
                write_text(f, &verdict, case)?;
                largest.map_or(Ok(()), |largest| write!(f, "{largest}"))?;
                hint.as_ref().map_or(Ok(()), |hint| writeln!(f, "{hint}"))
            }),
        )?;
        Ok(verdict.legality.into())
    }

    /// Prints a row for each device. The worst decides the exit code.
    fn check_each(&self, cases: &[Case]) -> Result<Exit, CommandError> {
        let verdicts: Vec<_> = cases.iter().map(|case| (case, self.verdict(case))).collect();
        let rows: Vec<_> = verdicts
            .iter()
            .map(|(case, verdict)| {
                let (gpu, kernel) = (Some(&*case.device.name), case.kernel.as_ref());
                Reply { gpu, verdict, kernel, largest_batch: None, hint: None }
            })
            .collect();
        let mut table =
            Table::new(["GPU", "verdict", ">launches", "first violation", "not checked"]);
        for (case, verdict) in &verdicts {
            let launches =
                verdict.plan.as_ref().map_or_else(String::new, |plan| plan.len().to_string());
            let first = verdict.violations.iter().next().map(ToString::to_string);
            let first = first.or_else(|| case.error().map(str::to_owned));
            let verdict = legality(verdict).to_owned();
            let first = first.unwrap_or_default();
            table.push([case.device.name.clone(), verdict, launches, first, case.unchecked()]);
        }
        self.output.print(&rows, table)?;
        Ok(verdicts.iter().map(|(_, verdict)| verdict.legality.into()).max().unwrap_or(Exit::Yes))
    }

    fn verdict(&self, case: &Case) -> Verdict {
        self.verdict_of(&self.request(case), case)
    }

    fn verdict_of(&self, request: &CheckRequest, case: &Case) -> Verdict {
        let device = &case.device;
        let verdict =
            if self.no_opt_in { request.check(device) } else { request.check_with_opt_in(device) };
        match case.error() {
            // No launch of a kernel that does not load is legal.
            Some(_) => Verdict {
                legality: Legality::Rejected,
                opts_in: false,
                violations: Violations::default(),
                plan: None,
                ..verdict
            },
            None => verdict,
        }
    }

    /// The option that would make a rejected launch legal.
    fn hint(&self, verdict: &Verdict) -> Option<String> {
        let [violation] = verdict.violations.iter().as_slice() else { return None };
        let axis = violation.axis?;
        if let Remedy::MatchBatch { items } = violation.remedy
            && violation.requested.is_multiple_of(items.into())
            && let Some(blocks @ 2..) = violation.requested.checked_div(items.into())
        {
            return Some(format!(
                "if each item has {blocks} blocks, add --blocks-per-item {blocks}"
            ));
        }
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

    /// The largest legal batches. The grid grows with the batch.
    fn largest_batch(&self, case: &Case) -> LargestBatch {
        let axis = self.batch_axis.unwrap_or(Axis::X);
        // The blocks must be a multiple of the cluster.
        let unit = self.cluster.map_or(1, |cluster| cluster.along(axis).max(1));
        let of = |items: u64| {
            let mut request = self.request(case);
            let batch = self.batch(axis, items, &case.device);
            let blocks = batch.blocks(items).unwrap_or(u64::MAX);
            request.request.grid = request.request.grid.with(axis, blocks);
            request.batch = Some(batch);
            (self.verdict_of(&request, case).legality, blocks)
        };
        let whole = largest(unit, |items| of(items).0 == Legality::Legal);
        let in_chunks = largest(unit, |items| of(items).0 != Legality::Rejected);
        let broken = whole.map(|items| items.saturating_add(unit));
        LargestBatch { whole, in_chunks, broken: broken.map(|items| (items, of(items).1)) }
    }

    fn request(&self, case: &Case) -> CheckRequest {
        let [grid, block] = [self.grid, self.block].map(|size| size.unwrap_or(Dim3::ONE));
        let mut request = LaunchRequest::new(grid, block)
            .dynamic_shared_bytes(self.shared_mem)
            .parameter_bytes(case.stated.parameter_bytes.unwrap_or(0));
        request.cluster = self.cluster;
        request.cooperative = self.cooperative;
        request.dependent = self.dependent;
        let kernel = KernelLimits {
            name: case.name().to_owned(),
            max_dynamic_shared_bytes: self.kernel_max_shared_mem,
            index: case.index_limits(),
            ..case.stated.limits()
        };
        let items = self.items.unwrap_or(0);
        let batch = self.batch_axis.map(|axis| self.batch(axis, items, &case.device));
        CheckRequest { name: case.name().to_owned(), request, kernel, batch }
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

/// Which frameworks skip a launch with this grid, if some do.
fn skipped(grid: Dim3) -> Option<String> {
    grid.wrapped_volume().filter(|product| *product <= 0).map(|product| {
        format!(
            "grid-product: Triton and torch.compile multiply this grid in 32 bits, which gives {product}, and skip the \
             launch without an error; see gridguard explain grid-product"
        )
    })
}

/// Arguments of one launch. With `--requests`, each request has its own.
const LAUNCH_ARGUMENTS: [&str; 15] = [
    "grid",
    "image",
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

/// The largest legal multiple of `unit` up to [`MOST_ITEMS`]; `None` if all are legal. All smaller multiples are
/// legal too.
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

/// More items than fit into memory.
const MOST_ITEMS: u64 = 1 << 48;
