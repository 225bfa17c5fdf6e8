//! Runs batches on a CUDA device.

use std::any::Any;
use std::num::NonZeroU64;
use std::sync::Arc;

use cudarc::driver::sys::CUmemPool_attribute;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, PinnedHostSlice, result};
use gridguard::Guard;
use gridguard::cuda::{Compiler, CublasLt};
use gridguard_kernels::temporal_attention::Shape;
use gridguard_kernels::temporal_block::{BlockShape, TemporalBlock};
use gridguard_kernels::{Element, ElementType, Kernels, Tensor, TensorMut};
use half::{bf16, f16};

use crate::admission::WORKSPACE_BYTES;
use crate::backend::{Backend, Batch, Bodies, Device, Failure, Wanted, attention};
use crate::block::Block;
use crate::error::{Fallible, ServeError, Served};
use crate::tensors::{Endpoint, Key};
use crate::tuning::{Profiles, Tuning};

/// A CUDA device with the block's weights, which the backends on it share.
pub struct Shared {
    kernels: Kernels,
    tuning: Arc<Tuning>,
    /// [`TemporalBlock`] of the block's type.
    block: Box<dyn Any + Send + Sync>,
    device: Device,
}

/// A stream of a device, and pinned memory: while one copies, another computes.
pub struct Cuda {
    shared: Arc<Shared>,
    stream: Arc<CudaStream>,
    staging: Staging,
}

/// Pinned host memory, kept from batch to batch: only copies from and to it run beside kernels.
#[derive(Default)]
struct Staging(Option<PinnedHostSlice<u64>>);

impl Shared {
    /// The device with this ordinal. Its `backends` share `memory` bytes evenly, or by default 80 % of the free memory.
    ///
    /// # Errors
    ///
    /// If the driver, NVRTC or cuBLASLt is missing, or the weights do not fit.
    pub fn open(
        ordinal: usize,
        (memory, backends): (Option<u64>, NonZeroU64),
        profiles: &Profiles,
        block: &Block,
    ) -> Fallible<Self> {
        let guard = Arc::new(Guard::cuda(ordinal)?);
        Compiler::find()?;
        CublasLt::find()?;
        let context = guard.context().ok_or(NO_CONTEXT)?;
        let stream = context.new_stream()?;
        let tuning = profiles.open(&guard);
        let kernels = Kernels::new(Arc::clone(&guard));
        let on_device = match block.element {
            ElementType::F16 => upload::<f16>(&kernels, &stream, block)?,
            ElementType::Bf16 => upload::<bf16>(&kernels, &stream, block)?,
            ElementType::F32 => upload::<f32>(&kernels, &stream, block)?,
        };
        guard.synchronize(&stream)?;
        // The weights are not free any more.
        let free = guard.pipeline_budget(FREE_PERCENT)?.max_bytes();
        let memory = memory.map_or(free, |memory| memory.saturating_sub(block.bytes));
        if let Err(reason) = keep_memory(context, memory) {
            tracing::warn!(%reason, "each batch takes its memory from the driver anew");
        }
        let memory = memory / backends;
        let name = format!("{} ({ordinal})", guard.limits().name);
        let multiprocessors = guard.limits().multiprocessors.max(1);
        let operations_per_second = multiprocessors * MULTIPROCESSOR_RATE / backends;
        let device = Device { name, is_gpu: true, memory, operations_per_second };
        Ok(Self { kernels, tuning, block: on_device, device })
    }
}

impl Cuda {
    /// A backend on a device.
    ///
    /// # Errors
    ///
    /// If the driver makes no stream.
    pub fn new(shared: Arc<Shared>) -> Fallible<Self> {
        let context = shared.kernels.guard().context().ok_or(NO_CONTEXT)?;
        let stream = context.new_stream()?;
        Ok(Self { shared, stream, staging: Staging::default() })
    }

    fn attend<T: Element>(&mut self, batch: &Batch, wanted: Wanted<'_>) -> Bodies {
        let shared = Arc::clone(&self.shared);
        let kernels = &shared.kernels;
        let Key { heads, frames, width, .. } = batch.key;
        let shape = Shape::new(batch.items, heads, frames, width)?;
        let attention = attention(shape, T::TYPE, kernels.guard().limits())?;
        let added = batch.mask::<T>()?;
        let prepared = shared
            .tuning
            .choose(&attention, added.is_some(), |tuned, choice| kernels.prepare(tuned, choice))?;
        let [q, k, v] = self.copy::<T, 3>(batch)?;
        let added = added.map(|added| self.stream.clone_htod(&added)).transpose()?;
        if !wanted() {
            return Err(Failure::Abandoned);
        }
        let mut out = self.output::<T>(batch)?;
        let tensors = [&q, &k, &v].map(|tensor| Tensor::new(tensor, shape.dims()));
        let added = added.as_ref().map(|added| Tensor::with_extent(added, shape.shared_bias()));
        let to = TensorMut::new(&mut out, shape.dims());
        prepared.launch(&self.stream, tensors, added, shape.scale(), to)?;
        Ok(self.replies(batch, &out)?)
    }

    fn transform<T: Element + 'static>(&mut self, batch: &Batch, wanted: Wanted<'_>) -> Bodies {
        let shared = Arc::clone(&self.shared);
        let block = shared.block.downcast_ref::<TemporalBlock<T>>();
        let block = block.ok_or_else(|| ServeError::failed("the block has another type"))?;
        let shape = block.shape();
        let shape =
            BlockShape::new(batch.items, batch.key.frames, shape.channels(), shape.heads())?;
        let block = block.with_shape(&shared.kernels, shape).map_err(ServeError::failed)?;
        let (mut pipeline, memory) = block.pipeline().map_err(ServeError::failed)?;
        let plan = pipeline.plan(&batch.budget(shared.device.memory))?;
        let [x] = self.copy::<T, 1>(batch)?;
        let mut y = self.output::<T>(batch)?;
        if !wanted() {
            return Err(Failure::Abandoned);
        }
        let bound = memory.bind(&self.stream, &x, &mut y);
        shared.kernels.guard().run_pipeline(&mut pipeline, &plan, bound)?;
        Ok(self.replies(batch, &y)?)
    }

    fn run_as<T: Element + 'static>(&mut self, batch: &Batch, wanted: Wanted<'_>) -> Bodies {
        match batch.key.endpoint {
            Endpoint::Attention => self.attend::<T>(batch, wanted),
            Endpoint::Block => self.transform::<T>(batch, wanted),
        }
    }

    /// The inputs of all requests, on the device.
    fn copy<T: Element, const INPUTS: usize>(
        &mut self,
        batch: &Batch,
    ) -> Served<[CudaSlice<T>; INPUTS]> {
        let elements = batch.output_elements::<T>();
        let mut staged = self.staging.of::<T>(&self.stream, elements * INPUTS)?;
        let mut copied = Vec::with_capacity(INPUTS);
        for input in 0..INPUTS {
            let (own, rest) = staged.split_at_mut(elements);
            batch.gather_into(input, own);
            copied.push(self.stream.clone_htod(own)?);
            staged = rest;
        }
        copied.try_into().map_err(|_| ServeError::failed("an input is missing"))
    }

    /// Memory on the device for the outputs of all requests.
    fn output<T: Element>(&self, batch: &Batch) -> Served<CudaSlice<T>> {
        Ok(self.stream.alloc_zeros(batch.output_elements::<T>())?)
    }

    fn replies<T: Element>(&mut self, batch: &Batch, out: &CudaSlice<T>) -> Served<Vec<Vec<u8>>> {
        // On the stream, so that the inputs were read.
        let copied = self.staging.of::<T>(&self.stream, out.len())?;
        self.stream.memcpy_dtoh(out, copied)?;
        let synchronized = self.shared.kernels.guard().synchronize(&self.stream);
        synchronized.map_err(ServeError::failed)?;
        batch.replies(copied)
    }
}

impl Staging {
    /// So many elements.
    fn of<T: Element>(&mut self, stream: &CudaStream, elements: usize) -> Served<&mut [T]> {
        let words = (elements * size_of::<T>()).div_ceil(size_of::<u64>());
        if self.0.as_ref().is_none_or(|pinned| pinned.len() < words) {
            self.0 = None;
            // Batches of nearly the same size follow.
            let words = words.next_power_of_two();
            // SAFETY: any bits are a u64, and the memory is written by the host or the device before it is read.
            #[allow(unsafe_code, reason = "cudarc's pinned memory begins unset")]
            let pinned = unsafe { stream.context().alloc_pinned_with_flags(words, 0) };
            self.0 = Some(pinned?);
        }
        let Some(pinned) = &mut self.0 else { return Ok(&mut []) };
        let all: &mut [T] = bytemuck::cast_slice_mut(pinned.as_mut_slice()?);
        Ok(all.get_mut(..elements).unwrap_or_default())
    }
}

impl Backend for Cuda {
    fn device(&self) -> Device {
        self.shared.device.clone()
    }

    fn run(&mut self, batch: &Batch, wanted: Wanted<'_>) -> Bodies {
        let ran = match batch.key.element {
            ElementType::F16 => self.run_as::<f16>(batch, wanted),
            ElementType::Bf16 => self.run_as::<bf16>(batch, wanted),
            ElementType::F32 => self.run_as::<f32>(batch, wanted),
        };
        // A device that failed fails every call from then on; an error of this batch alone leaves it usable.
        ran.map_err(|failure| match self.shared.kernels.guard().synchronize(&self.stream) {
            Ok(()) => failure,
            Err(lost) => Failure::Lost(match failure {
                Failure::Batch(error) => format!("{error}; then {lost}"),
                Failure::Lost(_) | Failure::Abandoned => lost.to_string(),
            }),
        })
    }
}

/// Memory that batches free stays with the process, as much as requests may take. A batch that takes it from
/// the driver anew waits for milliseconds.
fn keep_memory(context: &CudaContext, mut bytes: u64) -> Result<(), DriverError> {
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the device belongs to a live context, and the attribute is a u64.
    #[allow(unsafe_code, reason = "cudarc has no safe call for it")]
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device())?;
        result::mem_pool::set_attribute(pool, attribute, (&raw mut bytes).cast())
    }
}

fn upload<T: Element + 'static>(
    kernels: &Kernels,
    stream: &Arc<CudaStream>,
    block: &Block,
) -> Fallible<Box<dyn Any + Send + Sync>> {
    let weights = block.weights::<T>()?;
    let block = TemporalBlock::new(kernels, stream, block.shape(1, 1)?, weights)?;
    Ok(Box::new(block.with_workspace(WORKSPACE_BYTES)))
}

/// The rest is for other programs, and for what kernels need beside memory of requests.
const FREE_PERCENT: u64 = 80;
/// Operations a second of a multiprocessor: a quarter of what 128 lanes of f32 can do at 1 GHz, since batches are copied
/// and small ones leave lanes idle.
const MULTIPROCESSOR_RATE: u64 = 128 * 2 * 1_000_000_000 / 4;
const NO_CONTEXT: &str = "the guard has no context";
