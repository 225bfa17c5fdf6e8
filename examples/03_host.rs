//! 3. Without a GPU the host runs the same plan, under the same limits.
//!
//! `cargo run --release --example 03_host`

use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, HostLauncher, KernelLimits, LaunchRequest};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let guard = Guard::best();
    match guard.fallback() {
        Some(reason) => println!("host under the limits of {}: {reason}", guard.limits().name),
        None => println!("{} is there; this example runs on the host anyway", guard.limits().name),
    }

    // Sums of rows, one block a row, rows on y: 100,000 rows overflow.
    let (rows, columns) = (100_000_u64, 64_usize);
    let limits = guard.limits_for(KernelLimits::unknown("row_sums"));
    let request = LaunchRequest::new(Dim3::new(1, rows, 1), Dim3::new(64, 1, 1));
    let batch = BatchAxis::new(Axis::Y, rows);
    let plan = guard.plan(&request, Some(&batch), &limits, Choice::AUTOMATIC)?;

    let mut sums = vec![f64::NAN; 100_000];
    let row_sum = |row: u64, sum: &mut [f64]| {
        let numbers = (row..).take(columns);
        sum.fill(numbers.map(|x| f64::from(u32::try_from(x).unwrap_or(u32::MAX))).sum());
    };
    let launches = guard.run(&plan, &mut HostLauncher::new(&mut sums, 1, row_sum))?;
    println!("{launches} launches, row 99999 sums to {}", sums[99_999]);
    println!("{:?}", guard.counts());
    Ok(())
}
