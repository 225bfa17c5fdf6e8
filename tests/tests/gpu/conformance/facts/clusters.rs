//! Clusters of every size, and cooperative launches of the largest co-resident grid.

use gridguard::{Dim3, LaunchRequest};
use gridguard_test_support::conformance::raw::{LaunchCall, RawDriver};

use super::super::kernels::Opened;
use super::features::debug;
use super::{Facts, Loaded, blocks_of, loaded};
use crate::support::guard;

/// `CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET` and `_REQUIRED_CLUSTER_WIDTH` to `_DEPTH`.
const CLUSTER_ATTRIBUTES: core::ops::RangeInclusive<i32> = 10..=13;

pub(super) fn measure(driver: &RawDriver, facts: &mut Facts) {
    if !guard().limits().cluster_launch {
        let plain = loaded(driver, &[], Opened::No).expect("a kernel");
        let answers = [1, 2].map(|x| plain.answer(driver, &clustered(32, x), LaunchCall::Extended));
        facts.note("a device without clusters, clusters of 1 and 2", debug(&answers));
        return;
    }
    sizes(driver, facts);
    compiled_sizes(driver, facts);
    cooperative(driver, facts);
}

fn clustered(threads: u64, x: u64) -> LaunchRequest {
    blocks_of(threads, (16 * x).max(1)).cluster(Dim3::new(x, 1, 1))
}

fn sizes(driver: &RawDriver, facts: &mut Facts) {
    // Each multiprocessor then holds one block.
    let all = guard().limits().max_shared_bytes_per_block_opt_in;
    for (what, macros, opened, threads, bytes) in [
        ("portable", &[][..], Opened::No, 32, 0),
        ("wide", &[], Opened::Clusters, 32, 0),
        ("wide, 1024 threads", &[], Opened::Clusters, 1024, 0),
        ("wide, all shared memory", &[], Opened::ClustersAndAllShared, 1024, all),
        ("wide, 254 registers", &[("LIVE", "200")], Opened::Clusters, 256, 0),
    ] {
        let kernel = loaded(driver, macros, opened).expect("a kernel");
        let of = |x| clustered(threads, x).dynamic_shared_bytes(bytes);
        let answers: Vec<(u64, i32)> =
            (0..=17).map(|x| (x, kernel.answer(driver, &of(x), LaunchCall::Extended).0)).collect();
        facts.note(format!("clusters of 0 to 17 along x, {what}"), debug(&answers));
        let rooms: Vec<_> = [2, 7, 8, 16].map(|x| (x, kernel.kernel.occupancy(&of(x)))).into();
        facts.note(format!("room for clusters, {what}"), debug(&rooms));
    }
    let plain = loaded(driver, &[], Opened::No).expect("a kernel");
    for cluster in [Dim3::new(0, 0, 0), Dim3::new(1, 0, 1), Dim3::new(1, 1, 1)] {
        let request = blocks_of(32, 4).cluster(cluster);
        let answers = plain.answer(driver, &request, LaunchCall::Extended);
        facts.note(format!("a cluster of {cluster}"), debug(&answers));
    }
}

/// Cluster sizes given at compile time, launched without and with a cluster attribute.
fn compiled_sizes(driver: &RawDriver, facts: &mut Facts) {
    for blocks in [2, 8, 9, 16, 17] {
        let dims = format!("__cluster_dims__({blocks}, 1, 1)");
        for (what, opened) in [("portable", Opened::No), ("wide", Opened::Clusters)] {
            let what = format!("{dims}, {what}");
            let kernel = match loaded(driver, &[("ATTRIBUTES", &dims)], opened) {
                Ok(kernel) => kernel,
                Err(error) => {
                    facts.note(what, error);
                    continue;
                }
            };
            let read: Vec<_> = CLUSTER_ATTRIBUTES
                .map(|attribute| driver.attribute(kernel.kernel.function, attribute))
                .collect();
            facts.note(format!("{what}: attributes 10 to 13"), debug(&read));
            let plainly = blocks_of(32, 2 * blocks);
            let named = plainly.cluster(Dim3::new(blocks, 1, 1));
            for (how, request) in [("plainly", plainly), ("by its own size", named)] {
                let answers = kernel.answer(driver, &request, LaunchCall::Extended);
                facts.note(format!("{what}: {how}"), debug(&answers));
            }
        }
    }
}

/// The most blocks that a cooperative launch may have, against what occupancy says.
fn cooperative(driver: &RawDriver, facts: &mut Facts) {
    let opened = Opened::ClustersAndAllShared;
    let kernel = loaded(driver, &[], opened).expect("a kernel");
    // Each multiprocessor then holds one block.
    let all = guard().limits().max_shared_bytes_per_block_opt_in;
    for (threads, bytes) in [(32, 0), (512, 0), (1024, 0), (1024, all / 2 - 1024), (1024, all)] {
        for blocks in [0, 1, 2, 3, 4, 5, 7, 8, 12, 16] {
            let request = blocks_of(threads, 1).dynamic_shared_bytes(bytes).cooperative();
            let request = match blocks {
                0 => request,
                _ => request.cluster(Dim3::new(blocks, 1, 1)),
            };
            let most = most_blocks(driver, &kernel, &request, blocks.max(1));
            let room = kernel.kernel.occupancy(&request);
            let what =
                format!("cooperative, {threads} threads, {bytes} bytes, cluster of {blocks}");
            facts.note(what, format!("accepted up to {most} blocks, the guard says {room:?}"));
        }
    }
    let own = [("ATTRIBUTES", "__cluster_dims__(2, 1, 1)")];
    let kernel = loaded(driver, &own, Opened::No).expect("a kernel");
    let request = blocks_of(1024, 2).cooperative();
    let most = most_blocks(driver, &kernel, &request, 2);
    let room = kernel.kernel.occupancy(&request);
    let what = "cooperative, compiled for clusters of 2, 1024 threads";
    facts.note(what, format!("accepted up to {most} blocks, the guard says {room:?}"));
}

/// The largest multiple of `unit` that the driver accepts as the grid's x, by bisection.
fn most_blocks(driver: &RawDriver, kernel: &Loaded, request: &LaunchRequest, unit: u64) -> u64 {
    let accepts = |count: u64| {
        let request = request.grid(Dim3::new(count * unit, 1, 1));
        kernel.answer(driver, &request, LaunchCall::Extended).0 == 0
    };
    let (mut most, mut too_many) = (0_u64, 10_000);
    while too_many - most > 1 {
        let middle = most.midpoint(too_many);
        if accepts(middle) { most = middle } else { too_many = middle }
    }
    most * unit
}
