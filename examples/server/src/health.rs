//! Whether the server can take requests, and what its workers do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics::gauge;
use serde::Serialize;
use tokio::sync::watch;

use crate::backend::Device;
use crate::error::{DeviceFailure, ServeError, Served};

/// The state of each worker, and whether the server drains.
#[derive(Debug)]
pub struct Health {
    workers: watch::Sender<Vec<WorkerState>>,
    draining: AtomicBool,
}

/// The state of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum WorkerState {
    /// It prepares its device.
    Starting,
    /// It takes batches.
    Ready(Device),
    /// Its device cannot be used.
    Failed(DeviceFailure),
}

/// What the ready workers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The least memory of one, since any of them may get a request.
    pub memory: u64,
    /// Operations a second of the slowest, by estimate.
    pub slowest: u64,
    /// Operations a second of all together.
    pub all: u64,
}

/// The time for `operations` at `rate` operations a second.
pub fn time(operations: u64, rate: u64) -> Duration {
    let microseconds = u128::from(operations) * 1_000_000 / u128::from(rate.max(1));
    Duration::from_micros(u64::try_from(microseconds).unwrap_or(u64::MAX))
}

impl Health {
    /// So many workers that start.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let starting = vec![WorkerState::Starting; workers];
        Self { workers: watch::Sender::new(starting), draining: AtomicBool::new(false) }
    }

    /// Changes the state of a worker. Logs a failure, but only once for all workers of a device.
    pub fn set(&self, worker: usize, new: WorkerState) {
        self.workers.send_modify(|workers| {
            if let WorkerState::Failed(failure) = &new
                && is_new(workers, worker, failure)
            {
                tracing::error!(worker, %failure, "a device cannot be used");
            }
            if let Some(state) = workers.get_mut(worker) {
                *state = new;
            }
            let ready = workers.iter().filter_map(WorkerState::device).count();
            gauge!("gridguard_server_workers_ready").set(u32::try_from(ready).unwrap_or(u32::MAX));
        });
        #[allow(clippy::as_conversions, clippy::cast_precision_loss, reason = "a metric")]
        gauge!("gridguard_server_operations_per_second")
            .set(self.capacity().map_or(0, |capacity| capacity.all) as f64);
    }

    /// Waits until no worker is starting.
    ///
    /// # Errors
    ///
    /// The first worker that failed.
    pub async fn started(&self) -> Served<()> {
        let mut workers = self.workers.subscribe();
        let is_over = |workers: &Vec<WorkerState>| !workers.contains(&WorkerState::Starting);
        // The sender lives as long as this borrow of it.
        let workers = workers.wait_for(is_over).await;
        workers
            .ok()
            .and_then(|workers| workers.iter().find_map(WorkerState::failure))
            .map_or(Ok(()), Err)
    }

    /// Whether any worker is left that is or may become ready; if not, only another process can serve.
    pub fn has_workers(&self) -> bool {
        !self.workers.borrow().iter().all(|state| matches!(state, WorkerState::Failed(_)))
    }

    /// From now on requests are refused.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Why requests are refused, if they are: draining, all workers failed, or one is still starting.
    #[must_use]
    pub fn refusal(&self) -> Option<ServeError> {
        if self.draining.load(Ordering::SeqCst) {
            return Some(ServeError::ShuttingDown);
        }
        let workers = self.workers.borrow();
        if workers.contains(&WorkerState::Starting) {
            return Some(ServeError::Starting);
        }
        let is_ready = workers.iter().any(|state| state.device().is_some());
        if is_ready { None } else { workers.iter().find_map(WorkerState::failure) }
    }

    /// Why the server is not ready, if it is not: as [`Self::refusal`], and if any device failed.
    #[must_use]
    pub fn not_ready(&self) -> Option<ServeError> {
        self.refusal().or_else(|| self.workers.borrow().iter().find_map(WorkerState::failure))
    }

    /// What the ready workers have.
    ///
    /// # Errors
    ///
    /// That none is ready: [`ServeError::DeviceFailed`] or [`ServeError::Starting`].
    pub fn capacity(&self) -> Served<Capacity> {
        let workers = self.workers.borrow();
        let devices = || workers.iter().filter_map(WorkerState::device);
        let memory = devices().map(|device| device.memory).min();
        let slowest = devices().map(|device| device.operations_per_second).min();
        let all = devices().map(|device| device.operations_per_second).sum();
        let capacity =
            memory.zip(slowest).map(|(memory, slowest)| Capacity { memory, slowest, all });
        capacity.ok_or_else(|| {
            workers.iter().find_map(WorkerState::failure).unwrap_or(ServeError::Starting)
        })
    }

    /// The states of all workers.
    pub fn report(&self) -> Vec<WorkerState> {
        self.workers.borrow().clone()
    }
}

impl WorkerState {
    const fn device(&self) -> Option<&Device> {
        if let Self::Ready(device) = self { Some(device) } else { None }
    }

    fn failure(&self) -> Option<ServeError> {
        if let Self::Failed(failure) = self { Some(failure.clone().into()) } else { None }
    }
}

/// Whether no worker has failed like this. While a worker starts, its device is not known, and the reason decides.
fn is_new(workers: &[WorkerState], worker: usize, failure: &DeviceFailure) -> bool {
    let starts = workers.get(worker) == Some(&WorkerState::Starting);
    !workers.iter().any(|other| match other {
        WorkerState::Failed(other) if starts => other.reason == failure.reason,
        WorkerState::Failed(other) => other == failure,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_new_once_for_all_workers_of_a_device() {
        let failed = |device: &str, reason: &str| DeviceFailure {
            device: device.to_owned(),
            reason: reason.to_owned(),
        };
        let mut workers = vec![WorkerState::Starting; 2];
        let first = failed("worker 0", "no driver");
        assert!(is_new(&workers, 0, &first));
        workers[0] = WorkerState::Failed(first);
        assert!(!is_new(&workers, 1, &failed("worker 1", "no driver")));
        assert!(is_new(&workers, 1, &failed("worker 1", "no memory")));
        workers = vec![WorkerState::Failed(failed("H200 (0)", "ECC")); 2];
        assert!(!is_new(&workers, 1, &failed("H200 (0)", "ECC")));
        workers[1] = WorkerState::Ready(Device {
            name: "H200 (1)".to_owned(),
            is_gpu: true,
            memory: 1,
            operations_per_second: 1,
        });
        assert!(is_new(&workers, 1, &failed("H200 (1)", "ECC")));
    }
}
