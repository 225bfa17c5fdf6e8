//! Which requests are let in: as many bytes, as much work and as many requests as the limits allow, and what fits a
//! device.

use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use gridguard::pipeline::{Budget, PlanError};
use gridguard_kernels::Element;
use gridguard_kernels::temporal_block::host_pipeline;
use http_body_util::BodyExt;
use metrics::gauge;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::block::Block;
use crate::error::{ServeError, Served};
use crate::health::{Capacity, time};
use crate::options::Limits;
use crate::share::{Limit, Peer, Resource, Share};
use crate::tensors::{Endpoint, Key, Request, check_header, wide};

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
            connections: limit(Resource::CONNECTIONS, limits.connections.into()),
            queue: limit(Resource::QUEUE, limits.queue),
            replies: limit(Resource::REPLIES, limits.max_replies),
            bodies: limit(Resource::BODIES, limits.max_bodies),
            work: limit(Resource::WORK, microseconds(limits.queue_work)),
            readers: Arc::new(Semaphore::new(threads)),
            limits,
        }
    }

    /// Reads a body, whose declared length is checked before.
    ///
    /// # Errors
    ///
    /// [`ServeError`] if it is too large, late or cut, or there is no memory for it now.
    pub async fn read(&self, peer: Peer, body: Body) -> Served<(Bytes, Share)> {
        let (limit, within) = (self.limits.max_body, self.limits.body_timeout);
        let declared = body.size_hint().lower();
        if declared > limit {
            return Err(ServeError::BodyTooLarge { body_bytes: declared, limit_bytes: limit });
        }
        let read = timeout(within, self.read_frames(peer, body, declared)).await;
        read.unwrap_or(Err(ServeError::BodyTimeout(within)))
    }

    /// Reads a body that is refused, and keeps nothing of it: a client that still sends when the connection is closed
    /// may lose the reply. One that declares too much is not read.
    pub async fn discard(&self, body: Body) {
        let limit = self.limits.max_body;
        if body.size_hint().lower() <= limit {
            let _ = timeout(self.limits.body_timeout, discard(body, limit)).await;
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
        read: impl FnOnce() -> Served<R> + Send + 'static,
    ) -> Served<R> {
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
    pub fn work(&self, peer: Peer, request: &Request, capacity: Capacity) -> Served<Share> {
        let operations = request.items.saturating_mul(operations_per_item(&request.key));
        let (estimate, limit) = (time(operations, capacity.slowest), self.limits.max_work);
        if estimate > limit {
            return Err(ServeError::TooMuchWork { estimate, limit });
        }
        self.work.take(peer, microseconds(time(operations, capacity.all)))
    }

    async fn read_frames(
        &self,
        peer: Peer,
        mut body: Body,
        declared: u64,
    ) -> Served<(Bytes, Share)> {
        let limit = self.limits.max_body;
        let (mut bytes, mut share) = (Vec::new(), self.bodies.take(peer, 0)?);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| ServeError::BodyBroken { reason: error.to_string() });
            let Ok(data) = frame?.into_data() else { continue };
            let total = wide(bytes.len()).saturating_add(wide(data.len()));
            if total > limit {
                return Err(ServeError::BodyTooLarge { body_bytes: total, limit_bytes: limit });
            }
            let mut refused = share.grow(wide(data.len())).err();
            if refused.is_none() {
                if bytes.is_empty() {
                    // Growing would copy. This reserves addresses; pages are committed when they are written.
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
        Ok((bytes.into(), share))
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
pub fn operations_per_item(key: &Key) -> u64 {
    let product = |sizes: &[u64]| sizes.iter().fold(1_u64, |all, size| all.saturating_mul(*size));
    let Key { heads, frames, width, .. } = *key;
    let arithmetic = match key.endpoint {
        Endpoint::Attention => {
            let score = width.saturating_mul(4).saturating_add(EXPONENTIAL);
            product(&[heads, frames, frames, score])
        }
        Endpoint::Block => {
            // Weights have 20 channels² elements; the scores of two attentions need 8 operations for each channel.
            let per_frame =
                product(&[40, width, width]).saturating_add(product(&[8, frames, width]));
            product(&[frames, per_frame])
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

/// Reads the rest of a body, at most `most` bytes and a frame.
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
/// [`ServeError::NotEnoughMemory`] with the numbers of the pipeline's plan.
pub fn footprint(request: &Request, block: &Block, available: u64) -> Served<Footprint> {
    let scratch = match request.key.endpoint {
        Endpoint::Attention => Scratch::default(),
        Endpoint::Block => (block.scratch)(block, request.items, request.key.frames)?,
    };
    let (fixed, per_item) = (request.key.fixed_bytes(), request.key.bytes_per_item());
    let bytes = request.items.saturating_mul(per_item).saturating_add(fixed);
    let batch_bytes = available.saturating_sub(scratch.smallest);
    let smallest_bytes = bytes.saturating_add(scratch.smallest);
    if smallest_bytes <= available {
        return Ok(Footprint { bytes, batch_bytes });
    }
    let max_items = batch_bytes.saturating_sub(fixed).checked_div(per_item).unwrap_or(0);
    let needed_bytes = bytes.saturating_add(scratch.whole);
    Err(ServeError::NotEnoughMemory {
        needed_bytes,
        available_bytes: available,
        smallest_bytes,
        max_items,
    })
}

/// Bytes of a block's scratch.
#[derive(Default)]
pub(crate) struct Scratch {
    /// For all items at once.
    whole: u64,
    /// For the smallest chunk.
    smallest: u64,
}

impl Scratch {
    /// The scratch of the pipeline's plans, and of cuBLASLt.
    pub(crate) fn of<T: Element + 'static>(block: &Block, items: u64, frames: u64) -> Served<Self> {
        let weights = block.weights::<T>()?;
        let (pipeline, ..) =
            host_pipeline(&block.shape(items, frames)?, weights).map_err(ServeError::failed)?;
        let bytes = |budget| match pipeline.plan(&budget) {
            Ok(plan) => Ok(plan.bytes().saturating_add(WORKSPACE_BYTES)),
            Err(PlanError::BudgetTooSmall { smallest, .. }) => {
                Ok(smallest.saturating_add(WORKSPACE_BYTES))
            }
            Err(error) => Err(ServeError::failed(error)),
        };
        Ok(Self { whole: bytes(Budget::UNLIMITED)?, smallest: bytes(Budget::bytes(0))? })
    }
}
