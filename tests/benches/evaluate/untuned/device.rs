//! The problems on a device.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel, capture_launches};
use gridguard::profile::Named;
use gridguard::{Axis, BatchAxis, Chunk, Dim3, Guard, LaunchRequest, Parameter, Plan};
use gridguard_autotune::{Candidate, FailureKind, LaunchConfig, MeasureFailure, Portion, Workload};

use super::problem::UntunedProblem::{self, Blur, Passes, Peaks, Transpose};
use super::problem::index;

pub(super) struct OnDevice {
    problem: UntunedProblem,
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    kernels: Kernels,
    input: CudaSlice<f32>,
    /// The largest element of each item.
    peaks: CudaSlice<f32>,
    output: CudaSlice<f32>,
    wrong: CudaSlice<u32>,
    plans: HashMap<Candidate, Plan>,
}

struct Kernels {
    /// For 1, 2 and 4 floats at a time.
    passes: [Kernel; 3],
    add_peak: [Kernel; 3],
    peak: Kernel,
    transpose: Kernel,
    blur: Kernel,
    count_unequal: Kernel,
    count_misplaced: Kernel,
    count_unblurred: Kernel,
    count_without_peak: Kernel,
}

impl Kernels {
    #[allow(unsafe_code, reason = "the contracts of the kernels of kernels.cu")]
    fn compile(guard: &Guard) -> Result<Self, MeasureFailure> {
        let module = guard.compile("untuned.cu", include_str!("kernels.cu"))?;
        let number = Parameter::of::<u32>();
        let floats = |floats: u64| Parameter::AlignedMemory { bytes: floats * 4 };
        let [one, two, four] = [1, 2, 4].map(floats);
        let matrices = [one, one, number, number];
        let counted = |parameters: &[Parameter]| [parameters, &[Parameter::Memory]].concat();
        // SAFETY: these are the parameters of each kernel, in order. Each stays within the elements
        // of its items, whose tensors this file allocates with as many elements, and counts in one
        // element of `count`.
        unsafe {
            Ok(Self {
                passes: [
                    module.kernel("pass_1", &[one, number])?,
                    module.kernel("pass_2", &[two, number])?,
                    module.kernel("pass_4", &[four, number])?,
                ],
                add_peak: [
                    module.kernel("add_peak_1", &[one, one, one, number])?,
                    module.kernel("add_peak_2", &[two, one, two, number])?,
                    module.kernel("add_peak_4", &[four, one, four, number])?,
                ],
                peak: module.kernel("peak", &[one, one, number])?,
                transpose: module.kernel("transpose", &matrices)?,
                blur: module.kernel("blur", &matrices)?,
                count_unequal: module
                    .kernel("count_unequal", &counted(&[one, number, Parameter::of::<f32>()]))?,
                count_misplaced: module.kernel("count_misplaced", &counted(&matrices))?,
                count_unblurred: module.kernel("count_unblurred", &counted(&matrices))?,
                count_without_peak: module
                    .kernel("count_without_peak", &counted(&[one, one, number]))?,
            })
        }
    }

    /// The kernel whose launch parameters are searched for.
    fn of(&self, problem: UntunedProblem, parameters: &Named) -> &Kernel {
        let [one, two, four] = match problem {
            Transpose { .. } => return &self.transpose,
            Blur { .. } => return &self.blur,
            Passes { .. } => &self.passes,
            Peaks { .. } => &self.add_peak,
        };
        match parameters.last() {
            Some((_, 2)) => two,
            Some((_, 4)) => four,
            _ => one,
        }
    }
}

impl OnDevice {
    pub(super) fn new(
        problem: UntunedProblem,
        guard: &Arc<Guard>,
        stream: Arc<CudaStream>,
    ) -> Result<Self, MeasureFailure> {
        let input = match problem {
            Passes { .. } => stream.alloc_zeros(1)?,
            _ => stream.clone_htod(&problem.input())?,
        };
        Ok(Self {
            problem,
            kernels: Kernels::compile(guard)?,
            input,
            peaks: stream.alloc_zeros(index(problem.items()))?,
            output: stream.alloc_zeros(problem.elements())?,
            wrong: stream.alloc_zeros(1)?,
            plans: HashMap::new(),
            guard: Arc::clone(guard),
            stream,
        })
    }

    /// Submits a launch over a chunk, or all passes over it.
    fn submit(&mut self, chunk: Chunk, parameters: &Named) -> Result<(), MeasureFailure> {
        let kernel = self.kernels.of(self.problem, parameters);
        let request = self.problem.request(chunk.items, parameters);
        let place = elements(chunk, self.problem);
        let mut output = self.output.slice_mut(place.clone());
        match self.problem {
            Passes { columns, passes, .. } => {
                for _ in 0..passes {
                    let mut args = Args::new(&self.stream);
                    args.write(&mut output).constant(size(columns));
                    self.guard.launch(kernel, &request, args)?;
                }
            }
            Peaks { columns, .. } => {
                let input = self.input.slice(place);
                let mut peaks = self.peaks.slice_mut(index(chunk.start)..index(chunk.end()));
                let mut args = Args::new(&self.stream);
                args.read(&input).write(&mut peaks).constant(size(columns));
                self.guard.launch(&self.kernels.peak, &request, args)?;
                let mut args = Args::new(&self.stream);
                args.read(&input).read(&peaks).write(&mut output).constant(size(columns));
                self.guard.launch(kernel, &request, args)?;
            }
            Transpose { height, width, .. } | Blur { height, width, .. } => {
                let input = self.input.slice(place);
                let mut args = Args::new(&self.stream);
                args.read(&input).write(&mut output).constant(size(height)).constant(size(width));
                self.guard.launch(kernel, &request, args)?;
            }
        }
        Ok(())
    }
}

impl OnDevice {
    fn configuration(&self, parameters: &Named) -> LaunchConfig {
        let limits = self.kernels.of(self.problem, parameters).limits().clone();
        self.problem.configuration(parameters.clone(), limits)
    }

    /// The elements of the output that are wrong.
    fn wrong(&mut self) -> Result<u64, MeasureFailure> {
        self.stream.memset_zeros(&mut self.wrong)?;
        let items = self.problem.items();
        let request = LaunchRequest::new(Dim3::new(1, items, 1), Dim3::new(256, 1, 1));
        let batch = BatchAxis::new(Axis::Y, items);
        let each = self.problem.elements_per_item();
        let mut args = Args::new(&self.stream);
        let kernel = match self.problem {
            Passes { columns, .. } => {
                args.read_items(&self.output, each)
                    .constant(size(columns))
                    .constant(self.problem.expected())
                    .write(&mut self.wrong);
                &self.kernels.count_unequal
            }
            Peaks { columns, .. } => {
                args.read_items(&self.input, each)
                    .read_items(&self.output, each)
                    .constant(size(columns))
                    .write(&mut self.wrong);
                &self.kernels.count_without_peak
            }
            Transpose { height, width, .. } | Blur { height, width, .. } => {
                args.read_items(&self.input, each)
                    .read_items(&self.output, each)
                    .constant(size(height))
                    .constant(size(width))
                    .write(&mut self.wrong);
                match self.problem {
                    Blur { .. } => &self.kernels.count_unblurred,
                    _ => &self.kernels.count_misplaced,
                }
            }
        };
        self.guard.launch(kernel, (&request, &batch), args)?;
        let wrong = self.stream.clone_dtoh(&self.wrong)?;
        Ok(wrong.into_iter().map(u64::from).sum())
    }
}

impl Workload for OnDevice {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        Ok(self.problem.parameters().iter().map(|set| self.configuration(set)).collect())
    }

    fn prepare(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        let LaunchConfig { request, batch, limits, .. } = self.configuration(&candidate.parameters);
        let plan = Plan::new(&request, batch.as_ref(), &limits, candidate.choice.into())?;
        self.plans.insert(candidate.clone(), plan);
        Ok(())
    }

    #[allow(unsafe_code, reason = "the clock may capture the launches")]
    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
        let unprepared = || MeasureFailure::new(FailureKind::Launch, "it was not prepared");
        let plan = self.plans.get(candidate).copied().ok_or_else(unprepared)?;
        let (most, least) = match portion {
            Portion::Sequence => (usize::MAX, 0),
            Portion::LargestLaunch => (1, plan.largest_chunk()),
        };
        for chunk in plan.chunks().filter(|chunk| chunk.items >= least).take(most) {
            // SAFETY: the tensors and kernels are kept as long as the clock, which replays a graph only
            // to time it, and all work is on its stream.
            unsafe { capture_launches(|| self.submit(chunk, &candidate.parameters)) }?;
        }
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.stream.memset_zeros(&mut self.output)?;
        self.launch(candidate, Portion::Sequence)?;
        match self.wrong()? {
            0 => Ok(()),
            wrong => {
                let message = format!("{wrong} of {} elements are wrong", self.problem.elements());
                Err(MeasureFailure::new(FailureKind::Mismatch, message))
            }
        }
    }
}

/// The elements of a chunk's items.
fn elements(chunk: Chunk, problem: UntunedProblem) -> Range<usize> {
    let each = problem.elements_per_item();
    index(chunk.start * each)..index(chunk.end() * each)
}

/// A size as device code takes it.
fn size(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
