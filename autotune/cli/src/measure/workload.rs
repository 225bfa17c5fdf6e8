//! Makes the kernels of `gridguard-kernels` workloads of the tuner.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::cuda::{Compiler, CudaError, capture_launches};
use gridguard::profile::{Policy, Submission};
use gridguard::{Choice, Guard};
use gridguard_autotune::{
    Candidate, DeviceClock, FailureKind, HostClock, InProcess, LaunchConfig, MeasureFailure,
    Measured, Measurer, Portion, Workload,
};
use gridguard_kernels::{KernelError, Kernels};
use gridguard_problems::{BenchCase, Error, ErrorKind, LaunchHandle, LaunchSetup, Problem};

/// A problem with its tensors and prepared launches.
struct BenchWorkload {
    case: Box<dyn BenchCase>,
    /// Of all launches, and of the largest.
    prepared: [HashMap<Candidate, LaunchHandle>; 2],
    /// Whether a candidate is wrong if a bit of its output differs from the default's.
    same_bits: bool,
}

impl BenchWorkload {
    fn handle(&mut self, candidate: &Candidate, portion: Portion) -> Measured<LaunchHandle> {
        let prepared = match portion {
            Portion::Sequence => &mut self.prepared[0],
            Portion::LargestLaunch => &mut self.prepared[1],
        };
        // This is timed, so it neither copies nor allocates.
        if let Some(handle) = prepared.get(candidate) {
            return Ok(*handle);
        }
        let (choice, items) = match portion {
            Portion::Sequence => (candidate.choice.into(), None),
            // One launch with the items of the largest chunk.
            Portion::LargestLaunch => (Choice::AUTOMATIC, Some(candidate.largest_chunk)),
        };
        let handle = self.case.prepare(&candidate.parameters, choice, items).map_err(failure)?;
        prepared.insert(candidate.clone(), handle);
        Ok(handle)
    }
}

impl Workload for BenchWorkload {
    fn configurations(&mut self) -> Measured<Vec<LaunchConfig>> {
        let setups = self.case.setups().map_err(failure)?;
        Ok(setups.into_iter().map(launch_config).collect())
    }

    fn prepare(&mut self, candidate: &Candidate) -> Measured<()> {
        self.handle(candidate, Portion::Sequence).map(drop)
    }

    #[allow(unsafe_code, reason = "the clock may capture the launches")]
    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Measured<()> {
        let handle = self.handle(candidate, portion)?;
        // SAFETY: the case keeps its tensors and every prepared kernel. The clock is dropped with the case,
        // replays a graph only to time it, and all work is on its stream.
        let launched = unsafe { capture_launches(|| self.case.launch(handle)) };
        launched.map(drop).map_err(failure)
    }

    fn check(&mut self, candidate: &Candidate) -> Measured<()> {
        let handle = self.handle(candidate, Portion::Sequence)?;
        let is_same = self.case.check(handle).map_err(failure)?;
        if is_same || !self.same_bits {
            return Ok(());
        }
        let message = "bits of the output differ from the default's";
        Err(MeasureFailure::new(FailureKind::Mismatch, message))
    }
}

/// The configuration of a kernel's launch for the tuner.
pub(crate) fn launch_config(setup: LaunchSetup) -> LaunchConfig {
    let LaunchSetup { parameters, request, batch, limits } = setup;
    LaunchConfig { parameters, request, batch: Some(batch), limits }
}

/// Classifies a failure of a bench case for the tuner.
fn failure(error: Error) -> MeasureFailure {
    match error.kind() {
        ErrorKind::Kernel(KernelError::Launch(error)) => error.clone().into(),
        ErrorKind::Kernel(KernelError::Cuda(error)) => error.clone().into(),
        ErrorKind::Kernel(KernelError::Memory(error)) | ErrorKind::Memory(error) => (*error).into(),
        ErrorKind::Kernel(KernelError::Violations(violations)) => violations.clone().into(),
        ErrorKind::Mismatch => MeasureFailure::new(FailureKind::Mismatch, error.to_string()),
        _ => MeasureFailure::new(FailureKind::Launch, error.to_string()),
    }
}

/// Measures problems in this process, on a device or on the host.
pub(crate) struct LocalBench {
    guard: Arc<Guard>,
    /// The compiled kernels; `None` on the host.
    kernels: Option<Kernels>,
    policy: Policy,
    /// Whether the clock yields to other processes.
    yields: bool,
    same_bits: bool,
}

impl LocalBench {
    /// On the guard's device, or on the host if the guard has none.
    pub(crate) fn new(guard: Arc<Guard>, policy: Policy, yields: bool) -> Result<Self, CudaError> {
        if guard.is_cuda() {
            // Without a compiler every candidate would fail.
            Compiler::find()?;
        }
        let kernels = guard.is_cuda().then(|| Kernels::new(Arc::clone(&guard)));
        Ok(Self { guard, kernels, policy, yields, same_bits: false })
    }

    /// Admits only candidates whose output has the same bits as the default's.
    pub(crate) fn same_bits(self, same_bits: bool) -> Self {
        Self { same_bits, ..self }
    }

    pub(crate) fn open(&self, problem: &Problem) -> Measured<Box<dyn Measurer>> {
        let stream = self.stream()?;
        let case = match (&self.kernels, &stream) {
            (Some(kernels), Some(stream)) => problem.on_device(kernels, stream),
            _ => problem.on_host(&self.guard),
        };
        let case = case.map_err(failure)?;
        let workload =
            BenchWorkload { case, prepared: Default::default(), same_bits: self.same_bits };
        self.measurer(workload, stream)
    }

    /// Moves so many bytes, to measure what the device can.
    pub(crate) fn transfer(&self, bytes: u64) -> Measured<Box<dyn Measurer>> {
        gridguard_autotune::transfer(&self.guard, self.policy.l2, bytes)
    }

    /// A stream for a workload; `None` on the host.
    pub(crate) fn stream(&self) -> Measured<Option<Arc<CudaStream>>> {
        let Some(context) = self.guard.context() else { return Ok(None) };
        if self.policy.submission == Submission::Graph {
            disable_event_tracking(context);
        }
        Ok(Some(context.new_stream()?))
    }

    /// Measures a workload that submits to `stream`, or runs on the host if there is none.
    pub(crate) fn measurer(
        &self,
        workload: impl Workload + 'static,
        stream: Option<Arc<CudaStream>>,
    ) -> Measured<Box<dyn Measurer>> {
        Ok(match stream {
            Some(stream) => {
                let clock = DeviceClock::new(&self.guard, stream, self.policy)?;
                let clock = if self.yields { clock.yielding() } else { clock };
                Box::new(InProcess::new(workload, clock))
            }
            None => Box::new(InProcess::new(workload, HostClock::new(self.policy))),
        })
    }
}

#[allow(unsafe_code, reason = "cudarc's contract for streams that depend on each other")]
fn disable_event_tracking(context: &cudarc::driver::CudaContext) {
    // SAFETY: this process submits all work to one stream, so no event is needed to order it.
    unsafe { context.disable_event_tracking() };
}
