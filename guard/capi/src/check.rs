//! Validates launches and plans them.

use core::ffi::c_char;

use gridguard::check::CheckRequest;
use gridguard::{Choice, Plan, PlannedLaunch, validate};

use crate::config::{gg_batch, gg_config, strategy_number};
use crate::error::{create, entry, gg_error};
use crate::failure::{Failure, gg_status};
use crate::handles;
use crate::limits::gg_limits;
use crate::memory::{self, gg_text, versioned};

/// The summary of a plan.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_plan_info {
    /// Set it to `sizeof(gg_plan_info)`.
    pub struct_size: usize,
    /// Launches; 0 for a batch without items.
    pub launches: u64,
    /// Items of the batch; 1 without a batch.
    pub items: u64,
    /// Items of the largest launch.
    pub largest_items: u64,
    /// `GG_STRATEGY_WHOLE`, `_CHUNKED` or `_FOLDED`.
    pub strategy: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(gg_plan_info, 40);

/// One launch of a plan. Everything else is as in the request, but only the first launch of a `GG_DEPENDENT` request
/// is dependent. This structure never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_chunk {
    /// The first item.
    pub start: u64,
    /// The number of items.
    pub items: u64,
    /// Blocks of the grid along x, y and z.
    pub grid: [u32; 3],
    /// 0.
    pub reserved: u32,
}

/// Checks that a launch breaks no rule: `GG_OK`, or `GG_REJECTED` with every violation. The check of a legal
/// launch neither allocates nor locks.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_validate(
    limits: *const gg_limits,
    config: *const gg_config,
    error: *mut *mut gg_error,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let limits = unsafe { handles::get(limits, "limits") }?;
        // SAFETY: the caller's structure, for the time of this call.
        let config = unsafe { memory::read(config, "config") }?;
        let _valid = validate(&config.request()?, &limits.limits)?;
        Ok(())
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}

/// Plans a launch: unsplit if legal, else in chunks of `batch`, which may be NULL.
///
/// Writes a summary to `out`, and up to `capacity` launches to `chunks`, from number `first` on. To read a
/// long plan in parts, call again with a larger `first`. `chunks` may be NULL if `capacity` is 0.
/// `GG_REJECTED` with the reasons if no plan is legal. A legal plan needs neither an allocation nor a lock.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_plan(
    limits: *const gg_limits,
    config: *const gg_config,
    batch: *const gg_batch,
    out: *mut gg_plan_info,
    first: u64,
    chunks: *mut gg_chunk,
    capacity: usize,
    error: *mut *mut gg_error,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let limits = unsafe { handles::get(limits, "limits") }?;
        // SAFETY: the caller's structure, for the time of this call.
        let request = unsafe { memory::read(config, "config") }?.request()?;
        let (mut declared, mut choice, mut is_preference) = (None, Choice::AUTOMATIC, false);
        if !batch.is_null() {
            // SAFETY: the caller's structure, for the time of this call.
            let batch = unsafe { memory::read(batch, "batch") }?;
            declared = Some(batch.declared()?);
            (choice, is_preference) = (batch.choice()?, batch.is_preference());
        }
        let mut planned = Plan::new(&request, declared.as_ref(), &limits.limits, choice);
        if is_preference && planned.is_err() {
            planned = Plan::new(&request, declared.as_ref(), &limits.limits, Choice::AUTOMATIC);
        }
        // A plan is large: it stays where it was made.
        let plan = match planned {
            Ok(ref plan) => plan,
            Err(violations) => return Err(violations.into()),
        };
        if capacity > 0 && chunks.is_null() {
            return Err(Failure::null("chunks"));
        }
        let info = gg_plan_info {
            struct_size: 0,
            launches: plan.len(),
            items: plan.items(),
            largest_items: plan.largest_chunk(),
            strategy: strategy_number(plan.strategy()),
            reserved: 0,
        };
        // SAFETY: `out` is the caller's.
        unsafe { memory::write(out, &info, "out") }?;
        for (place, index) in (0..capacity).zip(first..info.launches) {
            let Some(planned) = plan.at(index) else { break };
            // SAFETY: `chunks` is not null, so it has room for `capacity` launches, and `place` is less.
            unsafe { chunks.add(place).write_unaligned(planned.into()) };
        }
        Ok(())
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}

/// Checks one JSON request of `gridguard check --requests` on the device of `limits`. The request describes the
/// kernel; the kernel of `limits` is ignored.
///
/// Returns the verdict as JSON: `{"name", "verdict": "legal" | "chunked" | "rejected", "opts_in", "violations",
/// "plan"}`.
///
/// `GG_OK` for every verdict, `GG_INVALID_ARGUMENT` for a malformed request.
///
/// Thread-safe.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_check_json(
    limits: *const gg_limits,
    request: *const c_char,
    out: *mut *mut gg_text,
    error: *mut *mut gg_error,
) -> gg_status {
    let make = || {
        // SAFETY: the caller does not free the handle meanwhile.
        let limits = unsafe { handles::get(limits, "limits") }?;
        // SAFETY: the caller's text, for the time of this call.
        let text = unsafe { memory::text(request, "request") }?;
        let request: CheckRequest = serde_json::from_str(text).map_err(malformed)?;
        let verdict = request.check_with_opt_in(limits.limits.device());
        serde_json::to_vec(&verdict).map(gg_text::new).map_err(malformed)
    };
    // SAFETY: `out` and `error` are the caller's.
    unsafe { create(out, error, make) }
}

fn malformed(error: serde_json::Error) -> Failure {
    let text = format!("the request is malformed: {error}");
    Failure::new(gg_status::GG_INVALID_ARGUMENT, text)
}

impl From<PlannedLaunch> for gg_chunk {
    fn from(PlannedLaunch { chunk, launch, .. }: PlannedLaunch) -> Self {
        Self { start: chunk.start, items: chunk.items, grid: launch.grid(), reserved: 0 }
    }
}
