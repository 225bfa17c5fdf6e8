//! The block on a device.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Kernel, Memory, MemoryMut};
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest};
use gridguard_pipeline::{Buffer, Pipeline, PipelineBuilder};
use gridguard_pipeline::{DeviceMemory, ProductBuffers, ProductShape};

use super::error::BlockError;
use super::item::EPSILON;
use super::shape::{BlockShape, GATED};
use super::stages::{Between, Product, Stage, Tensors, Work, stages};
use super::weights::{BLOCK_TENSORS, BlockWeights, POSITIONS};
use crate::element::{Element, ElementType, to_u64};
use crate::error::KernelError;
use crate::extent::Extent;
use crate::gated_product::GatedProduct;
use crate::geglu::Geglu;
use crate::kernels::Kernels;
use crate::layer_norm::LayerNorm;
use crate::operation::{Operation, source_hash};
use crate::temporal_attention::{STRIDES_BYTES, TemporalAttention, narrow, stride_bytes};

/// The block's weights and kernels on a device.
///
/// ```no_run
/// use gridguard::Guard;
/// use gridguard_pipeline::Budget;
/// use gridguard_kernels::Kernels;
/// use gridguard_kernels::temporal_block::{BlockShape, BlockWeights, TemporalBlock};
/// use half::f16;
///
/// let kernels = Kernels::new(Guard::cuda(0)?);
/// let stream = kernels.guard().context().ok_or("no device")?.new_stream()?;
/// let shape = BlockShape::new(15_360, 16, 320, 5)?;
/// let weights = BlockWeights::<f16>::random(320, 1)?;
/// let block = TemporalBlock::new(&kernels, &stream, shape, &weights)?;
///
/// // Within 256 MiB, two chunks at a time.
/// let (mut pipeline, memory) = block.pipeline()?;
/// let plan = pipeline.plan(&Budget::bytes(256 << 20).in_flight(2))?;
/// let elements = usize::try_from(shape.elements())?;
/// let (x, mut y) = (stream.alloc_zeros::<f16>(elements)?, stream.alloc_zeros::<f16>(elements)?);
/// let more = [stream.context().new_stream()?];
/// let bound = memory.bind(&stream, &x, &mut y).on_streams(&more);
/// pipeline.run(&kernels.guard(), &plan, bound)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TemporalBlock<T> {
    guard: Arc<Guard>,
    shape: BlockShape,
    weights: Weights<T>,
    norm: Loaded,
    /// The norm before the attentions, if there are embeddings of positions.
    norm_of_positions: Option<Kernel>,
    attention: Loaded,
    operation: TemporalAttention,
    strides: [u8; STRIDES_BYTES],
    gate: Loaded,
    is_gate_fused: bool,
}

/// The weights of a block.
#[derive(Clone)]
pub(super) struct Weights<T> {
    /// In the order of [`BLOCK_TENSORS`], then the embeddings of positions, if any. A block without weights has none.
    pub(super) tensors: Arc<[CudaSlice<T>]>,
    /// Elements of the embeddings of positions; 0 if there are none.
    pub(super) position_elements: u64,
}

/// The kernel of a stage.
struct Loaded {
    kernel: Kernel,
    request: LaunchRequest,
    batch: BatchAxis,
    /// The launch parameters, with the name of the stage.
    parameters: Vec<(String, u64)>,
    /// The hash of the source.
    source: String,
}

/// The memory of a block's pipeline: the weights, for the input and the output of each run.
pub struct BlockMemory<'b, T> {
    pub(super) shape: BlockShape,
    pub(super) x: Buffer<T>,
    pub(super) y: Buffer<T>,
    /// The buffers and elements of the weights, in the order of [`Weights::tensors`].
    pub(super) buffers: Vec<(Buffer<T>, u64)>,
    weights: &'b Weights<T>,
}

impl<T: Element> TemporalBlock<T> {
    /// Compiles the kernels and copies the weights to the device, on `stream`.
    ///
    /// # Errors
    ///
    /// [`BlockError`] if the weights are for another number of channels or do not fit, or the kernels
    /// cannot be compiled.
    pub fn new(
        kernels: &Kernels,
        stream: &Arc<CudaStream>,
        shape: BlockShape,
        weights: &BlockWeights<T>,
    ) -> Result<Self, BlockError> {
        weights.check(&shape)?;
        let all = weights.tensors.iter().chain([&weights.positions]);
        let tensors =
            all.filter(|tensor| !tensor.is_empty()).map(|tensor| stream.clone_htod(tensor));
        let tensors = tensors.collect::<Result<_, _>>().map_err(KernelError::from)?;
        let weights = Weights { tensors, position_elements: to_u64(weights.positions.len()) };
        Self::with_weights(kernels, shape, weights, true)
    }

    /// A block that fuses the product before the gate into the gate's kernel, if it `may_fuse` and device and shape
    /// allow it.
    pub(super) fn with_weights(
        kernels: &Kernels,
        shape: BlockShape,
        weights: Weights<T>,
        may_fuse: bool,
    ) -> Result<Self, BlockError> {
        let guard = Arc::clone(kernels.guard());
        let norm = LayerNorm::new(shape.rows(), shape.channels(), T::TYPE)?;
        let operation = TemporalAttention::new(shape.attention(), T::TYPE, guard.limits())?;
        let operation = operation.with_strides();
        let (gate, is_gate_fused) = gate(kernels, &shape, T::TYPE, may_fuse)?;
        Ok(Self {
            shape,
            norm: Loaded::new(kernels, "norm", &norm, over_rows(&norm, &shape))?,
            norm_of_positions: (weights.position_elements > 0)
                .then(|| kernels.kernel(&norm.with_positions(shape.frames()), false))
                .transpose()?,
            weights,
            attention: Loaded::new(kernels, "attention", &operation, operation.grid())?,
            strides: stride_bytes(&operation, &extents(&shape))?,
            operation,
            gate,
            is_gate_fused,
            guard,
        })
    }

    /// The same with the product before the gate by cuBLASLt, as on devices without Hopper's instructions: it
    /// takes more scratch, and more time.
    ///
    /// # Errors
    ///
    /// [`BlockError`] if the kernel of the gate cannot be compiled.
    pub fn with_gate_apart(mut self, kernels: &Kernels) -> Result<Self, BlockError> {
        (self.gate, self.is_gate_fused) = gate(kernels, &self.shape, T::TYPE, false)?;
        Ok(self)
    }

    /// Whether the product before the gate and the gate are one kernel: on Hopper, where the channels are at most
    /// 640.
    pub const fn is_gate_fused(&self) -> bool {
        self.is_gate_fused
    }

    /// Bytes of cuBLASLt's workspace for each chunk in flight.
    pub const fn workspace_bytes(&self) -> u64 {
        WORKSPACE_BYTES
    }

    /// The shape.
    pub const fn shape(&self) -> &BlockShape {
        &self.shape
    }

    /// A pipeline of the block, to be planned and run with the block's guard, and its memory.
    ///
    /// The input is not changed. One block may have several pipelines, on several streams at a time.
    ///
    /// # Errors
    ///
    /// [`BlockError::Product`] if cuBLASLt cannot be used.
    pub fn pipeline(&self) -> Result<(Pipeline<'_>, BlockMemory<'_, T>), BlockError> {
        let mut builder = Pipeline::builder(self.shape.items());
        let between = Tensors::declare(&mut builder, &self.shape, !self.is_gate_fused);
        let channels = self.shape.channels();
        let tensors = BLOCK_TENSORS
            .map(|tensor| builder.shared_input::<T>(tensor.name(), tensor.elements(channels)));
        let elements = self.weights.position_elements;
        let positions = (elements > 0).then(|| builder.shared_input::<T>(POSITIONS, elements));
        let workspace = builder.fixed_scratch("workspace", WORKSPACE_BYTES);
        for Loaded { parameters, source, .. } in [&self.norm, &self.attention, &self.gate] {
            parameters.iter().for_each(|(name, value)| builder.parameter(name, *value));
            builder.source(source);
        }
        for stage in stages(tensors) {
            self.add(&mut builder, &between, stage, positions, workspace)?;
        }
        let [x, y] = [Between::X, Between::Y].map(|tensor| *between.get(tensor));
        let positions = positions.map(|buffer| (buffer, elements));
        let sizes = BLOCK_TENSORS.map(|tensor| tensor.elements(channels));
        let buffers = tensors.into_iter().zip(sizes).chain(positions).collect();
        let (shape, weights) = (self.shape, &self.weights);
        Ok((builder.build()?, BlockMemory { shape, x, y, buffers, weights }))
    }

    /// Adds a stage to the pipeline.
    fn add<'b>(
        &'b self,
        builder: &mut PipelineBuilder<'b>,
        between: &Tensors<Buffer<T>>,
        Stage { name, from, to, work }: Stage<Buffer<T>>,
        positions: Option<Buffer<T>>,
        workspace: Buffer<u8>,
    ) -> Result<(), BlockError> {
        let Self { shape, operation, .. } = self;
        let (frames, channels) = (shape.frames(), shape.channels());
        let (x, out) = (*between.get(from), *between.get(to));
        match work {
            Work::Norm([weight, bias], adds_positions) => {
                let positions = positions.filter(|_| adds_positions);
                let with_positions =
                    self.norm_of_positions.as_ref().filter(|_| positions.is_some());
                let Loaded { kernel, request, batch, .. } = &self.norm;
                let kernel = with_positions.unwrap_or(kernel);
                let stage = builder.kernel(name, kernel, *request, *batch);
                let stage = stage.read(x).write(out).read(weight).read(bias);
                let stage = positions.into_iter().fold(stage, |stage, buffer| stage.read(buffer));
                stage.parts(frames).value(EPSILON);
            }
            Work::Attention => {
                let Loaded { kernel, request, batch, .. } = &self.attention;
                let stage = builder.kernel(name, kernel, *request, *batch);
                // Each row has q, k and v side by side.
                let stage = stage.read_from(x, 0).read_from(x, channels).read_from(x, 2 * channels);
                let stage = stage.write(out).length().constant(narrow(shape.heads()));
                let stage = stage.bytes(&self.strides).value(shape.attention().scale());
                operation.runtime_sizes().fold(stage, |stage, size| stage.constant(size));
            }
            Work::Gate([up, up_bias]) => {
                let Loaded { kernel, request, batch, .. } = &self.gate;
                let stage = builder.kernel(name, kernel, *request, *batch);
                let stage = if self.is_gate_fused {
                    stage.read(*between.get(Between::Normed)).read(up).read(up_bias)
                } else {
                    stage.read(x)
                };
                stage.write(out).parts(frames);
            }
            Work::Product(_) if to == Between::Up && self.is_gate_fused => {}
            Work::Product(Product { weight, bias, residual }) => {
                let shape = ProductShape {
                    rows: frames,
                    inner: from.width() * channels,
                    columns: to.width() * channels,
                    bias: bias.is_some(),
                    residual: residual.is_some(),
                };
                let residual = residual.map(|residual| *between.get(residual));
                let algorithm = None;
                let buffers =
                    ProductBuffers { x, weight, bias, residual, out, workspace, algorithm };
                let added = builder.product(name, &self.guard, shape, buffers);
                added.map_err(|error| BlockError::Product { stage: name, error })?;
            }
        }
        Ok(())
    }
}

impl<'b, T: Element> BlockMemory<'b, T> {
    /// The memory of one run, for input and output of `[items, frames, channels]`.
    pub fn bind<'m, X, Y>(
        &self,
        stream: &'m Arc<CudaStream>,
        x: &'m X,
        y: &'m mut Y,
    ) -> DeviceMemory<'m>
    where
        'b: 'm,
        X: Memory<T> + ?Sized,
        Y: MemoryMut<T> + ?Sized,
    {
        let memory = DeviceMemory::new(stream).read(self.x, x).write(self.y, y);
        let weights = self.buffers.iter().zip(&*self.weights.tensors);
        weights.fold(memory, |memory, ((buffer, _), weight)| memory.read(*buffer, weight))
    }
}

impl Loaded {
    fn new(
        kernels: &Kernels,
        stage: &str,
        operation: &impl Operation,
        (request, batch): (LaunchRequest, BatchAxis),
    ) -> Result<Self, KernelError> {
        let (kernel, parameters) = (kernels.kernel(operation, false)?, operation.parameters());
        let named = |(name, value)| (format!("{stage}.{name}"), value);
        let parameters = parameters.into_iter().map(named).collect();
        let source = source_hash(operation.code(kernels.guard().limits())?.source);
        Ok(Self { kernel, request, batch, parameters, source })
    }
}

/// The gate of the feed-forward, and whether its kernel computes the product before it, too.
fn gate(
    kernels: &Kernels,
    shape: &BlockShape,
    element: ElementType,
    may_fuse: bool,
) -> Result<(Loaded, bool), KernelError> {
    let (rows, columns) = (shape.rows(), GATED * shape.channels());
    let fused = GatedProduct::new(rows, shape.channels(), columns, element);
    if let Ok(fused) = fused.and_then(|fused| fused.for_items(shape.frames()))
        && may_fuse
        && fused.code(kernels.guard().limits()).is_ok()
    {
        return Ok((Loaded::new(kernels, "gate", &fused, over_rows(&fused, shape))?, true));
    }
    let gate = Geglu::new(rows, columns, element)?;
    Ok((Loaded::new(kernels, "gate", &gate, over_rows(&gate, shape))?, false))
}

/// The launch of a kernel over all rows of the items, folded onto x if x takes all blocks and each chunk then has all
/// blocks of its rows.
fn over_rows(rows: &impl Operation, shape: &BlockShape) -> (LaunchRequest, BatchAxis) {
    let (request, batch) = rows.grid();
    // Blocks share several rows, or several blocks one.
    let (tiles, per_block) = (request.grid.x, batch.unit().unwrap_or(1));
    let folds = tiles == 1 || shape.frames().is_multiple_of(per_block);
    let (axis, tiles) = if folds { (Axis::X, tiles) } else { (batch.axis(), 1) };
    let batch = BatchAxis::new(axis, shape.items());
    let batch = batch.blocks_per_items(shape.frames().saturating_mul(tiles), per_block);
    let blocks = batch.blocks(shape.items()).unwrap_or(u64::MAX);
    let grid = if folds { Dim3::new(1, 1, 1) } else { request.grid };
    (request.grid(grid.with(axis, blocks)), batch)
}

/// q, k and v in rows of `[3, heads, head_dim]`, and the output in rows of `[heads, head_dim]`.
fn extents(shape: &BlockShape) -> [Extent<4>; 4] {
    let (frames, channels) = (shape.frames(), shape.channels());
    let head_dim = shape.head_dim();
    // A stride between items counts for two or more.
    let dims = [shape.items().max(2), shape.heads(), frames, head_dim];
    let rows = |width: u64| Extent::strided(dims, [frames * width, head_dim, width, 1]);
    let qkv = rows(3 * channels);
    [qkv, qkv, qkv, rows(channels)]
}

/// Enough for the algorithms of tall matrices, little beside a chunk.
const WORKSPACE_BYTES: u64 = 4 << 20;
