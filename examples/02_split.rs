//! Step 2: splits a launch that is too large into legal launches, each on its chunk of the batch.
//! It needs no GPU: planning is pure arithmetic on limits.
//!
//! Run it with `cargo run --release --example 02_split`.

use gridguard::{
    Axis, BatchAxis, Choice, Dim3, Guard, KernelLimits, LaunchRequest, Plan, Strategy, catalog,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guard = Guard::host(catalog::gpu("h200")?.limits.clone());
    let limits = guard.limits_for(KernelLimits::unknown("attention"));
    let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));

    // Only the caller knows which blocks are independent: here 15,360 items of 5 heads each.
    let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);

    println!("automatic: the fewest launches, of balanced size");
    show(&guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC)?);

    println!("chunks of at most 4096 items, as a tuner might choose");
    show(&guard.plan(&request, Some(&batch), &limits, Choice::at_most(4096))?);

    println!("a kernel with 32-bit indices and 1 Mi elements per item");
    show(&guard.plan(&request, Some(&batch.index_32_bits(1 << 20)), &limits, Choice::AUTOMATIC)?);

    println!("folded: a kernel that can also read its item from blockIdx.x");
    let folded = Choice::AUTOMATIC.strategy(Strategy::Folded);
    show(&guard.plan(&request, Some(&batch.foldable()), &limits, folded)?);

    println!("a cooperative launch cannot be split");
    match guard.plan(&request.cooperative(), Some(&batch), &limits, Choice::AUTOMATIC) {
        Ok(plan) => show(&plan),
        Err(violations) => {
            for violation in &violations {
                println!("  rejected: {violation}");
            }
        }
    }
    Ok(())
}

/// Prints the first launches of a plan.
fn show(plan: &Plan) {
    let plural = if plan.len() == 1 { "launch" } else { "launches" };
    println!("  {}, {} {plural}", plan.strategy(), plan.len());
    for planned in plan.launches().take(3) {
        let chunk = planned.chunk;
        let [x, y, z] = planned.launch.grid();
        println!("    items {}..{}, grid {x} x {y} x {z}", chunk.start, chunk.end());
    }
    let more = plan.len().saturating_sub(3);
    if more > 0 {
        println!("    and {more} more");
    }
}
