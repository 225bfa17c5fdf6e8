//! 1. What is wrong with a launch? All of it, with numbers and the way out.
//!
//! `cargo run --release --example 01_explain`

use gridguard::{Dim3, Guard, KernelLimits, LaunchRequest, catalog};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A guard plans for any GPU of the catalogue; none has to be present.
    let guard = Guard::host(catalog::gpu("h200")?.limits.clone());
    // What the compiler made of the kernel. On a device the guard asks the driver for this.
    let kernel = KernelLimits {
        max_threads_per_block: 256,
        registers_per_thread: 210,
        ..KernelLimits::unknown("attention")
    };
    let limits = guard.limits_for(kernel);

    let request = LaunchRequest::new(Dim3::new(1, 76_800, 1), Dim3::new(32, 8, 2))
        .dynamic_shared_bytes(64 * 1024);
    match guard.validate(&request, &limits) {
        Ok(launch) => println!("legal: grid {:?}", launch.grid()),
        Err(violations) => {
            for violation in &violations {
                println!("{:30} {violation}", violation.rule.id());
            }
        }
    }
    Ok(())
}
