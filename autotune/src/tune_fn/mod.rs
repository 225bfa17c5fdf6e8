//! Tunes any function that launches.

mod known;
mod trial;
mod workload;

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cudarc::driver::CudaStream;
use gridguard::profile::{
    Attainable, Document, Entry, Environment, Key, L2, Named, Objective, Provenance, StoredChoice,
    update,
};
use gridguard::{Choice, DeviceLimits, Guard};

pub use trial::{Trial, Values};

use self::known::Kept;
use self::workload::FnWorkload;
use crate::candidate::{Candidate, LaunchConfig, chunked};
use crate::clock::{DeviceClock, HostClock};
use crate::control::Budget;
use crate::error::{Error, ErrorKind};
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::in_process::InProcess;
use crate::journal::Resumed;
use crate::measure::Measurer;
use crate::measurements::Measurements;
use crate::outcome::TuningOutcome;
use crate::ranges::Ranges;
use crate::space::Space;
use crate::stats::real;
use crate::transfer::{Roofline, attainable, transfer};
use crate::tune::tune;

/// The parameters that [`tune_fn`] varies, and the comparison of outputs.
///
/// Without [`Self::on_stream`] the function runs on the host.
#[derive(Default)]
#[must_use]
pub struct FnSpace<'a> {
    shape: Named,
    parameters: Vec<(String, Vec<u64>)>,
    chunks: Option<Vec<u64>>,
    constraints: Vec<Of<'a, bool>>,
    guarded: Option<Of<'a, LaunchConfig>>,
    tolerance: f64,
    reference: Option<Vec<f64>>,
    guard: Option<Arc<Guard>>,
    stream: Option<Arc<CudaStream>>,
    journal: Option<PathBuf>,
    time_limit: Option<Duration>,
    bytes: Option<u64>,
    flops: Option<u64>,
}

/// A closure over the values of a candidate.
type Of<'a, T> = Box<dyn FnMut(Values<'_>) -> Measured<T> + 'a>;

/// The result of [`tune_fn`].
#[derive(Clone, Debug)]
#[must_use]
pub struct TunedFn {
    /// The fastest choice, for the planner.
    pub choice: Choice,
    /// The entry for a profile; `None` if the time limit ended the search, or a busy machine
    /// left it undecided.
    pub entry: Option<Entry>,
    /// All measurements.
    pub outcome: TuningOutcome,
    /// Candidates that the journal already knew to be slower or wrong, and that were not measured again.
    pub known: usize,
    /// The traffic, and what the device can move, if [`FnSpace::bytes`] states it.
    pub roofline: Option<Roofline>,
    flops: Option<u64>,
}

/// Finds the fastest of the candidates of `space` for `launch`.
///
/// `launch` submits the launches of one candidate to the stream of the space, or runs them on the host. It passes
/// its output to [`Trial::output`]. A candidate whose output differs from the default's never wins: its output is
/// compared before it is timed. The [front page](crate) has an example.
///
/// # Errors
///
/// [`Error`].
pub fn tune_fn(
    key: &Key,
    mut space: FnSpace<'_>,
    launch: impl FnMut(&mut Trial<'_>) -> Measured<()>,
) -> Result<TunedFn, Error> {
    let candidates = space.candidates(key.objective)?;
    let (tolerance, reference) = (space.tolerance, space.reference.take());
    let items = space.shape.first().map_or(0, |(_, items)| *items);
    let workload = FnWorkload::new(items, candidates.clone(), tolerance, reference, launch);
    match space.guard.clone().zip(space.stream.clone()) {
        Some((guard, stream)) => {
            let clock = DeviceClock::new(&guard, stream, key.policy)?;
            space.search(key, candidates, &mut InProcess::new(workload, clock))
        }
        None => {
            let clock = HostClock::new(key.policy);
            space.search(key, candidates, &mut InProcess::new(workload, clock))
        }
    }
}

impl<'a> FnSpace<'a> {
    /// A problem of these sizes, the number of items first.
    pub fn new<N: Into<String>>(shape: impl IntoIterator<Item = (N, u64)>) -> Self {
        let shape = shape.into_iter().map(|(name, size)| (name.into(), size)).collect();
        Self { shape, ..Self::default() }
    }

    /// Adds a parameter and its values, the default first.
    pub fn parameter(
        mut self,
        name: impl Into<String>,
        values: impl IntoIterator<Item = u64>,
    ) -> Self {
        self.parameters.push((name.into(), values.into_iter().collect()));
        self
    }

    /// Splits the items into chunks: all of them, half of them, and so on. For a [guarded](Self::guarded) launch the
    /// planner chooses chunks of at least one wave.
    pub fn chunk_auto(self) -> Self {
        self.chunk([])
    }

    /// Splits the items into chunks of these sizes, the default first.
    pub fn chunk(mut self, items: impl IntoIterator<Item = u64>) -> Self {
        self.chunks = Some(items.into_iter().collect());
        self
    }

    /// Drops the candidates for which `allows` is false, before any is run.
    pub fn constraint(mut self, allows: impl FnMut(Values<'_>) -> Measured<bool> + 'a) -> Self {
        self.constraints.push(Box::new(allows));
        self
    }

    /// Describes the launch over all items for the planner, which drops illegal candidates. [`Trial::plan`] then
    /// returns the plan. The parameters of the configuration are filled in.
    pub fn guarded(
        mut self,
        configuration: impl FnMut(Values<'_>) -> Measured<LaunchConfig> + 'a,
    ) -> Self {
        self.guarded = Some(Box::new(configuration));
        self
    }

    /// The largest allowed difference of an element from the reference, relative to its magnitude or to the mean
    /// magnitude of the output, whichever is larger. By default outputs must be equal. The entry of the profile states
    /// the tolerance.
    pub const fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Compares outputs with this one, instead of the default's. The default must match it too.
    pub fn reference<T: Into<f64>>(mut self, output: impl IntoIterator<Item = T>) -> Self {
        self.reference = Some(output.into_iter().map(Into::into).collect());
        self
    }

    /// Times work on this stream, as [`DeviceClock::new`].
    pub fn on_stream(mut self, guard: &Arc<Guard>, stream: &Arc<CudaStream>) -> Self {
        self.stream = Some(Arc::clone(stream));
        self.on_device(guard)
    }

    /// The device of a measurer that is passed to [`Self::measure`]; by default the host.
    pub fn on_device(mut self, guard: &Arc<Guard>) -> Self {
        self.guard = Some(Arc::clone(guard));
        self
    }

    /// Keeps all results in this file. The same search resumes there. A search with other values measures only what
    /// is new, what was close to the best, and the default.
    pub fn journal(mut self, path: impl Into<PathBuf>) -> Self {
        self.journal = Some(path.into());
        self
    }

    /// The bytes that any implementation must read and write. The search stops when a candidate is within 3 % of what the
    /// device can move, which is measured if the guard's profile does not have it, and the entry says how much it reaches.
    pub const fn bytes(mut self, bytes: u64) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// The floating-point operations of the problem, for [`TunedFn::flops_per_second`].
    pub const fn flops(mut self, flops: u64) -> Self {
        self.flops = Some(flops);
        self
    }

    /// Ends the search after this time.
    pub const fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// As [`tune_fn`], measured by `measurer`, which compares the outputs itself, by the tolerance of this space.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn measure(mut self, key: &Key, measurer: &mut dyn Measurer) -> Result<TunedFn, Error> {
        let candidates = self.candidates(key.objective)?;
        self.search(key, candidates, measurer)
    }

    /// The legal candidates that no constraint rejects.
    fn candidates(&mut self, objective: Objective) -> Result<Space, Error> {
        if matches!(objective, Objective::Latency { .. }) {
            return Err(Error::input(
                "a function is timed with all of its launches: the objective cannot be a latency",
            ));
        }
        if !(0.0..f64::INFINITY).contains(&self.tolerance) {
            return Err(Error::input(format!(
                "the tolerance is {}: give a finite number of at least 0",
                self.tolerance
            )));
        }
        for (name, count) in [("bytes", self.bytes), ("flops", self.flops)] {
            if count == Some(0) {
                return Err(Error::input(format!(
                    "{name} is 0: give what the problem needs, or nothing"
                )));
            }
        }
        let (shape, parameters) = (self.shape.clone(), self.parameters.clone());
        let ranges = Ranges::new(shape, parameters, self.chunks.clone())?;
        let mut space = match &mut self.guarded {
            Some(configuration) => {
                let one = |parameters: Named| {
                    let values = Values { parameters: &parameters, chunk: None };
                    let new = configuration(values)?;
                    Ok::<_, MeasureFailure>(LaunchConfig { parameters, ..new })
                };
                let all = ranges.sets().into_iter().map(one).collect::<Measured<Vec<_>>>()?;
                planned(all, self.chunks.as_deref(), objective)
            }
            None => Space::listed(ranges.candidates()),
        };
        space.restrict(objective);
        let mut failure = None;
        space.retain(|candidate| {
            let values = Values::of(candidate);
            self.constraints.iter_mut().all(|allows| {
                allows(values).unwrap_or_else(|error| {
                    failure = Some(error);
                    false
                })
            })
        });
        failure.map_or(Ok(space), |failure| Err(failure.into()))
    }

    fn search(
        self,
        key: &Key,
        mut space: Space,
        measurer: &mut dyn Measurer,
    ) -> Result<TunedFn, Error> {
        let Some(default) = space.default().cloned() else { return Err(Error::no_candidate()) };
        let device = self.guard.as_deref();
        let environment = device.map_or_else(Environment::host, Guard::environment);
        let found = self.provenance(&environment);
        // Refuses names that no profile takes before anything is measured.
        unmeasured(key, &self.shape, &default, found.clone()).check()?;
        let (mut journal, mut known, mut on_record) = (Default::default(), 0, None);
        if let Some(path) = &self.journal {
            let problem = format!("{key:?} {:?} tolerance {}", self.shape, found.tolerance);
            let device = device.map_or_else(|| "host".into(), |guard| guard.identity().to_string());
            let kept = Kept::open(path, &[problem, format!("{device} {environment:?}")], &space)?;
            known = kept.drop_known(&mut space);
            journal = kept.journal.clone();
            on_record = Some(kept.into_writer(default)?);
        }
        let mut resumed = Resumed::new(measurer, journal);
        if let Some(on_record) = on_record {
            resumed = resumed.on_record(on_record);
        }
        let stated = self.bytes.map(|bytes| roofline(self.guard.as_ref(), key.policy.l2, bytes));
        let roofline = stated.transpose()?.flatten();
        let least_ns = roofline.map(|roofline| roofline.least_ns());
        let budget = Budget { wall_time: self.time_limit, least_ns, ..Budget::default() };
        let outcome = tune(&mut resumed, &mut space, key.objective, &budget, &mut ())?;
        let attained_percent = roofline.map_or(0, |roofline| roofline.percent(&outcome.chosen));
        let found = Provenance { attained_percent, ..found };
        let flops = self.flops;
        let entry = outcome.is_decided().then(|| outcome.entry(key.clone(), self.shape, found));
        Ok(TunedFn { choice: outcome.winner.choice.into(), entry, outcome, known, roofline, flops })
    }

    fn provenance(&self, environment: &Environment) -> Provenance {
        let Environment { driver, compiler, tuner } = environment.clone();
        let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let tolerance = match self.tolerance {
            0.0 => "0".to_owned(),
            some => format!("{some:e}"),
        };
        Provenance { date, driver, compiler, tuner, tolerance, ..Provenance::default() }
    }
}

impl TunedFn {
    /// The floating-point operations of the choice in a second, if [`FnSpace::flops`] states them.
    #[must_use]
    pub fn flops_per_second(&self) -> Option<f64> {
        let median_ns = self.outcome.chosen.median_ns;
        self.flops.filter(|_| median_ns > 0).map(|flops| real(flops) * 1e9 / real(median_ns))
    }

    /// The value of a parameter of the choice.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<u64> {
        Values::of(&self.outcome.winner).get(name).ok()
    }

    /// Adds the entry to the profile of the guard's device in `folder`, decides other shapes by a list as
    /// [`Measurements::settle`], and returns the file. Does nothing without an entry.
    ///
    /// # Errors
    ///
    /// As [`gridguard::profile::publish`].
    pub fn publish(&self, guard: &Guard, folder: &Path) -> Result<PathBuf, Error> {
        let file = folder.join(guard.identity().file_name());
        if let Some(entry) = &self.entry {
            let mut ours = Document::new(guard.identity(), guard.environment());
            let empty = ours.clone();
            ours.insert(entry.clone())?;
            let mut measured = Measurements::default();
            measured.add(entry, &self.outcome);
            update(&file, empty, |document| {
                document.merge(&ours)?;
                self.roofline.iter().try_for_each(|it| document.add_attainable(it.attainable))?;
                // An entry of later date stays.
                match document.get(&entry.key, &entry.shape) == Some(entry) {
                    true => measured.settle(document, &entry.key.kernel),
                    false => Ok(()),
                }
            })?;
        }
        Ok(file)
    }
}

/// What the device, or the host, can move with this traffic. `None` if other processes are too busy to tell.
fn roofline(device: Option<&Arc<Guard>>, l2: L2, bytes: u64) -> Result<Option<Roofline>, Error> {
    let profile = device.and_then(|guard| guard.profile());
    let known = profile.and_then(|all| all.attainable(l2, bytes));
    let measure = || {
        let host = || Arc::new(Guard::host(DeviceLimits::any_device()));
        let guard = device.map_or_else(host, Arc::clone);
        let size = Attainable::size_of(bytes);
        attainable(transfer(&guard, l2, size)?.as_mut(), l2, size)
    };
    match known.map_or_else(measure, Ok) {
        Ok(attainable) => Ok(Some(Roofline { bytes, attainable })),
        Err(error) => match error.kind() {
            ErrorKind::Setup(failure) if failure.kind == FailureKind::Busy => Ok(None),
            _ => Err(error),
        },
    }
}

/// The legal launches of `configurations`: unsplit, or in chunks of these sizes, or in all ways worth measuring.
fn planned(
    configurations: Vec<LaunchConfig>,
    chunks: Option<&[u64]>,
    objective: Objective,
) -> Space {
    let mut space = Space::new(configurations);
    space.restrict(objective);
    if chunks.is_some_and(<[u64]>::is_empty) {
        return space;
    }
    let sets: Vec<Named> = space.candidates().iter().map(|one| one.parameters.clone()).collect();
    let default = space.default().cloned();
    space.retain(|one| one.choice == StoredChoice::Automatic || Some(one) == default.as_ref());
    for (place, set) in sets.iter().enumerate() {
        if !sets[..place].contains(set) {
            for items in chunks.unwrap_or_default() {
                space.add(set, chunked(*items));
            }
        }
    }
    space
}

fn unmeasured(key: &Key, shape: &Named, default: &Candidate, found: Provenance) -> Entry {
    Entry {
        key: key.clone(),
        shape: shape.clone(),
        choice: default.choice,
        parameters: default.parameters.clone(),
        launches: default.launches,
        chosen: Default::default(),
        default: Default::default(),
        found,
    }
}
