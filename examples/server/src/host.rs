//! Runs batches on the host, for machines without a GPU.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use gridguard::pipeline::HostMemory;
use gridguard::{Choice, Guard, KernelLimits, LaunchLimits, Plan};
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention, run_on_host};
use gridguard_kernels::temporal_block::host_pipeline;
use gridguard_kernels::{Element, ElementType, KernelError, Operation};
use half::{bf16, f16};

use crate::admission::operations_per_item;
use crate::backend::{Backend, Batch, Bodies, Device, Failure, Wanted, attention};
use crate::block::Block;
use crate::error::ServeError;
use crate::tensors::{Endpoint, Key, wide};
use crate::tuning::Tuning;

/// The host, under the limits of a GPU.
#[derive(Debug)]
pub struct Host {
    guard: Guard,
    limits: LaunchLimits,
    tuning: Arc<Tuning>,
    block: Arc<Block>,
    memory: u64,
    operations_per_second: u64,
}

impl Host {
    /// The host with `memory` bytes for requests. Its speed is measured, which takes a tenth of a second.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if the limits allow no attention.
    pub fn new(
        guard: Guard,
        tuning: Arc<Tuning>,
        block: Arc<Block>,
        memory: u64,
    ) -> Result<Self, KernelError> {
        let kernel = KernelLimits::unknown("temporal_attention");
        let limits = guard.limits_for(kernel).with_automatic_opt_in();
        let mut host = Self { guard, limits, tuning, block, memory, operations_per_second: 1 };
        host.operations_per_second = host.measure()?;
        Ok(host)
    }

    /// Operations a second of a small attention.
    fn measure(&self) -> Result<u64, KernelError> {
        let [heads, frames, head_dim] = [1, 64, 32];
        let (endpoint, element) = (Endpoint::Attention, ElementType::F32);
        let key = Key { endpoint, element, heads, frames, width: head_dim, mask: None };
        let operations = operations_per_item(&key);
        let shape = Shape::new(MEASURED_ITEMS, heads, frames, head_dim)?;
        let operation = attention(shape, ElementType::F32, self.guard.limits())?;
        let plan = self.plan(&operation, Choice::AUTOMATIC)?;
        let elements = MEASURED_ITEMS * frames * head_dim;
        let x = vec![1.0_f32; usize::try_from(elements).unwrap_or(0)];
        let mut out = x.clone();
        let mut shortest = u128::MAX;
        // The shortest, since threads start in the first one, and other programs may run.
        let start = Instant::now();
        while shortest == u128::MAX || start.elapsed() < MEASURED_FOR {
            let begun = Instant::now();
            run_on_host(&self.guard, &plan, &operation, 1.0, [&x; 3], None, &mut out, || {})?;
            shortest = shortest.min(begun.elapsed().as_nanos());
        }
        let operations = u128::from(operations * MEASURED_ITEMS) * 1_000_000_000;
        Ok(u64::try_from(operations / shortest.max(1)).unwrap_or(u64::MAX))
    }

    fn plan(&self, attention: &TemporalAttention, choice: Choice) -> Result<Plan, KernelError> {
        let (request, batch) = attention.grid();
        Ok(self.guard.plan(&request, Some(&batch), &self.limits, choice)?)
    }

    /// Items of a chunk. The host notices clients that left between two chunks.
    fn chunk(&self, operations: u64) -> u64 {
        (self.operations_per_second / CHUNKS_PER_SECOND).checked_div(operations).unwrap_or(0).max(1)
    }

    fn run_as<T: Element + 'static>(&self, batch: &Batch, wanted: Wanted<'_>) -> Bodies {
        let mut out = batch.output::<T>()?;
        match batch.key.endpoint {
            Endpoint::Attention => self.attend::<T>(batch, &mut out, wanted)?,
            Endpoint::Block => self.transform::<T>(batch, &mut out, wanted)?,
        }
        Ok(batch.replies(&out)?)
    }

    fn attend<T: Element>(
        &self,
        batch: &Batch,
        out: &mut [T],
        wanted: Wanted<'_>,
    ) -> Result<(), Failure> {
        let device = self.guard.limits();
        let Key { heads, frames, width, .. } = batch.key;
        let shape = Shape::new(batch.items, heads, frames, width)?;
        let added = batch.mask::<T>()?;
        let added = added.as_deref();
        let attention_of = |shape| attention(shape, T::TYPE, device);
        let choose = |tuned, choice| Ok((tuned, self.plan(&tuned, choice)?));
        let (whole, plan) = self.tuning.choose(&attention_of(shape)?, added.is_some(), choose)?;
        let [q, k, v] = [batch.gather::<T>(0)?, batch.gather(1)?, batch.gather(2)?];
        let scale = shape.scale();
        // Items and heads are contiguous and independent, so that a chunk may begin at any of them.
        let problems = self.chunk(operations_per_item(&batch.key) / shape.heads());
        if problems >= shape.items().saturating_mul(shape.heads()) {
            run_on_host(&self.guard, &plan, &whole, scale, [&q, &k, &v], added, out, || {})?;
            return Ok(());
        }
        let elements = problems.saturating_mul(shape.elements_per_problem());
        let chunk = usize::try_from(elements).unwrap_or(usize::MAX);
        let inputs = q.chunks(chunk).zip(k.chunks(chunk)).zip(v.chunks(chunk));
        for (((q, k), v), out) in inputs.zip(out.chunks_mut(chunk)) {
            if !wanted() {
                return Err(Failure::Abandoned);
            }
            let problems = wide(out.len()).checked_div(shape.elements_per_problem()).unwrap_or(0);
            let part = attention_of(Shape::new(problems, 1, shape.frames(), shape.head_dim())?)?;
            let part = if added.is_some() { part.with_bias() } else { part };
            let plan = self.plan(&part, Choice::AUTOMATIC)?;
            run_on_host(&self.guard, &plan, &part, scale, [q, k, v], added, out, || {})?;
        }
        Ok(())
    }

    fn transform<T: Element + 'static>(
        &self,
        batch: &Batch,
        out: &mut [T],
        wanted: Wanted<'_>,
    ) -> Result<(), Failure> {
        let weights = self.block.weights::<T>()?;
        let shape = self.block.shape(batch.items, batch.key.frames)?;
        let (mut pipeline, x, y) = host_pipeline(&shape, weights).map_err(ServeError::failed)?;
        // Chunks in flight run in parallel.
        let threads = wide(available_parallelism().map_or(1, usize::from));
        let chunk = self.chunk(operations_per_item(&batch.key)).div_ceil(threads);
        let at_most = batch.items.div_ceil(threads).min(chunk);
        let budget = batch.budget(self.memory).in_flight(threads).at_most(at_most);
        let plan = pipeline.plan(&budget)?;
        let input = batch.gather::<T>(0)?;
        let memory = HostMemory::new().read(x, &input).write(y, out);
        let mut monitor = |_: &_| {
            if wanted() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let ran = self.guard.run_pipeline(&mut pipeline, &plan, memory.monitor(&mut monitor));
        if ran?.cancelled { Err(Failure::Abandoned) } else { Ok(()) }
    }
}

impl Backend for Host {
    fn device(&self) -> Device {
        let limits = &self.guard.limits().name;
        let name = format!("host, under the limits of {limits}");
        let operations_per_second = self.operations_per_second;
        Device { name, is_gpu: false, memory: self.memory, operations_per_second }
    }

    fn run(&mut self, batch: &Batch, wanted: Wanted<'_>) -> Bodies {
        match batch.key.element {
            ElementType::F16 => self.run_as::<f16>(batch, wanted),
            ElementType::Bf16 => self.run_as::<bf16>(batch, wanted),
            ElementType::F32 => self.run_as::<f32>(batch, wanted),
        }
    }
}

/// How often clients that left are noticed.
const CHUNKS_PER_SECOND: u64 = 20;
const MEASURED_ITEMS: u64 = 16;
const MEASURED_FOR: Duration = Duration::from_millis(100);
