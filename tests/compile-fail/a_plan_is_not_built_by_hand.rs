//! Only the planner makes a `Plan`.

use gridguard::{Chunks, Plan, Strategy, ValidLaunch};

fn plan(launch: ValidLaunch) -> Plan {
    Plan {
        strategy: Strategy::Chunked,
        chunks: Chunks::balanced(76_800, 65_535, 1),
        batch: None,
        launch,
    }
}

fn main() {
    let _ = plan;
}
