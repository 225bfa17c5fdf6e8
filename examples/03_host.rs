//! Step 3: runs a split launch on the host, under the limits of a GPU. The same plan would run on
//! that GPU, so code that uses it can be tested without one.
//!
//! Run it with `cargo run --release --example 03_host`.

use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, KernelLimits, LaunchRequest};

const ROWS: usize = 100_000;
const COLUMNS: u32 = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guard = Guard::best_or_host();
    let limits_of = &guard.limits().name;
    match guard.fallback() {
        Some(reason) => println!("no GPU, using the limits of {limits_of}: {reason}"),
        None => println!("using the limits of {limits_of}"),
    }

    // Row sums, one block per row on y: 100,000 rows exceed the limit of 65,535 blocks.
    let rows = u64::try_from(ROWS)?;
    let limits = guard.limits_for(KernelLimits::unknown("row_sums"));
    let request = LaunchRequest::new(Dim3::new(1, rows, 1), Dim3::new(64, 1, 1));
    let batch = BatchAxis::new(Axis::Y, rows);
    let plan = guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC)?;

    // Row r has the numbers from r on.
    let mut sums = vec![f64::NAN; ROWS];
    let row_sum = |row: u64, sum: &mut [f64]| {
        let first = u32::try_from(row).unwrap_or(u32::MAX);
        sum.fill((0..COLUMNS).map(|column| f64::from(first) + f64::from(column)).sum());
    };
    let launches = guard.launch_on_host(&plan, &mut sums, 1, row_sum)?;
    println!("{launches} launches, each of at most {} rows", plan.largest_chunk());
    println!("row {}: sum {}", ROWS - 1, sums[ROWS - 1]);
    Ok(())
}
