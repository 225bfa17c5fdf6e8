//! Makes pipelines workloads whose candidates are plans.

use std::collections::HashMap;

use gridguard_pipeline::{Budget, Error, IN_FLIGHT, Pipeline, PipelinePlan, PipelineRun};

use crate::candidate::Candidate;
use crate::failure::{FailureKind, MeasureFailure, Measured};
use crate::measure::{Portion, Workload};
use crate::space::Space;
use crate::variant::candidate_of;

/// A pipeline to tune, with its memory, on a device or on the host.
pub trait PipelineProblem {
    /// The [outline](Pipeline::outline) of the pipeline with each set of launch parameters worth measuring, the
    /// default first. No two may have the same
    /// [parameters](gridguard_pipeline::PipelineBuilder::parameter).
    fn pipelines(&self) -> Vec<Pipeline<'static>>;

    /// Runs all chunks of a plan of the pipeline at `index`. Returns before they have run on a device, and
    /// afterwards on the host. All of this is timed.
    ///
    /// # Errors
    ///
    /// The error of the run.
    fn run(&mut self, index: usize, plan: &PipelinePlan) -> Result<PipelineRun, Error>;

    /// Overwrites outputs, so that unwritten elements are found, and restores buffers that a run updates.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if the device fails.
    fn poison(&mut self) -> Measured<()>;

    /// Compares all outputs of one run with the expected values.
    ///
    /// # Errors
    ///
    /// [`MeasureFailure`] if they differ.
    fn compare(&mut self) -> Measured<()>;
}

/// A [`PipelineProblem`] with varying chunk, chunks in flight and launch parameters.
///
/// ```
/// use std::sync::Arc;
///
/// use gridguard_pipeline::{Budget, Buffer, Error, HostMemory, Pipeline, PipelinePlan, PipelineRun};
/// use gridguard::profile::{Document, L2, Match, Objective, Policy, Profile, Provenance};
/// use gridguard::{DeviceLimits, Guard};
/// use gridguard_autotune::{
///     Chart, FailureKind, HostClock, InProcess, MeasureFailure, PipelineProblem,
///     PipelineWorkload, tune,
/// };
///
/// const ITEMS: u64 = 20_000;
///
/// /// y = x + 1, through scratch.
/// struct Increments {
///     guard: Guard,
///     pipeline: Pipeline<'static>,
///     x: Buffer<u32>,
///     y: Buffer<u32>,
///     from: Vec<u32>,
///     to: Vec<u32>,
/// }
///
/// fn increments() -> Increments {
///     let mut builder = Pipeline::builder(ITEMS);
///     let (x, t) = (builder.input("x", 1), builder.scratch("t", 1));
///     let y = builder.output("y", 1);
///     let add = builder.stage("add", move |_, views| {
///         let pairs = views.write(t)?.iter_mut().zip(views.read(x)?);
///         pairs.for_each(|(t, x): (&mut u32, &u32)| *t = x + 1);
///         Ok(())
///     });
///     add.read(x).write(t);
///     let copy = builder.stage("copy", move |_, views| {
///         views.write(y)?.copy_from_slice(views.read(t)?);
///         Ok(())
///     });
///     copy.read(t).write(y);
///     let pipeline = builder.build().expect("two stages");
///     let (from, to) = ((0..ITEMS as u32).collect(), vec![0; ITEMS as usize]);
///     Increments { guard: Guard::host(DeviceLimits::any_device()), pipeline, x, y, from, to }
/// }
///
/// impl PipelineProblem for Increments {
///     fn pipelines(&self) -> Vec<Pipeline<'static>> {
///         vec![self.pipeline.outline()]
///     }
///
///     fn run(&mut self, _: usize, plan: &PipelinePlan) -> Result<PipelineRun, Error> {
///         let memory = HostMemory::new().read(self.x, &self.from).write(self.y, &mut self.to);
///         self.pipeline.run(&self.guard, plan, memory)
///     }
///
///     fn poison(&mut self) -> Result<(), MeasureFailure> {
///         self.to.fill(u32::MAX);
///         Ok(())
///     }
///
///     fn compare(&mut self) -> Result<(), MeasureFailure> {
///         match self.to.iter().zip(&self.from).all(|(y, x)| *y == x + 1) {
///             true => Ok(()),
///             false => Err(MeasureFailure::new(FailureKind::Mismatch, "wrong increment")),
///         }
///     }
/// }
///
/// // The fastest with up to two chunks in flight, within 16 KiB of scratch.
/// let policy = Policy { l2: L2::Hot, ..Policy::default() };
/// let budget = Budget::UNLIMITED.in_flight(2);
/// let objective = Objective::Memory { bytes_per_item: 0, bytes: 16 << 10 };
/// let pipeline = increments().pipeline;
/// let key = pipeline.key("increments", policy, objective);
/// let workload = PipelineWorkload::new(increments(), budget);
/// let mut space = workload.space();
/// let mut measurer = InProcess::new(workload, HostClock::new(policy));
/// # // Shortened, so that the documentation test is fast.
/// # let limits = gridguard_autotune::Budget { evaluations: Some(9), ..Default::default() };
/// # /*
/// let limits = Default::default();
/// # */
/// let outcome = tune(&mut measurer, &mut space, objective, &limits, &mut ())?;
/// assert!(outcome.candidates.iter().all(|one| one.candidate.scratch_bytes <= 16 << 10));
/// let chart = Chart {
///     title: "increments".into(),
///     subtitle: "time and memory against chunk".into(),
///     ..Chart::default()
/// };
/// # /*
/// fs::write("increments.svg", chart.svg(&outcome)?)?;
/// # */
/// # let _ = chart;
///
/// // What a server loads.
/// let guard = Guard::host(DeviceLimits::any_device());
/// let (identity, environment) = (guard.identity(), guard.environment());
/// let mut document = Document::new(identity.clone(), environment.clone());
/// document.insert(outcome.entry(key.clone(), pipeline.shape(), Provenance::default()))?;
/// let (profile, _) = Profile::from_document(document, &identity, &environment);
/// let guard = guard.with_profile(Arc::new(profile));
/// let budget = Budget::bytes(16 << 10).in_flight(2);
/// let tuned = pipeline.plan_tuned(pipeline.tuned(&guard, &key), &budget)?;
/// assert_eq!((tuned.matched, tuned.refused), (Match::Exact, None));
/// assert_eq!(tuned.plan.chunk_items(), outcome.winner.largest_chunk);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PipelineWorkload<P> {
    problem: P,
    pipelines: Vec<Pipeline<'static>>,
    budget: Budget,
    /// The pipeline and the plan of each candidate, and its first chunks in flight.
    prepared: HashMap<Candidate, (usize, PipelinePlan, PipelinePlan)>,
}

impl<P: PipelineProblem> PipelineWorkload<P> {
    /// The workload of `problem` within `budget`.
    #[must_use]
    pub fn new(problem: P, budget: Budget) -> Self {
        let (pipelines, prepared) = (problem.pipelines(), HashMap::new());
        Self { problem, pipelines, budget, prepared }
    }

    /// The space of its candidates: [`Space::pipelines`].
    #[must_use]
    pub fn space(&self) -> Space {
        Space::pipelines(self.pipelines.iter().map(Pipeline::outline).collect(), &self.budget)
    }

    /// The index of the candidate's pipeline, and its plan.
    fn plan(&self, candidate: &Candidate) -> Measured<(usize, PipelinePlan)> {
        let is_own = |(_, pipeline): &(usize, &Pipeline<'static>)| {
            candidate.parameters.iter().skip(1).eq(pipeline.parameters())
        };
        let other = || {
            let message = format!("no pipeline has this plan within the budget: {candidate}");
            MeasureFailure::new(FailureKind::Illegal, message)
        };
        let (index, pipeline) = self.pipelines.iter().enumerate().find(is_own).ok_or_else(other)?;
        let in_flight = match candidate.parameters.first() {
            Some((name, chunks)) if name == IN_FLIGHT => (*chunks).min(self.budget.max_in_flight()),
            _ => return Err(other()),
        };
        let chunk = candidate.largest_chunk.min(self.budget.max_items());
        let plan = pipeline.plan(&self.budget.in_flight(in_flight).at_most(chunk))?;
        if candidate_of(pipeline, &plan) != *candidate {
            return Err(other());
        }
        Ok((index, plan))
    }
}

impl<P: PipelineProblem> Workload for PipelineWorkload<P> {
    fn prepare(&mut self, candidate: &Candidate) -> Measured<()> {
        let (index, plan) = self.plan(candidate)?;
        let first = plan.first_in_flight();
        self.prepared.insert(candidate.clone(), (index, plan, first));
        Ok(())
    }

    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Measured<()> {
        let Some((index, plan, first)) = self.prepared.get(candidate) else {
            return Err(MeasureFailure::new(FailureKind::Launch, "the candidate was not prepared"));
        };
        let plan = match portion {
            Portion::Sequence => plan,
            Portion::LargestLaunch => first,
        };
        let PipelineRun { tried, .. } = self.problem.run(*index, plan)?;
        if let [wanted, .., smaller] = tried.as_slice() {
            let message = format!("memory for chunks of {wanted} items ran out, not of {smaller}");
            return Err(MeasureFailure::new(FailureKind::Launch, message));
        }
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        self.problem.poison()?;
        self.launch(candidate, Portion::Sequence)?;
        self.problem.compare()
    }
}
