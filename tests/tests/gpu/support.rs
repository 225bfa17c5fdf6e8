//! Kernels and shorthand of the GPU tests.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaModule, CudaSlice, CudaStream, DeviceRepr};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{Args, CompileOptions, Compiler, Kernel, Module};
use gridguard::{Axis, BatchAxis, Choice, Dim3, Guard, LaunchRequest, Parameter, Plan, Strategy};
use gridguard_kernels::{Element, KernelError, Kernels, Operation};
use gridguard_test_support::assert_passed;

/// Small kernels whose output a test can check.
pub(crate) const SOURCE: &str = r#"
typedef unsigned long long u64;
typedef unsigned int u32;

// Counts from `first` on, one block of y an item; grid.y blocks, one thread each.
extern "C" __global__ void count_y(u64 *out, u64 first, u64 items) {
    if (blockIdx.y < items) out[blockIdx.y] = first + blockIdx.y;
}

// As count_y, along z.
extern "C" __global__ void count_z(u64 *out, u64 first, u64 items) {
    if (blockIdx.z < items) out[blockIdx.z] = first + blockIdx.z;
}

// As count_y, by way of the last word of each item's workspace of `words` words.
extern "C" __global__ void count_through(u64 *out, u64 *workspace, u64 words, u64 first, u64 items) {
    if (blockIdx.y >= items) return;
    volatile u64 *last = workspace + (blockIdx.y + 1) * words - 1;
    *last = first + blockIdx.y;
    out[blockIdx.y] = *last;
}

// Writes through the last word of `words` words of dynamic shared memory.
extern "C" __global__ void large_shared(u32 *out, u32 words) {
    extern __shared__ u32 shared[];
    shared[words - 1] = 7 + blockIdx.x;
    out[blockIdx.x] = shared[words - 1];
}

// The block's rank in its cluster.
extern "C" __global__ void cluster_rank(u32 *out) {
    u32 rank = 0;
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    out[blockIdx.y] = rank;
}

extern "C" __global__ void add_one(u64 *x) { x[blockIdx.y] += 1; }

// As add_one, begun before the launch before it has ended, and waiting for it.
extern "C" __global__ void add_one_after(u64 *x) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    x[blockIdx.y] += 1;
}

// Fills as slow_fill, and lets the launch after it begin at once.
extern "C" __global__ void fill_before(u64 *x, u64 value, u64 cycles) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    long long start = clock64();
    while (u64(clock64() - start) < cycles) {}
    x[blockIdx.y] = value;
}

// Keeps the stream busy for a while before it writes.
extern "C" __global__ void slow_fill(u64 *x, u64 value, u64 cycles) {
    long long start = clock64();
    while (u64(clock64() - start) < cycles) {}
    x[blockIdx.y] = value;
}

// Keeps the stream busy for a while before it reads.
extern "C" __global__ void slow_look(const volatile u64 *x, u64 *seen, u64 cycles) {
    long long start = clock64();
    while (u64(clock64() - start) < cycles) {}
    seen[blockIdx.y] = x[blockIdx.y];
}

extern "C" __global__ void __launch_bounds__(64) bounded() {}
extern "C" __global__ void empty() {}
"#;

/// A guard of device 0, shared by the tests of this process.
pub(crate) fn guard() -> &'static Arc<Guard> {
    static GUARD: OnceLock<Arc<Guard>> = OnceLock::new();
    GUARD.get_or_init(|| Arc::new(Guard::cuda(0).expect("a CUDA device")))
}

/// The workspace's kernels on device 0, with the cache on disk that the environment names.
pub(crate) fn kernels() -> &'static Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    KERNELS.get_or_init(|| Kernels::new(Arc::clone(guard())))
}

/// An element of tensors that go to the device and back.
pub(crate) trait Tensorial: Element + DeviceRepr + PartialEq + core::fmt::Debug {}
impl<T: Element + DeviceRepr + PartialEq + core::fmt::Debug> Tensorial for T {}

/// `len` elements that no kernel would write: each must be overwritten.
pub(crate) fn poisoned<T: Tensorial>(stream: &Arc<CudaStream>, len: usize) -> CudaSlice<T> {
    stream.clone_htod(&vec![T::narrow(f32::NAN); len]).expect("memory")
}

/// The smallest chunk of an operation's batch.
pub(crate) fn unit(operation: &impl Operation) -> u64 {
    operation.batch().unit().expect("a small one")
}

/// Asserts that `run` gives `whole` to the bit in chunks of `blocks` blocks too, and folded.
pub(crate) fn is_the_same_split_and_folded<R: PartialEq>(
    operation: &impl Operation,
    blocks: u64,
    whole: &R,
    name: &str,
    run: impl Fn(Choice) -> R,
) {
    let chunk = blocks * unit(operation);
    let split = run(Choice::at_most(chunk).strategy(Strategy::Chunked));
    assert!(split == *whole, "split: {name}");
    let folded = run(Choice::AUTOMATIC.strategy(Strategy::Folded));
    assert!(folded == *whole, "folded: {name}");
}

/// Asserts that an operation's grid overflows: whole it is refused, split it takes `launches` launches,
/// folded one.
pub(crate) fn overflows<O: Operation + Clone>(operation: &O, launches: u64) {
    let planned = |strategy| {
        let choice = Choice::AUTOMATIC.strategy(strategy);
        kernels().prepare(operation.clone(), choice).map(|prepared| prepared.plan().len())
    };
    assert!(matches!(planned(Strategy::Whole), Err(KernelError::Violations(_))));
    assert_eq!(planned(Strategy::Chunked).expect("splits"), launches);
    assert_eq!(planned(Strategy::Folded).expect("folds"), 1);
}

pub(crate) fn module() -> &'static Module {
    static MODULE: OnceLock<Module> = OnceLock::new();
    MODULE.get_or_init(|| guard().compile("support.cu", SOURCE).expect("compiles"))
}

/// The same kernels in a module of cudarc's own.
pub(crate) fn cudarc_module() -> Arc<CudaModule> {
    let options = CompileOptions::new("support.cu", guard().limits().compute_capability);
    let compiled = Compiler::find().expect("NVRTC").compile(SOURCE, &options).expect("compiles");
    let image = Ptx::from_binary(compiled.image.bytes().to_vec());
    context().load_module(image).expect("loads")
}

pub(crate) fn kernel(name: &str) -> Kernel {
    kernel_of(module(), name)
}

#[allow(unsafe_code, reason = "the promise for the kernels above")]
pub(crate) fn kernel_of(module: &Module, name: &str) -> Kernel {
    let (memory, u32, u64) = (Parameter::Memory, Parameter::of::<u32>(), Parameter::of::<u64>());
    let parameters: &[Parameter] = match name {
        "count_y" | "count_z" | "slow_fill" | "fill_before" => &[memory, u64, u64],
        "count_through" => &[memory, memory, u64, u64, u64],
        "slow_look" => &[memory, memory, u64],
        "large_shared" => &[memory, u32],
        "cluster_rank" | "add_one" | "add_one_after" => &[memory],
        _ => &[],
    };
    // SAFETY: the kernels above write within their arguments, one element an item.
    unsafe { module.kernel(name, parameters) }.expect("a kernel")
}

pub(crate) fn context() -> Arc<CudaContext> {
    Arc::clone(guard().context().expect("a context"))
}

pub(crate) fn stream() -> Arc<CudaStream> {
    context().new_stream().expect("a stream")
}

/// A plan of one block an item along `axis`, one thread each.
pub(crate) fn plan(kernel: &Kernel, axis: Axis, items: u64, choice: Choice) -> Plan {
    let request = LaunchRequest::new(Dim3::ONE.with(axis, items), Dim3::ONE);
    let batch = BatchAxis::new(axis, items);
    guard().plan(&request, Some(&batch), kernel.limits(), choice).expect("a plan")
}

/// Counts `items` along `axis` by chunks and returns the device's output, which was poisoned before.
pub(crate) fn count(axis: Axis, items: u64, choice: Choice) -> (u64, Vec<u64>) {
    let kernel = kernel(if axis == Axis::Y { "count_y" } else { "count_z" });
    let stream = stream();
    let plan = plan(&kernel, axis, items, choice);
    let poison = vec![u64::MAX; usize::try_from(items).expect("items")];
    let mut out = stream.clone_htod(&poison).expect("memory");
    let mut args = Args::new(&stream);
    args.write_items(&mut out, 1).offset().length();
    let launches = guard().launch(&kernel, &plan, args).expect("launches");
    (launches, stream.clone_dtoh(&out).expect("copies back"))
}

pub(crate) fn is_counting(numbers: &[u64]) -> bool {
    numbers.iter().zip(0..).all(|(number, place)| *number == place)
}

/// Runs `body`, the body of `test` with its module's name, in a process of its own.
pub(crate) fn alone(test: &str, body: impl FnOnce()) {
    const CHILD: &str = "GRIDGUARD_TEST_CHILD";
    if std::env::var_os(CHILD).is_some_and(|child| child == *test) {
        return body();
    }
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .output()
        .expect("this program runs again");
    assert_passed(test, &output);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}
