//! Step 1: validates a launch without a GPU and prints every rule that it breaks, with value, limit
//! and remedy.
//!
//! Run it with `cargo run --release --example 01_explain`.

use gridguard::{Dim3, Guard, KernelLimits, LaunchRequest, catalog};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A guard validates against the limits of any GPU in the catalogue; none has to be present.
    let guard = Guard::host(catalog::gpu("h200")?.limits.clone());
    // The kernel's own limits as compiled. On a device the guard queries the driver for them.
    let kernel = KernelLimits {
        max_threads_per_block: Some(256),
        registers_per_thread: 210,
        ..KernelLimits::unknown("attention")
    };
    let limits = guard.limits_for(kernel);

    let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(32, 8, 2))
        .dynamic_shared_bytes(64 * 1024);
    match guard.validate(&request, &limits) {
        Ok(launch) => println!("legal: grid {:?}", launch.grid()),
        Err(violations) => {
            println!("grid {}, block {}: rejected", request.grid, request.block);
            for violation in &violations {
                println!("  {:28} {violation}", violation.rule.id());
            }
        }
    }
    Ok(())
}
