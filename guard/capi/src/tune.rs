//! Tunes a function of the caller's that launches.

use core::ffi::{c_char, c_void};
use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::sys::CUcontext;
use cudarc::driver::{CudaStream, result};
use gridguard::cuda::current_context;
use gridguard::profile::user_folder;
use gridguard::{DeviceLimits, Guard};
use gridguard_autotune::{
    FailureKind, FnSpace, MeasureFailure, Measured, Trial, TuneFnError, TunedFn, TuningReport,
    tune_fn,
};

use crate::config::known_flags;
use crate::error::{entry, gg_error};
use crate::failure::{Failure, gg_status};
use crate::handles;
use crate::memory::{self, versioned};
use crate::profile::{MAX_SIZES, gg_key, gg_parameter};
use crate::text::gg_text;

/// A launch parameter and its values. This structure never changes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_range {
    /// Its name. `chunk` is the number of items of a launch.
    pub name: *const c_char,
    /// Its values, the default first.
    pub values: *const u64,
    /// The number of values. With 0 values of `chunk`, all items, half of them, a quarter and so on are tried.
    pub count: usize,
}

/// What `gg_tune` may vary, and how it compares outputs. Zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_space {
    /// Set it to `sizeof(gg_space)`.
    pub struct_size: usize,
    /// The sizes of the problem, the number of items first.
    pub sizes: *const gg_parameter,
    /// The number of sizes.
    pub size_count: usize,
    /// The launch parameters.
    pub ranges: *const gg_range,
    /// The number of launch parameters.
    pub range_count: usize,
    /// Elements of the output that are compared, 1 to 2^30.
    pub output_count: usize,
    /// How far an element may be from the default's, relative to its magnitude or to the mean magnitude of the output,
    /// whichever is larger.
    pub tolerance: f64,
    /// Ends the search after this time in milliseconds; 0 for no limit. A search that ends early stores no entry.
    pub max_ms: u64,
    /// The folder whose profile gets the entry; NULL for the user's folder.
    pub folder: *const c_char,
    /// A file that keeps all results, so that an interrupted search resumes; NULL for none.
    pub journal: *const c_char,
    /// The ordinal of the device.
    pub device: u32,
    /// `GG_ON_HOST` or 0.
    pub flags: u32,
}

versioned!(gg_space, 88);

/// The function runs on the host, and gets no stream.
pub const GG_ON_HOST: u32 = 1;

/// One call of a function that is being tuned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_trial {
    /// The size of the structure, which a later version may append to.
    pub struct_size: usize,
    /// The `CUstream` to launch on.
    pub stream: *mut c_void,
    /// A value of each range, in the order of the ranges.
    pub values: *const u64,
    /// In a check, memory for the elements of the output; else NULL.
    pub output: *mut f64,
}

/// Launches one candidate on `trial->stream`, or runs it on the host. Returns 0, or any other number if it fails.
///
/// If `trial->output` is not NULL, it first overwrites the output on the same stream, so that elements that the launch
/// leaves out are found. It waits for the stream afterwards, and writes all elements to `trial->output`: one that is
/// missing there is NaN, which equals nothing. Otherwise the call is timed, and need not wait.
///
/// The primary context of the device is current. The callback may call any function of this library and of CUDA, and
/// may free any handle. It must return: an exception that leaves it ends the process, and `longjmp` out of it is
/// undefined.
pub type gg_trial_callback =
    Option<unsafe extern "C-unwind" fn(trial: *const gg_trial, user_data: *mut c_void) -> i32>;

/// The result of `gg_tune`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gg_tuning {
    /// Set it to `sizeof(gg_tuning)`.
    pub struct_size: usize,
    /// The median time of the choice in nanoseconds.
    pub median_ns: u64,
    /// The median time of the default in nanoseconds.
    pub default_ns: u64,
    /// Candidates.
    pub candidates: usize,
    /// Candidates that failed, or whose output differs.
    pub failures: usize,
    /// 1 if the search is complete and its entry is stored, else 0.
    pub stored: u32,
    /// 0.
    pub reserved: u32,
}

versioned!(gg_tuning, 48);

/// Finds the fastest values of the ranges of `space` for `launch`, and stores them in a profile, where
/// `gg_profile_look_up` finds them. Writes the choice to `values`, one for each range, and its times to `out`. `report`,
/// which may be NULL, gets a table of all candidates.
///
/// The default has the first value of each range. It stays unless another candidate is clearly faster. A candidate
/// whose output differs from the default's never wins. `GG_TUNING` if the default fails.
///
/// All calls of `launch` are on the calling thread, whose current context is the same afterwards. The stream is of the
/// device's primary context, which the CUDA runtime uses. Retain the context if nothing else does, because its memory and
/// modules end with it. A candidate that breaks the context breaks it for the whole
/// process. Needs NVRTC, unless it runs on the host.
///
/// Thread-safe, but two tunings of one device at the same time disturb each other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gg_tune(
    key: *const gg_key,
    space: *const gg_space,
    launch: gg_trial_callback,
    user_data: *mut c_void,
    out: *mut gg_tuning,
    values: *mut u64,
    report: *mut *mut gg_text,
    error: *mut *mut gg_error,
) -> gg_status {
    let body = || {
        // SAFETY: the caller does not free the handle before the callback is called.
        let key = unsafe { handles::get(key, "key") }?.0.clone();
        // SAFETY: the caller's structures, for the time of this call.
        let space = unsafe {
            memory::read(out.cast_const(), "out")?;
            memory::read(space, "space")?
        };
        known_flags(space.flags, GG_ON_HOST, "space.flags")?;
        // SAFETY: the caller's arrays and texts, for the time of this call.
        let (mut fn_space, names, folder) = unsafe { described(&space) }?;
        if values.is_null() && !names.is_empty() {
            return Err(Failure::Null("values"));
        }
        let call = launch.ok_or(Failure::Null("launch"))?;
        let on_host = space.flags & GG_ON_HOST != 0;
        // Dropped last.
        let _restored = (!on_host).then(Restored::new).transpose()?;
        let (guard, stream) = if on_host {
            (Guard::host(DeviceLimits::any_device()), None)
        } else {
            on_device(space.device)?
        };
        let guard = Arc::new(guard);
        let mut given = vec![0; names.len()];
        let mut trial = gg_trial {
            struct_size: size_of::<gg_trial>(),
            stream: core::ptr::null_mut(),
            values: core::ptr::null(),
            output: core::ptr::null_mut(),
        };
        if let Some(stream) = &stream {
            fn_space = fn_space.on_stream(&guard, stream);
            trial.stream = stream.cu_stream().cast();
        }
        let tuned = tune_fn(&key, fn_space, |of: &mut Trial<'_>| {
            for (value, name) in given.iter_mut().zip(&names) {
                *value = of.get(name)?;
            }
            if let Some(stream) = &stream {
                // The last call may have left another one.
                stream.context().bind_to_thread()?;
            }
            let mut output = Vec::new();
            of.before(|| {
                output = unwritten(space.output_count)?;
                Ok(())
            })?;
            let to = if output.is_empty() { core::ptr::null_mut() } else { output.as_mut_ptr() };
            let trial = gg_trial { values: given.as_ptr(), output: to, ..trial };
            // SAFETY: the callback's contract. The structure and its arrays live during the call.
            match unsafe { call(&raw const trial, user_data) } {
                0 => of.output(|| Ok(output)),
                code => Err(failed(format!("the callback returned {code}"))),
            }
        })
        .map_err(tuning)?;
        let stored = match folder.filter(|_| tuned.entry.is_some()) {
            Some(folder) => tuned.publish(&guard, &folder).map_err(tuning).map(|_| 1)?,
            None => 0,
        };
        for (place, name) in names.iter().enumerate() {
            let value = tuned.parameter(name).unwrap_or_default();
            // SAFETY: not null, so there is room for a value of each range.
            unsafe { values.add(place).write_unaligned(value) };
        }
        if !report.is_null() {
            let text = TuningReport::new(&key.kernel, &tuned.outcome).to_string();
            // SAFETY: `report` is the caller's.
            unsafe { memory::create(report, || Ok(gg_text::new(text))) }?;
        }
        // SAFETY: `out` is the caller's.
        unsafe { memory::write(out, &result_of(&tuned, stored), "out") }
    };
    // SAFETY: `error` is the caller's.
    unsafe { entry(error, body) }
}

/// The space, the names of its ranges, and the folder of the profile.
///
/// # Safety
///
/// As [`gg_tune`] says of the arrays and texts.
unsafe fn described(
    space: &gg_space,
) -> Result<(FnSpace<'static>, Vec<String>, Option<PathBuf>), Failure> {
    if !(1..=MAX_OUTPUT).contains(&space.output_count) {
        let given = u64::try_from(space.output_count).unwrap_or(u64::MAX);
        let expected = "1 to 1073741824 elements to compare";
        return Err(Failure::Range { what: "space.output_count", given, expected });
    }
    // SAFETY: this function's contract, here and below.
    let sizes = unsafe { memory::array(space.sizes, space.size_count, MAX_SIZES, "space.sizes") }?;
    let mut shape = Vec::new();
    for size in sizes {
        // SAFETY: as above.
        shape.push((unsafe { memory::text(size.name, "space.sizes.name") }?, size.value));
    }
    let mut all = FnSpace::new(shape).tolerance(space.tolerance);
    // SAFETY: as above.
    let ranges =
        unsafe { memory::array(space.ranges, space.range_count, MAX_SIZES, "space.ranges") }?;
    let mut names: Vec<String> = Vec::new();
    for range in ranges {
        // SAFETY: as above.
        let (name, values) = unsafe {
            let name = memory::text(range.name, "space.ranges.name")?;
            (name, memory::array(range.values, range.count, MAX_VALUES, "space.ranges.values")?)
        };
        if names.iter().any(|other| other == name) {
            let given = u64::try_from(names.len()).unwrap_or(u64::MAX);
            let expected = "a range with another name than those before it";
            return Err(Failure::Range { what: "space.ranges", given, expected });
        }
        names.push(name.to_owned());
        let values = values.iter().copied();
        all = if name == "chunk" { all.chunk(values) } else { all.parameter(name, values) };
    }
    if space.max_ms > 0 {
        all = all.time_limit(Duration::from_millis(space.max_ms));
    }
    // SAFETY: as above.
    let (journal, folder) = unsafe {
        let journal = memory::optional_text(space.journal, "space.journal")?;
        (journal, memory::optional_text(space.folder, "space.folder")?)
    };
    if let Some(journal) = journal {
        all = all.journal(journal);
    }
    Ok((all, names, folder.map(Into::into).or_else(user_folder)))
}

/// A guard in the device's primary context, and a stream of its own.
fn on_device(ordinal: u32) -> Result<(Guard, Option<Arc<CudaStream>>), Failure> {
    let guard = Guard::cuda(usize::try_from(ordinal).unwrap_or(usize::MAX))?;
    let stream = guard.context().map(|context| {
        // SAFETY: all memory of this object of cudarc's belongs to the clock, and is used on one stream.
        unsafe { context.disable_event_tracking() };
        context.new_stream()
    });
    let stream = stream.transpose().map_err(|error| tuning(MeasureFailure::from(error)))?;
    Ok((guard, stream))
}

/// Makes the context that was current so again.
struct Restored(CUcontext);

impl Restored {
    fn new() -> Result<Self, Failure> {
        let current = current_context()?;
        Ok(Self(current.map_or(core::ptr::null_mut(), |context| context.as_ptr().cast())))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        // SAFETY: it was current when the call began. If the callback destroyed it, the driver refuses it.
        let _ = unsafe { result::ctx::set_current(self.0) };
    }
}

/// Memory for an output, whose elements equal nothing until they are written.
fn unwritten(count: usize) -> Measured<Vec<f64>> {
    let mut output = Vec::new();
    let reserved = output.try_reserve_exact(count);
    reserved.map_err(|_| failed(format!("there is no memory for {count} elements of output")))?;
    output.resize(count, f64::NAN);
    Ok(output)
}

fn failed(message: String) -> MeasureFailure {
    MeasureFailure::new(FailureKind::Launch, message)
}

fn tuning(error: impl Into<TuneFnError>) -> Failure {
    Failure::Tuning(Box::new(error.into()))
}

fn result_of(tuned: &TunedFn, stored: u32) -> gg_tuning {
    let outcome = &tuned.outcome;
    gg_tuning {
        struct_size: 0,
        median_ns: outcome.chosen.median_ns,
        default_ns: outcome.baseline.median_ns,
        candidates: outcome.candidates.len(),
        failures: outcome.failures().count(),
        stored,
        reserved: 0,
    }
}

/// Elements of an output: 8 GiB.
const MAX_OUTPUT: usize = 1 << 30;
/// More values than a search has candidates.
const MAX_VALUES: usize = 1 << 13;
