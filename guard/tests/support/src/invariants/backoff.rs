//! A workspace is as large as the largest chunk needs, which is halved until it fits.

use core::fmt;

use gridguard::{
    AllocationError, Axis, BatchAxis, Choice, DeviceLimits, Dim3, KernelLimits, LaunchLimits,
    LaunchRequest, Plan, WorkspaceError, fit_workspace,
};
use proptest::strategy::BoxedStrategy;

use super::bytes::{Bytes, from_bytes};

/// A batch, its memory, and the most items of a chunk.
#[derive(Clone, Debug)]
pub struct Batch {
    batch: BatchAxis,
    cluster: u64,
    bytes_per_item: u64,
    free: Vec<u64>,
    fails_at: Option<usize>,
    most: Option<u64>,
}

/// Batches whose grid is whole clusters.
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
        most: from.maybe(2, |from| from.within(1..300_000)),
    }
}

/// Makes a batch of `bytes` and runs it.
pub fn check(bytes: &[u8]) {
    a_workspace_fits_all_chunks(&batch(&mut Bytes::new(bytes)));
}

/// No chunk is larger than in the first plan, and each fits the allocated workspace. Otherwise the error says which
/// allocation failed, and whether a smaller one was possible.
pub fn a_workspace_fits_all_chunks(case: &Batch) {
    let Batch { batch, cluster, bytes_per_item, free, fails_at, most } = case.clone();
    let blocks = batch.blocks(batch.items()).expect("few items");
    let mut request = LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::ONE);
    if cluster > 1 {
        request = request.cluster(Dim3::new(1, cluster, 1));
    }
    let choice = most.map_or(Choice::AUTOMATIC, Choice::at_most);
    let mut memory = Simulated { free, fails_at, ..Simulated::default() };
    let Ok(first) = Plan::new(&request, Some(&batch), &limits(), choice) else { return };
    if first.is_empty() {
        return;
    }
    let unit = batch.unit().expect("few items") * cluster;
    match memory.fit(first, &request, &batch, &limits()) {
        Ok((plan, bytes)) => {
            assert_eq!(bytes, plan.largest_chunk() * bytes_per_item);
            assert!(plan.largest_chunk() <= first.largest_chunk());
            let mut next = 0;
            for planned in plan.launches() {
                assert_eq!(planned.chunk.start, next, "a gap or an overlap");
                let blocks = u64::from(planned.launch.grid()[1]);
                assert_eq!(Some(blocks), batch.blocks(planned.chunk.items));
                assert!((1..=65_535).contains(&blocks) && blocks.is_multiple_of(cluster));
                assert!(planned.chunk.items * bytes_per_item <= bytes);
                next = planned.chunk.end();
            }
            assert_eq!(next, batch.items());
        }
        Err(WorkspaceError { chunk, bytes, items, is_smallest, .. }) => {
            assert_eq!((bytes, items), (chunk * bytes_per_item, batch.items()));
            let failed = memory.fails_at == memory.asked.len().checked_sub(1);
            assert!(failed || is_smallest && chunk <= unit, "{chunk} could be fewer, {unit}");
        }
    }
    assert!(memory.asked.is_sorted_by(|before, after| before >= after), "{:?}", memory.asked);
}

/// The error of simulated memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

/// Memory whose allocations may fail.
#[derive(Debug, Default)]
pub struct Simulated {
    /// The bytes that are free at each allocation, and again from the beginning.
    pub free: Vec<u64>,
    /// The allocation that fails for another reason than memory.
    pub fails_at: Option<usize>,
    /// The bytes of each allocation so far.
    pub asked: Vec<u64>,
}

impl Simulated {
    /// [`fit_workspace`] in this memory.
    pub fn fit(
        &mut self,
        plan: Plan,
        request: &LaunchRequest,
        batch: &BatchAxis,
        limits: &LaunchLimits,
    ) -> Result<(Plan, u64), WorkspaceError<Refused>> {
        fit_workspace(plan, request, batch, limits, |bytes| {
            let place = self.asked.len();
            assert!(self.fails_at.is_none_or(|fails| place <= fails), "tried again");
            self.asked.push(bytes);
            if self.fails_at == Some(place) {
                return Err(AllocationError::Failed(Refused));
            }
            let free = self.free[place % self.free.len()];
            if bytes > free { Err(AllocationError::OutOfMemory(Refused)) } else { Ok(bytes) }
        })
    }
}

/// The limits of any device, with clusters.
#[must_use]
pub fn limits() -> LaunchLimits {
    let mut device = DeviceLimits::any_device();
    device.cluster_launch = true;
    device.max_portable_cluster_blocks = 8;
    LaunchLimits::new(device, KernelLimits::unknown("k"))
}
