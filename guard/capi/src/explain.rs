//! Explains failures: their meaning, their usual causes, and their remedies.

use core::ffi::c_char;

use gridguard::explain;
use gridguard_diagnose::{Diagnosis, Known};
use gridguard_report::{Diagnose, device_facts, explain_log, of_code, scan, violated_rules};

use crate::config::{gg_batch, gg_config};
use crate::error::{create, gg_error};
use crate::failure::{Failure, gg_status};
use crate::handles;
use crate::limits::gg_limits;
use crate::memory::{self, gg_text};

/// Explains a `CUresult` or `cudaError_t`, which have the same numbers for most errors. If you pass the launch that
/// returned it, the explanation begins with the rules that the launch breaks. `limits`, `config` and `batch` may
/// each be NULL, but a `config` needs `limits`.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_explain(
    code: i32,
    limits: *const gg_limits,
    config: *const gg_config,
    batch: *const gg_batch,
    out: *mut *mut gg_text,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        if code == 0 {
            return Err(Failure::new(gg_status::GG_NOT_FOUND, "0 is success: nothing failed"));
        }
        // SAFETY: the caller's structures, for the time of this call.
        let (config, batch) = unsafe {
            (memory::read_optional(config, "config")?, memory::read_optional(batch, "batch")?)
        };
        if limits.is_null() && config.is_none() {
            return Ok(text_of(&of_code(code, &Known::default())));
        }
        // SAFETY: the caller does not free the handle meanwhile.
        let limits = &unsafe { handles::get(limits, "limits") }?.limits;
        let mut known = device_facts(limits.device());
        if let Some(config) = config {
            let request = config.request()?;
            let batch = batch.map(|batch| batch.declared()).transpose()?;
            let violations = explain(&request, batch.as_ref(), limits);
            known = known.rules(violated_rules(&violations));
        }
        Ok(text_of(&of_code(code, &known)))
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// Explains a message or a whole log in UTF-8, and writes the diagnosis as JSON: `platform`, `lines` and `failures`, the
/// deciding one first, each with a stable `id`, `confidence`, `fault`, `memory`, `cause`, `remedy` and `evidence`, as
/// `gridguard explain --format json` does. `GG_NOT_FOUND` if no failure is recognized. A launch in the text is
/// checked on the compute capability that the text states, and without one against the GPUs of the catalogue. A text that
/// shows a failure which no explanation fits has a failure of confidence `unknown`, which quotes the deciding line. Takes
/// time linear in the text.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_diagnose(
    text: *const c_char,
    out: *mut *mut gg_text,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller's text, for the time of this call.
        let text = unsafe { memory::text(text, "text") }?;
        let internal = |error: &dyn core::fmt::Display| {
            Failure::new(gg_status::GG_INTERNAL, error.to_string())
        };
        let (log, _) = scan(text);
        let diagnosis = explain_log(&log, &Known::default(), None);
        let diagnosis = diagnosis.map_err(|error| internal(&error))?;
        if diagnosis.failures.is_empty() {
            return Err(Failure::new(gg_status::GG_NOT_FOUND, "no failure recognized"));
        }
        serde_json::to_vec(&diagnosis).map(gg_text::new).map_err(|error| internal(&error))
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

/// Explains an error of this library: CUDA's name of the failure, its cause or possible causes, and the remedies.
/// `GG_NOT_FOUND` if CUDA has no error for it; the error's message is then complete.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_error_explain(
    failed: *const gg_error,
    out: *mut *mut gg_text,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let failed = unsafe { handles::get(failed, "failed") }?;
        let diagnosis = failed.failure.library().and_then(Diagnose::diagnosis);
        let none = || Failure::new(gg_status::GG_NOT_FOUND, "CUDA has no error for this failure");
        diagnosis.as_ref().map(text_of).ok_or_else(none)
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

fn text_of(diagnosis: &Diagnosis) -> gg_text {
    gg_text::new(diagnosis.to_string())
}
