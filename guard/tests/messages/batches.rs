//! The violations of a batch.

use gridguard::{Axis, BatchAxis, Choice, Dim3, LaunchRequest, Plan, Strategy, Violations};

use super::{blocks_along, by_row, on_h200};

fn refused(request: LaunchRequest, batch: BatchAxis, choice: Choice) -> Violations {
    Plan::new(&request, Some(&batch), &on_h200(|_| {}), choice).expect_err("there is no plan")
}

fn on_y(items: u64) -> BatchAxis {
    BatchAxis::new(Axis::Y, items)
}

fn y_blocks(blocks: u64) -> LaunchRequest {
    blocks_along(Axis::Y, blocks)
}

pub(crate) fn violations() -> Vec<Violations> {
    [items(), splits()].concat()
}

/// Violations of single launches, and of batches whose items do not fit.
fn items() -> Vec<Violations> {
    let whole = Choice::AUTOMATIC.strategy(Strategy::Whole);
    let any = Choice::AUTOMATIC;
    vec![
        refused(y_blocks(76_800), on_y(15_360).blocks_per_item(4), any),
        refused(y_blocks(4096), on_y(4096).index_32_bits(1 << 20), whole),
        refused(y_blocks(3), on_y(3).index_32_bits(1 << 31), any),
        Plan::new(&y_blocks(40_000), Some(&on_y(40_000)), &on_h200(by_row), whole)
            .expect_err("it wraps"),
        refused(y_blocks(4096), on_y(4096).workspace(1 << 20, 1 << 30), whole),
        refused(y_blocks(3), on_y(3).workspace(1 << 31, 1 << 30), any),
    ]
}

/// Why a batch cannot be split.
fn splits() -> Vec<Violations> {
    let any = Choice::AUTOMATIC;
    let folded = any.strategy(Strategy::Folded);
    let six = on_y(16_384).blocks_per_item(6);
    let clustered = y_blocks(98_304).cluster(Dim3::new(1, 4, 1));
    vec![
        refused(y_blocks(76_800).cooperative(), on_y(76_800), any),
        refused(y_blocks(8).cooperative(), on_y(8), Choice::at_most(3)),
        refused(clustered, six, Choice::at_most(1)),
        refused(y_blocks(76_800), on_y(76_800).align(70_000), any),
        refused(y_blocks(70_000), on_y(1).blocks_per_item(70_000), any),
        refused(y_blocks(8), on_y(8), folded),
        refused(y_blocks(8), on_y(8), any.strategy(Strategy::Shifted)),
        refused(
            LaunchRequest::new(Dim3::new(2_147_483_647, 2, 1), Dim3::ONE),
            on_y(2).foldable(),
            folded,
        ),
    ]
}
