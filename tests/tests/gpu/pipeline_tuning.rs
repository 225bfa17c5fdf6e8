//! A pipeline that is tuned on a device, and planned as the entry says.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::Module;
use gridguard::profile::{Document, Key, Match, Objective, Policy, Profile, Provenance};
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter};
use gridguard_autotune::{
    Budget as Limits, Chart, DeviceClock, FailureKind, InProcess, MeasureFailure, PipelineProblem,
    PipelineWorkload, TuningOutcome, tune,
};
use gridguard_pipeline::{
    Budget, Buffer, DeviceMemory, Error, IN_FLIGHT, Pipeline, PipelinePlan, PipelineRun,
};

const ITEMS: u64 = 20_000;
const COLUMNS: u64 = 256;
const BLOCK: &str = "row.block";
const BLOCKS: [u64; 2] = [256, 64];
/// For 8,192 items with one chunk in flight, 1 KiB each.
const BYTES: u64 = 8 << 20;
const BUDGET: Budget = Budget::bytes(BYTES).in_flight(2);

/// One block of y an item, with any number of threads.
const SOURCE: &str = r#"
typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __global__ void triple(const u32 *x, u32 *t, u64 items) {
    u64 item = blockIdx.y;
    if (item >= items) return;
    for (u32 c = threadIdx.x; c < 256; c += blockDim.x) t[item * 256 + c] = 3 * x[item * 256 + c];
}

extern "C" __global__ void number(const u32 *t, u32 *y, u64 first, u64 items) {
    u64 item = blockIdx.y;
    if (item >= items) return;
    for (u32 c = threadIdx.x; c < 256; c += blockDim.x)
        y[item * 256 + c] = t[item * 256 + c] + u32(first + item);
}
"#;

struct Numbered {
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    more: Vec<Arc<CudaStream>>,
    built: Vec<(Pipeline<'static>, Buffer<u32>, Buffer<u32>)>,
    from: Vec<u32>,
    x: CudaSlice<u32>,
    y: CudaSlice<u32>,
}

#[allow(unsafe_code, reason = "the promise for the kernels above")]
fn build(module: &Module, block: u64) -> (Pipeline<'static>, Buffer<u32>, Buffer<u32>) {
    let (memory, u64) = (Parameter::Memory, Parameter::of::<u64>());
    // SAFETY: they access 256 elements an item, and write only buffers that are declared as written below.
    let triple = unsafe { module.kernel("triple", &[memory, memory, u64]) }.expect("there");
    // SAFETY: as above.
    let number = unsafe { module.kernel("number", &[memory, memory, u64, u64]) }.expect("there");
    let mut builder = Pipeline::builder(ITEMS);
    let (x, y) = (builder.input::<u32>("x", COLUMNS), builder.output::<u32>("y", COLUMNS));
    let t = builder.scratch::<u32>("t", COLUMNS);
    builder.parameter(BLOCK, block);
    builder.source("1");
    let request = LaunchRequest::new(Dim3::new(1, ITEMS, 1), Dim3::new(block, 1, 1));
    let batch = BatchAxis::new(Axis::Y, ITEMS);
    builder.kernel("triple", &triple, request, batch).read(x).write(t).length();
    builder.kernel("number", &number, request, batch).read(t).write(y).offset().length();
    (builder.build().expect("two stages"), x, y)
}

impl Numbered {
    fn new() -> Self {
        let guard = Arc::new(Guard::cuda(0).expect("a device"));
        let module = guard.compile("pipeline_tuning.cu", SOURCE).expect("compiles");
        let context = guard.context().expect("on a device");
        let [stream, other] = [(); 2].map(|()| context.new_stream().expect("a stream"));
        let count = u32::try_from(ITEMS * COLUMNS).expect("few");
        let from: Vec<u32> = (0..count).collect();
        let x = stream.clone_htod(&from).expect("memory");
        let y = stream.clone_htod(&from).expect("memory");
        let built = BLOCKS.iter().map(|block| build(&module, *block)).collect();
        Self { guard, stream, more: vec![other], built, from, x, y }
    }

    fn key(&self, objective: Objective) -> Key {
        self.built[0].0.key("numbered", Policy::default(), objective)
    }
}

impl PipelineProblem for Numbered {
    fn pipelines(&self) -> Vec<Pipeline<'static>> {
        self.built.iter().map(|(pipeline, ..)| pipeline.outline()).collect()
    }

    fn run(&mut self, index: usize, plan: &PipelinePlan) -> Result<PipelineRun, Error> {
        let (pipeline, x, y) = &mut self.built[index];
        let memory = DeviceMemory::new(&self.stream).on_streams(&self.more);
        let memory = memory.read(*x, &self.x).write(*y, &mut self.y);
        pipeline.run(&self.guard, plan, memory)
    }

    fn poison(&mut self) -> Result<(), MeasureFailure> {
        let poison = vec![u32::MAX; self.from.len()];
        Ok(self.stream.memcpy_htod(&poison, &mut self.y)?)
    }

    fn compare(&mut self) -> Result<(), MeasureFailure> {
        let y = self.stream.clone_dtoh(&self.y)?;
        let number = (0_u32..).flat_map(|item| [item; 256]);
        let is_wrong = |((y, x), item): ((&u32, &u32), u32)| *y != x.wrapping_mul(3) + item;
        match y.iter().zip(&self.from).zip(number).position(is_wrong) {
            None => Ok(()),
            Some(at) => Err(MeasureFailure::new(FailureKind::Mismatch, format!("wrong at {at}"))),
        }
    }
}

fn search(objective: Objective) -> TuningOutcome {
    let problem = Numbered::new();
    let clock = DeviceClock::new(&problem.guard, Arc::clone(&problem.stream), Policy::default());
    let workload = PipelineWorkload::new(problem, BUDGET);
    let mut space = workload.space();
    let mut measurer = InProcess::new(workload, clock.expect("a clock"));
    let outcome = tune(&mut measurer, &mut space, objective, &Limits::default(), &mut ());
    let outcome = outcome.expect("the default runs");
    let failures: Vec<_> = outcome.failures().collect();
    assert!(outcome.complete && failures.is_empty(), "{failures:?}");
    outcome
}

/// Publishes the winner in a profile, builds the pipeline with its parameters, and runs the plan.
fn use_entry(outcome: &TuningOutcome) {
    let mut problem = Numbered::new();
    let key = problem.key(outcome.objective);
    let untuned = problem.built[0].0.outline();
    let (identity, environment) = (problem.guard.identity(), problem.guard.environment());
    let mut document = Document::new(identity.clone(), environment.clone());
    let entry = outcome.entry(key.clone(), untuned.shape(), Provenance::default());
    document.insert(entry).expect("within the limits of a file");
    let (profile, _) = Profile::from_document(document, &identity, &environment);
    let guard = Guard::cuda(0).expect("a device").with_profile(Arc::new(profile));
    let tuned = untuned.tuned(&guard, &key);
    let block = tuned.parameter(BLOCK).expect("it is in the entry");
    let index = BLOCKS.iter().position(|other| *other == block).expect("one of both");
    let planned = problem.built[index].0.plan_tuned(tuned, &BUDGET).expect("legal");
    assert_eq!((planned.matched, planned.refused), (Match::Exact, None));
    let plan = planned.plan;
    let winner = &outcome.winner;
    assert_eq!((plan.chunk_items(), plan.len()), (winner.largest_chunk, winner.launches));
    assert_eq!(winner.parameters[0], (IN_FLIGHT.to_owned(), plan.in_flight()));
    problem.poison().expect("written");
    let run = problem.run(index, &plan).expect("it runs");
    assert_eq!((run.items_done, run.scratch_bytes), (ITEMS, winner.scratch_bytes));
    problem.compare().expect("the right result");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_fastest_plan_within_a_budget_is_found_and_its_entry_used() {
    let outcome = search(Objective::Throughput);
    assert!(outcome.candidates.iter().all(|one| one.candidate.scratch_bytes <= BYTES));
    use_entry(&outcome);
    let (title, subtitle) = ("numbered".to_owned(), "cold-eager, throughput".to_owned());
    let svg = Chart { title, subtitle, ..Chart::default() }.svg(&outcome);
    assert!(svg.expect("points").contains("scratch of chunks in flight"));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_bound_on_memory_and_one_on_the_first_chunks_in_flight_are_kept() {
    let outcome = search(Objective::Memory { bytes_per_item: 0, bytes: 1 << 20 });
    assert!(outcome.candidates.iter().all(|one| one.candidate.scratch_bytes <= 1 << 20));
    use_entry(&outcome);
    let outcome = search(Objective::Latency { max_launch_us: 50 });
    let latency = outcome.latency.expect("a bound");
    assert!(latency.launch.samples > 0 && (!latency.met || latency.launch.high_ns <= 50_000));
    use_entry(&outcome);
}
