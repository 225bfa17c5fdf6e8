//! A thread for each device: takes batches, runs them, and replies.

use std::error::Error;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use metrics::{counter, histogram};

use crate::backend::{Backend, Batch, Failure, Waiting};
use crate::error::ServeError;
use crate::health::{Health, WorkerState};
use crate::queue::{Computed, Queue, reply};

/// Makes a backend, on the thread that uses it.
pub type Factory =
    Box<dyn FnOnce() -> Result<Box<dyn Backend>, Box<dyn Error + Send + Sync>> + Send>;

/// Starts a worker for each backend; `health` has as many.
///
/// # Errors
///
/// If a thread cannot be started.
pub fn start(
    queue: &Arc<Queue>,
    health: &Arc<Health>,
    backends: Vec<Factory>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let worker = |(number, backend): (usize, Factory)| {
        let (queue, health) = (Arc::clone(queue), Arc::clone(health));
        let name = format!("worker {number}");
        thread::Builder::new().name(name).spawn(move || {
            if let Err((device, reason)) = work(&queue, &health, number, backend) {
                tracing::error!(worker = number, %device, %reason, "a device cannot be used");
                let error =
                    ServeError::DeviceFailed { device: device.clone(), reason: reason.clone() };
                health.set(number, WorkerState::Failed { device, reason });
                if !health.has_workers() {
                    queue.fail(&error);
                }
            }
        })
    };
    backends.into_iter().enumerate().map(worker).collect()
}

/// Runs batches until the queue is closed; or returns the device that failed, and why.
fn work(
    queue: &Queue,
    health: &Health,
    number: usize,
    backend: Factory,
) -> Result<(), (String, String)> {
    let begun = Instant::now();
    let made = catch_unwind(AssertUnwindSafe(backend));
    let mut backend = match made {
        Ok(Ok(backend)) => backend,
        Ok(Err(error)) => return Err((format!("worker {number}"), error.to_string())),
        Err(_) => return Err((format!("worker {number}"), PANICKED.to_owned())),
    };
    let device = backend.device();
    let name = device.name.clone();
    let memory = device.memory;
    tracing::info!(worker = number, device = %name, gpu = device.is_gpu, memory, took = ?begun.elapsed(), "ready");
    health.set(number, WorkerState::Ready(device));
    while let Some(pending) = queue.next() {
        let Some((batch, waiting)) = Batch::new(pending) else { continue };
        if let Err(reason) = run(&mut *backend, &name, batch, waiting) {
            return Err((name, reason));
        }
    }
    Ok(())
}

/// Runs a batch and replies; returns why the device is lost, if it is. Where there is no memory for all
/// requests together, each runs by itself.
fn run(
    backend: &mut dyn Backend,
    device: &str,
    batch: Batch,
    waiting: Vec<Waiting>,
) -> Result<(), String> {
    let (endpoint, requests) = (batch.key.problem.name(), waiting.len());
    let begun = Instant::now();
    // After a panic the backend is not used again.
    let ran = catch_unwind(AssertUnwindSafe(|| backend.run(&batch)));
    let took = begun.elapsed();
    let labels = [("endpoint", endpoint.to_owned()), ("device", device.to_owned())];
    counter!("gridguard_server_batches_total", &labels).increment(1);
    histogram!("gridguard_server_batch_seconds", &labels).record(took);
    histogram!("gridguard_server_batch_requests", "endpoint" => endpoint)
        .record(u32::try_from(requests).unwrap_or(u32::MAX));
    let items = batch.items;
    tracing::debug!(endpoint, device, requests, items, ?took, "batch");
    let (error, lost) = match ran.unwrap_or_else(|_| Err(Failure::Lost(PANICKED.to_owned()))) {
        Ok(bodies) if bodies.len() == requests => {
            for (Waiting { reply: to, permit }, body) in waiting.into_iter().zip(bodies) {
                reply(to, Ok(Computed { body, permit }));
            }
            return Ok(());
        }
        Ok(_) => (ServeError::Failed { reason: "an output is missing".to_owned() }, None),
        Err(Failure::Batch(ServeError::Memory { .. } | ServeError::OutOfMemory { .. }))
            if requests > 1 =>
        {
            for (single, waiting) in batch.singles().zip(waiting) {
                run(backend, device, single, vec![waiting])?;
            }
            return Ok(());
        }
        Err(Failure::Batch(error)) => (error, None),
        Err(Failure::Lost(reason)) => {
            let device = device.to_owned();
            (ServeError::DeviceFailed { device, reason: reason.clone() }, Some(reason))
        }
    };
    tracing::error!(endpoint, device, requests, items, %error, "a batch failed");
    waiting.into_iter().for_each(|waiting| reply(waiting.reply, Err(error.clone())));
    lost.map_or(Ok(()), Err)
}

const PANICKED: &str = "it panicked";
