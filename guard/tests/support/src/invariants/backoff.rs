//! Launches with a workspace back off to chunks that fit, and every item is processed once.

use core::fmt;

use gridguard::{
    AllocationError, Axis, BackoffError, BatchAxis, Choice, ChunkedRun, DeviceLimits, Dim3,
    KernelLimits, LaunchLimits, LaunchRequest, PlannedLaunch, WorkspaceLauncher, WorkspaceUse,
    launch_with_backoff,
};
use proptest::strategy::BoxedStrategy;

use super::bytes::{Bytes, from_bytes};

/// A batch, its memory, and how it is to be run.
#[derive(Clone, Debug)]
pub struct Batch {
    batch: BatchAxis,
    cluster: u64,
    bytes_per_item: u64,
    free: Vec<u64>,
    fails_at: Option<usize>,
    refuses_at: Option<usize>,
    usage: WorkspaceUse,
    most: Option<u64>,
}

/// Batches whose grid is whole clusters: any other is no case of memory.
pub fn batches() -> BoxedStrategy<Batch> {
    from_bytes(batch)
}

fn batch(from: &mut Bytes<'_>) -> Batch {
    let (cluster, blocks, share) = (from.within(1..3), from.within(1..6), from.within(1..6));
    let (align, bytes_per_item) = (share * from.within(1..9), from.within(0..5000));
    let of = |items| {
        let batch = BatchAxis::new(Axis::Y, items).blocks_per_items(blocks * cluster, share);
        batch.align(align).workspace(bytes_per_item, u64::MAX)
    };
    let divides = |items: &u64| {
        of(*items).blocks(*items).is_some_and(|blocks| blocks.is_multiple_of(cluster))
    };
    let items = (from.within(0..200_000)..).find(divides).expect("the next whole share");
    let free = |from: &mut Bytes<'_>| match from.one_of([1, 1]) {
        0 => from.within(0..100_000),
        _ => from.within(0..1_000_000_000),
    };
    Batch {
        batch: of(items),
        cluster,
        bytes_per_item,
        free: (0..from.within(1..12)).map(|_| free(from)).collect(),
        fails_at: from.maybe(5, |from| from.one_of([1; 20])),
        refuses_at: from.maybe(5, |from| from.one_of([1; 20])),
        usage: if from.one_in(2) { WorkspaceUse::PerChunk } else { WorkspaceUse::Shared },
        most: from.maybe(2, |from| from.within(1..300_000)),
    }
}

/// Makes a batch of `bytes` and runs it.
pub fn check(bytes: &[u8]) {
    every_item_is_launched_once(&batch(&mut Bytes::new(bytes)));
}

/// Every item is launched once, in order, in legal launches with the workspace that they need;
/// otherwise the error says how many items were done, and why it stopped.
pub fn every_item_is_launched_once(case: &Batch) {
    let Batch { batch, cluster, bytes_per_item, free, fails_at, refuses_at, usage, most } =
        case.clone();
    let blocks = batch.blocks(batch.items()).expect("few items");
    let mut request = LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::ONE);
    if cluster > 1 {
        request = request.cluster(Dim3::new(1, cluster, 1));
    }
    let choice = most.map_or(Choice::AUTOMATIC, Choice::at_most);
    let mut memory =
        Simulated { free, fails_at, refuses_at, bytes_per_item, ..Simulated::default() };
    match launch_with_backoff(&request, &batch, &limits(), choice, usage, &mut memory) {
        Ok(done) => {
            assert_eq!(done.items_done, batch.items());
            is_exact(&memory, &done, case);
        }
        Err(BackoffError::Invalid(_)) => assert_eq!(memory.allocations, 0),
        Err(error) => {
            let (done, _) = error.failure().expect("it began");
            is_exact(&memory, done, case);
            assert!(done.items_done < batch.items());
            match error {
                BackoffError::OutOfWorkspace { chunk, bytes, .. } => {
                    let unit = batch.unit().expect("few items") * cluster;
                    assert!(chunk <= unit, "{chunk} items could be fewer, {unit}");
                    assert_eq!(bytes, chunk * bytes_per_item);
                }
                BackoffError::Allocation { .. } => {
                    assert_eq!(memory.fails_at.map(|place| place + 1), Some(memory.allocations));
                }
                _ => assert_eq!(memory.refuses_at, Some(memory.launched.len())),
            }
        }
    }
}

/// What simulated memory answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

/// Memory of which so many bytes are free at each allocation in turn, and which may fail.
#[derive(Debug, Default)]
pub struct Simulated {
    /// Bytes, of the first allocation on, and again from the beginning.
    pub free: Vec<u64>,
    /// The allocation that fails for another reason.
    pub fails_at: Option<usize>,
    /// The launch that is refused.
    pub refuses_at: Option<usize>,
    /// What each item takes.
    pub bytes_per_item: u64,
    /// Allocations so far.
    pub allocations: usize,
    /// Launches so far.
    pub launched: Vec<PlannedLaunch>,
}

impl WorkspaceLauncher for Simulated {
    type Workspace = u64;
    type Error = Refused;

    fn allocate(&mut self, bytes: u64) -> Result<u64, AllocationError<Refused>> {
        assert!(self.fails_at.is_none_or(|place| self.allocations <= place), "tried again");
        let place = self.allocations;
        self.allocations += 1;
        if self.fails_at == Some(place) {
            return Err(AllocationError::Failed(Refused));
        }
        let free = self.free[place % self.free.len()];
        if bytes > free { Err(AllocationError::OutOfMemory(Refused)) } else { Ok(bytes) }
    }

    fn launch(
        &mut self,
        planned: &PlannedLaunch,
        launches: u64,
        workspace: &mut u64,
    ) -> Result<(), Refused> {
        let chunk = planned.chunk;
        assert!(chunk.index < launches, "{chunk:?} of {launches}");
        assert!(chunk.items * self.bytes_per_item <= *workspace, "{chunk:?} has {workspace}");
        if self.refuses_at == Some(self.launched.len()) {
            return Err(Refused);
        }
        self.launched.push(*planned);
        Ok(())
    }
}

/// Those of any device, with clusters.
#[must_use]
pub fn limits() -> LaunchLimits {
    let mut device = DeviceLimits::any_device();
    device.cluster_launch = true;
    device.max_portable_cluster_blocks = 8;
    LaunchLimits::new(device, KernelLimits::unknown("k"))
}

/// What was launched is the first items of the batch, each once, in legal launches.
fn is_exact(memory: &Simulated, done: &ChunkedRun, case: &Batch) {
    let Batch { batch, cluster, most, .. } = case;
    let mut next = 0;
    for (place, planned) in (0..).zip(&memory.launched) {
        let chunk = planned.chunk;
        assert_eq!((chunk.index, chunk.start), (place, next), "a gap or an overlap");
        let blocks = u64::from(planned.launch.grid()[1]);
        assert_eq!(Some(blocks), batch.blocks(chunk.items));
        assert!((1..=65_535).contains(&blocks) && blocks.is_multiple_of(*cluster), "{blocks}");
        assert!(most.is_none_or(|most| chunk.items <= most), "{chunk:?} is more than was wanted");
        next = chunk.end();
    }
    assert_eq!(next, done.items_done);
    assert_eq!(u64::try_from(memory.launched.len()), Ok(done.launches));
    assert!(done.tried.is_sorted_by(|before, after| before > after), "{:?}", done.tried);
}
