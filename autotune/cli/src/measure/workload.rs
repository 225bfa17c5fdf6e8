//! A kernel of this workspace as something to tune.

use std::collections::HashMap;
use std::sync::Arc;

use gridguard::cuda::{Compiler, CudaError, NvrtcError};
use gridguard::profile::{Policy, Submission};
use gridguard::{Choice, Guard};
use gridguard_autotune::{
    Candidate, DeviceClock, FailureKind, HostClock, InProcess, LaunchConfig, MeasureFailure,
    Portion, ProblemMeasurer, Workload,
};
use gridguard_kernels::Kernels;
use gridguard_kernels::bench::{BenchCase, BenchError, LaunchHandle, LaunchSetup, Problem};

/// A problem with its tensors.
pub(crate) struct BenchWorkload {
    case: Box<dyn BenchCase>,
    prepared: HashMap<(Candidate, Portion), LaunchHandle>,
}

impl BenchWorkload {
    pub(crate) fn new(case: Box<dyn BenchCase>) -> Self {
        Self { case, prepared: HashMap::new() }
    }

    fn handle(
        &mut self,
        candidate: &Candidate,
        portion: Portion,
    ) -> Result<LaunchHandle, MeasureFailure> {
        let known = (candidate.clone(), portion);
        if let Some(handle) = self.prepared.get(&known) {
            return Ok(*handle);
        }
        let parameters = &candidate.parameters;
        let handle = match portion {
            Portion::Sequence => self.case.prepare(parameters, candidate.choice.into(), None),
            // As many items as the largest chunk has, in one launch.
            Portion::LargestLaunch => {
                let items = Some(candidate.largest_chunk);
                self.case.prepare(parameters, Choice::AUTOMATIC, items)
            }
        }
        .map_err(failure)?;
        self.prepared.insert(known, handle);
        Ok(handle)
    }
}

impl Workload for BenchWorkload {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        let setups = self.case.setups().map_err(failure)?;
        let configuration = |one: LaunchSetup| LaunchConfig {
            parameters: one.parameters,
            request: one.request,
            batch: one.batch,
            limits: one.limits,
        };
        Ok(setups.into_iter().map(configuration).collect())
    }

    fn prepare(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.handle(candidate, Portion::Sequence).map(drop)
    }

    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
        let handle = self.handle(candidate, portion)?;
        self.case.launch(handle).map(drop).map_err(failure)
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        let handle = self.handle(candidate, Portion::Sequence)?;
        self.case.check(handle).map_err(failure)
    }
}

/// The tuner's kind of each failure of a bench case.
fn failure(error: BenchError) -> MeasureFailure {
    use gridguard_kernels::KernelError;
    match error {
        BenchError::Kernel(KernelError::Launch(error)) => error.into(),
        BenchError::Kernel(KernelError::Cuda(error)) => error.into(),
        BenchError::Kernel(KernelError::Memory(error)) => error.into(),
        BenchError::Memory(error) => error.into(),
        BenchError::Kernel(KernelError::Violations(violations)) => {
            MeasureFailure::new(FailureKind::Illegal, violations.to_string())
        }
        BenchError::Reference { .. } | BenchError::Mismatch { .. } => {
            MeasureFailure::new(FailureKind::Mismatch, error.to_string())
        }
        _ => MeasureFailure::new(FailureKind::Launch, error.to_string()),
    }
}

/// A measurer of problems in this process, on a device or on the host.
#[derive(Clone)]
pub(crate) enum Bench {
    Device { kernels: Kernels, policy: Policy },
    Host { guard: Arc<Guard>, policy: Policy },
}

impl Bench {
    /// On the guard's device, or on the host where it serves that.
    pub(crate) fn new(guard: Guard, policy: Policy) -> Result<Self, CudaError> {
        let guard = Arc::new(guard);
        if !guard.is_cuda() {
            return Ok(Self::Host { guard, policy });
        }
        // Missing, it would be missed by every candidate.
        Compiler::find().map_err(NvrtcError::from)?;
        Ok(Self::Device { kernels: Kernels::new(guard), policy })
    }

    /// Opens a problem in its words.
    pub(crate) fn open(&self, problem: &str) -> Result<Box<dyn ProblemMeasurer>, MeasureFailure> {
        let problem: Problem = problem
            .parse()
            .map_err(|error| MeasureFailure::new(FailureKind::Launch, format!("{error}")))?;
        match self {
            Self::Host { guard, policy } => {
                let case = problem.on_host(guard).map_err(failure)?;
                Ok(Box::new(InProcess::new(BenchWorkload::new(case), HostClock::new(*policy))))
            }
            Self::Device { kernels, policy } => {
                let no_context =
                    || MeasureFailure::new(FailureKind::Launch, "the guard has no context");
                let context = kernels.guard().context().ok_or_else(no_context)?;
                if policy.submission == Submission::Graph {
                    disable_event_tracking(context);
                }
                let stream = context.new_stream()?;
                let case = problem.on_device(kernels, &stream).map_err(failure)?;
                let clock = DeviceClock::new(kernels.guard(), stream, *policy)?;
                Ok(Box::new(InProcess::new(BenchWorkload::new(case), clock)))
            }
        }
    }
}

#[allow(unsafe_code, reason = "cudarc's promise for streams that depend on each other")]
fn disable_event_tracking(context: &cudarc::driver::CudaContext) {
    // SAFETY: all work of this process is on one stream, so that nothing waits for events.
    unsafe { context.disable_event_tracking() };
}
