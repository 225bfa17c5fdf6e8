//! Requests of one shape and type become batches, which the workers run.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use crate::error::Served;
use crate::options::Limits;
use crate::tensors::Request;

/// A request that waits for a device.
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Whether it runs by itself, as a single launch or not at all.
    pub(crate) is_whole: bool,
    pub(crate) accepted: Instant,
    pub(crate) reply: oneshot::Sender<Served<Computed>>,
}

/// What a worker computed for a request.
pub(crate) struct Computed {
    /// The body of the reply.
    pub(crate) body: Bytes,
    /// Requests of its batch.
    pub(crate) requests: usize,
    /// Launches of its batch.
    pub(crate) launches: u64,
}

/// Requests that run together.
pub(crate) struct Batch {
    pub(crate) jobs: Vec<Job>,
    bytes: usize,
    /// It waits no longer for more requests.
    deadline: Instant,
    is_full: bool,
}

/// Batches that wait for a worker.
pub(crate) type Batches = Arc<Mutex<mpsc::Receiver<Batch>>>;

/// Collects jobs into batches, and sends those that are ready, the oldest first, so that no shape starves another one.
/// While all workers are busy, batches grow. From `drain` on nothing waits for more requests. Ends when all senders of
/// jobs are gone, or all workers.
pub(crate) async fn collect(
    mut jobs: mpsc::Receiver<Job>,
    ready: mpsc::Sender<Batch>,
    limits: Limits,
    mut drain: oneshot::Receiver<()>,
) {
    let mut batches: Vec<Batch> = Vec::new();
    let (mut is_open, mut is_draining) = (true, false);
    while is_open || !batches.is_empty() {
        let now = Instant::now();
        let is_due = |batch: &Batch| is_draining || batch.is_full || batch.deadline <= now;
        let due = batches.iter().position(is_due);
        let next = batches.first().map_or(now, |batch| batch.deadline);
        tokio::select! {
            job = jobs.recv(), if is_open => match job {
                Some(job) => add(&mut batches, job, &limits),
                None => (is_open, is_draining) = (false, true),
            },
            _ = &mut drain, if !is_draining => is_draining = true,
            permit = ready.reserve(), if due.is_some() => match (permit, due) {
                (Ok(permit), Some(due)) => permit.send(batches.remove(due)),
                // Dropping the jobs tells their clients.
                _ => return,
            },
            () = sleep_until(next.into()), if due.is_none() && !batches.is_empty() => {}
        }
    }
}

fn add(batches: &mut Vec<Batch>, job: Job, limits: &Limits) {
    let bytes = job.request.tensor_bytes();
    // Requests whose clients left would stay for as long as all workers are busy.
    batches.retain_mut(|batch| {
        batch.jobs.retain(|job| !job.reply.is_closed());
        !batch.jobs.is_empty()
    });
    let is_its = |batch: &&mut Batch| {
        let first = batch.jobs.first();
        !batch.is_full && first.is_some_and(|first| first.request.key == job.request.key)
    };
    if let Some(batch) = batches.iter_mut().find(is_its).filter(|_| !job.is_whole) {
        batch.is_full = batch.bytes.saturating_add(bytes) >= limits.batch_bytes;
        if batch.bytes.saturating_add(bytes) <= limits.batch_bytes {
            batch.bytes += bytes;
            return batch.jobs.push(job);
        }
    }
    let (is_full, deadline) =
        (job.is_whole || bytes >= limits.batch_bytes, job.accepted + limits.batch_wait);
    batches.push(Batch { jobs: vec![job], bytes, deadline, is_full });
}
