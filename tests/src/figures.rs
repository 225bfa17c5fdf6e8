//! What a document of figures says about its origin, and where a benchmark writes it.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;
use gridguard::Guard;
use serde::Serialize;

/// Where, when and of what figures are.
#[derive(Clone, Debug, Serialize)]
pub struct Origin {
    device: String,
    driver: String,
    date: String,
    commit: String,
}

impl Origin {
    /// Figures of this run of the suite on the guard's device.
    #[must_use]
    pub fn of(guard: &Guard) -> Self {
        Self {
            device: guard.limits().name.clone(),
            driver: from_suite("GRIDGUARD_DRIVER"),
            date: from_suite("GRIDGUARD_DATE"),
            commit: from_suite("GRIDGUARD_COMMIT"),
        }
    }
}

/// A guard of the first device. If there is none, prints the reason.
#[must_use]
pub fn guard() -> Option<Arc<Guard>> {
    match Guard::cuda(0) {
        Ok(guard) => Some(Arc::new(guard)),
        Err(reason) => {
            eprintln!("nothing measured: {reason}");
            None
        }
    }
}

/// A kernel that limits nothing but memory: one block of x, of 256 threads, for an item of 1,024 floats.
pub const AFFINE: &str = r#"
extern "C" __global__ void affine(const float4 *x, float4 *y) {
    unsigned long long at = blockIdx.x * 256ull + threadIdx.x;
    float4 four = x[at];
    y[at] = make_float4(2 * four.x + 1, 2 * four.y + 1, 2 * four.z + 1, 2 * four.w + 1);
}
"#;

/// What the suite knows of the machine and the build, by the name of a variable.
#[must_use]
pub fn from_suite(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| "unknown".into())
}

/// Milliseconds between events around `run`.
///
/// # Errors
///
/// That of `run`, or of the driver.
pub fn event_ms(
    stream: &CudaStream,
    run: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<f64, Box<dyn Error>> {
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let start = stream.record_event(timed)?;
    run()?;
    let end = stream.record_event(timed)?;
    Ok(f64::from(start.elapsed_ms(&end)?))
}

/// The median; not a number if there are none.
#[must_use]
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Writes `report` as JSON to the file that the program's first argument names, if it has one.
///
/// # Errors
///
/// If the file cannot be written.
pub fn publish(report: &impl Serialize) -> Result<(), Box<dyn Error>> {
    // cargo bench adds options of its own.
    if let Some(path) = std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        let text = serde_json::to_string_pretty(report)? + "\n";
        gridguard_files::publish(path.as_ref(), text.as_bytes())?;
    }
    Ok(())
}
