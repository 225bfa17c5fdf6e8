//! Runs batches on a CUDA device.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::Guard;
use gridguard::cuda::{Compiler, CublasLt, CudaError};
use gridguard_kernels::temporal_attention::Shape;
use gridguard_kernels::temporal_block::TemporalBlock;
use gridguard_kernels::{Element, ElementType, KernelError, Kernels, Tensor, TensorMut};
use half::{bf16, f16};

use crate::admission::{WORKSPACE_BYTES, plan};
use crate::backend::{Backend, Batch, Device, Failure, attention, mask, stopped};
use crate::block::Block;
use crate::error::ServeError;
use crate::tensors::Problem;
use crate::tuning::{Profiles, Tuning};

/// A CUDA device with the block's weights.
pub struct Cuda {
    kernels: Kernels,
    stream: Arc<CudaStream>,
    tuning: Arc<Tuning>,
    block: OnDevice,
    device: Device,
}

/// The block of each type.
enum OnDevice {
    F16(TemporalBlock<f16>),
    Bf16(TemporalBlock<bf16>),
    F32(TemporalBlock<f32>),
}

impl Cuda {
    /// The device with this ordinal, with `memory` bytes or most of what is free.
    ///
    /// # Errors
    ///
    /// If the driver, NVRTC or cuBLASLt is missing, or the weights do not fit.
    pub fn open(
        ordinal: usize,
        memory: Option<u64>,
        profiles: &Profiles,
        block: &Block,
    ) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let guard = Arc::new(Guard::cuda(ordinal)?);
        Compiler::find()?;
        CublasLt::find()?;
        let context = guard.context().ok_or("no context")?;
        let stream = context.new_stream()?;
        let tuning = profiles.open(&guard);
        let kernels = Kernels::new(Arc::clone(&guard));
        let on_device = match block.element {
            ElementType::F16 => OnDevice::F16(upload(&kernels, &stream, block)?),
            ElementType::Bf16 => OnDevice::Bf16(upload(&kernels, &stream, block)?),
            ElementType::F32 => OnDevice::F32(upload(&kernels, &stream, block)?),
        };
        guard.synchronize(&stream)?;
        // The weights are not free any more.
        let free = guard.pipeline_budget(FREE_PERCENT)?.max_bytes();
        let memory = memory.map_or(free, |memory| memory.saturating_sub(block.bytes));
        let name = format!("{} ({ordinal})", guard.limits().name);
        let device = Device { name, is_gpu: true, memory };
        Ok(Self { kernels, stream, tuning, block: on_device, device })
    }

    fn attend<T: Element>(&self, batch: &Batch) -> Result<Vec<Vec<u8>>, ServeError> {
        let Problem::Attention { heads, frames, head_dim, mask: added } = &batch.key.problem else {
            return Err(ServeError::failed(OTHER_PROBLEM));
        };
        let shape = Shape::new(batch.items, *heads, *frames, *head_dim)?;
        let attention = attention(shape, T::TYPE, self.kernels.guard().limits())?;
        let prepared = self.tuning.choose(&attention, added.is_some(), |tuned, choice| {
            self.kernels.prepare(tuned, choice)
        })?;
        let [q, k, v] = [self.copy::<T>(batch, 0)?, self.copy(batch, 1)?, self.copy(batch, 2)?];
        let added = added.as_ref().map(mask::<T>).transpose()?;
        let added = added.map(|added| self.stream.clone_htod(&added)).transpose();
        let added = added.map_err(KernelError::from)?;
        let mut out = self.output::<T>(batch)?;
        let tensors = [&q, &k, &v].map(|tensor| Tensor::new(tensor, shape.dims()));
        let added = added.as_ref().map(|added| Tensor::new(added, [*frames; 2]));
        let to = TensorMut::new(&mut out, shape.dims());
        prepared.launch(&self.stream, tensors, added, shape.scale(), to)?;
        self.replies(batch, &out)
    }

    fn transform<T: Element>(
        &self,
        block: &TemporalBlock<T>,
        batch: &Batch,
    ) -> Result<Vec<Vec<u8>>, ServeError> {
        let Problem::Block { frames, .. } = &batch.key.problem else {
            return Err(ServeError::failed(OTHER_PROBLEM));
        };
        let mut shape = *block.shape();
        (shape.items, shape.frames) = (batch.items, *frames);
        let block = block.with_shape(&self.kernels, shape).map_err(ServeError::failed)?;
        let (mut pipeline, memory) = block.pipeline().map_err(ServeError::failed)?;
        let plan = plan(&pipeline, batch, self.device.memory, |budget| budget)?;
        let x = self.copy::<T>(batch, 0)?;
        let mut y = self.output::<T>(batch)?;
        let bound = memory.bind(&self.stream, &x, &mut y);
        let ran = self.kernels.guard().run_pipeline(&mut pipeline, &plan, bound);
        ran.map_err(|error| stopped(&error))?;
        self.replies(batch, &y)
    }

    /// An input of all requests, on the device.
    fn copy<T: Element>(&self, batch: &Batch, input: usize) -> Result<CudaSlice<T>, ServeError> {
        let elements = batch.gather::<T>(input)?;
        Ok(self.stream.clone_htod(&elements).map_err(KernelError::from)?)
    }

    /// Memory on the device for the outputs of all requests.
    fn output<T: Element>(&self, batch: &Batch) -> Result<CudaSlice<T>, ServeError> {
        let zeros = self.stream.alloc_zeros(batch.output_elements::<T>());
        Ok(zeros.map_err(KernelError::from)?)
    }

    fn replies<T: Element>(
        &self,
        batch: &Batch,
        out: &CudaSlice<T>,
    ) -> Result<Vec<Vec<u8>>, ServeError> {
        let copied = self.stream.clone_dtoh(out).map_err(KernelError::from)?;
        let synchronized = self.kernels.guard().synchronize(&self.stream);
        synchronized.map_err(|error: CudaError| KernelError::from(error))?;
        batch.replies(&copied)
    }
}

impl Backend for Cuda {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn run(&mut self, batch: &Batch) -> Result<Vec<Vec<u8>>, Failure> {
        let ran = match (&batch.key.problem, batch.key.element, &self.block) {
            (Problem::Attention { .. }, ElementType::F16, _) => self.attend::<f16>(batch),
            (Problem::Attention { .. }, ElementType::Bf16, _) => self.attend::<bf16>(batch),
            (Problem::Attention { .. }, ElementType::F32, _) => self.attend::<f32>(batch),
            (Problem::Block { .. }, ElementType::F16, OnDevice::F16(block)) => {
                self.transform(block, batch)
            }
            (Problem::Block { .. }, ElementType::Bf16, OnDevice::Bf16(block)) => {
                self.transform(block, batch)
            }
            (Problem::Block { .. }, ElementType::F32, OnDevice::F32(block)) => {
                self.transform(block, batch)
            }
            (Problem::Block { .. }, ..) => Err(ServeError::failed(OTHER_PROBLEM)),
        };
        // A device that failed fails every call from then on; an error of this batch alone leaves it usable.
        ran.map_err(|error| match self.kernels.guard().synchronize(&self.stream) {
            Ok(()) => Failure::Batch(error),
            Err(lost) => Failure::Lost(format!("{error}; then {lost}")),
        })
    }
}

fn upload<T: Element + 'static>(
    kernels: &Kernels,
    stream: &Arc<CudaStream>,
    block: &Block,
) -> Result<TemporalBlock<T>, Box<dyn Error + Send + Sync>> {
    let weights = block.weights::<T>()?;
    let block = TemporalBlock::new(kernels, stream, block.shape(1, 1)?, weights)?;
    Ok(block.with_workspace(WORKSPACE_BYTES))
}

/// The rest is for other programs, and for what kernels need beside memory of requests.
const FREE_PERCENT: u64 = 80;
/// Checked before a batch is made.
const OTHER_PROBLEM: &str = "the batch is not for the block on this device";
