//! Threads that run batches: some for each device.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use metrics::{counter, histogram};

use crate::backend::Backend;
use crate::batching::{Batch, Batches, Computed};
use crate::error::{PANICKED, ServeError};

/// How many workers have a device that works.
pub(crate) type Working = Arc<AtomicUsize>;

/// Starts a worker for each back end.
pub(crate) fn start(
    backends: Vec<impl Backend + 'static>,
    batches: &Batches,
) -> io::Result<Working> {
    let working = Arc::new(AtomicUsize::new(backends.len()));
    for (number, mut backend) in backends.into_iter().enumerate() {
        let (batches, working) = (Arc::clone(batches), Arc::clone(&working));
        thread::Builder::new().name(format!("worker {number}")).spawn(move || {
            // The lock is held while it waits: other idle workers wait for the lock instead.
            while let Some(batch) = { batches.lock().blocking_recv() } {
                if !run(&mut backend, batch, &working) {
                    return;
                }
            }
        })?;
    }
    Ok(working)
}

/// Runs a batch and replies. Returns whether the device still works.
fn run(backend: &mut dyn Backend, mut batch: Batch, working: &AtomicUsize) -> bool {
    batch.jobs.retain(|job| !job.reply.is_closed());
    let is_whole = batch.jobs.iter().any(|job| job.is_whole);
    let (waiting, requests): (Vec<_>, Vec<_>) =
        batch.jobs.into_iter().map(|job| ((job.reply, job.accepted), job.request)).unzip();
    let Some(key) = requests.first().map(|request| request.key) else {
        return true;
    };
    let begun = Instant::now();
    let ran = catch_unwind(AssertUnwindSafe(|| backend.run(key, &requests, is_whole)));
    let device = backend.name().to_owned();
    let count = requests.len();
    drop(requests);
    counter!("gridguard_server_batches_total", "device" => device.clone()).increment(1);
    histogram!("gridguard_server_batch_seconds", "device" => device.clone())
        .record(begun.elapsed());
    histogram!("gridguard_server_batch_requests").record(u32::try_from(count).unwrap_or(u32::MAX));
    let (error, works) = match ran {
        Ok(Ok((bodies, launches))) => {
            for ((reply, accepted), body) in waiting.into_iter().zip(bodies) {
                let waited = begun.saturating_duration_since(accepted);
                histogram!("gridguard_server_wait_seconds").record(waited);
                let computed = Computed { body, requests: count, launches };
                // The client may have left.
                let _ = reply.send(Ok(computed));
            }
            return true;
        }
        Ok(Err(error)) if backend.is_lost() => {
            // Before the replies, so that whoever has one finds the device failed.
            working.fetch_sub(1, Ordering::SeqCst);
            let message = format!("{device} does not work any more: {}", error.message);
            (ServeError::new(503, "device_failed", message), false)
        }
        Ok(Err(error)) => (error, true),
        Err(_) => (ServeError::failed(PANICKED), true),
    };
    tracing::error!(device, ?key, requests = count, reason = error.message, "a batch failed");
    for (reply, _) in waiting {
        let _ = reply.send(Err(error.clone()));
    }
    works
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use clap::Parser;
    use safetensors::serialize;
    use safetensors::tensor::{Dtype, TensorView};
    use tokio::sync::mpsc::channel;
    use tokio::sync::oneshot;

    use parking_lot::Mutex;

    use super::*;
    use crate::batching::{Job, collect};
    use crate::error::Served;
    use crate::options::Options;
    use crate::tensors::{Key, Request};

    /// A device that fails as the number of the request says.
    #[derive(Default)]
    struct Failing {
        is_lost: bool,
    }

    impl Backend for Failing {
        fn name(&self) -> &str {
            "gpu"
        }

        fn run(&mut self, _: Key, requests: &[Request], _: bool) -> Served<(Vec<Bytes>, u64)> {
            match requests[0].items {
                1 => panic!("as told"),
                2 => Err(ServeError::new(503, "out_of_memory", "busy")),
                3 => {
                    self.is_lost = true;
                    Err(ServeError::failed("CUDA_ERROR_ECC_UNCORRECTABLE"))
                }
                _ => Ok((vec![Bytes::new()], 1)),
            }
        }

        fn is_lost(&self) -> bool {
            self.is_lost
        }
    }

    #[tokio::test]
    async fn a_batch_that_fails_or_panics_leaves_the_worker_and_a_lost_device_ends_it() {
        let (jobs, queued) = channel(1);
        let (ready, batches) = channel(1);
        let batches = Arc::new(Mutex::new(batches));
        let working = start(vec![Failing::default()], &batches).expect("a thread");
        drop(batches);
        let limits = Options::parse_from(["", "--batch-wait", "0s"]).limits;
        let (_drain, drained) = oneshot::channel();
        let collecting = tokio::spawn(collect(queued, ready, limits, drained));
        let send = async |items: usize| -> Option<Served<Computed>> {
            let tensor = vec![0; 4 * items];
            let view =
                || TensorView::new(Dtype::F32, vec![items, 1, 1, 1], &tensor).expect("whole");
            let body = serialize(["q", "k", "v"].map(|name| (name, view())), None).expect("a body");
            let request = Request::read(&body.into(), 1).expect("valid");
            let (reply, computed) = oneshot::channel();
            let job = Job { request, is_whole: false, accepted: Instant::now(), reply };
            jobs.send(job).await.ok()?;
            computed.await.ok()
        };
        for (items, code) in [(1, "failed"), (2, "out_of_memory"), (1, "failed")] {
            let error = send(items).await.expect("a reply").err().expect("it fails");
            assert_eq!(error.code, code);
            assert!(send(4).await.expect("a reply").is_ok() && working.load(Ordering::SeqCst) == 1);
        }
        let error = send(3).await.expect("a reply").err().expect("it fails");
        assert_eq!(error.code, "device_failed");
        assert!(error.message.ends_with("CUDA_ERROR_ECC_UNCORRECTABLE"), "{}", error.message);
        // Nothing waits for a device that does not come back.
        assert!(send(4).await.is_none());
        drop(jobs);
        collecting.await.expect("no panic");
        assert_eq!(working.load(Ordering::SeqCst), 0);
    }
}
