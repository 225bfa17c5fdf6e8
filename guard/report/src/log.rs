//! The failures in a message or a log, as `gridguard explain` writes them.
//!
//! ```
//! use gridguard_diagnose::Known;
//! use gridguard_report::{explain_log, scan};
//!
//! let (log, _) = scan("CUDA error: invalid configuration argument");
//! let diagnosis = explain_log(&log, &Known::default(), None)?;
//! assert_eq!(diagnosis.failures[0].code, Some(9));
//! # Ok::<(), gridguard::catalog::CatalogError>(())
//! ```

use gridguard::DeviceLimits;
use gridguard::catalog::CatalogError;
use gridguard_diagnose::{Diagnosis, Known, LogScanner, similar_failures};

use crate::stated_launch;

/// Scans a log of several lines, or a message, a name or a number. If the text reports no failure, but is part of the
/// name or message of exactly one, that failure is assumed, and its name returned too.
pub fn scan(text: &str) -> (LogScanner, Option<&'static str>) {
    // A single line is a question.
    let is_log = text.contains('\n');
    let mut log = if is_log { LogScanner::new() } else { LogScanner::for_question() };
    text.lines().for_each(|line| log.line(line));
    if log.count() == 0
        && let [assumed] = *similar_failures(text).as_slice()
    {
        let mut log = LogScanner::for_question();
        log.line(assumed);
        return (log, Some(assumed));
    }
    (log, None)
}

/// Explains the failures in `log`. A launch that the log states beside a refused one is checked against `device`,
/// against the compute capability in the log, or else against the GPUs of the catalogue. `known` holds facts that are
/// not in the log.
///
/// # Errors
///
/// [`CatalogError`] if the catalogue does not parse.
pub fn explain_log(
    log: &LogScanner,
    known: &Known,
    device: Option<&DeviceLimits>,
) -> Result<Diagnosis, CatalogError> {
    let mut diagnosis = log.diagnosis(known);
    let capability = log.facts().filter(|(name, ..)| *name == "cc").last();
    let capability = capability.map(|(_, value, _)| value.to_owned());
    for place in 0..diagnosis.failures.len() {
        let launch = diagnosis.failures.get(place).and_then(|it| it.launch.clone());
        if let Some(launch) = launch {
            let judged = stated_launch::judge(&launch, device, capability.as_deref())?;
            if let Some((rules, command)) = judged {
                diagnosis.judge_launch(place, &rules, Some(&command));
            }
        }
    }
    Ok(diagnosis)
}
