//! What the device has, what setting and asking for attributes answers, and which of several
//! violations the driver tells.

use gridguard::{Dim3, LaunchRequest};
use gridguard_test_support::conformance::kernel::MAX_DYNAMIC_SHARED_SIZE_BYTES;
use gridguard_test_support::conformance::raw::{LaunchCall, RawDriver};

use super::super::kernels::Opened;
use super::{Facts, blocks_of, loaded};
use crate::support::guard;

pub(super) fn measure(driver: &RawDriver, facts: &mut Facts) {
    let limits = guard().limits();
    facts.note("the device has cooperative launches", limits.cooperative_launch);
    facts.note("the device has clusters", limits.cluster_launch);
    dependent(driver, facts);
    opting_in(driver, facts);
    order_of_checks(driver, facts);
}

/// Launches that may begin before the one before them has ended, and what else they are.
fn dependent(driver: &RawDriver, facts: &mut Facts) {
    let plain = loaded(driver, &[], Opened::No).expect("a kernel");
    for (what, request) in [
        ("alone", blocks_of(32, 8)),
        ("cooperative", blocks_of(32, 8).cooperative()),
        ("in clusters", blocks_of(32, 8).cluster(Dim3::new(2, 1, 1))),
        ("cooperative, in clusters", {
            blocks_of(32, 8).cooperative().cluster(Dim3::new(2, 1, 1))
        }),
        ("with a priority", blocks_of(32, 8).priority(-1)),
    ] {
        let answers = plain.answer(driver, &request.dependent(), LaunchCall::Extended);
        facts.note(format!("dependent, {what}: launch and synchronize"), debug(&answers));
    }
}

fn opting_in(driver: &RawDriver, facts: &mut Facts) {
    let plain = loaded(driver, &[], Opened::No).expect("a kernel");
    let function = plain.kernel.function;
    let all = guard().limits().max_shared_bytes_per_block_opt_in;
    for bytes in [49_152, 49_153, all] {
        let wide = usize::try_from(bytes).expect("bytes");
        let blocks = driver.active_blocks(function, 32, wide);
        facts.note(format!("blocks a multiprocessor, {bytes} bytes, no opt-in"), debug(&blocks));
    }
    for bytes in [all, all + 1] {
        let value = i32::try_from(bytes).expect("bytes");
        let answer = driver.set_attribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, value);
        facts.note(format!("opting in to {bytes} bytes"), answer);
    }
    let wide = usize::try_from(all).expect("bytes");
    let blocks = driver.active_blocks(function, 32, wide);
    facts.note(format!("blocks a multiprocessor, {all} bytes, opted in"), debug(&blocks));
    let full = loaded(driver, &[("STATIC_WORDS", "12288")], Opened::No).expect("a kernel");
    for bytes in [all - 49_152, all - 49_151] {
        let value = i32::try_from(bytes).expect("bytes");
        let function = full.kernel.function;
        let answer = driver.set_attribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, value);
        facts.note(format!("opting in to {bytes} bytes beside 49152 static ones"), answer);
    }
}

/// Pairs of violations: which one does the driver report?
fn order_of_checks(driver: &RawDriver, facts: &mut Facts) {
    let wide = loaded(driver, &[("LIVE", "200")], Opened::No).expect("a kernel");
    let bounds = [("ATTRIBUTES", "__launch_bounds__(128)"), ("LIVE", "200")];
    let bounded = loaded(driver, &bounds, Opened::No).expect("a kernel");
    let y = |request: LaunchRequest| request.grid(Dim3::new(request.grid.x, 65_536, 1));
    let cases = [
        ("registers alone", &wide, blocks_of(512, 1)),
        ("registers, threads per block", &wide, blocks_of(1056, 1)),
        ("launch bounds alone", &bounded, blocks_of(256, 1)),
        ("launch bounds, registers", &bounded, blocks_of(512, 1)),
        ("registers, grid y", &wide, y(blocks_of(512, 1))),
        ("registers, shared memory", &wide, blocks_of(512, 1).dynamic_shared_bytes(60_000)),
        ("registers, cooperative", &wide, blocks_of(512, 9999).cooperative()),
        ("registers, cluster", &wide, blocks_of(512, 9).cluster(Dim3::new(2, 1, 1))),
        ("cluster, grid y", &wide, y(blocks_of(32, 9)).cluster(Dim3::new(2, 1, 1))),
        ("cluster size, grid y", &wide, y(blocks_of(32, 34)).cluster(Dim3::new(17, 1, 1))),
        ("cluster zero, grid y", &wide, y(blocks_of(32, 8)).cluster(Dim3::new(0, 1, 1))),
        ("cluster, block z", &wide, {
            let block = Dim3::new(1, 1, 65);
            LaunchRequest::new(Dim3::new(9, 1, 1), block).cluster(Dim3::new(2, 1, 1))
        }),
        ("cluster, shared memory", &wide, {
            blocks_of(32, 9).cluster(Dim3::new(2, 1, 1)).dynamic_shared_bytes(60_000)
        }),
        ("cluster, cooperative", &wide, {
            blocks_of(32, 9999).cluster(Dim3::new(2, 1, 1)).cooperative()
        }),
        ("shared memory, cooperative", &wide, {
            blocks_of(32, 9999).dynamic_shared_bytes(60_000).cooperative()
        }),
    ];
    for (what, kernel, request) in cases {
        for way in [LaunchCall::Oldest, LaunchCall::Extended] {
            let answers = kernel.answer(driver, &request, way);
            facts.note(format!("{what}, {way:?}: launch and synchronize"), debug(&answers));
        }
    }
}

pub(super) fn debug(value: &impl core::fmt::Debug) -> String {
    format!("{value:?}")
}
