//! The block on a device.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{DeviceMemory, Kernel, Memory, MemoryMut, ProductBuffers, ProductShape};
use gridguard::pipeline::{Buffer, Pipeline, PipelineBuilder};
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest};

use super::error::BlockError;
use super::item::EPSILON;
use super::shape::{BlockShape, GATED};
use super::stages::{Between, Product, Stage, Tensors, Work, stages};
use super::weights::{BlockWeights, POSITIONS, TENSORS, check_positions};
use crate::element::{Element, ElementType, to_u64};
use crate::error::KernelError;
use crate::extent::Extent;
use crate::gated_product::GatedProduct;
use crate::geglu::Geglu;
use crate::kernels::Kernels;
use crate::layer_norm::LayerNorm;
#[cfg(feature = "profile")]
use crate::operation::source_hash;
use crate::operation::{Operation, check_size};
use crate::temporal_attention::{STRIDES_BYTES, TemporalAttention, Variant, stride_bytes};

/// The block's weights and kernels on a device.
///
/// ```no_run
/// use gridguard::Guard;
/// use gridguard::pipeline::Budget;
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
/// kernels.guard().run_pipeline(&mut pipeline, &plan, bound)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TemporalBlock<T> {
    guard: Arc<Guard>,
    shape: BlockShape,
    workspace_bytes: u64,
    /// The launch parameters of the kernels, and hashes of their sources.
    parameters: Vec<(String, u64)>,
    #[cfg(feature = "profile")]
    sources: [String; 2],
    weights: Weights<T>,
    norm: Kernel,
    /// That of the attentions, if there are embeddings of positions.
    norm_of_positions: Option<Kernel>,
    norm_grid: Grid,
    attention: Kernel,
    operation: TemporalAttention,
    strides: [u8; STRIDES_BYTES],
    gate: Gate,
}

/// The weights of a block. A block without weights has none.
#[derive(Clone)]
pub(super) struct Weights<T> {
    /// In the order of [`TENSORS`].
    pub(super) tensors: Arc<[CudaSlice<T>]>,
    pub(super) positions: Option<Arc<CudaSlice<T>>>,
    /// Elements of the embeddings of positions; 0 if there are none.
    pub(super) position_elements: u64,
}

/// The gate of the feed-forward.
pub(super) struct Gate {
    kernel: Kernel,
    grid: Grid,
    /// Whether the kernel multiplies, too.
    is_fused: bool,
    parameters: Vec<(String, u64)>,
    #[cfg(feature = "profile")]
    source: String,
}

/// The memory of a block's pipeline: the weights, for the input and the output of each run.
pub struct BlockMemory<'b, T> {
    pub(super) shape: BlockShape,
    pub(super) x: Buffer<T>,
    pub(super) y: Buffer<T>,
    /// In the order of [`TENSORS`].
    pub(super) tensors: [Buffer<T>; TENSORS.len()],
    pub(super) positions: Option<(Buffer<T>, u64)>,
    weights: &'b Weights<T>,
}

/// A launch over the rows of items.
#[derive(Clone, Copy, Debug)]
struct Grid {
    request: LaunchRequest,
    batch: BatchAxis,
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
        let copy = |tensor: &Vec<T>| stream.clone_htod(tensor);
        let tensors = weights.tensors.iter().map(copy);
        let tensors = tensors.collect::<Result<_, _>>().map_err(KernelError::from)?;
        let positions = Some(&weights.positions).filter(|positions| !positions.is_empty());
        let positions = positions.map(copy).transpose().map_err(KernelError::from)?;
        let position_elements = to_u64(weights.positions.len());
        let weights = Weights { tensors, positions: positions.map(Arc::new), position_elements };
        Self::with_weights(kernels, shape, weights, Gate::best(kernels, &shape, T::TYPE)?)
    }

    /// The same weights for another number of items or frames, or other heads: a server, whose requests
    /// decide, copies weights once.
    ///
    /// # Errors
    ///
    /// [`BlockError`] if the shape has another number of channels or more frames than there are embeddings of
    /// positions, or the kernels cannot be compiled.
    pub fn with_shape(&self, kernels: &Kernels, shape: BlockShape) -> Result<Self, BlockError> {
        let channels = self.shape.channels();
        check_size("channels", shape.channels(), channels..=channels)?;
        check_positions(&shape, self.weights.position_elements)?;
        let gate = if self.gate.is_fused { Gate::best } else { Gate::apart };
        let gate = gate(kernels, &shape, T::TYPE)?;
        let block = Self::with_weights(kernels, shape, self.weights.clone(), gate)?;
        Ok(block.with_workspace(self.workspace_bytes))
    }

    pub(super) fn with_weights(
        kernels: &Kernels,
        shape: BlockShape,
        weights: Weights<T>,
        gate: Gate,
    ) -> Result<Self, BlockError> {
        let guard = Arc::clone(kernels.guard());
        let (rows, channels, element) = (shape.rows(), shape.channels(), T::TYPE);
        let norm = LayerNorm::new(rows, channels, element)?;
        let operation = TemporalAttention::new(shape.attention(), element, guard.limits())?;
        let operation = operation.with_strides();
        let strides = stride_bytes(&operation, &extents(&shape))?;
        let named = [("norm", norm.parameters()), ("attention", operation.parameters())];
        #[cfg(feature = "profile")]
        let sources = {
            let limits = guard.limits();
            [norm.code(limits)?, operation.code(limits)?].map(|code| source_hash(code.source))
        };
        Ok(Self {
            shape,
            workspace_bytes: WORKSPACE_BYTES,
            parameters: named.into_iter().flat_map(of_kernel).collect(),
            #[cfg(feature = "profile")]
            sources,
            norm: kernels.kernel(&norm)?,
            norm_of_positions: (weights.position_elements > 0)
                .then(|| kernels.kernel(&norm.with_positions(shape.frames())))
                .transpose()?,
            weights,
            norm_grid: Grid::new(&norm, &shape),
            attention: kernels.kernel(&operation)?,
            operation,
            strides,
            gate,
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
        self.gate = Gate::apart(kernels, &self.shape, T::TYPE)?;
        Ok(self)
    }

    /// Whether the product before the gate and the gate are one kernel: on Hopper, where the channels are at most
    /// 640.
    #[must_use]
    pub const fn is_gate_fused(&self) -> bool {
        self.gate.is_fused
    }

    /// The same with so many bytes of workspace for cuBLASLt, for each chunk in flight; 4 MiB by default.
    /// With more of them there are more algorithms to choose from.
    #[must_use]
    pub fn with_workspace(mut self, bytes: u64) -> Self {
        self.workspace_bytes = bytes.max(1);
        self
    }

    /// Bytes of workspace for each chunk in flight.
    #[must_use]
    pub const fn workspace_bytes(&self) -> u64 {
        self.workspace_bytes
    }

    /// The shape.
    #[must_use]
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
        let between = Tensors::declare(&mut builder, &self.shape, !self.gate.is_fused);
        let channels = self.shape.channels();
        let tensors = TENSORS
            .map(|tensor| builder.shared_input::<T>(tensor.name(), tensor.elements(channels)));
        let elements = self.weights.position_elements;
        let positions = (elements > 0).then(|| builder.shared_input::<T>(POSITIONS, elements));
        let workspace = builder.fixed_scratch("workspace", self.workspace_bytes);
        for (name, value) in self.parameters.iter().chain(&self.gate.parameters) {
            builder.parameter(name, *value);
        }
        #[cfg(feature = "profile")]
        self.sources.iter().chain([&self.gate.source]).for_each(|hash| builder.source(hash));
        for stage in stages(tensors) {
            self.add(&mut builder, &between, stage, positions, workspace)?;
        }
        let [x, y] = [Between::X, Between::Y].map(|tensor| *between.get(tensor));
        let positions = positions.map(|positions| (positions, elements));
        let (shape, weights) = (self.shape, &self.weights);
        Ok((builder.build()?, BlockMemory { shape, x, y, tensors, positions, weights }))
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
        let Self { shape, gate, operation, .. } = self;
        let (frames, channels) = (shape.frames(), shape.channels());
        let (x, out) = (*between.get(from), *between.get(to));
        match work {
            Work::Norm([weight, bias], adds_positions) => {
                let positions = positions.filter(|_| adds_positions);
                let kernel = self.norm_of_positions.as_ref().filter(|_| positions.is_some());
                let Grid { request, batch } = self.norm_grid;
                let stage = builder.kernel(name, kernel.unwrap_or(&self.norm), request, batch);
                let stage = stage.read(x).write(out).read(weight).read(bias);
                let stage = positions.into_iter().fold(stage, |stage, buffer| stage.read(buffer));
                stage.parts(frames).value(EPSILON);
            }
            Work::Attention => {
                let (request, batch) = operation.grid();
                let narrow = |size: u64| u32::try_from(size).unwrap_or(u32::MAX);
                let stage = builder.kernel(name, &self.attention, request, batch);
                // Each row has q, k and v side by side.
                let stage = stage.read_from(x, 0).read_from(x, channels).read_from(x, 2 * channels);
                let stage = stage.write(out).length().constant(narrow(shape.heads()));
                let stage = stage.bytes(&self.strides).value(shape.attention().scale());
                if operation.variant() == Variant::General {
                    let frames = narrow(frames);
                    stage.constant(frames).constant(frames).constant(narrow(shape.head_dim()));
                }
            }
            Work::Gate([up, up_bias]) => {
                let Grid { request, batch } = gate.grid;
                let stage = builder.kernel(name, &gate.kernel, request, batch);
                let stage = if gate.is_fused {
                    stage.read(*between.get(Between::Normed)).read(up).read(up_bias)
                } else {
                    stage.read(x)
                };
                stage.write(out).parts(frames);
            }
            Work::Product(_) if to == Between::Up && gate.is_fused => {}
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
                added
                    .map_err(|error| BlockError::Product { stage: name, error: Box::new(error) })?;
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
        let Weights { tensors, positions, .. } = self.weights;
        let tensors = self.tensors.into_iter().zip(tensors.iter());
        let positions =
            self.positions.map(|(buffer, _)| buffer).into_iter().zip(positions.as_deref());
        tensors
            .chain(positions)
            .fold(memory, |memory, (buffer, weight)| memory.read(buffer, weight))
    }
}

impl Gate {
    /// One kernel with the product where the device and the shape allow it.
    pub(super) fn best(
        kernels: &Kernels,
        shape: &BlockShape,
        element: ElementType,
    ) -> Result<Self, BlockError> {
        let (rows, channels) = (shape.rows(), shape.channels());
        let fused = GatedProduct::new(rows, channels, GATED * channels, element);
        match fused.and_then(|fused| fused.for_items(shape.frames())) {
            Ok(fused) if fused.code(kernels.guard().limits()).is_ok() => {
                Self::of(kernels, shape, &fused, true)
            }
            _ => Self::apart(kernels, shape, element),
        }
    }

    fn apart(
        kernels: &Kernels,
        shape: &BlockShape,
        element: ElementType,
    ) -> Result<Self, BlockError> {
        let gate = Geglu::new(shape.rows(), GATED * shape.channels(), element)?;
        Self::of(kernels, shape, &gate, false)
    }

    fn of(
        kernels: &Kernels,
        shape: &BlockShape,
        gate: &impl Operation,
        is_fused: bool,
    ) -> Result<Self, BlockError> {
        Ok(Self {
            kernel: kernels.kernel(gate)?,
            grid: Grid::new(gate, shape),
            is_fused,
            parameters: of_kernel(("gate", gate.parameters())).collect(),
            #[cfg(feature = "profile")]
            source: source_hash(gate.code(kernels.guard().limits())?.source),
        })
    }
}

/// The launch parameters of a stage's kernel, with the stage's name.
fn of_kernel(
    (stage, parameters): (&'static str, Vec<(String, u64)>),
) -> impl Iterator<Item = (String, u64)> {
    parameters.into_iter().map(move |(name, value)| (format!("{stage}.{name}"), value))
}

impl Grid {
    /// The launch of a kernel over all rows of the items: folded onto x, where it takes as many blocks as there
    /// are, if a chunk then has all blocks of its rows.
    fn new(rows: &impl Operation, shape: &BlockShape) -> Self {
        let (request, batch) = rows.grid();
        // Blocks share several rows, or several blocks one.
        let (tiles, per_block) = (request.grid.x, batch.unit().unwrap_or(1));
        let folds = tiles == 1 || shape.frames().is_multiple_of(per_block);
        let (axis, tiles) = if folds { (Axis::X, tiles) } else { (batch.axis(), 1) };
        let batch = BatchAxis::new(axis, shape.items());
        let batch = batch.blocks_per_items(shape.frames().saturating_mul(tiles), per_block);
        let blocks = batch.blocks(shape.items()).unwrap_or(u64::MAX);
        let grid = if folds { Dim3::new(1, 1, 1) } else { request.grid };
        Self { request: request.grid(grid.with(axis, blocks)), batch }
    }
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
