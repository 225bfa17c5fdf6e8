//! A thread for each device: takes batches, runs them, and replies.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use metrics::{counter, histogram};

use crate::admission::operations_per_item;
use crate::backend::{Backend, Batch, Failure};
use crate::error::{DeviceFailure, Fallible, ServeError};
use crate::health::{Health, WorkerState, time};
use crate::queue::{Computed, Queue, Waiting, count_abandoned, reply};

/// Makes a backend, on the thread that uses it; again after a panic.
pub type Factory = Box<dyn FnMut() -> Fallible<Box<dyn Backend>> + Send>;

/// Why a worker stops using its backend.
enum Stopped {
    /// It panicked: a new one may work.
    Panicked,
    /// Its device does not work any more.
    Lost(DeviceFailure),
}

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
        thread::Builder::new().name(name.clone()).spawn(move || {
            // `run` catches panics of backends. After any other panic the worker must not look ready.
            let work = AssertUnwindSafe(|| work(&queue, &health, number, backend));
            let ended = catch_unwind(work).unwrap_or_else(|_| Err(failed(&name, PANICKED)));
            if let Err(failure) = ended {
                health.set(number, WorkerState::Failed(failure.clone()));
                if !health.has_workers() {
                    queue.fail(&failure.into());
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
    mut factory: Factory,
) -> Result<(), DeviceFailure> {
    let begun = Instant::now();
    let mut backend = make(&mut factory, &format!("worker {number}"))?;
    let device = backend.device();
    let name = device.name.clone();
    let (memory, rate) = (device.memory, device.operations_per_second);
    tracing::info!(worker = number, device = %name, gpu = device.is_gpu, memory, rate, took = ?begun.elapsed(), "ready");
    health.set(number, WorkerState::Ready(device));
    while let Some(pending) = queue.next() {
        let Some((batch, waiting)) = Batch::new(pending) else { continue };
        let lost =
            |failure: &DeviceFailure| health.set(number, WorkerState::Failed(failure.clone()));
        match run(&mut *backend, (&name, rate), &lost, batch, waiting) {
            Ok(()) => {}
            Err(Stopped::Lost(failure)) => return Err(failure),
            Err(Stopped::Panicked) => {
                tracing::error!(worker = number, device = %name, "a backend panicked: another one takes its place");
                counter!("gridguard_server_worker_restarts_total").increment(1);
                drop(backend);
                backend = make(&mut factory, &name)?;
            }
        }
    }
    Ok(())
}

fn make(factory: &mut Factory, device: &str) -> Result<Box<dyn Backend>, DeviceFailure> {
    let made = catch_unwind(AssertUnwindSafe(factory)).map_err(|_| failed(device, PANICKED))?;
    made.map_err(|error| failed(device, error))
}

fn failed(device: &str, reason: impl ToString) -> DeviceFailure {
    DeviceFailure { device: device.to_owned(), reason: reason.to_string() }
}

/// Runs a batch and replies; returns why the backend is not used again, if it is not. Where there is no memory for
/// all requests together, each runs by itself.
fn run(
    backend: &mut dyn Backend,
    (device, rate): (&str, u64),
    lost: &dyn Fn(&DeviceFailure),
    batch: Batch,
    waiting: Vec<Waiting>,
) -> Result<(), Stopped> {
    let (endpoint, requests) = (batch.key.endpoint.name(), waiting.len());
    let items = batch.items;
    let operations = items.saturating_mul(operations_per_item(&batch.key));
    let estimate = time(operations, rate);
    let begun = Instant::now();
    let wanted = || waiting.iter().any(|waiting| !waiting.reply.is_closed());
    let ran = catch_unwind(AssertUnwindSafe(|| backend.run(&batch, &wanted)));
    let took = begun.elapsed();
    let labels = [("endpoint", endpoint.to_owned()), ("device", device.to_owned())];
    counter!("gridguard_server_batches_total", &labels).increment(1);
    histogram!("gridguard_server_batch_seconds", &labels).record(took);
    histogram!("gridguard_server_batch_estimate_seconds", &labels).record(estimate);
    histogram!("gridguard_server_batch_requests", "endpoint" => endpoint)
        .record(u32::try_from(requests).unwrap_or(u32::MAX));
    tracing::debug!(endpoint, device, requests, items, ?took, ?estimate, "batch");
    let (error, stopped) = match ran {
        Ok(Ok(bodies)) if bodies.len() == requests => {
            // The bodies of requests are free before their replies are sent.
            drop(batch);
            for (waiting, body) in waiting.into_iter().zip(bodies) {
                let Waiting { reply: to, share, until_done, accepted } = waiting;
                drop(until_done);
                let waited = begun.saturating_duration_since(accepted);
                histogram!("gridguard_server_wait_seconds", "endpoint" => endpoint).record(waited);
                reply(to, Ok(Computed { body, share, waited, took }));
            }
            return Ok(());
        }
        Ok(Ok(_)) => (ServeError::failed("an output is missing"), None),
        Ok(Err(Failure::Abandoned)) => {
            tracing::debug!(endpoint, device, requests, items, ?took, "all clients left");
            counter!("gridguard_server_batches_cancelled_total", &labels).increment(1);
            count_abandoned(requests);
            return Ok(());
        }
        Ok(Err(Failure::Batch(
            ServeError::NotEnoughMemory { .. } | ServeError::OutOfMemory { .. },
        ))) if requests > 1 => {
            for (single, waiting) in batch.singles().zip(waiting) {
                run(backend, (device, rate), lost, single, vec![waiting])?;
            }
            return Ok(());
        }
        Ok(Err(Failure::Batch(error))) => (error, None),
        Ok(Err(Failure::Lost(reason))) => {
            // Before the replies, so that whoever has one finds the device failed.
            let failure = failed(device, reason);
            lost(&failure);
            (failure.clone().into(), Some(Stopped::Lost(failure)))
        }
        Err(_) => (ServeError::failed(PANICKED), Some(Stopped::Panicked)),
    };
    tracing::error!(endpoint, device, requests, items, %error, "a batch failed");
    waiting.into_iter().for_each(|waiting| reply(waiting.reply, Err(error.clone())));
    stopped.map_or(Ok(()), Err)
}

const PANICKED: &str = "it panicked";
