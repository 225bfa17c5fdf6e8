//! The queue: requests with the same key wait for each other for a moment, then go to a device as a batch.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use metrics::{counter, gauge};
use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::error::ServeError;
use crate::tensors::{Key, Request, wide};

/// What the queue holds at most, and how long it waits.
#[derive(Clone, Copy, Debug)]
pub struct QueueLimits {
    /// The most requests that wait.
    pub requests: u64,
    /// How long a request waits for others with the same key: at most a year.
    pub wait: Duration,
}

/// A request that waits, and where its reply goes.
#[derive(Debug)]
pub struct Pending {
    /// The request.
    pub request: Request,
    /// Bytes of its tensors on a device.
    pub bytes: u64,
    /// The most bytes of tensors in a batch with it, beside scratch.
    pub batch_bytes: u64,
    /// Its share of the memory of bodies.
    pub permit: OwnedSemaphorePermit,
    /// Where the reply goes.
    pub reply: oneshot::Sender<Result<Computed, ServeError>>,
}

/// The body of a reply.
#[derive(Debug)]
pub struct Computed {
    /// The body.
    pub body: Vec<u8>,
    /// The request's share of the memory of bodies, which the reply holds until it is sent.
    pub permit: OwnedSemaphorePermit,
}

/// The requests that wait, by key.
///
/// A batch is ready when it is full, when its oldest request has waited for the time limit, or when the
/// queue drains. Adding and taking a batch take constant time.
#[derive(Debug)]
pub struct Queue {
    limits: QueueLimits,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<Key, Group>,
    /// The groups in the order in which they were opened, which is that of their deadlines; some may be full
    /// or taken since.
    order: VecDeque<(u64, Key)>,
    full: VecDeque<Vec<Pending>>,
    /// Requests in all groups.
    queued: u64,
    /// Groups opened so far.
    opened: u64,
    phase: Phase,
    /// Why there is no worker left.
    failed: Option<ServeError>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
enum Phase {
    #[default]
    Open,
    /// Batches do not wait.
    Draining,
    /// Nothing is added.
    Closed,
}

/// Requests of one key.
#[derive(Debug)]
struct Group {
    number: u64,
    deadline: Instant,
    bytes: u64,
    members: Vec<Pending>,
}

impl Queue {
    /// An empty queue.
    #[must_use]
    pub fn new(limits: QueueLimits) -> Self {
        Self { limits, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds a request.
    ///
    /// # Errors
    ///
    /// [`ServeError::QueueFull`], or that all devices failed, or that the queue is closed.
    pub fn push(&self, pending: Pending) -> Result<(), ServeError> {
        let mut state = self.state.lock();
        if let Some(failed) = &state.failed {
            return Err(failed.clone());
        }
        if state.phase == Phase::Closed {
            return Err(ServeError::Draining);
        }
        if state.queued >= self.limits.requests {
            return Err(ServeError::QueueFull { limit: self.limits.requests });
        }
        state.queued += 1;
        gauge!("gridguard_server_queued").increment(1);
        counter!("gridguard_server_accepted_total").increment(1);
        state.add(pending, Instant::now() + self.limits.wait);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for a batch, and takes it; `None` when the queue is closed and empty. Requests whose clients
    /// are gone are left out.
    #[must_use]
    pub fn next(&self) -> Option<Vec<Pending>> {
        let mut state = self.state.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(mut batch) = state.take(Instant::now()) {
                state.queued = state.queued.saturating_sub(wide(batch.len()));
                drop(state);
                let waited = u32::try_from(batch.len()).unwrap_or(u32::MAX);
                gauge!("gridguard_server_queued").decrement(waited);
                let before = batch.len();
                batch.retain(|pending| !pending.reply.is_closed());
                count_abandoned(before - batch.len());
                if !batch.is_empty() {
                    return Some(batch);
                }
                state = self.state.lock();
                continue;
            }
            if state.phase == Phase::Closed {
                return None;
            }
            match state.deadline() {
                Some(deadline) => {
                    let _ = self.changed.wait_until(&mut state, deadline);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Batches no longer wait for more requests.
    pub fn drain(&self) {
        self.enter(Phase::Draining);
    }

    /// Nothing more is added; workers end when the queue is empty.
    pub fn close(&self) {
        self.enter(Phase::Closed);
    }

    /// No worker is left: all requests that wait fail, and those that come.
    pub fn fail(&self, error: &ServeError) {
        let mut state = self.state.lock();
        state.failed = Some(error.clone());
        let groups: Vec<_> = state.open.drain().map(|(_, group)| group.members).collect();
        let waiting: Vec<_> = groups.into_iter().chain(state.full.drain(..)).flatten().collect();
        state.order.clear();
        state.queued = 0;
        drop(state);
        self.changed.notify_all();
        gauge!("gridguard_server_queued").set(0);
        for pending in waiting {
            reply(pending.reply, Err(error.clone()));
        }
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state.lock();
        if state.phase < phase {
            state.phase = phase;
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl State {
    fn add(&mut self, pending: Pending, deadline: Instant) {
        let (bytes, most) = (pending.bytes, pending.batch_bytes);
        let key = pending.request.key.clone();
        let overflows = |group: &Group| group.bytes.saturating_add(bytes) > most;
        if self.open.get(&key).is_some_and(overflows)
            && let Some(group) = self.open.remove(&key)
        {
            self.full.push_back(group.members);
        }
        let group = self.open.entry(key).or_insert_with_key(|key| {
            self.opened += 1;
            self.order.push_back((self.opened, key.clone()));
            Group { number: self.opened, deadline, bytes: 0, members: Vec::new() }
        });
        group.bytes = group.bytes.saturating_add(bytes);
        group.members.push(pending);
        if group.bytes >= most
            && let Some(last) = group.members.last()
        {
            let key = last.request.key.clone();
            if let Some(group) = self.open.remove(&key) {
                self.full.push_back(group.members);
            }
        }
    }

    fn take(&mut self, now: Instant) -> Option<Vec<Pending>> {
        if let Some(batch) = self.full.pop_front() {
            return Some(batch);
        }
        let deadline = self.deadline()?;
        if deadline > now && self.phase == Phase::Open {
            return None;
        }
        let (_, key) = self.order.pop_front()?;
        self.open.remove(&key).map(|group| group.members)
    }

    /// The deadline of the oldest group, after those that are full or taken are forgotten.
    fn deadline(&mut self) -> Option<Instant> {
        while let Some((number, key)) = self.order.front() {
            if let Some(group) = self.open.get(key).filter(|group| group.number == *number) {
                return Some(group.deadline);
            }
            self.order.pop_front();
        }
        None
    }
}

/// Sends a reply. It is counted before, so that whoever received it finds it counted.
pub fn reply(
    to: oneshot::Sender<Result<Computed, ServeError>>,
    result: Result<Computed, ServeError>,
) {
    if to.is_closed() {
        count_abandoned(1);
        return;
    }
    counter!("gridguard_server_answered_total").increment(1);
    // A client that leaves now is as good as one that leaves a moment later.
    let _ = to.send(result);
}

fn count_abandoned(requests: usize) {
    counter!("gridguard_server_abandoned_total").increment(wide(requests));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Bytes;
    use gridguard_kernels::ElementType;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::tensors::Problem;

    type Receiver = oneshot::Receiver<Result<Computed, ServeError>>;

    /// A request of 10 bytes; up to 30 bytes are a batch.
    fn pending(frames: u64) -> (Pending, Receiver) {
        let problem = Problem::Block { frames, channels: 8 };
        let key = Key { problem, element: ElementType::F32 };
        let request = Request { key, items: 1, dims: vec![], inputs: vec![Bytes::new()] };
        let permits = Arc::new(Semaphore::new(1));
        let permit = permits.try_acquire_owned().expect("one");
        let (reply, received) = oneshot::channel();
        (Pending { request, bytes: 10, batch_bytes: 30, permit, reply }, received)
    }

    fn queue(requests: u64, wait: Duration) -> Queue {
        Queue::new(QueueLimits { requests, wait })
    }

    const HOURS: Duration = Duration::from_secs(100 * 3600);

    #[test]
    fn requests_of_one_key_are_a_batch_when_it_is_full_and_others_keep_waiting() {
        let queue = queue(10, HOURS);
        let mut receivers = Vec::new();
        for frames in [1, 2, 1, 1, 1] {
            let (pending, received) = pending(frames);
            queue.push(pending).expect("not full");
            receivers.push(received);
        }
        let batch = queue.next().expect("full");
        assert_eq!(batch.len(), 3);
        queue.drain();
        let frames = |batch: &[Pending]| batch[0].request.key.problem.clone();
        let second = queue.next().expect("drained");
        assert_eq!((second.len(), frames(&second)), (1, Problem::Block { frames: 2, channels: 8 }));
        // The group that was opened again after the full one.
        let third = queue.next().expect("drained");
        assert_eq!((third.len(), frames(&third)), (1, Problem::Block { frames: 1, channels: 8 }));
        queue.close();
        assert!(queue.next().is_none());
        let (late, _received) = pending(1);
        assert_eq!(queue.push(late).expect_err("closed"), ServeError::Draining);
    }

    #[test]
    fn a_full_queue_refuses_and_a_taken_batch_makes_room() {
        let queue = queue(2, Duration::ZERO);
        let keep: Vec<_> = (0..2)
            .map(|_| {
                let (pending, received) = pending(1);
                queue.push(pending).expect("not full");
                received
            })
            .collect();
        let (third, _received) = pending(1);
        assert_eq!(queue.push(third).expect_err("full"), ServeError::QueueFull { limit: 2 });
        assert_eq!(queue.next().expect("due").len(), 2);
        let (fourth, _received) = pending(1);
        queue.push(fourth).expect("not full");
        drop(keep);
    }

    #[test]
    fn a_request_that_overflows_the_batch_begins_another() {
        let queue = queue(10, HOURS);
        let (first, _one) = pending(1);
        let (mut large, _two) = pending(1);
        large.bytes = 25;
        queue.push(first).expect("not full");
        queue.push(large).expect("not full");
        assert_eq!(queue.next().expect("closed by the second")[0].bytes, 10);
        queue.drain();
        assert_eq!(queue.next().expect("drained")[0].bytes, 25);
    }

    #[test]
    fn clients_that_left_are_skipped() {
        let queue = queue(10, Duration::ZERO);
        let (gone, received) = pending(1);
        queue.push(gone).expect("not full");
        drop(received);
        let (stays, _received) = pending(2);
        queue.push(stays).expect("not full");
        let batch = queue.next().expect("one");
        assert_eq!(batch[0].request.key.problem, Problem::Block { frames: 2, channels: 8 });
    }

    #[test]
    fn without_a_worker_all_requests_fail_and_none_is_added() {
        let queue = queue(10, HOURS);
        let (waiting, mut received) = pending(1);
        queue.push(waiting).expect("not full");
        let error = ServeError::DeviceFailed { device: "gpu".into(), reason: "gone".into() };
        queue.fail(&error);
        assert_eq!(received.try_recv().expect("a reply").expect_err("failed"), error);
        let (late, _received) = pending(1);
        assert_eq!(queue.push(late).expect_err("none left"), error);
        assert!(queue.next().is_none());
    }
}
