//! 2. A launch that is too large becomes several that are not, each on its chunk of the batch.
//!
//! `cargo run --release --example 02_split`

use gridguard::{
    Axis, BatchAxis, Choice, Dim3, Guard, KernelLimits, LaunchRequest, Strategy, catalog,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guard = Guard::host(catalog::gpu("h200")?.limits.clone());
    let limits = guard.limits_for(KernelLimits::unknown("attention"));
    let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(128, 1, 1));

    // Only the caller knows which blocks are independent: here 15,360 items of 5 heads each.
    let batch = BatchAxis::new(Axis::Y, 15_360).blocks_per_item(5);

    println!("the planner's own choice:");
    show(&guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC)?);

    println!("chunks of at most 4,096 items, as a tuner might choose:");
    show(&guard.plan(&request, Some(&batch), &limits, Choice::at_most(4096))?);

    println!("32-bit indices of 1 Mi elements an item:");
    show(&guard.plan(&request, Some(&batch.index_32_bits(1 << 20)), &limits, Choice::AUTOMATIC)?);

    println!("a kernel that finds its item on x as well:");
    let folded = Choice::AUTOMATIC.strategy(Strategy::Folded);
    show(&guard.plan(&request, Some(&batch.foldable()), &limits, folded)?);

    println!("a cooperative launch cannot be split:");
    match guard.plan(&request.cooperative(), Some(&batch), &limits, Choice::AUTOMATIC) {
        Ok(plan) => show(&plan),
        Err(violations) => println!("{violations}"),
    }
    Ok(())
}

fn show(plan: &gridguard::Plan) {
    println!("  {}, {} launches", plan.strategy(), plan.len());
    for planned in plan.launches().take(3) {
        let chunk = planned.chunk;
        println!("  items {:>5}..{:<5} grid {:?}", chunk.start, chunk.end(), planned.launch.grid());
    }
}
