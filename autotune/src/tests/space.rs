use gridguard::profile::{Objective, StoredChoice};
use gridguard::{
    Axis, BatchAxis, Dim3, FormLimits, KernelLimits, LaunchLimits, LaunchRequest, Strategy, catalog,
};
use proptest::prelude::{Just, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use crate::candidate::{MAX_CHUNK_SIZES, chunked};
use crate::{Candidate, LaunchConfig, Space};

fn configuration(threads: u64, batch: BatchAxis) -> LaunchConfig {
    let device = catalog::gpu("h200").expect("in the catalogue").limits.clone();
    let blocks = batch.blocks(batch.items()).expect("fits");
    LaunchConfig {
        parameters: vec![("block".to_owned(), threads)],
        request: LaunchRequest::new(Dim3::ONE.with(batch.axis(), blocks), Dim3::new(threads, 1, 1)),
        batch: Some(batch),
        limits: LaunchLimits::new(device, KernelLimits::unknown("k")),
    }
}

fn on_y(items: u64) -> BatchAxis {
    BatchAxis::new(Axis::Y, items)
}

#[test]
fn chunk_sizes_double_from_one_wave_to_the_default() {
    let space = Space::new(vec![configuration(128, on_y(15_360).blocks_per_item(5))]);
    let chunks: Vec<_> =
        space.candidates().iter().map(|one| (one.launches, one.largest_chunk)).collect();
    // A wave is 132 x 16 blocks, 423 items.
    assert_eq!(chunks, [(2, 7680), (37, 416), (19, 809), (10, 1536), (5, 3072), (3, 5120)]);
    assert_eq!(space.default().map(|one| one.choice), Some(StoredChoice::Automatic));
    assert_eq!(space.largest_legal_chunk(), Some(13_107));
}

#[test]
fn shards_share_the_candidates_and_each_has_the_default() {
    let space = Space::new(vec![configuration(128, on_y(15_360).blocks_per_item(5))]);
    let mut seen = Vec::new();
    for shard in 0..3 {
        let mut part = space.clone();
        let kept: Vec<_> = space.candidates().iter().skip(shard).step_by(3).cloned().collect();
        part.keep(&kept);
        assert_eq!(part.default(), space.default());
        seen.extend(part.candidates().iter().skip(1).cloned());
    }
    seen.sort();
    let mut all: Vec<_> = space.candidates().iter().skip(1).cloned().collect();
    all.sort();
    assert_eq!(seen, all);
    let mut other = space.clone();
    let third = &space.candidates()[2];
    other.make_default(third);
    assert_eq!(
        (other.default(), other.candidates().len()),
        (Some(third), space.candidates().len())
    );
    let mut some = space.clone();
    some.keep(&all[..1]);
    assert_eq!(some.candidates(), [space.candidates()[0].clone(), all[0].clone()]);
}

/// A kernel without a batch, rewritten or not.
fn without_batch(grid: Dim3, is_rewritten: bool) -> LaunchConfig {
    let device = catalog::gpu("h200").expect("in the catalogue").limits.clone();
    let kernel = || KernelLimits::unknown("k");
    let (shifted, folded) = (kernel(), kernel());
    let reads = [true; 3];
    let forms = FormLimits { shifted, folded, reads_block_index: reads, reads_grid_size: reads };
    let limits = match is_rewritten {
        true => LaunchLimits::rewritten(device, kernel(), forms),
        false => LaunchLimits::new(device, kernel()),
    };
    LaunchConfig {
        parameters: Vec::new(),
        request: LaunchRequest::new(grid, Dim3::new(128, 1, 1)),
        batch: None,
        limits,
    }
}

#[test]
fn the_forms_of_a_rewritten_kernel_are_candidates_without_a_batch() {
    let plans = |grid, is_rewritten, objective| {
        let mut space = Space::new(vec![without_batch(grid, is_rewritten)]);
        space.restrict(objective);
        let plan = |one: &Candidate| (one.strategy, one.choice, one.launches, one.largest_chunk);
        let plans: Vec<_> = space.candidates().iter().map(plan).collect();
        for one in space.candidates() {
            let planned = space.plan(one).expect("a plan");
            assert_eq!((planned.strategy(), planned.len()), (one.strategy, one.launches));
            assert!(space.wave_padding(one).is_some_and(|padding| padding >= 1.0));
        }
        assert_eq!(space.largest_legal_chunk(), None);
        plans
    };
    let large = Dim3::new(4, 76_800, 1);
    let (automatic, folded, shifted) =
        (StoredChoice::Automatic, StoredChoice::Folded, StoredChoice::Shifted);
    assert_eq!(
        plans(large, true, Objective::Throughput),
        [(Strategy::Folded, automatic, 1, 307_200), (Strategy::Shifted, shifted, 2, 153_600)]
    );
    assert_eq!(
        plans(Dim3::new(4, 60_000, 1), true, Objective::Throughput),
        [
            (Strategy::Whole, automatic, 1, 240_000),
            (Strategy::Folded, folded, 1, 240_000),
            (Strategy::Shifted, shifted, 1, 240_000)
        ]
    );
    let memory = Objective::Memory { bytes_per_item: 10, bytes: 2_000_000 };
    assert_eq!(plans(large, true, memory), []);
    assert_eq!(plans(large, false, Objective::Throughput), []);
}

#[test]
fn the_default_comes_from_the_first_legal_configuration() {
    let both = vec![configuration(2048, on_y(100)), configuration(256, on_y(100))];
    let space = Space::new(both);
    assert_eq!(space.default().map(|one| one.block_threads), Some(256));
    assert!(space.candidates().iter().all(|one| one.block_threads == 256));
    assert!(Space::new(vec![configuration(2048, on_y(100))]).candidates().is_empty());
}

#[test]
fn a_workspace_limits_every_candidate_and_fixes_its_chunk_size() {
    let mut space = Space::new(vec![configuration(128, on_y(60_000))]);
    assert_eq!(space.default().map(|one| one.launches), Some(1));
    space.restrict(Objective::Memory { bytes_per_item: 64, bytes: 1 << 20 });
    assert!(space.candidates().iter().all(|one| one.largest_chunk <= 16_384));
    let choice = StoredChoice::Chunked { max_items: 15_000.try_into().expect("positive") };
    assert_eq!(space.default().map(|one| one.choice), Some(choice));
    assert_eq!(space.largest_legal_chunk(), Some(16_384));
}

#[test]
fn adding_a_known_plan_returns_its_candidate() {
    let mut space = Space::new(vec![configuration(128, on_y(100_000))]);
    let before = space.candidates().len();
    let parameters = vec![("block".to_owned(), 128)];
    let known = space.add(&parameters, chunked(60_000)).expect("legal");
    assert_eq!((known.choice, space.candidates().len()), (StoredChoice::Automatic, before));
    let new = space.add(&parameters, chunked(30_000)).expect("legal");
    assert_eq!((new.launches, space.candidates().len()), (4, before + 1));
    assert_eq!(space.add(&vec![("block".to_owned(), 7)], chunked(1)), None);
}

fn batches() -> impl proptest::strategy::Strategy<Value = BatchAxis> {
    let items = prop_oneof![0..300_u64, 0..3_000_000_u64, Just(u64::MAX / 8)];
    (items, 1..7_u64, 1..5_u64, 1..70_u64, any::<bool>(), any::<bool>()).prop_map(
        |(items, blocks, shared, align, fold, x)| {
            let axis = if x { Axis::X } else { Axis::Y };
            let batch = BatchAxis::new(axis, items).blocks_per_items(blocks, shared);
            let batch = batch.align(align);
            if fold { batch.foldable() } else { batch }
        },
    )
}

proptest! {
    #[test]
    fn every_candidate_is_legal_and_unique(
        batch in batches(),
        threads in prop::collection::vec(prop_oneof![1..1025_u64, Just(2048)], 1..4),
    ) {
        let configurations: Vec<_> =
            threads.iter().map(|threads| configuration(*threads, batch)).collect();
        let space = Space::new(configurations);
        let all = space.candidates();
        for (place, one) in all.iter().enumerate() {
            let plan = space.plan(one).expect("legal");
            prop_assert_eq!(plan.len(), one.launches);
            prop_assert_eq!(plan.largest_chunk(), one.largest_chunk);
            prop_assert!(!all.iter().take(place).any(|before| before.is_same_plan(one)));
        }
        let automatic = all.first().map(|one| one.choice);
        prop_assert!(automatic.is_none_or(|choice| choice == StoredChoice::Automatic));
        prop_assert!(all.len() <= threads.len() * (MAX_CHUNK_SIZES + 4));
        if batch.items() == 0 {
            prop_assert!(all.len() <= 1);
        }
    }
}

#[test]
fn a_listed_space_keeps_its_order_and_obeys_a_workspace() {
    let command = "p {chunk}";
    let sizes = vec![("items".to_owned(), 1000)];
    let problem = crate::ProgramProblem::new(command, sizes, vec![], vec![1000, 125, 250, 500]);
    let listed = problem.expect("a problem").candidates();
    let mut space = Space::listed(listed.clone());
    assert_eq!(space.candidates(), listed);
    assert!(space.plan(&listed[0]).is_none() && space.largest_legal_chunk().is_none());
    space.restrict(Objective::Memory { bytes_per_item: 8, bytes: 2000 });
    assert_eq!(space.candidates(), &listed[1..3]);
    space.restrict(Objective::Memory { bytes_per_item: u64::MAX, bytes: u64::MAX });
    assert!(space.default().is_none());
    space.restrict(Objective::Throughput);
    assert_eq!(space.candidates(), listed);
}
