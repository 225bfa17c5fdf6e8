//! Which requests are let in: as many bytes, as much work and as many requests as the limits allow, and what fits a
//! device.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use gridguard::pipeline::{Budget, Pipeline, PipelinePlan, PlanError};
use gridguard_kernels::temporal_block::host_pipeline;
use gridguard_kernels::{Element, ElementType};
use half::{bf16, f16};
use http_body_util::BodyExt;
use metrics::gauge;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::backend::Batch;
use crate::block::Block;
use crate::error::ServeError;
use crate::health::Capacity;
use crate::options::Limits;
use crate::share::{Limit, Peer, Resource, Share};
use crate::tensors::{Key, Problem, Request, check_header, wide};

/// Workspace of cuBLASLt on a device, part of a block's scratch.
pub const WORKSPACE_BYTES: u64 = 4 << 20;

/// What all requests take of the server.
#[derive(Debug)]
pub struct Admission {
    limits: Limits,
    /// Connections.
    pub connections: Arc<Limit>,
    /// Requests that wait for a device.
    pub queue: Arc<Limit>,
    /// Bytes of replies that are computed or sent.
    pub replies: Arc<Limit>,
    bodies: Arc<Limit>,
    work: Arc<Limit>,
    /// Requests that are read at the same time.
    readers: Arc<Semaphore>,
}

/// The body of a request, with its share of the memory of bodies.
#[derive(Debug)]
pub struct Received {
    /// The body.
    pub bytes: Bytes,
    /// One for each byte.
    pub share: Share,
}

/// What a request takes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of its tensors.
    pub bytes: u64,
    /// The most bytes of tensors in a batch of its shape, beside scratch.
    pub batch_bytes: u64,
}

impl Admission {
    /// Nothing is taken yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let limit = |resource, most| Limit::new(resource, most, limits.peer_share);
        let threads = available_parallelism().map_or(1, usize::from);
        Self {
            connections: limit(Resource::Connections, limits.connections.into()),
            queue: limit(Resource::Queue, limits.queue),
            replies: limit(Resource::Replies, limits.max_replies),
            bodies: limit(Resource::Bodies, limits.max_bodies),
            work: limit(Resource::Work, microseconds(limits.queue_work)),
            readers: Arc::new(Semaphore::new(threads)),
            limits,
        }
    }

    /// Reads a body, whose declared length is checked before.
    ///
    /// # Errors
    ///
    /// [`ServeError`] if it is too large, late or cut, or there is no memory for it now.
    pub async fn read(&self, peer: Peer, body: Body) -> Result<Received, ServeError> {
        let (limit, time) = (self.limits.max_body, self.limits.body_timeout);
        let declared = body.size_hint().lower();
        if declared > limit {
            return Err(ServeError::BodyTooLarge { bytes: declared, limit });
        }
        let read = timeout(time, self.read_frames(peer, body, declared)).await;
        read.unwrap_or(Err(ServeError::BodyTimeout { limit: time }))
    }

    /// Reads a body that is refused, and keeps nothing of it: a client that still sends when the connection is closed
    /// may lose the reply. One that declares too much is not read.
    pub async fn discard(&self, body: Body) {
        let (limit, time) = (self.limits.max_body, self.limits.body_timeout);
        if body.size_hint().lower() <= limit {
            let _ = timeout(time, discard(body, limit)).await;
        }
    }

    /// Calls `read` on a thread for it: some requests take milliseconds to check, and would block others. Only as
    /// many are read at once as there are processors.
    ///
    /// # Errors
    ///
    /// Those of `read`.
    pub async fn in_background<R: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<R, ServeError> + Send + 'static,
    ) -> Result<R, ServeError> {
        let permit = Arc::clone(&self.readers).acquire_owned().await;
        // With the permit, so that it counts until its end also if the client leaves.
        let reading = spawn_blocking(move || (read(), permit).0);
        reading.await.unwrap_or_else(|error| Err(ServeError::failed(error)))
    }

    /// Takes a request's share of the work, if it computes for no longer than a request may.
    ///
    /// # Errors
    ///
    /// [`ServeError::TooMuchWork`] or [`ServeError::Full`].
    pub fn work(
        &self,
        peer: Peer,
        request: &Request,
        capacity: Capacity,
    ) -> Result<Share, ServeError> {
        let operations = request.items.saturating_mul(operations_per_item(&request.key));
        let (estimate, limit) = (capacity.slowest_takes(operations), self.limits.max_work);
        if estimate > limit {
            return Err(ServeError::TooMuchWork { estimate, limit });
        }
        self.work.take(peer, microseconds(capacity.all_take(operations)))
    }

    async fn read_frames(
        &self,
        peer: Peer,
        mut body: Body,
        declared: u64,
    ) -> Result<Received, ServeError> {
        let limit = self.limits.max_body;
        let (mut bytes, mut share) = (Vec::new(), self.bodies.take(peer, 0)?);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ServeError::BodyBroken { reason: error.to_string() });
            let Ok(data) = frame?.into_data() else { continue };
            let total = wide(bytes.len()).saturating_add(wide(data.len()));
            if total > limit {
                return Err(ServeError::BodyTooLarge { bytes: total, limit });
            }
            let mut refused = share.grow(wide(data.len())).err();
            if refused.is_none() {
                if bytes.is_empty() {
                    // Growing would copy. This takes addresses; pages are taken as they are written.
                    let _ = bytes.try_reserve_exact(usize::try_from(declared).unwrap_or(0));
                }
                bytes.extend_from_slice(&data);
                refused = check_header(&bytes).err();
            }
            if let Some(refused) = refused {
                // What is kept counts until then.
                drop((bytes, share));
                discard(body, limit - total).await;
                return Err(refused);
            }
        }
        Ok(Received { bytes: bytes.into(), share })
    }

    /// Reports how much is in use.
    pub fn report(&self) {
        let set = |name: &'static str, limit: &Limit, scale: f64| {
            #[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "a metric")]
            gauge!(name).set(limit.taken() as f64 * scale);
        };
        set("gridguard_server_connections", &self.connections, 1.0);
        set("gridguard_server_queued", &self.queue, 1.0);
        set("gridguard_server_body_bytes", &self.bodies, 1.0);
        set("gridguard_server_reply_bytes", &self.replies, 1.0);
        set("gridguard_server_work_seconds", &self.work, 1e-6);
    }
}

/// Operations of an item, by estimate: arithmetic, the exponentials of attention, and reading and writing it.
#[must_use]
pub fn operations_per_item(key: &Key) -> u64 {
    let product = |sizes: &[u64]| sizes.iter().fold(1_u64, |all, size| all.saturating_mul(*size));
    let arithmetic = match &key.problem {
        Problem::Attention { heads, frames, head_dim, .. } => {
            let score = head_dim.saturating_mul(4).saturating_add(EXPONENTIAL);
            product(&[*heads, *frames, *frames, score])
        }
        Problem::Block { frames, channels } => {
            // Weights have 20 channels² elements; the scores of two attentions need 8 operations for each channel.
            let products = product(&[40, *channels, *channels]);
            let attention = product(&[8, *frames, *channels]);
            let frame = products.saturating_add(attention);
            product(&[*frames, frame])
        }
    };
    arithmetic.saturating_add(key.bytes_per_item().saturating_mul(BYTE))
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Operations that the softmax of a score takes as long as.
const EXPONENTIAL: u64 = 32;
/// Operations that copying a byte on the host takes as long as. Copies to a device take little beside `--queue-work`.
const BYTE: u64 = 2;

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
pub fn plan(
    pipeline: &Pipeline<'_>,
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
