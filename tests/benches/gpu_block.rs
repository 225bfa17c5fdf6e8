//! Times the temporal transformer block and its parts on a device: whole and in chunks, on one stream and more, as
//! launches and as one graph. Each plan is first compared with the f64 reference.
//!
//! Prints a line for each measurement, and writes a JSON document to the file that its argument names. Needs
//! a CUDA GPU, NVRTC and cuBLASLt; says so without a GPU.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::{Choice, Guard};
use gridguard_examples::uniform;
use gridguard_kernels::gated_product::GatedProduct;
use gridguard_kernels::geglu::Geglu;
use gridguard_kernels::layer_norm::LayerNorm;
use gridguard_kernels::temporal_attention::TemporalAttention;
use gridguard_kernels::temporal_block::{
    BlockReference, BlockShape, BlockWeights, TemporalBlock, tolerance,
};
use gridguard_kernels::{Deviation, Element, Extent, Kernels, Operation, Tensor, TensorMut};
use gridguard_pipeline::{
    Budget, DeviceMemory, PipelineScratch, Product, ProductBuffers, ProductShape,
};
use gridguard_tests::figures::{self, Origin, event_ms, median};
use gridguard_tests::product::OneProduct;
use half::f16;
use serde::Serialize;

/// Items, frames, channels and heads of video diffusion models.
const CASES: [[u64; 4]; 3] = [[15_360, 16, 320, 5], [15_360, 24, 320, 5], [3840, 16, 640, 10]];
/// A batch is split into so many chunks.
const PARTS: [u64; 10] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64];
/// The same with a gate apart.
const APART: [u64; 3] = [1, 4, 8];
const IN_FLIGHT: [u64; 3] = [1, 2, 3];
const WARM_UP: usize = 3;
const ROUNDS: usize = 15;
/// The most workspace of a product.
const WORKSPACE: u64 = 32 << 20;

type Outcome<T> = Result<T, Box<dyn Error>>;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    origin: Origin,
    library: String,
    rounds: usize,
    blocks: Vec<BlockRow>,
    parts: Vec<PartRow>,
}

/// One plan of a block. Times are medians of events around a run.
#[derive(Serialize)]
struct BlockRow {
    case: String,
    /// Whether the product before the gate and the gate are one kernel.
    is_gate_fused: bool,
    chunk: u64,
    chunks: u64,
    in_flight: u64,
    /// Bytes of scratch, all chunks in flight together.
    scratch_bytes: u64,
    ms: f64,
    graph_ms: f64,
    /// The relative error of the items that were compared.
    error: f64,
}

/// A part of the block over all items at once.
#[derive(Serialize)]
struct PartRow {
    case: String,
    part: String,
    ms: f64,
    workspace_bytes: u64,
}

fn main() -> Outcome<()> {
    let Some(guard) = figures::guard() else { return Ok(()) };
    let (major, minor, patch) = gridguard_pipeline::CublasLt::find()?.version();
    let mut report = Report {
        origin: Origin::of(&guard),
        library: format!("cuBLASLt {major}.{minor}.{patch}"),
        rounds: ROUNDS,
        blocks: Vec::new(),
        parts: Vec::new(),
    };
    for [items, frames, channels, heads] in CASES {
        let shape = BlockShape::new(items, frames, channels, heads)?;
        let mut case = Case::new(&guard, shape)?;
        case.parts(&mut report.parts)?;
        case.blocks(&PARTS, &mut report.blocks)?;
        if case.block.is_gate_fused() {
            case.block = case.block.with_gate_apart(&case.kernels)?;
            case.blocks(&APART, &mut report.blocks)?;
        }
    }
    figures::publish(&report)
}

/// A block of one shape with its tensors.
struct Case {
    name: String,
    shape: BlockShape,
    kernels: Kernels,
    streams: Vec<Arc<CudaStream>>,
    input: Vec<f16>,
    x: CudaSlice<f16>,
    block: TemporalBlock<f16>,
    reference: BlockReference,
}

impl Case {
    fn new(guard: &Arc<Guard>, shape: BlockShape) -> Outcome<Self> {
        let context = guard.context().ok_or("no context")?;
        let streams = IN_FLIGHT.map(|_| context.new_stream());
        let streams = streams.into_iter().collect::<Result<Vec<_>, _>>()?;
        let stream = streams.first().ok_or("no stream")?;
        let kernels = Kernels::new(Arc::clone(guard));
        let weights = BlockWeights::<f16>::random(shape.channels(), 1)?;
        let input = uniform::<f16>(usize::try_from(shape.elements())?, 2);
        let [items, frames, channels] = [shape.items(), shape.frames(), shape.channels()];
        Ok(Self {
            name: format!("{items}x{frames}x{channels}, {} heads", shape.heads()),
            shape,
            x: stream.clone_htod(&input)?,
            block: TemporalBlock::new(&kernels, stream, shape, &weights)?,
            reference: BlockReference::new(&shape, &weights)?,
            kernels,
            streams,
            input,
        })
    }

    fn blocks(&self, parts: &[u64], rows: &mut Vec<BlockRow>) -> Outcome<()> {
        let (stream, more) = self.streams.split_first().ok_or("no stream")?;
        let mut expected = HashMap::new();
        let mut y = stream.alloc_zeros::<f16>(self.input.len())?;
        for &parts in parts {
            for in_flight in IN_FLIGHT.into_iter().filter(|in_flight| *in_flight <= parts) {
                let at_most = self.shape.items().div_ceil(parts);
                let budget = Budget::UNLIMITED.at_most(at_most).in_flight(in_flight);
                let (mut pipeline, memory) = self.block.pipeline()?;
                let plan = match pipeline.plan(&budget) {
                    Ok(plan) => plan,
                    Err(reason) => {
                        println!("{} in {parts}: {reason}", self.name);
                        continue;
                    }
                };
                stream.memcpy_htod(&vec![f16::NAN; self.input.len()], &mut y)?;
                let guard = self.kernels.guard();
                let mut scratch = PipelineScratch::new();
                let ms = median_ms(stream, || {
                    let bound = memory.bind(stream, &self.x, &mut y).on_streams(more);
                    let bound = bound.scratch(&mut scratch);
                    pipeline.run(guard, &plan, bound)?;
                    Ok(())
                })?;
                drop(scratch);
                let (chunk, chunks) = (plan.chunk_items(), plan.len());
                let error = self.error(&mut expected, chunk, &stream.clone_dtoh(&y)?)?;
                stream.memcpy_htod(&vec![f16::NAN; self.input.len()], &mut y)?;
                let as_graph = plan.clone().as_graph();
                let graph_ms = median_ms(stream, || {
                    let bound = memory.bind(stream, &self.x, &mut y).on_streams(more);
                    pipeline.run(guard, &as_graph, bound)?;
                    Ok(())
                })?;
                let replayed = self.error(&mut expected, chunk, &stream.clone_dtoh(&y)?)?;
                let (case, scratch_bytes) = (self.name.clone(), plan.bytes());
                let megabytes = scratch_bytes.div_ceil(1_000_000);
                let is_gate_fused = self.block.is_gate_fused();
                let gate = if is_gate_fused { "fused" } else { "apart" };
                println!(
                    "{case}, gate {gate}: {chunks} chunks of {chunk}, {in_flight} in flight, {megabytes} MB: \
                     {ms:.3} ms, graph {graph_ms:.3} ms, error {error:.1e}"
                );
                let error = error.max(replayed);
                let row = BlockRow {
                    case,
                    is_gate_fused,
                    chunk,
                    chunks,
                    in_flight: plan.in_flight(),
                    scratch_bytes,
                    ms,
                    graph_ms,
                    error,
                };
                rows.push(row);
            }
        }
        Ok(())
    }

    /// The error at the boundaries of the first and the last chunk and in the middle, if it is within the
    /// tolerance and the whole output is finite.
    fn error(
        &self,
        expected: &mut HashMap<u64, Vec<f64>>,
        chunk: u64,
        out: &[f16],
    ) -> Outcome<f64> {
        let items = self.shape.items();
        let per_item = usize::try_from(self.shape.elements_per_item())?;
        let last = (items - 1) / chunk * chunk;
        let places =
            [0, chunk - 1, chunk % items, items / 2, last.saturating_sub(1), last, items - 1];
        let mut deviation = Deviation::new();
        for item in places {
            let start = usize::try_from(item)? * per_item;
            let part = start..start + per_item;
            let (x, y) = (self.input.get(part.clone()), out.get(part));
            let (Some(x), Some(y)) = (x, y) else { return Err("short output".into()) };
            let reference = expected.entry(item).or_insert_with(|| self.reference.item(x));
            deviation.add(y, reference);
        }
        let finite = out.iter().all(|y| y.is_finite());
        if !finite || !deviation.within(tolerance(f16::TYPE)) {
            let error = deviation.relative();
            return Err(format!("{}, chunks of {chunk}: error {error:e}", self.name).into());
        }
        Ok(deviation.relative())
    }

    fn parts(&self, rows: &mut Vec<PartRow>) -> Outcome<()> {
        let stream = self.streams.first().ok_or("no stream")?;
        let [items, frames] = [self.shape.items(), self.shape.frames()];
        let [channels, heads] = [self.shape.channels(), self.shape.heads()];
        let (count, kernels) = (self.shape.rows(), &self.kernels);
        // Random, since clocks are higher over zeros.
        let memory = |columns: u64| -> Outcome<CudaSlice<f16>> {
            let mut memory = stream.alloc_zeros::<f16>(usize::try_from(count * columns)?)?;
            let parts = (0..memory.len()).step_by(self.input.len());
            for start in parts {
                let mut part = memory.slice_mut(start..start + self.input.len());
                stream.memcpy_dtod(&self.x, &mut part)?;
            }
            Ok(memory)
        };
        let weight = |elements: u64| -> Outcome<CudaSlice<f16>> {
            Ok(stream.clone_htod(&uniform::<f16>(usize::try_from(elements)?, 3))?)
        };
        let (mut narrow, wide, mut gated) =
            (memory(channels)?, memory(8 * channels)?, memory(4 * channels)?);
        let mut add = |part: String, ms: f64, workspace_bytes: u64| {
            println!("{}: {part} {ms:.3} ms", self.name);
            rows.push(PartRow { case: self.name.clone(), part, ms, workspace_bytes });
        };

        let norm = LayerNorm::new(count, channels, f16::TYPE)?;
        let norm = kernels.prepare(norm, Choice::AUTOMATIC)?;
        let weights = weight(8 * channels)?;
        let vector = weights.slice(..usize::try_from(channels)?);
        let ms = median_ms(stream, || {
            let shared = [&vector, &vector].map(|one| Tensor::new(one, [channels]));
            let (x, out) = (Tensor::new(&self.x, [count, channels]), [count, channels]);
            norm.launch(stream, x, shared, 1e-5, TensorMut::new(&mut narrow, out))?;
            Ok(())
        })?;
        add("layer norm".to_owned(), ms, 0);

        let gate =
            kernels.prepare(Geglu::new(count, 4 * channels, f16::TYPE)?, Choice::AUTOMATIC)?;
        let ms = median_ms(stream, || {
            let input = Tensor::new(&wide, [count, 8 * channels]);
            gate.launch(stream, input, TensorMut::new(&mut gated, [count, 4 * channels]))?;
            Ok(())
        })?;
        add("gate".to_owned(), ms, 0);

        let fused = GatedProduct::new(count, channels, 4 * channels, f16::TYPE)?;
        if fused.code(kernels.guard().limits()).is_ok() {
            let fused = kernels.prepare(fused, Choice::AUTOMATIC)?;
            let (matrix, vector) = (weight(8 * channels * channels)?, weights.slice(..));
            let ms = median_ms(stream, || {
                let x = Tensor::new(&self.x, [count, channels]);
                let weight = Tensor::new(&matrix, [8 * channels, channels]);
                let bias = Tensor::new(&vector, [8 * channels]);
                let out = TensorMut::new(&mut gated, [count, 4 * channels]);
                fused.launch(stream, x, weight, bias, out)?;
                Ok(())
            })?;
            add("product up and gate".to_owned(), ms, 0);
        }

        let shape = self.shape.attention();
        let attention = TemporalAttention::new(shape, f16::TYPE, kernels.guard().limits())?;
        let attention = kernels.prepare(attention.with_strides(), Choice::AUTOMATIC)?;
        let head_dim = self.shape.head_dim();
        let extent = |width: u64| {
            let dims = [items, heads, frames, head_dim];
            Extent::strided(dims, [frames * width, head_dim, width, 1])
        };
        let qkv =
            [0, 1, 2].map(|part: u64| wide.slice(usize::try_from(part * channels).unwrap_or(0)..));
        let ms = median_ms(stream, || {
            let tensors =
                qkv.each_ref().map(|part| Tensor::with_extent(part, extent(3 * channels)));
            let out = TensorMut::with_extent(&mut narrow, extent(channels));
            attention.launch(stream, tensors, None, shape.scale(), out)?;
            Ok(())
        })?;
        add("attention".to_owned(), ms, 0);

        let (guard, mut scratch) = (kernels.guard(), PipelineScratch::new());
        for (name, shape) in ["qkv", "out", "up", "down"].into_iter().zip(self.shape.products()) {
            let shape = ProductShape { rows: count, ..shape };
            let ProductShape { inner, columns, .. } = shape;
            let matrix = weight(inner * columns)?;
            let (x, bias) = (memory(inner)?, weights.slice(..usize::try_from(columns)?));
            let (added, mut out) = (memory(columns)?, memory(columns)?);
            let product = Product::new::<f16>(guard, shape, WORKSPACE)?;
            for (index, workspace_bytes) in (0..).zip(product.workspace_bytes()) {
                let mut one = OneProduct::new(guard, shape, WORKSPACE, Some(index), false)?;
                let ProductBuffers { x: x_buffer, weight, out: out_buffer, .. } = one.buffers;
                let ms = median_ms(stream, || {
                    let memory = DeviceMemory::new(stream).read(x_buffer, &x);
                    let memory = memory.read(weight, &matrix).write(out_buffer, &mut out);
                    let memory = match one.buffers.bias {
                        Some(buffer) => memory.read(buffer, &bias),
                        None => memory,
                    };
                    let memory = match one.buffers.residual {
                        Some(buffer) => memory.read(buffer, &added),
                        None => memory,
                    };
                    let memory = memory.scratch(&mut scratch);
                    one.pipeline.run(guard, &one.plan, memory)?;
                    Ok(())
                })?;
                add(format!("product {name}, algorithm {index}"), ms, workspace_bytes);
            }
        }
        Ok(())
    }
}

/// The median time between events around `run`, after some runs to warm up.
fn median_ms(stream: &CudaStream, mut run: impl FnMut() -> Outcome<()>) -> Outcome<f64> {
    let mut times = Vec::with_capacity(ROUNDS);
    for round in 0..WARM_UP + ROUNDS {
        let ms = event_ms(stream, &mut run)?;
        if round >= WARM_UP {
            times.push(ms);
        }
    }
    Ok(median(times))
}
