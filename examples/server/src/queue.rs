//! The queue: requests with the same key wait for each other for a moment, then go to a device as a batch.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::counter;
use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::admission::Footprint;
use crate::error::{ServeError, Served};
use crate::share::Share;
use crate::tensors::{Key, Request, wide};

/// A request in the queue.
#[derive(Debug)]
pub struct Pending {
    /// The request.
    pub request: Request,
    /// The memory that it takes of a device.
    pub footprint: Footprint,
    /// Its place in the queue, until a device takes it.
    pub place: Share,
    /// Its client.
    pub waiting: Waiting,
}

/// A client that waits for a reply, and its shares of the limits.
#[derive(Debug)]
pub struct Waiting {
    /// Where the reply goes.
    pub reply: oneshot::Sender<Served<Computed>>,
    /// The reply's memory.
    pub share: Share,
    /// The request's body and its work, until the batch ran.
    pub until_done: [Share; 2],
    /// When the request was accepted.
    pub accepted: Instant,
}

/// The body of a reply.
#[derive(Debug)]
pub struct Computed {
    /// The body.
    pub body: Vec<u8>,
    /// What it has of the memory of replies.
    pub share: Share,
    /// How long the request waited for a device.
    pub waited: Duration,
    /// How long its batch ran.
    pub took: Duration,
}

/// The requests that wait, by key.
///
/// A batch is ready when it is full, when its oldest request has waited for the time limit, or when the queue drains.
/// Devices take ready batches by deadline, oldest first, so that no shape can starve another.
#[derive(Debug)]
pub struct Queue {
    /// How long a request waits for others with the same key: at most a year.
    wait: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// The place of a request in the queue. Dropping it takes the request out, if no device has taken it.
#[derive(Debug)]
#[must_use]
pub struct Ticket {
    queue: Arc<Queue>,
    group: u64,
    member: u64,
}

#[derive(Debug, Default)]
struct State {
    /// By number: in the order of their deadlines, since all requests wait for the same time.
    groups: BTreeMap<u64, Group>,
    /// The last number of a group or request.
    numbers: u64,
    phase: Phase,
}

/// What the queue does with requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Phase {
    /// Requests wait for others with the same key.
    #[default]
    Open,
    /// Batches no longer wait for more requests.
    Draining,
    /// Nothing more is added; workers end when the queue is empty.
    Closed,
    /// No worker is left: all waiting and later requests fail.
    Failed(ServeError),
}

/// Requests of one key.
#[derive(Debug)]
struct Group {
    key: Key,
    deadline: Instant,
    bytes: u64,
    /// Whether it takes no more requests and is ready before its deadline.
    is_full: bool,
    members: BTreeMap<u64, Pending>,
}

impl Queue {
    /// An empty queue. A request waits for others with the same key for at most `wait`.
    #[must_use]
    pub fn new(wait: Duration) -> Self {
        Self { wait, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Adds a request, which stays until a device takes it or the ticket is dropped.
    ///
    /// # Errors
    ///
    /// That all devices failed, or that the queue is closed.
    pub fn push(self: &Arc<Self>, pending: Pending) -> Served<Ticket> {
        let mut state = self.state.lock();
        match &state.phase {
            Phase::Failed(error) => return Err(error.clone()),
            Phase::Closed => return Err(ServeError::ShuttingDown),
            Phase::Open | Phase::Draining => {}
        }
        counter!("gridguard_server_accepted_total").increment(1);
        // Under the lock, so that deadlines are in the order of groups.
        let (group, member) = state.add(pending, Instant::now() + self.wait);
        drop(state);
        self.changed.notify_one();
        Ok(Ticket { queue: Arc::clone(self), group, member })
    }

    /// Waits for a batch, and takes it; `None` when the queue is closed and empty.
    pub fn next(&self) -> Option<Vec<Pending>> {
        let mut state = self.state.lock();
        loop {
            if matches!(state.phase, Phase::Failed(_)) {
                return None;
            }
            if let Some(group) = state.take(Instant::now()) {
                return Some(group.members.into_values().collect());
            }
            if state.phase == Phase::Closed {
                return None;
            }
            match state.groups.first_key_value().map(|(_, group)| group.deadline) {
                Some(deadline) => {
                    let _ = self.changed.wait_until(&mut state, deadline);
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// No worker is left: all waiting and later requests fail.
    pub fn fail(&self, error: &ServeError) {
        self.enter(Phase::Failed(error.clone()));
        let groups = std::mem::take(&mut self.state.lock().groups);
        for pending in groups.into_values().flat_map(|group| group.members.into_values()) {
            reply(pending.waiting.reply, Err(error.clone()));
        }
    }

    /// Begins a phase, unless all requests fail.
    pub fn enter(&self, phase: Phase) {
        let mut state = self.state.lock();
        if !matches!(state.phase, Phase::Failed(_)) {
            state.phase = phase;
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let left = self.queue.state.lock().remove(self.group, self.member);
        // Outside the lock, since it frees the body.
        if left.is_some() {
            count_abandoned(1);
        }
    }
}

impl State {
    /// The numbers of the request's group and of the request.
    fn add(&mut self, pending: Pending, deadline: Instant) -> (u64, u64) {
        let Footprint { bytes, batch_bytes: most } = pending.footprint;
        let key = &pending.request.key;
        let (new, member) = (self.number(), self.number());
        let open = self.groups.iter_mut().find(|(_, group)| !group.is_full && group.key == *key);
        let fits = |group: &mut Group| {
            group.is_full = group.bytes.saturating_add(bytes) > most;
            !group.is_full
        };
        let number = open.and_then(|(number, group)| fits(group).then_some(*number)).unwrap_or(new);
        let group = self.groups.entry(number).or_insert_with(|| Group {
            key: key.clone(),
            deadline,
            bytes: 0,
            is_full: false,
            members: BTreeMap::new(),
        });
        group.bytes = group.bytes.saturating_add(bytes);
        group.is_full = group.bytes >= most;
        group.members.insert(member, pending);
        (number, member)
    }

    /// The first group that is due, or else the first that is full.
    fn take(&mut self, now: Instant) -> Option<Group> {
        let (first, group) = self.groups.first_key_value()?;
        let is_due = group.deadline <= now || self.phase != Phase::Open;
        let mut full = self.groups.iter().filter(|(_, group)| group.is_full);
        let number = if is_due { *first } else { *full.next()?.0 };
        self.groups.remove(&number)
    }

    /// Takes out a request, and its group with the last one.
    fn remove(&mut self, number: u64, member: u64) -> Option<Pending> {
        let group = self.groups.get_mut(&number)?;
        let pending = group.members.remove(&member)?;
        group.bytes = group.bytes.saturating_sub(pending.footprint.bytes);
        if group.members.is_empty() {
            self.groups.remove(&number);
        }
        Some(pending)
    }

    const fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// Sends a reply. It is counted before, so that whoever received it finds it counted.
pub fn reply(to: oneshot::Sender<Served<Computed>>, result: Served<Computed>) {
    if to.is_closed() {
        count_abandoned(1);
        return;
    }
    counter!("gridguard_server_answered_total").increment(1);
    // A client that leaves now is as good as one that leaves a moment later.
    let _ = to.send(result);
}

/// Counts requests whose clients left before the reply.
pub fn count_abandoned(requests: usize) {
    counter!("gridguard_server_abandoned_total").increment(wide(requests));
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use axum::body::Bytes;
    use gridguard_kernels::ElementType;

    use super::*;
    use crate::error::DeviceFailure;
    use crate::share::{Limit, Resource};
    use crate::tensors::Endpoint;

    type Receiver = oneshot::Receiver<Served<Computed>>;

    /// A request of 10 bytes; up to 30 bytes are a batch.
    fn pending(frames: u64) -> (Pending, Receiver) {
        let (endpoint, element) = (Endpoint::Block, ElementType::F32);
        let key = Key { endpoint, element, heads: 1, frames, width: 8, mask: None };
        let request =
            Request { key, items: 1, dims: vec![], inputs: vec![Bytes::new()], mask: None };
        let limit = Limit::new(Resource::QUEUE, 4, 100);
        let share = || limit.take(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST).into(), 1);
        let share = || share().expect("free");
        let (reply, received) = oneshot::channel();
        let (until_done, accepted) = ([share(), share()], Instant::now());
        let waiting = Waiting { reply, share: share(), until_done, accepted };
        let footprint = Footprint { bytes: 10, batch_bytes: 30 };
        (Pending { request, footprint, place: share(), waiting }, received)
    }

    fn queue(wait: Duration) -> Arc<Queue> {
        Arc::new(Queue::new(wait))
    }

    /// Adds requests with these frames.
    fn push(queue: &Arc<Queue>, frames: &[u64]) -> Vec<(Ticket, Receiver)> {
        let one = |frames: &u64| {
            let (pending, received) = pending(*frames);
            (queue.push(pending).expect("open"), received)
        };
        frames.iter().map(one).collect()
    }

    /// The frames of the next batch, and how many requests it has.
    fn next(queue: &Queue) -> (u64, usize) {
        let batch = queue.next().expect("a batch");
        (batch[0].request.key.frames, batch.len())
    }

    const HOURS: Duration = Duration::from_secs(100 * 3600);

    #[test]
    fn requests_of_one_key_are_a_batch_when_it_is_full_and_others_keep_waiting() {
        let queue = queue(HOURS);
        let _tickets = push(&queue, &[1, 2, 1, 1, 1]);
        assert_eq!(next(&queue), (1, 3));
        queue.enter(Phase::Draining);
        assert_eq!(next(&queue), (2, 1));
        // The group that was opened again after the full one.
        assert_eq!(next(&queue), (1, 1));
        queue.enter(Phase::Closed);
        assert!(queue.next().is_none());
        let (late, _received) = pending(1);
        assert_eq!(queue.push(late).expect_err("closed"), ServeError::ShuttingDown);
    }

    #[test]
    fn a_group_that_is_due_goes_before_groups_that_are_full_but_came_later() {
        let queue = queue(Duration::from_millis(1));
        let _small = push(&queue, &[2]);
        let _hot = push(&queue, &[1; 9]);
        std::thread::sleep(Duration::from_millis(2));
        // However many more of the hot shape come.
        let _more = push(&queue, &[1; 9]);
        assert_eq!(next(&queue), (2, 1));
        for _ in 0..6 {
            assert_eq!(next(&queue), (1, 3));
        }
    }

    #[test]
    fn a_full_group_does_not_wait_for_one_that_is_not_due() {
        let queue = queue(HOURS);
        let _tickets = push(&queue, &[2, 1, 1, 1]);
        assert_eq!(next(&queue), (1, 3));
    }

    #[test]
    fn a_request_that_overflows_the_batch_begins_another() {
        let queue = queue(HOURS);
        let (first, _one) = pending(1);
        let (mut large, _two) = pending(1);
        large.footprint.bytes = 25;
        let _first = queue.push(first).expect("open");
        let _large = queue.push(large).expect("open");
        assert_eq!(queue.next().expect("closed by the second")[0].footprint.bytes, 10);
        queue.enter(Phase::Draining);
        assert_eq!(queue.next().expect("drained")[0].footprint.bytes, 25);
    }

    #[test]
    fn clients_that_left_take_their_requests_with_them() {
        let queue = queue(HOURS);
        let mut tickets = push(&queue, &[1, 1, 2]);
        let groups = |queue: &Queue| queue.state.lock().groups.len();
        // Its memory is free at once, not when a worker finds it.
        drop(tickets.remove(2));
        assert_eq!(groups(&queue), 1);
        drop(tickets.remove(0));
        let _more = push(&queue, &[1, 1]);
        assert_eq!(next(&queue), (1, 3));
        drop(tickets);
        assert_eq!(groups(&queue), 0);
        // A full group stays full, and goes with its last request.
        let mut tickets = push(&queue, &[1, 1, 1]);
        drop(tickets.remove(0));
        assert_eq!(next(&queue), (1, 2));
        drop(push(&queue, &[1, 1, 1]));
        assert_eq!(groups(&queue), 0);
    }

    #[test]
    fn without_a_worker_all_requests_fail_and_none_is_added() {
        let queue = queue(HOURS);
        let mut waiting = push(&queue, &[1]);
        let error = ServeError::from(DeviceFailure { device: "gpu".into(), reason: "gone".into() });
        queue.fail(&error);
        let received = waiting[0].1.try_recv().expect("a reply");
        assert_eq!(received.expect_err("failed"), error);
        let (late, _received) = pending(1);
        assert_eq!(queue.push(late).expect_err("none left"), error);
        assert!(queue.next().is_none());
    }
}
