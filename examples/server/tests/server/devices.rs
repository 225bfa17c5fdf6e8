//! A server in this process. The test controls how its devices start, fail and work.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::Bytes;
use clap::Parser;
use gridguard::cuda::LoadError;
use gridguard_kernels::{ElementType, KernelError};
use gridguard_server::admission::Admission;
use gridguard_server::api::App;
use gridguard_server::backend::{Backend, Batch, Bodies, Device, Failure, Wanted};
use gridguard_server::error::ServeError;
use gridguard_server::health::Health;
use gridguard_server::options::Options;
use gridguard_server::queue::{Phase, Queue};
use gridguard_server::server::{serve, serve_admin};
use gridguard_server::tensors::body_of;
use gridguard_server::worker::{self, Factory};
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle as Task;

/// What a device does with its next batch.
#[derive(Clone, Copy, Debug)]
enum Next {
    Copy,
    OutOfMemory,
    /// The kernel is not compiled for the device.
    Refuse,
    Lose,
    Panic,
    /// Computes until nobody waits for it.
    Endless,
}

/// A device that waits to be told.
struct Told {
    name: &'static str,
    /// Says that it has a batch.
    took: Sender<()>,
    told: Arc<Mutex<Receiver<Next>>>,
}

impl Backend for Told {
    fn device(&self) -> Device {
        let operations_per_second = 1 << 40;
        Device { name: self.name.to_owned(), is_gpu: true, memory: 1 << 20, operations_per_second }
    }

    fn run(&mut self, batch: &Batch, wanted: Wanted<'_>) -> Bodies {
        // Not every test listens.
        let _ = self.took.send(());
        let next = self.told.lock().expect("not poisoned").recv().expect("told");
        match next {
            Next::Copy => Ok(batch.replies(&batch.gather::<f32>(0)?)?),
            Next::OutOfMemory => Err(ServeError::OutOfMemory { reason: "busy".into() }.into()),
            Next::Refuse => Err(KernelError::Cuda(LoadError::NoDevice.into()).into()),
            Next::Lose => Err(Failure::Lost("CUDA_ERROR_ECC_UNCORRECTABLE".to_owned())),
            Next::Panic => panic!("as told"),
            Next::Endless => {
                while wanted() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(Failure::Abandoned)
            }
        }
    }
}

struct Running {
    address: String,
    admin: String,
    app: Arc<App>,
    stop: oneshot::Sender<()>,
    served: Task<u64>,
    workers: Vec<JoinHandle<()>>,
}

/// A device, its commands, and the sender that lets it start.
fn device(name: &'static str) -> (Factory, Sender<Next>, Sender<Result<(), String>>) {
    device_that_says(name, channel().0)
}

fn device_that_says(
    name: &'static str,
    took: Sender<()>,
) -> (Factory, Sender<Next>, Sender<Result<(), String>>) {
    let ((tell, told), (begin, begun)) = (channel(), channel::<Result<(), String>>());
    let told = Arc::new(Mutex::new(told));
    let factory: Factory = Box::new(move || {
        begun.recv().expect("begun")?;
        Ok(Box::new(Told { name, took: took.clone(), told: Arc::clone(&told) }))
    });
    (factory, tell, begin)
}

async fn start(backends: Vec<Factory>) -> Running {
    let each_alone =
        ["--batch-wait", "0s", "--batch-bytes", "1", "--queue", "4", "--peer-share", "100"];
    let limits = ["--drain", "1h", "--header-timeout", "1h", "--body-timeout", "1h"];
    let options = ["gridguard-server"].into_iter().chain(limits).chain(each_alone);
    let options = Options::parse_from(options);
    let health = Arc::new(Health::new(backends.len()));
    let limits = options.limits.clone();
    let app = Arc::new(App {
        block: Arc::new(options.block.load().expect("random weights")),
        admission: Admission::new(limits.clone()),
        queue: Arc::new(Queue::new(limits.batch_wait)),
        limits,
        health: Arc::clone(&health),
        in_flight: watch::Sender::new(0),
        metrics: None,
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let for_admin = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let admin = for_admin.local_addr().expect("bound").to_string();
    tokio::spawn(serve_admin(for_admin, Arc::clone(&app)));
    let workers = worker::start(&app.queue, &health, backends).expect("threads");
    let (stop, stopped) = oneshot::channel();
    let served = {
        let app = Arc::clone(&app);
        let stopped = async { drop(stopped.await) };
        tokio::spawn(async move { serve(listener, app, stopped).await.0 })
    };
    Running { address, admin, app, stop, served, workers }
}

impl Running {
    async fn send(&self, path: &str, body: Bytes) -> (StatusCode, Bytes) {
        let address = if path.starts_with("/v1") { &self.address } else { &self.admin };
        send(address, path, body).await
    }

    fn begin(&self) -> Task<(StatusCode, Bytes)> {
        let address = self.address.clone();
        tokio::spawn(async move { send(&address, "/v1/attention", attention()).await })
    }

    async fn end(self) {
        self.stop.send(()).expect("it serves");
        assert_eq!(self.served.await.expect("no panic"), 0);
        self.app.queue.enter(Phase::Closed);
        for worker in self.workers {
            worker.join().expect("no panic leaves a worker");
        }
    }
}

async fn send(address: &str, path: &str, body: Bytes) -> (StatusCode, Bytes) {
    let method = if path.starts_with("/v1") { "POST" } else { "GET" };
    let request = Request::builder().method(method).uri(format!("http://{address}{path}"));
    let client = Client::builder(TokioExecutor::new()).build_http();
    let reply = client.request(request.body(Full::new(body)).expect("a request")).await;
    let (head, body) = reply.expect("a reply").into_parts();
    (head.status, body.collect().await.expect("whole").to_bytes())
}

fn attention() -> Bytes {
    let data: &[u8] = &[0; 32];
    let tensors = [("q", data), ("k", data), ("v", data)];
    body_of(ElementType::F32, &[1, 2, 4], &tensors).expect("a body").into()
}

fn code(body: &Bytes) -> String {
    let error: serde_json::Value = serde_json::from_slice(body).expect("JSON");
    error["error"]["code"].as_str().expect("a code").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_not_ready_before_its_devices_are() {
    let (backend, tell, begin) = device("gpu");
    let running = start(vec![backend]).await;
    assert_eq!(running.send("/healthz", Bytes::new()).await.0, StatusCode::OK);
    assert_eq!(running.send("/readyz", Bytes::new()).await.0, StatusCode::SERVICE_UNAVAILABLE);
    let (status, body) = running.send("/v1/attention", attention()).await;
    assert_eq!((status, code(&body).as_str()), (StatusCode::SERVICE_UNAVAILABLE, "starting"));
    // Also while the client still sends.
    let (status, body) = running.send("/v1/attention", vec![0; 48 << 20].into()).await;
    assert_eq!((status, code(&body).as_str()), (StatusCode::SERVICE_UNAVAILABLE, "starting"));
    begin.send(Ok(())).expect("it waits");
    running.app.health.started().await.expect("ready");
    assert_eq!(running.send("/readyz", Bytes::new()).await.0, StatusCode::OK);
    tell.send(Next::Copy).expect("it runs");
    assert_eq!(running.send("/v1/attention", attention()).await.0, StatusCode::OK);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_cannot_start_is_an_error_of_the_start() {
    let (backend, _tell, begin) = device("gpu");
    let running = start(vec![backend]).await;
    begin.send(Err("no such device".to_owned())).expect("it waits");
    let error = running.app.health.started().await.expect_err("failed");
    assert_eq!(error.to_string(), "worker 0 failed: no such device");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_device_is_503_and_not_ready_while_another_one_serves() {
    let (took, batches) = channel();
    let (one, tell_one, begin_one) = device_that_says("gpu 0", took.clone());
    let (other, tell_other, begin_other) = device_that_says("gpu 1", took);
    let running = start(vec![one, other]).await;
    begin_one.send(Ok(())).expect("it waits");
    begin_other.send(Ok(())).expect("it waits");
    running.app.health.started().await.expect("ready");

    // A batch for each of them: one fails with its device, the other is served.
    let requests = [running.begin(), running.begin()];
    for _ in 0..2 {
        batches.recv_timeout(Duration::from_secs(300)).expect("each device has a batch");
    }
    tell_one.send(Next::Lose).expect("it runs");
    tell_other.send(Next::Copy).expect("it runs");
    let mut statuses = Vec::new();
    for request in requests {
        let (status, body) = request.await.expect("a reply");
        if status != StatusCode::OK {
            assert_eq!(code(&body), "device_failed");
        }
        statuses.push(status);
    }
    statuses.sort();
    assert_eq!(statuses, [StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE]);

    let (status, body) = running.send("/readyz", Bytes::new()).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let text = String::from_utf8(body.to_vec()).expect("text");
    assert!(text.contains("gpu 0 failed: CUDA_ERROR_ECC_UNCORRECTABLE"), "{text}");
    assert_eq!(running.send("/healthz", Bytes::new()).await.0, StatusCode::OK);
    tell_other.send(Next::Copy).expect("it runs");
    assert_eq!(running.send("/v1/attention", attention()).await.0, StatusCode::OK);

    // The last one is lost: what waits fails too, nothing more is accepted, and the process says that it is of no use.
    let requests = [running.begin(), running.begin()];
    let mut accepted = running.app.in_flight.subscribe();
    accepted.wait_for(|count| *count == 2).await.expect("it serves");
    tell_other.send(Next::Lose).expect("it runs");
    for request in requests {
        let (status, body) = request.await.expect("a reply");
        assert_eq!((status.as_u16(), code(&body).as_str()), (503, "device_failed"));
    }
    let (status, body) = running.send("/v1/attention", attention()).await;
    assert_eq!((status.as_u16(), code(&body).as_str()), (503, "device_failed"));
    assert_eq!(running.send("/healthz", Bytes::new()).await.0, StatusCode::SERVICE_UNAVAILABLE);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_panics_fails_its_batch_and_another_one_takes_its_place() {
    let (backend, tell, begin) = device("gpu");
    let running = start(vec![backend]).await;
    begin.send(Ok(())).expect("it waits");
    running.app.health.started().await.expect("ready");
    for _ in 0..3 {
        tell.send(Next::Panic).expect("it runs");
        let (status, body) = running.send("/v1/attention", attention()).await;
        assert_eq!((status.as_u16(), code(&body).as_str()), (500, "failed"));
        begin.send(Ok(())).expect("it waits");
        tell.send(Next::Copy).expect("it runs");
        assert_eq!(running.send("/v1/attention", attention()).await.0, StatusCode::OK);
        assert_eq!(running.send("/healthz", Bytes::new()).await.0, StatusCode::OK);
    }
    // Without another one the device is lost.
    tell.send(Next::Panic).expect("it runs");
    assert_eq!(running.send("/v1/attention", attention()).await.0.as_u16(), 500);
    begin.send(Err("the driver is gone".to_owned())).expect("it waits");
    let mut health = running.send("/healthz", Bytes::new()).await;
    while health.0 == StatusCode::OK {
        tokio::time::sleep(Duration::from_millis(5)).await;
        health = running.send("/healthz", Bytes::new()).await;
    }
    let text = String::from_utf8(health.1.to_vec()).expect("text");
    assert!(text.contains("the driver is gone"), "{text}");
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_nobody_waits_for_is_cancelled_and_its_clients_leave_no_place_taken() {
    let (took, batches) = channel();
    let (backend, tell, begin) = device_that_says("gpu", took);
    let running = start(vec![backend]).await;
    begin.send(Ok(())).expect("it waits");
    running.app.health.started().await.expect("ready");
    let first = running.begin();
    batches.recv_timeout(Duration::from_secs(300)).expect("the device has it");
    tell.send(Next::Endless).expect("it runs");
    // All places are taken, until the clients leave.
    let waiting: Vec<_> = (0..4).map(|_| running.begin()).collect();
    let mut in_flight = running.app.in_flight.subscribe();
    in_flight.wait_for(|count| *count == 5).await.expect("it serves");
    while running.app.admission.queue.taken() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (status, body) = running.send("/v1/attention", attention()).await;
    assert_eq!((status.as_u16(), code(&body).as_str()), (429, "queue_full"));
    waiting.iter().for_each(Task::abort);
    while running.app.admission.queue.taken() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The device still computes the first one, until its client leaves.
    let last = running.begin();
    assert!(!first.is_finished());
    assert!(batches.try_recv().is_err());
    first.abort();
    batches.recv_timeout(Duration::from_secs(300)).expect("the next batch runs");
    tell.send(Next::Copy).expect("it runs");
    assert_eq!(last.await.expect("a reply").0, StatusCode::OK);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_fails_is_an_error_of_the_server_and_the_device_serves_the_next() {
    let (backend, tell, begin) = device("gpu");
    let running = start(vec![backend]).await;
    begin.send(Ok(())).expect("it waits");
    running.app.health.started().await.expect("ready");
    for (next, expected) in
        [(Next::OutOfMemory, (503, "out_of_memory")), (Next::Refuse, (500, "kernel_failed"))]
    {
        tell.send(next).expect("it runs");
        let (status, body) = running.send("/v1/attention", attention()).await;
        assert_eq!((status.as_u16(), code(&body).as_str()), expected);
    }
    tell.send(Next::Copy).expect("it runs");
    assert_eq!(running.send("/v1/attention", attention()).await.0, StatusCode::OK);
    assert_eq!(running.send("/readyz", Bytes::new()).await.0, StatusCode::OK);
    running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_device_fills_the_queue_and_all_accepted_requests_are_served_in_the_end() {
    let (backend, tell, begin) = device("gpu");
    let running = start(vec![backend]).await;
    begin.send(Ok(())).expect("it waits");
    running.app.health.started().await.expect("ready");
    // Each is a batch: one runs at most, four wait, and the others are refused.
    let requests: Vec<_> = (0..20).map(|_| running.begin()).collect();
    let mut in_flight = running.app.in_flight.subscribe();
    let mut refused = Vec::new();
    let mut waiting = Vec::new();
    for request in requests {
        waiting.push(request);
    }
    // 15 or 16 are refused at once; the device has been told nothing yet.
    while waiting.len() > 5 {
        let done = waiting.iter().position(Task::is_finished);
        match done {
            Some(place) => refused.push(waiting.swap_remove(place).await.expect("a reply")),
            None => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
    for (status, body) in &refused {
        assert_eq!((status.as_u16(), code(body).as_str()), (429, "queue_full"));
    }
    in_flight.wait_for(|count| *count <= 5).await.expect("it serves");
    for _ in 0..5 {
        tell.send(Next::Copy).expect("it runs");
    }
    let mut served = 0;
    for request in waiting {
        let (status, _) = request.await.expect("a reply");
        served += usize::from(status == StatusCode::OK);
    }
    // The fifth is refused if the device had not taken the first one yet.
    assert!(served == 5 || served == 4, "{served}");
    running.end().await;
}
