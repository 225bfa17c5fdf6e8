//! Step 6: events of the guard for a log, and its numbers for Prometheus.
//!
//! Run it with `cargo run --release --example 06_observe`. Events go to standard error as lines of JSON,
//! the numbers to standard output as a Prometheus server would read them.

use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, KernelLimits, LaunchRequest};
use metrics_exporter_prometheus::PrometheusBuilder;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Any subscriber and recorder work. The guard needs its features `tracing` and `metrics`.
    tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(std::io::stderr)
        .init();
    let prometheus = PrometheusBuilder::new().install_recorder()?;
    gridguard::describe_metrics();

    let guard = Guard::best_or_host();
    let limits = guard.limits_for(KernelLimits::unknown("double"));
    let launch = |items: usize, in_chunks: bool| -> Result<u64, Box<dyn std::error::Error>> {
        let blocks = u64::try_from(items)?;
        let request = LaunchRequest::new(Dim3::new(1, blocks, 1), Dim3::new(32, 1, 1));
        let batch = BatchAxis::new(Axis::Y, blocks);
        let batch = in_chunks.then_some(&batch);
        let plan = guard.plan(&request, batch, &limits, Choice::AUTOMATIC)?;
        let mut values = vec![1.0_f64; items];
        let double = |_, item: &mut [f64]| item.iter_mut().for_each(|value| *value *= 2.0);
        Ok(guard.launch_on_host(&plan, &mut values, 1, double)?)
    };
    launch(1000, true)?;
    launch(100_000, true)?;
    if let Err(error) = launch(100_000, false) {
        println!("# {error}");
    }
    println!("{}", prometheus.render());
    Ok(())
}
