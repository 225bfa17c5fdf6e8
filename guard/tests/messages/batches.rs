//! The violations of a batch.

use gridguard::{Axis, BatchAxis, Choice, Dim3, LaunchRequest, Plan, Strategy};

use crate::{Snapshot, blocks_along, by_row, on_h200};

fn refused(
    request: LaunchRequest,
    batch: BatchAxis,
    choice: Choice,
    text: &'static str,
) -> Snapshot {
    let violations =
        Plan::new(&request, Some(&batch), &on_h200(|_| {}), choice).expect_err("there is no plan");
    (violations, text)
}

fn on_y(items: u64) -> BatchAxis {
    BatchAxis::new(Axis::Y, items)
}

fn y_blocks(blocks: u64) -> LaunchRequest {
    blocks_along(Axis::Y, blocks)
}

pub(crate) fn snapshots() -> Vec<Snapshot> {
    [items(), splits()].concat()
}

/// Violations of single launches, and of batches whose items do not fit.
fn items() -> Vec<Snapshot> {
    let whole = Choice::AUTOMATIC.strategy(Strategy::Whole);
    let any = Choice::AUTOMATIC;
    vec![
        refused(
            y_blocks(76_800),
            on_y(15_360).blocks_per_item(4),
            any,
            "grid.y is 76800 blocks, the batch needs 61440: make the grid cover the 15360 items of \
             the batch",
        ),
        refused(
            y_blocks(4096),
            on_y(4096).index_32_bits(1 << 20),
            whole,
            "the launch addresses 4294967296 elements, the limit is 2147483647 (32-bit indices): \
             split the batch into 3 launches of 1366 items",
        ),
        refused(
            y_blocks(3),
            on_y(3).index_32_bits(1 << 31),
            any,
            "the launch addresses 6442450944 elements, the limit is 2147483647 (32-bit indices): \
             compile the kernel with 64-bit indices",
        ),
        (
            Plan::new(&y_blocks(40_000), Some(&on_y(40_000)), &on_h200(by_row), whole)
                .expect_err("it wraps"),
            "a 32-bit index reaches 2621374464, the limit is 2147483647 (kernel attention): split \
             the batch into 2 launches of 20000 items",
        ),
        refused(
            y_blocks(4096),
            on_y(4096).workspace(1 << 20, 1 << 30),
            whole,
            "workspace is 4294967296 bytes, the limit is 1073741824 (memory available for \
             workspace): split the batch into 4 launches of 1024 items",
        ),
        refused(
            y_blocks(3),
            on_y(3).workspace(1 << 31, 1 << 30),
            any,
            "workspace is 6442450944 bytes, the limit is 1073741824 (memory available for \
             workspace): provide more memory, or use less workspace per item",
        ),
    ]
}

/// Why a batch cannot be split.
fn splits() -> Vec<Snapshot> {
    let any = Choice::AUTOMATIC;
    let folded = any.strategy(Strategy::Folded);
    let six = on_y(16_384).blocks_per_item(6);
    let clustered = y_blocks(98_304).cluster(Dim3::new(1, 4, 1));
    vec![
        refused(
            y_blocks(76_800).cooperative(),
            on_y(76_800),
            any,
            "grid.y is 76800 blocks, the limit is 65535 (NVIDIA H200): use fewer blocks, each \
             looping over several items\n\
             cooperative grid has 76800 blocks, only 4224 can be co-resident (NVIDIA H200): use \
             fewer blocks, each looping over several items",
        ),
        refused(
            y_blocks(8).cooperative(),
            on_y(8),
            Choice::at_most(3),
            "3 launches are needed, but a cooperative launch cannot be split: use fewer blocks, \
             each looping over several items",
        ),
        refused(
            clustered,
            six,
            Choice::at_most(1),
            "grid.y is 98304 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 \
             launches of 49152, or fold it into x\n\
             the smallest possible chunk is 2 items, the limit is 1 (cluster of 1 x 4 x 1): allow \
             chunks of at least 2 items",
        ),
        refused(
            y_blocks(76_800),
            on_y(76_800).align(70_000),
            any,
            "grid.y is 76800 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 \
             launches of 38400, or fold it into x\n\
             the smallest possible chunk is 70000 items, the limit is 65535 (batch): allow chunks \
             of at least 70000 items",
        ),
        refused(
            y_blocks(70_000),
            on_y(1).blocks_per_item(70_000),
            any,
            "grid.y is 70000 blocks, the limit is 65535 (NVIDIA H200): split axis y into 2 \
             launches of 35000, or fold it into x\n\
             one item needs 70000 blocks along y, the limit is 65535 (NVIDIA H200): use fewer \
             blocks per item along this axis, or move some to another axis",
        ),
        refused(
            y_blocks(8),
            on_y(8),
            folded,
            "folding was chosen, but the grid cannot be folded into x: declare the batch foldable, \
             or choose another strategy",
        ),
        refused(
            y_blocks(8),
            on_y(8),
            any.strategy(Strategy::Shifted),
            "shifting was chosen, but kernel attention was not rewritten or has clusters: load the \
             kernel with Guard::load_ptx and launch it without clusters, or choose another strategy",
        ),
        refused(
            LaunchRequest::new(Dim3::new(2_147_483_647, 2, 1), Dim3::ONE),
            on_y(2).foldable(),
            folded,
            "grid.x is 4294967294 blocks, the limit is 2147483647 (NVIDIA H200): split axis x into \
             2 launches of 2147483647",
        ),
    ]
}
