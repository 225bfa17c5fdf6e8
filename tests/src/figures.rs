//! What a document of figures says about its origin, and where a benchmark writes it.

use std::error::Error;

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

/// What the suite knows of the machine and the build, by the name of a variable.
#[must_use]
pub fn from_suite(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| "unknown".into())
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
        gridguard::files::publish(path.as_ref(), text.as_bytes())?;
    }
    Ok(())
}
