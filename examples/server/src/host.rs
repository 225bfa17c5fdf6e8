//! Runs batches on the host, for machines without a GPU.

use std::sync::Arc;
use std::thread::available_parallelism;

use gridguard::pipeline::HostMemory;
use gridguard::{Guard, KernelLimits};
use gridguard_kernels::temporal_attention::{Shape, run_on_host};
use gridguard_kernels::temporal_block::host_pipeline;
use gridguard_kernels::{Element, ElementType, Operation};
use half::{bf16, f16};

use crate::admission::plan;
use crate::backend::{Backend, Batch, Device, Failure, attention, mask, stopped};
use crate::block::Block;
use crate::error::ServeError;
use crate::tensors::{Problem, wide};
use crate::tuning::Tuning;

/// The host, under the limits of a GPU.
#[derive(Debug)]
pub struct Host {
    guard: Guard,
    tuning: Arc<Tuning>,
    block: Arc<Block>,
    memory: u64,
}

impl Host {
    /// The host with so many bytes for requests.
    #[must_use]
    pub const fn new(guard: Guard, tuning: Arc<Tuning>, block: Arc<Block>, memory: u64) -> Self {
        Self { guard, tuning, block, memory }
    }

    fn run_as<T: Element + 'static>(&self, batch: &Batch) -> Result<Vec<Vec<u8>>, ServeError> {
        let mut out = batch.output::<T>()?;
        match &batch.key.problem {
            Problem::Attention { heads, frames, head_dim, mask: added } => {
                let shape = Shape::new(batch.items, *heads, *frames, *head_dim)?;
                let attention = attention(shape, T::TYPE, self.guard.limits())?;
                let kernel = KernelLimits::unknown("temporal_attention");
                let limits = self.guard.limits_for(kernel).with_automatic_opt_in();
                let is_masked = added.is_some();
                let (attention, plan) =
                    self.tuning.choose(&attention, is_masked, |tuned, choice| {
                        let (request, batch) = tuned.grid();
                        let plan = self.guard.plan(&request, Some(&batch), &limits, choice)?;
                        Ok((tuned, plan))
                    })?;
                let added = added.as_ref().map(mask::<T>).transpose()?;
                let [q, k, v] = [batch.gather(0)?, batch.gather(1)?, batch.gather(2)?];
                let (qkv, scale) = ([&q[..], &k, &v], shape.scale());
                let added = added.as_deref();
                run_on_host(&self.guard, &plan, &attention, scale, qkv, added, &mut out, || {})?;
            }
            Problem::Block { frames, .. } => {
                let weights = self.block.weights::<T>()?;
                let shape = self.block.shape(batch.items, *frames)?;
                let (mut pipeline, x, y) =
                    host_pipeline(&shape, weights).map_err(ServeError::failed)?;
                // Chunks in flight run in parallel.
                let threads = wide(available_parallelism().map_or(1, usize::from));
                let at_most = batch.items.div_ceil(threads);
                let plan = plan(&pipeline, batch, self.memory, |budget| {
                    budget.in_flight(threads).at_most(at_most)
                })?;
                let input = batch.gather::<T>(0)?;
                let memory = HostMemory::new().read(x, &input).write(y, &mut out);
                pipeline.run(&plan, memory).map_err(|error| stopped(&error))?;
            }
        }
        batch.replies(&out)
    }
}

impl Backend for Host {
    fn device(&self) -> Device {
        let limits = &self.guard.limits().name;
        let name = format!("host, under the limits of {limits}");
        Device { name, is_gpu: false, memory: self.memory }
    }

    fn run(&mut self, batch: &Batch) -> Result<Vec<Vec<u8>>, Failure> {
        Ok(match batch.key.element {
            ElementType::F16 => self.run_as::<f16>(batch),
            ElementType::Bf16 => self.run_as::<bf16>(batch),
            ElementType::F32 => self.run_as::<f32>(batch),
        }?)
    }
}
