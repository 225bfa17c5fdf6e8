//! Tunes functions of Python, which a child process runs, and looks up their choices.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use gridguard::profile::{Key, L2, Named, Policy, StoredChoice, move_user_folder};
use gridguard::{DeviceLimits, Guard};
use gridguard_autotune::{
    Candidate, Error, ErrorKind, FailureKind, FnSpace, MeasureFailure, Measured, Measurer, Portion,
    Remote, Sample, Timeouts,
};
use parking_lot::Mutex;
use pyo3::exceptions::PyBlockingIOError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;

use crate::error::{invalid, stopped, unavailable};
use crate::launches;

/// A function for one set of arguments.
#[derive(FromPyObject)]
pub(crate) struct Function {
    /// Its name, the hash of its source, its other arguments, and the types of its arrays.
    key: [String; 4],
    /// The sizes of its arguments, the number of items first.
    shape: Named,
    /// The device ordinal; the host without one.
    device: Option<usize>,
}

/// What may vary, and how a candidate is judged.
#[derive(FromPyObject)]
pub(crate) struct Search {
    parameters: Vec<(String, Vec<u64>)>,
    /// Empty for chunks of all sizes.
    chunks: Option<Vec<u64>>,
    /// Returns whether the values of a candidate are allowed.
    allows: Option<Py<PyAny>>,
    tolerance: f64,
    bytes: Option<u64>,
    flops: Option<u64>,
    /// The name of the journal.
    journal: String,
    time_limit: Option<f64>,
    /// For the check or a sample of one candidate.
    timeout: f64,
}

/// The profiles of functions on the host.
static HOST: LazyLock<Mutex<Option<Arc<Guard>>>> = LazyLock::new(Mutex::default);

fn guard(device: Option<usize>) -> PyResult<Arc<Guard>> {
    if let Some(ordinal) = device {
        return Ok(Arc::clone(launches::kernels(ordinal).map_err(unavailable)?.guard()));
    }
    let load = || Arc::new(Guard::host(DeviceLimits::any_device()).with_device_profile().0);
    Ok(Arc::clone(HOST.lock().get_or_insert_with(load)))
}

impl Function {
    /// The key of its entries. A function is timed without a flush of the cache, call after call.
    fn key(&self) -> Key {
        let [kernel, source, variant, dtypes] = self.key.clone();
        let policy = Policy { l2: L2::Hot, ..Policy::default() };
        Key { kernel, source, variant, dtypes, policy, ..Key::default() }
    }
}

/// The tuned parameters and chunk of a function, and how the profile matched. Without a chunk it is not split.
#[pyfunction]
pub(crate) fn look_up_function(function: Function) -> PyResult<(Named, Option<u64>, String)> {
    let guard = guard(function.device)?;
    let (names, sizes): (Vec<&str>, Vec<u64>) =
        function.shape.iter().map(|(name, size)| (name.as_str(), *size)).unzip();
    let tuned = guard.tuned(&function.key(), &names, &sizes);
    let chunk = match tuned.entry.map(|entry| entry.choice) {
        Some(StoredChoice::Chunked { max_items }) => Some(max_items.get()),
        _ => None,
    };
    Ok((tuned.parameters().to_vec(), chunk, tuned.matched.to_string()))
}

/// The digest of the choices for a device, from the user's and the built-in profile, and of those measured since.
#[pyfunction]
pub(crate) fn profile_digest(device: Option<usize>) -> PyResult<String> {
    let guard = guard(device)?;
    let none = Arc::default();
    let profile = guard.profile().unwrap_or(&none);
    match device {
        Some(ordinal) => {
            Ok(launches::device(ordinal).map_err(unavailable)?.borders.digest(profile))
        }
        None => Ok(profile.choices_digest()),
    }
}

/// Raises an error that names the ranks whose digest differs.
#[pyfunction]
pub(crate) fn compare_digests(digests: Vec<String>) -> PyResult<()> {
    gridguard::profile::compare_digests(&digests).map_err(stopped)
}

/// Tunes a function: `command` starts the process that runs the pickled `problem`. Returns the result as JSON. Raises
/// `BlockingIOError` while another search has the journal.
#[pyfunction]
pub(crate) fn tune_function(
    py: Python<'_>,
    command: Vec<String>,
    problem: String,
    function: Function,
    search: Search,
) -> PyResult<String> {
    let guard = guard(function.device)?;
    let result = py.detach(|| tuned(&command, problem, &function, &search, &guard));
    // Otherwise the profile is as it was.
    if result.is_ok() {
        *HOST.lock() = None;
        launches::reset();
    }
    result
}

fn tuned(
    command: &[String],
    problem: String,
    function: &Function,
    search: &Search,
    guard: &Arc<Guard>,
) -> PyResult<String> {
    let mut raised = None;
    let folder = move_user_folder();
    let timeout = Duration::try_from_secs_f64(search.timeout).map_err(invalid)?;
    let mut space = FnSpace::new(function.shape.clone()).tolerance(search.tolerance);
    space = space.on_device(guard);
    if let Some(bytes) = search.bytes {
        space = space.bytes(bytes);
    }
    if let Some(flops) = search.flops {
        space = space.flops(flops);
    }
    for (name, values) in &search.parameters {
        space = space.parameter(name.clone(), values.iter().copied());
    }
    if let Some(chunks) = &search.chunks {
        space = space.chunk(chunks.iter().copied());
    }
    if let Some(folder) = &folder {
        space = space.journal(folder.join("functions").join(format!("{}.jsonl", search.journal)));
    }
    if let Some(limit) = search.time_limit {
        space = space.time_limit(Duration::try_from_secs_f64(limit).map_err(invalid)?);
    }
    if let Some(allows) = &search.allows {
        let raised = &mut raised;
        space = space.constraint(move |values| {
            let allowed = Python::attach(|py| {
                let names = PyDict::new(py);
                for (name, _) in &search.parameters {
                    names.set_item(name, values.get(name).map_err(stopped)?)?;
                }
                if search.chunks.is_some() {
                    names.set_item("chunk", values.get("chunk").map_err(stopped)?)?;
                }
                allows.call(py, (), Some(&names))?.is_truthy(py)
            });
            allowed.map_err(|error| {
                *raised = Some(error);
                MeasureFailure::new(FailureKind::Illegal, "the condition raised an exception")
            })
        });
    }
    let words = command.to_vec();
    let start = move || {
        let mut words = words.iter();
        let mut command = Command::new(words.next().map_or("python3", String::as_str));
        command.args(words);
        command
    };
    let timeouts = Timeouts { request: timeout, ..Timeouts::default() };
    let signal = Arc::new(Mutex::new(None));
    let raised_here = Arc::clone(&signal);
    let stop = move || {
        let mut raised = raised_here.lock();
        if raised.is_none() {
            *raised = Python::attach(|py| py.check_signals()).err();
        }
        raised.is_some()
    };
    let mut child = Child {
        start: Some(Box::new(move || Remote::spawn_until(stop, start, problem, timeouts))),
        remote: None,
    };
    let result = space.measure(&function.key(), &mut child);
    if let Some(error) = signal.lock().take() {
        return Err(error);
    }
    let printed = child.remote.as_mut().and_then(Remote::take_printed).unwrap_or_default();
    drop(child);
    let error = |kind: FailureKind, message: String| {
        Ok(json!({ "error": message, "kind": kind, "printed": printed }).to_string())
    };
    let tuned = match result {
        Ok(tuned) => tuned,
        Err(_) if raised.is_some() => return Err(raised.unwrap_or_else(|| stopped("no exception"))),
        Err(failed) => match failed.kind() {
            ErrorKind::Default(failure) => {
                return error(failure.kind, format!("the default failed: {}", failure.message));
            }
            ErrorKind::Ended(failure) => return error(failure.kind, failure.message.clone()),
            ErrorKind::Busy => return Err(PyBlockingIOError::new_err(failed.to_string())),
            ErrorKind::Journal => return Err(stopped(failed)),
            _ => return Err(invalid(failed)),
        },
    };
    let file: Option<PathBuf> = match &folder {
        Some(folder) if tuned.entry.is_some() => {
            Some(tuned.publish(guard, folder).map_err(stopped)?)
        }
        _ => None,
    };
    let outcome = &tuned.outcome;
    let failures = outcome.failures().map(|(candidate, failure)| format!("{candidate}: {failure}"));
    let against_default = outcome.winner().and_then(|winner| winner.against_default);
    Ok(json!({
        "parameters": outcome.winner.parameters,
        "chunk": outcome.winner.largest_chunk,
        "speedup": against_default.map_or(1.0, f64::recip),
        "median_ns": outcome.chosen.median_ns,
        "default_ns": outcome.baseline.median_ns,
        "attained_percent": tuned.roofline.map(|roofline| roofline.percent(&outcome.chosen)),
        "flops_per_second": tuned.flops_per_second(),
        "candidates": outcome.candidates.len(),
        "known": tuned.known,
        "failures": failures.collect::<Vec<_>>(),
        "complete": outcome.complete,
        "profile": file,
    })
    .to_string())
}

/// The child process, started at the first request, so that a search of known results needs none.
struct Child {
    start: Option<Box<dyn FnOnce() -> Result<Remote, Error> + Send>>,
    remote: Option<Remote>,
}

impl Child {
    fn remote(&mut self) -> Measured<&mut Remote> {
        if let Some(start) = self.start.take() {
            self.remote = Some(start().map_err(|error| match error.kind() {
                ErrorKind::Open(failure) => failure.clone(),
                _ => MeasureFailure::new(FailureKind::Ended, error.to_string()),
            })?);
        }
        let none =
            || MeasureFailure::new(FailureKind::Ended, "the measuring process did not start");
        self.remote.as_mut().ok_or_else(none)
    }
}

impl Measurer for Child {
    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.remote()?.check(candidate)
    }

    fn sample(&mut self, candidate: &Candidate, portion: Portion) -> Measured<Sample> {
        self.remote()?.sample(candidate, portion)
    }
}
