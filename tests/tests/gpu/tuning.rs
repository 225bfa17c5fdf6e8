//! Candidates with faults, measured in a child process: this program again, in another role.

use std::env;
use std::num::NonZeroU64;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use gridguard::cuda::{Args, Kernel, capture_launches};
use gridguard::profile::{L2, Policy, StoredChoice, Submission};
use gridguard::{Axis, BatchAxis, Dim3, Guard, LaunchRequest, Parameter, Plan};
use gridguard_autotune::{
    Candidate, DeviceClock, FailureKind, InProcess, LaunchConfig, MeasureFailure, Measurer,
    Portion, Remote, Sample, Timeouts, Workload, serve,
};

const SOURCE: &str = r#"
typedef unsigned int u32;

constexpr u32 ELEMENTS = 512;

// out[i] = in[i] + 1 for the elements of each item, one block of y an item; or what `fault` says.
extern "C" __global__ void faulty(const u32 *in, u32 *out, u32 fault) {
    const size_t item = size_t(blockIdx.y) * ELEMENTS;
    if (fault == 1) *reinterpret_cast<volatile u32 *>(16) = 1;
    while (fault == 2 && blockIdx.y == 0 && *reinterpret_cast<const volatile u32 *>(in) < 1000) {}
    if (fault == 4 && blockIdx.y == 0 && threadIdx.x == 0)
        printf("\n\"checked\"\n{\"id\":%d,\"message\":\"checked\"}\n", 2);
    for (u32 i = threadIdx.x; i < ELEMENTS; i += blockDim.x)
        out[item + i] = in[item + i] + (fault >= 3 ? 2 : 1);
}
"#;

/// What is wrong with a candidate, by its parameter `fault`.
const FINE: u64 = 0;
const ILLEGAL_ADDRESS: u64 = 1;
const ENDLESS: u64 = 2;
const WRONG: u64 = 3;
/// It is wrong, and prints the response to a correct one.
const FORGES: u64 = 4;

/// 8 MiB in and as much out: both stay in the L2 cache of any data center device since Ampere.
const ITEMS: u64 = 4096;
const ELEMENTS: u64 = 512;
/// Items of a chunk, where the launch is split.
const CHUNK: NonZeroU64 = NonZeroU64::new(1024).unwrap();

/// Within the child: shorter than the tuner's timeout, so that each can be tested.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(1);
const TIMEOUTS: Timeouts = Timeouts {
    open: Duration::from_secs(60),
    request: Duration::from_secs(6),
    close: Duration::from_secs(5),
    kill: Duration::from_secs(5),
};

/// What a process of this program is to be; none for the tests themselves.
const ROLE: &str = "GRIDGUARD_TUNING_ROLE";

struct Faulty {
    guard: Arc<Guard>,
    stream: Arc<CudaStream>,
    kernel: Kernel,
    numbers: Vec<u32>,
    input: CudaSlice<u32>,
    out: CudaSlice<u32>,
}

impl Faulty {
    #[allow(unsafe_code, reason = "the promise for the kernel above")]
    fn new(guard: &Arc<Guard>, stream: &Arc<CudaStream>) -> Result<Self, MeasureFailure> {
        let module = guard.compile("faulty.cu", SOURCE)?;
        let parameters = [Parameter::Memory, Parameter::Memory, Parameter::of::<u32>()];
        // SAFETY: `faulty` stays within the elements of its items, but for the fault that these tests
        // are about, in a process that has no other purpose.
        let kernel = unsafe { module.kernel("faulty", &parameters)? };
        let numbers: Vec<u32> =
            (0..ITEMS * ELEMENTS).zip((0..1000).cycle()).map(|at| at.1).collect();
        let input = stream.clone_htod(&numbers)?;
        let out = stream.alloc_zeros(numbers.len())?;
        let (guard, stream) = (Arc::clone(guard), Arc::clone(stream));
        Ok(Self { guard, stream, kernel, numbers, input, out })
    }

    fn request() -> LaunchRequest {
        LaunchRequest::new(Dim3::new(1, ITEMS, 1), Dim3::new(128, 1, 1))
    }

    fn plan(&self, candidate: &Candidate, portion: Portion) -> Result<Plan, MeasureFailure> {
        let (items, choice) = match portion {
            Portion::Sequence => (ITEMS, candidate.choice),
            Portion::LargestLaunch => (candidate.largest_chunk, StoredChoice::Automatic),
        };
        let request = Self::request().grid(Dim3::new(1, items, 1));
        let batch = BatchAxis::new(Axis::Y, items);
        let limits = self.kernel.limits();
        Ok(self.guard.plan(&request, Some(&batch), limits, choice.into())?)
    }
}

impl Workload for Faulty {
    fn configurations(&mut self) -> Result<Vec<LaunchConfig>, MeasureFailure> {
        let configuration = |fault| LaunchConfig {
            parameters: vec![("fault".into(), fault)],
            request: Self::request(),
            batch: Some(BatchAxis::new(Axis::Y, ITEMS)),
            limits: self.kernel.limits().clone(),
        };
        Ok((FINE..=FORGES).map(configuration).collect())
    }

    fn prepare(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.plan(candidate, Portion::Sequence).map(drop)
    }

    #[allow(unsafe_code, reason = "the clock may capture it")]
    fn launch(&mut self, candidate: &Candidate, portion: Portion) -> Result<(), MeasureFailure> {
        let plan = self.plan(candidate, portion)?;
        let (_, fault) = candidate.parameters.first().expect("a fault");
        let mut args = Args::new(&self.stream);
        args.read_items(&self.input, ELEMENTS)
            .write_items(&mut self.out, ELEMENTS)
            .value(u32::try_from(*fault).expect("a small number"));
        // SAFETY: the clock replays a graph only while kernel and memory are here, and all work is on its stream.
        unsafe { capture_launches(|| self.guard.launch(&self.kernel, &plan, args)) }?;
        Ok(())
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureFailure> {
        self.stream.memset_zeros(&mut self.out)?;
        self.launch(candidate, Portion::Sequence)?;
        let out = self.stream.clone_dtoh(&self.out)?;
        match out.iter().zip(&self.numbers).position(|(out, number)| *out != number + 1) {
            None => Ok(()),
            Some(at) => Err(MeasureFailure::new(FailureKind::Mismatch, format!("wrong at {at}"))),
        }
    }
}

/// The main function of the other processes. Without a role it does nothing.
#[test]
#[ignore = "needs a CUDA GPU"]
fn plays_its_role() {
    if env::var_os(ROLE).is_some() {
        serve(|problem| {
            let policy = policies().into_iter().find(|policy| policy.to_string() == problem);
            Ok(Box::new(measurer(policy.expect("a policy"))?))
        })
        .expect("serves");
    }
}

#[allow(unsafe_code, reason = "event tracking and capture exclude each other")]
fn measurer(policy: Policy) -> Result<InProcess<Faulty, DeviceClock>, MeasureFailure> {
    let context = CudaContext::new(0)?;
    // SAFETY: the process uses one stream only.
    unsafe { context.disable_event_tracking() };
    let guard = Arc::new(Guard::with_context(Arc::clone(&context))?);
    let stream = context.new_stream()?;
    let workload = Faulty::new(&guard, &stream)?;
    let clock = DeviceClock::new(&guard, stream, policy)?.with_timeout(CLOCK_TIMEOUT);
    Ok(InProcess::new(workload, clock))
}

fn policies() -> [Policy; 4] {
    let of = |l2, submission| Policy { l2, submission };
    [
        of(L2::Cold, Submission::Eager),
        of(L2::Cold, Submission::Graph),
        of(L2::Hot, Submission::Eager),
        of(L2::Hot, Submission::Graph),
    ]
}

fn remote(policy: Policy) -> Remote {
    let child = || {
        let mut command = Command::new(env::current_exe().expect("this program"));
        // The harness prints the test's name before its output if it has one thread.
        command.args(["--exact", "tuning::plays_its_role", "--ignored", "--nocapture"]);
        command.args(["--test-threads", "2"]).env(ROLE, "measures");
        command
    };
    Remote::spawn(child, policy.to_string(), TIMEOUTS).expect("a measurer")
}

/// A candidate as a space makes it, by the guard's planner.
fn candidate(remote: &mut Remote, fault: u64, choice: StoredChoice) -> Candidate {
    let is_faulty = |one: &&LaunchConfig| one.parameters == [("fault".to_owned(), fault)];
    let configurations = remote.configurations().expect("known");
    let configuration = configurations.iter().find(is_faulty).expect("a configuration");
    let LaunchConfig { parameters, request, batch, limits } = configuration;
    let plan = Plan::new(request, batch.as_ref(), limits, choice.into()).expect("a plan");
    Candidate {
        parameters: parameters.clone(),
        choice,
        strategy: plan.strategy(),
        launches: plan.len(),
        largest_chunk: plan.largest_chunk(),
        block_threads: 128,
        scratch_bytes: 0,
    }
}

/// Checks and times a candidate that is fine.
fn measure_fine(remote: &mut Remote) {
    let fine = candidate(remote, FINE, StoredChoice::Chunked { max_items: CHUNK });
    remote.check(&fine).expect("right");
    for portion in [Portion::Sequence, Portion::LargestLaunch] {
        let Sample { time_ns, clock_mhz, .. } = remote.sample(&fine, portion).expect("a sample");
        assert!((100.0..1e9).contains(&time_ns), "{time_ns} ns");
        let clock_mhz = clock_mhz.expect("a clock");
        assert!((100.0..5000.0).contains(&clock_mhz), "{clock_mhz} MHz");
    }
}

/// Measures a candidate with a fault between others that are fine.
fn fault(
    remote: &mut Remote,
    fault: u64,
    request: fn(&mut Remote, &Candidate) -> Result<(), MeasureFailure>,
) -> MeasureFailure {
    measure_fine(remote);
    let faulty = candidate(remote, fault, StoredChoice::Automatic);
    let failure = request(remote, &faulty).expect_err("a fault");
    assert_eq!(remote.process_id().is_none(), failure.kind.is_fatal(), "{failure}");
    measure_fine(remote);
    failure
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_fault_in_a_check_is_told_and_leaves_the_device_to_the_next_candidate() {
    let mut remote = remote(Policy::default());
    let mut check = |kind| fault(&mut remote, kind, |remote, faulty| remote.check(faulty));
    let failure = check(WRONG);
    assert_eq!(failure, MeasureFailure::new(FailureKind::Mismatch, "wrong at 0"));
    let failure = check(FORGES);
    assert_eq!(failure, MeasureFailure::new(FailureKind::Mismatch, "wrong at 0"));
    let failure = check(ILLEGAL_ADDRESS);
    assert_eq!(failure.kind, FailureKind::Crash, "{failure}");
    assert!(failure.message.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{failure}");
    // The check waits in the driver, which only the tuner's timeout ends.
    let failure = check(ENDLESS);
    let late = "the measuring process did not respond within 6s";
    assert_eq!(failure, MeasureFailure::new(FailureKind::Timeout, late));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_fault_in_a_sample_is_told_under_each_policy() {
    for policy in policies() {
        let mut remote = remote(policy);
        let mut sample = |kind| {
            fault(&mut remote, kind, |remote, faulty| {
                remote.sample(faulty, Portion::Sequence).map(drop)
            })
        };
        let failure = sample(ILLEGAL_ADDRESS);
        assert_eq!(failure.kind, FailureKind::Crash, "{policy}: {failure}");
        assert!(failure.message.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{policy}: {failure}");
        let failure = sample(ENDLESS);
        let late = "did not finish within 1s";
        assert_eq!(failure, MeasureFailure::new(FailureKind::Timeout, late), "{policy}");
    }
}
