//! Which requests are let in: as many bytes of bodies as memory is for, and what fits a device.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody};
use gridguard::pipeline::{Budget, Pipeline, PipelinePlan, PlanError};
use gridguard_kernels::temporal_block::host_pipeline;
use gridguard_kernels::{Element, ElementType};
use half::{bf16, f16};
use http_body_util::BodyExt;
use metrics::gauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::backend::Batch;
use crate::block::Block;
use crate::error::ServeError;
use crate::options::BodyLimits;
use crate::tensors::{Problem, Request, wide};

/// Workspace of cuBLASLt on a device, part of a block's scratch.
pub const WORKSPACE_BYTES: u64 = 4 << 20;

/// The memory of bodies: of all requests and replies that are not done.
#[derive(Debug)]
pub struct Bodies {
    limits: BodyLimits,
    permits: Arc<Semaphore>,
}

/// The body of a request, with its share of the memory of bodies.
#[derive(Debug)]
pub struct Received {
    /// The body.
    pub bytes: Bytes,
    /// One permit a byte.
    pub permit: OwnedSemaphorePermit,
}

/// What a request takes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of its tensors.
    pub bytes: u64,
    /// The most bytes of tensors in a batch of its shape, beside scratch.
    pub batch_bytes: u64,
}

impl Bodies {
    /// No bodies yet.
    #[must_use]
    pub fn new(limits: BodyLimits) -> Self {
        let permits = usize::try_from(limits.bodies).unwrap_or(usize::MAX);
        Self { limits, permits: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))) }
    }

    /// Reads a body, whose declared length is checked before.
    ///
    /// # Errors
    ///
    /// [`ServeError`] if it is too large, late or cut, or there is no memory for it now.
    pub async fn read(&self, body: Body) -> Result<Received, ServeError> {
        let BodyLimits { body: limit, timeout: time, .. } = self.limits;
        let declared = body.size_hint().lower();
        if declared > limit {
            return Err(ServeError::BodyTooLarge { bytes: declared, limit });
        }
        let read = timeout(time, self.read_frames(body, declared)).await;
        read.unwrap_or(Err(ServeError::BodyTimeout { limit: time }))
    }

    /// Reads a body that is refused, and keeps nothing of it: a client that still sends when the connection is closed
    /// may lose the reply. One that declares too much is not read.
    pub async fn discard(&self, body: Body) {
        let BodyLimits { body: limit, timeout: time, .. } = self.limits;
        if body.size_hint().lower() <= limit {
            let _ = timeout(time, discard(body, limit)).await;
        }
    }

    async fn read_frames(&self, mut body: Body, declared: u64) -> Result<Received, ServeError> {
        let limit = self.limits.body;
        let (mut bytes, mut permit) = (Vec::new(), self.reserve(0)?);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ServeError::BodyBroken { reason: error.to_string() });
            let Ok(data) = frame?.into_data() else { continue };
            let total = wide(bytes.len()).saturating_add(wide(data.len()));
            if total > limit {
                return Err(ServeError::BodyTooLarge { bytes: total, limit });
            }
            match self.reserve(data.len()) {
                Ok(more) => permit.merge(more),
                Err(full) => {
                    // What is kept counts until then.
                    drop((bytes, permit));
                    discard(body, limit - total).await;
                    return Err(full);
                }
            }
            if bytes.is_empty() {
                // Growing would copy. This takes addresses; pages are taken as they are written.
                let _ = bytes.try_reserve_exact(usize::try_from(declared).unwrap_or(0));
            }
            bytes.extend_from_slice(&data);
        }
        self.report();
        Ok(Received { bytes: bytes.into(), permit })
    }

    fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, ServeError> {
        let full = ServeError::BodiesFull { limit: self.limits.bodies };
        let Ok(count) = u32::try_from(bytes) else { return Err(full) };
        Arc::clone(&self.permits).try_acquire_many_owned(count).map_err(|_| full)
    }

    /// Reports how much is in use.
    pub fn report(&self) {
        let free = wide(self.permits.available_permits());
        let used = self.limits.bodies.saturating_sub(free);
        #[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "a metric")]
        gauge!("gridguard_server_body_bytes").set(used as f64);
    }
}

/// Reads the rest of a body, at most so many bytes and a frame.
async fn discard(mut body: Body, most: u64) {
    let mut read = 0;
    while let Some(Ok(frame)) = body.frame().await
        && read <= most
    {
        read += frame.data_ref().map_or(0, |data| wide(data.len()));
    }
}

/// What a request takes of a device with `available` bytes, if it fits by itself.
///
/// # Errors
///
/// [`ServeError::Memory`] with the numbers of the pipeline's plan.
pub fn footprint(
    request: &Request,
    block: &Block,
    available: u64,
) -> Result<Footprint, ServeError> {
    let scratch = match (&request.key.problem, block.element) {
        (Problem::Attention { .. }, _) => Scratch::default(),
        (Problem::Block { frames, .. }, ElementType::F16) => {
            Scratch::of::<f16>(block, request.items, *frames)?
        }
        (Problem::Block { frames, .. }, ElementType::Bf16) => {
            Scratch::of::<bf16>(block, request.items, *frames)?
        }
        (Problem::Block { frames, .. }, ElementType::F32) => {
            Scratch::of::<f32>(block, request.items, *frames)?
        }
    };
    let (fixed, per_item) = (request.key.fixed_bytes(), request.key.bytes_per_item());
    let bytes = request.items.saturating_mul(per_item).saturating_add(fixed);
    let smallest = bytes.saturating_add(scratch.smallest);
    let for_tensors = available.saturating_sub(scratch.smallest);
    if smallest > available {
        let max_items = for_tensors.saturating_sub(fixed).checked_div(per_item).unwrap_or(0);
        let needed = bytes.saturating_add(scratch.whole);
        return Err(ServeError::Memory { needed, available, smallest, max_items });
    }
    Ok(Footprint { bytes, batch_bytes: for_tensors })
}

/// The plan of a batch's pipeline on a device with `memory` bytes, of which its tensors take some.
///
/// # Errors
///
/// [`ServeError::Memory`] if the smallest chunk does not fit.
pub fn plan<B>(
    pipeline: &Pipeline<B>,
    batch: &Batch,
    memory: u64,
    limit: impl FnOnce(Budget) -> Budget,
) -> Result<PipelinePlan, ServeError> {
    let tensors = batch.tensor_bytes();
    let budget = limit(Budget::bytes(memory.saturating_sub(tensors)));
    pipeline.plan(&budget).map_err(|error| match error {
        PlanError::BudgetTooSmall { smallest, .. } => {
            let needed = tensors.saturating_add(smallest);
            let for_tensors = memory.saturating_sub(smallest);
            let max_items = for_tensors.checked_div(batch.key.bytes_per_item()).unwrap_or(0);
            ServeError::Memory { needed, available: memory, smallest: needed, max_items }
        }
        error => ServeError::failed(error),
    })
}

/// Bytes of a block's scratch.
#[derive(Default)]
struct Scratch {
    /// For all items at once.
    whole: u64,
    /// For the smallest chunk.
    smallest: u64,
}

impl Scratch {
    /// As the pipeline's plans have it.
    fn of<T: Element + 'static>(
        block: &Block,
        items: u64,
        frames: u64,
    ) -> Result<Self, ServeError> {
        let weights = block.weights::<T>()?;
        let (pipeline, ..) =
            host_pipeline(&block.shape(items, frames)?, weights).map_err(ServeError::failed)?;
        let whole = pipeline.plan(&Budget::UNLIMITED).map_err(ServeError::failed)?.bytes();
        let smallest = match pipeline.plan(&Budget::bytes(0)) {
            Ok(plan) => plan.bytes(),
            Err(PlanError::BudgetTooSmall { smallest, .. }) => smallest,
            Err(error) => return Err(ServeError::failed(error)),
        };
        let with_workspace = |bytes: u64| bytes.saturating_add(WORKSPACE_BYTES);
        Ok(Self { whole: with_workspace(whole), smallest: with_workspace(smallest) })
    }
}
