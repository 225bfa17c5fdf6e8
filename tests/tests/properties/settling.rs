//! Batches that settle on chunks whose workspace fits: every item once, whatever the memory does.

use gridguard::{
    AllocationError, Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits,
    LaunchRequest, PlannedLaunch, SettleError, Settled, Unsettled, WorkspaceLauncher, WorkspaceUse,
    settle,
};
use proptest::prelude::*;

use crate::cases;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

/// Memory of which so many bytes are free at each allocation in turn, and which may fail.
#[derive(Debug, Default)]
struct Simulated {
    free: Vec<u64>,
    fails_at: Option<usize>,
    refuses_at: Option<usize>,
    allocations: usize,
    launched: Vec<PlannedLaunch>,
    bytes_per_item: u64,
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

fn limits() -> LaunchLimits {
    let mut device = DeviceLimits::any_device();
    device.cluster_launch = true;
    device.max_portable_cluster_blocks = 8;
    LaunchLimits::new(device, KernelLimits::unknown("k"))
}

/// What was launched is the first items of the batch, each once, in legal launches.
fn is_exact(memory: &Simulated, done: &Settled, batch: &BatchAxis, cluster: u64) {
    let mut next = 0;
    for (place, planned) in (0..).zip(&memory.launched) {
        let chunk = planned.chunk;
        assert_eq!((chunk.index, chunk.start), (place, next), "a gap or an overlap");
        let blocks = u64::from(planned.launch.grid()[1]);
        assert_eq!(Some(blocks), batch.blocks(chunk.items));
        assert!((1..=65_535).contains(&blocks) && blocks.is_multiple_of(cluster), "{blocks}");
        next = chunk.end();
    }
    assert_eq!(next, done.items_done);
    assert_eq!(u64::try_from(memory.launched.len()), Ok(done.launches));
    assert!(done.tried.is_sorted_by(|before, after| before > after), "{:?}", done.tried);
}

prop_compose! {
    fn batches()(
        items in 0..200_000_u64, blocks in 1..6_u64, share in 1..6_u64, align in 1..9_u64,
        bytes in 0..5_000_u64, cluster in prop_oneof![Just(1_u64), Just(2)],
    ) -> (BatchAxis, u64, u64) {
        let batch = BatchAxis::new(Axis::Y, items).blocks_per_items(blocks * cluster, share);
        (batch.align(align * share).workspace(bytes, u64::MAX), bytes, cluster)
    }
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn every_item_is_launched_once_whatever_the_memory_does(
        (batch, bytes_per_item, cluster) in batches(),
        free in prop::collection::vec(prop_oneof![0..100_000_u64, 0..1_000_000_000_u64], 1..12),
        fails_at in prop::option::weighted(0.2, 0..20_usize),
        refuses_at in prop::option::weighted(0.2, 0..20_usize),
        per_chunk in any::<bool>(),
        most in prop::option::of(1..300_000_u64),
    ) {
        let blocks = batch.blocks(batch.items()).unwrap();
        // A grid that the cluster does not divide is no case of memory.
        prop_assume!(blocks.is_multiple_of(cluster));
        let mut request = LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::ONE);
        if cluster > 1 {
            request = request.cluster(Dim3::new(1, cluster, 1));
        }
        let usage = if per_chunk { WorkspaceUse::PerChunk } else { WorkspaceUse::Shared };
        let choice = most.map_or(Choice::AUTOMATIC, Choice::at_most);
        let mut memory =
            Simulated { free, fails_at, refuses_at, bytes_per_item, ..Simulated::default() };
        match settle(&request, &batch, &limits(), choice, usage, &mut memory) {
            Ok(done) => {
                prop_assert_eq!(done.items_done, batch.items());
                is_exact(&memory, &done, &batch, cluster);
            }
            Err(SettleError::Invalid(_)) => prop_assert_eq!(memory.allocations, 0),
            Err(SettleError::Unsettled(end)) => {
                is_exact(&memory, end.done(), &batch, cluster);
                prop_assert!(end.done().items_done < batch.items());
                match end {
                    Unsettled::NoRoom { chunk, bytes, .. } => {
                        let unit = batch.unit().unwrap() * cluster;
                        prop_assert!(chunk <= unit, "{chunk} items could be fewer, {unit}");
                        prop_assert_eq!(bytes, chunk * bytes_per_item);
                    }
                    Unsettled::Allocation { .. } => {
                        prop_assert_eq!(memory.fails_at.map(|place| place + 1), Some(memory.allocations));
                    }
                    _ => prop_assert_eq!(memory.refuses_at, Some(memory.launched.len())),
                }
            }
        }
    }
}

fn run(batch: BatchAxis, free: u64, usage: WorkspaceUse) -> Result<Settled, SettleError<Refused>> {
    let request = LaunchRequest::new(Dim3::new(1, batch.items(), 1), Dim3::ONE);
    let mut memory = Simulated { free: vec![free], ..Simulated::default() };
    settle(&request, &batch, &limits(), Choice::AUTOMATIC, usage, &mut memory)
}

#[test]
fn chunks_are_halved_until_their_workspace_fits() {
    let batch = BatchAxis::new(Axis::Y, 64).workspace(1000, u64::MAX);
    for usage in [WorkspaceUse::Shared, WorkspaceUse::PerChunk] {
        let done = run(batch, 16_999, usage).expect("16 at a time");
        assert_eq!(done.tried, [64, 32, 16]);
        assert_eq!((done.chunk(), done.launches, done.items_done), (16, 4, 64));
        assert_eq!(done.workspace_bytes, 16_000);
    }
}

#[test]
fn the_floor_is_the_unit_of_the_batch() {
    let batch = BatchAxis::new(Axis::Y, 64).align(6).workspace(1000, u64::MAX);
    let done = run(batch, 6000, WorkspaceUse::Shared).expect("6 at a time");
    assert_eq!((done.chunk(), done.launches), (6, 11));
    let error = run(batch, 5999, WorkspaceUse::Shared).expect_err("6 are the least");
    let SettleError::Unsettled(Unsettled::NoRoom { chunk, bytes, done, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!((chunk, bytes, done.items_done), (6, 6000, 0));
}

#[test]
fn a_kernel_s_own_cluster_bounds_the_chunks_where_the_launch_names_none() {
    let mut device = DeviceLimits::any_device();
    device.cluster_launch = true;
    device.max_portable_cluster_blocks = 8;
    let mut kernel = KernelLimits::unknown("k");
    kernel.required_cluster = Some(Dim3::new(1, 4, 1));
    let limits = LaunchLimits::new(device, kernel);
    let request = LaunchRequest::new(Dim3::new(1, 20, 1), Dim3::ONE).cluster(Dim3::new(0, 0, 0));
    // Starts at multiples of three, and of four for the cluster: half of the batch is too few.
    let batch = BatchAxis::new(Axis::Y, 20).align(3).workspace(10, u64::MAX);
    let mut memory = Simulated { free: vec![120], bytes_per_item: 10, ..Simulated::default() };
    let (choice, usage) = (Choice::AUTOMATIC, WorkspaceUse::Shared);
    let done = settle(&request, &batch, &limits, choice, usage, &mut memory).expect("settles");
    assert_eq!((done.tried.as_slice(), done.launches), ([20, 12].as_slice(), 2));
    is_exact(&memory, &done, &batch, 4);
}

#[test]
fn an_empty_batch_asks_for_nothing() {
    let batch = BatchAxis::new(Axis::Y, 0).workspace(1000, u64::MAX);
    assert_eq!(run(batch, 0, WorkspaceUse::Shared), Ok(Settled::default()));
}

#[test]
fn a_cooperative_launch_is_not_cut_for_want_of_memory() {
    let mut device = DeviceLimits::any_device();
    device.cooperative_launch = true;
    let limits = LaunchLimits::new(device, KernelLimits::unknown("k"));
    let request = LaunchRequest::new(Dim3::new(1, 8, 1), Dim3::ONE).cooperative();
    let batch = BatchAxis::new(Axis::Y, 8).workspace(10, u64::MAX);
    let mut memory = Simulated { free: vec![79], ..Simulated::default() };
    let usage = WorkspaceUse::Shared;
    let error = settle(&request, &batch, &limits, Choice::AUTOMATIC, usage, &mut memory);
    let Err(SettleError::Unsettled(Unsettled::NoRoom { chunk: 8, bytes: 80, .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!(memory.allocations, 1);
}
