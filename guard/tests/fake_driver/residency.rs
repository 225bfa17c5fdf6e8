//! Co-resident blocks: queried once, for launches that need it.

use gridguard::cuda::{Args, LaunchError, LaunchErrorKind};
use gridguard::{Dim3, LaunchRequest, OccupancyLimits, Rule};
use gridguard_test_support::allocator::allocations_of;
use gridguard_test_support::fake_driver::{
    Driver, launches, occupancy_queries, set_attributes, with_driver, with_fake,
};

use crate::kernels::{config, context, function, guard, kernel, with_guard, with_kernel};
use crate::optional_features::launch_idle;

/// Blocks of 32 threads that can be co-resident on an H200: 32 on each of 132 multiprocessors.
const SMALL_BLOCKS: u64 = 4224;

fn blocks_of(threads: u64, blocks: u64) -> LaunchRequest {
    LaunchRequest::new(Dim3::new(blocks, 1, 1), Dim3::new(threads, 1, 1))
}

fn rules(error: LaunchError) -> Vec<Rule> {
    let LaunchErrorKind::Invalid(violations) = error.kind() else {
        panic!("another error: {error:?}");
    };
    violations.iter().map(|violation| violation.rule).collect()
}

#[test]
fn a_cooperative_launch_that_cannot_be_co_resident_never_reaches_the_driver() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        for (threads, most) in [(32, SMALL_BLOCKS), (1024, 264)] {
            let most_of = blocks_of(threads, most).cooperative();
            assert_eq!(launch_idle(&guard, &kernel, &most_of), Ok(1));
            let more = blocks_of(threads, most + 1).cooperative();
            let error = launch_idle(&guard, &kernel, &more).expect_err("one too many");
            assert_eq!(rules(error), [Rule::CooperativeResidency]);
        }
        assert_eq!(launches().len(), 2);
        assert_eq!(guard.counts().rejections, [(Rule::CooperativeResidency, 2)]);
    });
}

#[test]
fn occupancy_is_queried_once_for_each_configuration_and_never_for_plain_launches() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let launch = |request: &LaunchRequest| launch_idle(&guard, &kernel, request);
        assert_eq!(launch(&blocks_of(32, 8)), Ok(1));
        assert_eq!(occupancy_queries(), Vec::<String>::new());
        for blocks in [8, 16, 8] {
            assert_eq!(launch(&blocks_of(32, blocks).cooperative()), Ok(1));
        }
        assert_eq!(occupancy_queries(), ["idle blocks"]);
        assert_eq!(launch(&blocks_of(64, 8).cooperative()), Ok(1));
        assert_eq!(occupancy_queries().len(), 2, "other blocks");
        for _ in 0..3 {
            assert_eq!(launch(&blocks_of(32, 8).cluster(Dim3::new(4, 1, 1))), Ok(1));
        }
        assert_eq!(occupancy_queries()[2..], ["idle blocks", "idle cluster", "idle clusters"]);
    });
}

#[test]
fn more_configurations_than_are_kept_all_get_their_own_limits() {
    with_kernel(&[], "idle", |_, kernel, _| {
        for round in 0..2 {
            for bytes in 0..100 {
                let most = blocks_of(32, SMALL_BLOCKS).dynamic_shared_bytes(bytes).cooperative();
                let room = kernel.occupancy(&most).expect("the query succeeds").blocks;
                assert_eq!(room, Some(SMALL_BLOCKS), "{bytes} bytes in round {round}");
            }
        }
        let kept = kernel.occupancy(&blocks_of(32, 1).dynamic_shared_bytes(99).cooperative());
        assert!(kept.is_ok());
        assert_eq!(occupancy_queries().len(), 200, "the oldest are asked for anew");
    });
}

#[test]
fn a_known_configuration_is_looked_up_without_allocation() {
    with_kernel(&[], "idle", |_, kernel, _| {
        let request = blocks_of(32, 8).cooperative().cluster(Dim3::new(2, 1, 1));
        let first = kernel.occupancy(&request);
        let (again, allocations) = allocations_of(|| kernel.occupancy(&request));
        assert_eq!((again, allocations), (first, 0));
    });
}

#[test]
fn occupancy_counts_blocks_and_not_clusters() {
    with_kernel(&[], "idle", |guard, kernel, _| {
        let of = |blocks| blocks_of(32, blocks).cooperative().cluster(Dim3::new(8, 1, 1));
        assert_eq!(launch_idle(&guard, &kernel, &of(SMALL_BLOCKS)), Ok(1));
        let error = launch_idle(&guard, &kernel, &of(SMALL_BLOCKS + 8)).expect_err("too many");
        assert_eq!(rules(error), [Rule::CooperativeResidency]);
    });
}

#[test]
#[allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]
fn a_kernel_with_explicit_cluster_is_queried_with_one() {
    const PTX: &str = ".version 8.0\n.target sm_90\n.address_size 64\n\
        // fake explicit explicit_cluster=1\n.visible .entry explicit()\n{ ret; }\n";
    with_guard(&[], |guard| {
        let image = gridguard::cuda::Image::new(PTX).expect("PTX");
        let module = guard.load(&image).expect("loads");
        // SAFETY: the kernel does nothing.
        let kernel = unsafe { module.kernel("explicit", &[]) }.expect("a kernel");
        let request = blocks_of(32, 8).cooperative().cluster(Dim3::new(4, 1, 1));
        let room = OccupancyLimits { blocks: Some(SMALL_BLOCKS), cluster_blocks: Some(8) };
        assert_eq!(kernel.occupancy(&request), Ok(room));
        let none = request.cluster(Dim3::new(0, 0, 0));
        assert_eq!(kernel.occupancy(&none), Ok(OccupancyLimits::UNKNOWN));
    });
}

#[test]
fn large_shared_memory_is_opted_in_to_before_the_query() {
    with_kernel(&[], "idle", |_, kernel, _| {
        let request = blocks_of(32, 1).dynamic_shared_bytes(200_000).cooperative();
        let one_each = OccupancyLimits { blocks: Some(132), cluster_blocks: None };
        assert_eq!(kernel.occupancy(&request), Ok(one_each));
        assert_eq!(set_attributes(), ["idle 8=232448"]);
    });
}

#[test]
#[allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]
fn clusters_above_the_portable_size_need_a_kernel_in_wide_clusters() {
    with_guard(&[], |guard| {
        let image = gridguard::cuda::Image::new(crate::kernels::PTX).expect("PTX");
        let module = guard.load(&image).expect("loads");
        let parameters = crate::kernels::parameters("idle");
        let wide = blocks_of(32, 64).cluster(Dim3::new(16, 1, 1));
        // SAFETY: the kernel does nothing.
        let portable = unsafe { module.kernel("idle", parameters) }.expect("a kernel");
        let error = launch_idle(&guard, &portable, &wide).expect_err("8 are portable");
        assert_eq!(rules(error), [Rule::ClusterSize]);
        // SAFETY: as above.
        let kernel = unsafe { module.kernel_in_wide_clusters("idle", parameters) };
        assert_eq!(launch_idle(&guard, &kernel.expect("a kernel"), &wide), Ok(1));
        assert_eq!(set_attributes(), ["idle 14=1"]);
    });
}

#[test]
fn a_cluster_that_does_not_fit_never_reaches_the_driver() {
    with_kernel(&[("GRIDGUARD_FAKE_MAX_CLUSTER", "4")], "idle", |guard, kernel, _| {
        let of = |blocks| blocks_of(32, 64).cluster(Dim3::new(blocks, 1, 1));
        assert_eq!(launch_idle(&guard, &kernel, &of(4)), Ok(1));
        let error = launch_idle(&guard, &kernel, &of(8)).expect_err("no room");
        assert_eq!(rules(error), [Rule::ClusterResidency]);
        assert_eq!(launches().len(), 1);
    });
}

#[test]
#[allow(unsafe_code, reason = "launches as cudarc makes them")]
fn a_compiled_in_cluster_that_does_not_fit_is_rejected_too() {
    with_kernel(&[("GRIDGUARD_FAKE_MAX_CLUSTER", "1")], "clustered", |guard, kernel, stream| {
        let plain = blocks_of(32, 64);
        for request in [plain, plain.cluster(Dim3::new(2, 1, 1))] {
            let launched = guard.launch(&kernel, &request, Args::new(&stream));
            assert_eq!(rules(launched.expect_err("no room")), [Rule::ClusterResidency]);
        }
        assert_eq!(occupancy_queries().len(), 3, "asked once");
        let function = function(context(&guard), "clustered");
        // SAFETY: the function takes nothing.
        let launched = unsafe { guard.builder(&stream, &function).launch(config((64, 1, 1), 32)) };
        assert_eq!(rules(launched.expect_err("no room")), [Rule::ClusterResidency]);
        assert_eq!(launches(), Vec::<String>::new());
    });
}

#[test]
fn blocks_that_break_a_rule_are_not_queried() {
    with_fake(&[], || {
        let kernel = kernel(&guard(), "idle");
        for request in [
            blocks_of(2048, 1).cooperative(),
            blocks_of(32, 1).dynamic_shared_bytes(1 << 40).cooperative(),
            blocks_of(32, 1).cluster(Dim3::new(9, 1, 1)),
            blocks_of(32, 1),
        ] {
            assert_eq!(kernel.occupancy(&request), Ok(OccupancyLimits::UNKNOWN));
        }
        assert_eq!(occupancy_queries(), Vec::<String>::new());
    });
}

#[test]
fn a_failed_query_stops_the_launch() {
    with_kernel(&[("GRIDGUARD_FAKE_FAIL_OCCUPANCY", "999")], "idle", |guard, kernel, _| {
        let error = launch_idle(&guard, &kernel, &blocks_of(32, 8).cooperative());
        let error = error.expect_err("it fails");
        let LaunchErrorKind::Driver(error) = error.kind() else { panic!("{error:?}") };
        let call = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
        assert_eq!((error.call, error.code), (call, 999));
        assert_eq!(launches(), Vec::<String>::new());
        assert_eq!(launch_idle(&guard, &kernel, &blocks_of(32, 8)), Ok(1), "plain ones run");
    });
}

#[test]
fn an_old_driver_knows_blocks_but_no_clusters() {
    with_driver(Driver::Old, &[], || {
        let kernel = kernel(&guard(), "idle");
        let request = blocks_of(32, 8).cooperative();
        let blocks = OccupancyLimits { blocks: Some(SMALL_BLOCKS), cluster_blocks: None };
        assert_eq!(kernel.occupancy(&request), Ok(blocks));
        assert_eq!(kernel.occupancy(&request.cluster(Dim3::new(2, 1, 1))), Ok(blocks));
    });
}
