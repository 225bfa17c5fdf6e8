//! Rewritten kernels: in parts of their grid, and folded, they write what one launch of the original
//! writes, bit for bit.
#![allow(unsafe_code, reason = "someone must promise that a kernel keeps its contract")]

use cudarc::driver::LaunchConfig;
use gridguard::cuda::{Args, CompileOptions, Compiler, Kernel, LaunchErrorKind, Module};
use gridguard::ptx::Reason;
use gridguard::{Axis, Choice, Dim3, LaunchRequest, Parameter, Strategy};

use super::support::{guard, stream};

/// Kernels that know nothing of parts. Each writes `out`, as many words as its grid has blocks.
const SOURCE: &str = r#"
typedef unsigned long long u64;
typedef unsigned int u32;

__device__ u64 mixed(u64 x) {
    x ^= x >> 31; x *= 0x7fb5d329728ea185ull; x ^= x >> 27; x *= 0x81dadef4bc2dd44dull; return x ^ (x >> 33);
}
__device__ u64 linear() {
    return blockIdx.x + u64(gridDim.x) * (blockIdx.y + u64(gridDim.y) * blockIdx.z);
}
__device__ __noinline__ u64 in_a_call(u32 salt) {
    return mixed(blockIdx.x * 3 + gridDim.y * 5 + blockIdx.z * 7 + gridDim.z * 11 + salt);
}

// Every index and every size, by one thread.
extern "C" __global__ void every_value(u64 *out, u32 salt) {
    u64 all = mixed(blockIdx.x) + mixed(blockIdx.y + 1000003ull) + mixed(blockIdx.z + 2000003ull);
    all += mixed(gridDim.x + 3000017ull) + mixed(gridDim.y + 4000037ull) + mixed(gridDim.z + 5000011ull);
    if (threadIdx.x == 0) out[linear()] = mixed(all + salt);
}

// One axis alone.
extern "C" __global__ void only_y(u64 *out, u32 salt) {
    if (threadIdx.x == 0) atomicAdd(out + blockIdx.y, mixed(blockIdx.y + salt));
}

// Through a function that is called, and a loop over the grid.
extern "C" __global__ void calls(u64 *out, u32 salt) {
    u64 blocks = u64(gridDim.x) * gridDim.y * gridDim.z;
    u64 sum = in_a_call(salt);
    for (u64 at = linear() * blockDim.x + threadIdx.x; at < 8 * blocks; at += blocks * blockDim.x) sum += mixed(at);
    atomicAdd(out + linear(), sum);
}

// The last block to finish, of all parts, sums the others' results.
extern "C" __global__ void last_block(u64 *out, u32 salt) {
    __shared__ bool last;
    u64 blocks = u64(gridDim.x) * gridDim.y * gridDim.z;
    if (threadIdx.x == 0) {
        if (linear() > 0) out[linear()] = mixed(linear() + salt);
        __threadfence();
        last = atomicAdd(out, 1ull) + 1 == blocks;
        if (last) {
            u64 sum = 0;
            for (u64 at = 1; at < blocks; at++) sum += ((volatile u64 *)out)[at];
            out[0] = sum;
        }
    }
}

// Belongs to one launch.
extern "C" __global__ void grid_id(u64 *out, u32 salt) {
    u64 id;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(id));
    out[linear()] = id + salt;
}
"#;

const KERNELS: [&str; 4] = ["every_value", "only_y", "calls", "last_block"];
const SALT: u32 = 0x5eed;

fn ptx() -> String {
    let options = CompileOptions::new("rewritten.cu", guard().limits().compute_capability);
    let compiler = Compiler::find().expect("NVRTC");
    let compiled = compiler.compile_to_ptx(SOURCE, &options).expect("it compiles");
    compiled.image.ptx().expect("PTX").to_owned()
}

fn load() -> Module {
    guard().load_ptx(ptx()).expect("the driver takes it")
}

fn kernel(module: &Module, name: &str) -> Kernel {
    // SAFETY: each kernel writes a word for each of its blocks, and tests give it as many.
    unsafe { module.kernel(name, &[Parameter::Memory, Parameter::of::<u32>()]) }.expect("a kernel")
}

fn request(grid: [u32; 3]) -> LaunchRequest {
    LaunchRequest::new(grid.into(), Dim3::new(64, 1, 1))
}

fn words_of(grid: [u32; 3]) -> usize {
    grid.into_iter().map(|blocks| usize::try_from(blocks).expect("64 bits")).product()
}

/// What `kernel` writes when it is launched as `choice` says, and the number of launches.
fn run(kernel: &Kernel, grid: [u32; 3], choice: Choice) -> (u64, Vec<u64>) {
    let stream = stream();
    let mut out = stream.alloc_zeros::<u64>(words_of(grid)).expect("memory");
    let mut args = Args::new(&stream);
    args.write(&mut out).value(SALT);
    let plan = guard().plan(&request(grid), None, kernel.limits(), choice).expect("a plan");
    let launches = guard().launch(kernel, &plan, args).expect("it is launched");
    (launches, stream.clone_dtoh(&out).expect("it runs"))
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn parts_along_each_axis_and_folded_chunks_write_what_one_launch_writes() {
    let module = load();
    for name in KERNELS {
        let kernel = kernel(&module, name);
        // The blocks along x alone, rows of y, layers of z; 85 is no multiple of 2, 3 or 7.
        for (grid, layer) in [([85, 1, 1], 1), ([4, 85, 1], 4), ([4, 3, 85], 12)] {
            let (launches, whole) = run(&kernel, grid, Choice::AUTOMATIC);
            assert_eq!(launches, 1);
            assert!(whole.iter().any(|word| *word != 0), "{name} wrote nothing");
            for parts in [1, 2, 3, 7] {
                let most = Choice::at_most(layer * 85_u64.div_ceil(parts));
                let shifted = run(&kernel, grid, most.strategy(Strategy::Shifted));
                assert!(shifted == (parts, whole.clone()), "{name} shifted, {grid:?}, {parts}");
                let folded = run(&kernel, grid, most.strategy(Strategy::Folded));
                assert!(folded == (parts, whole.clone()), "{name} folded, {grid:?}, {parts}");
            }
        }
        // Rows and layers, and parts of rows.
        let grid = [37, 11, 5];
        let (_, whole) = run(&kernel, grid, Choice::AUTOMATIC);
        for (most, launches) in [(37 * 11, 5), (37 * 4, 15), (37, 55), (10, 220)] {
            let most = Choice::at_most(most);
            let shifted = run(&kernel, grid, most.strategy(Strategy::Shifted));
            assert!(shifted == (launches, whole.clone()), "{name}, {launches} parts");
        }
    }
}

fn mixed(mut x: u64) -> u64 {
    x ^= x >> 31;
    x = x.wrapping_mul(0x7fb5_d329_728e_a185);
    x ^= x >> 27;
    x = x.wrapping_mul(0x81da_def4_bc2d_d44d);
    x ^ (x >> 33)
}

/// What `every_value` writes for a block.
fn reference(grid: [u32; 3], block: [u32; 3]) -> u64 {
    let seeds = [0, 1_000_003, 2_000_003, 3_000_017, 4_000_037, 5_000_011];
    let values = block.into_iter().chain(grid);
    let all = values.zip(seeds).map(|(value, seed)| mixed(u64::from(value) + seed));
    mixed(all.fold(0, u64::wrapping_add).wrapping_add(SALT.into()))
}

fn is_reference(grid: [u32; 3], out: &[u64]) -> bool {
    let [x, y, _] = grid;
    let indices = (0_u32..).map(|at| [at % x, at / x % y, at / x / y]);
    out.len() == words_of(grid)
        && out.iter().zip(indices).all(|(word, block)| *word == reference(grid, block))
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn grids_that_the_driver_refuses_are_launched_and_match_a_reference() {
    let module = load();
    let kernel = kernel(&module, "every_value");
    let forms = [None, Some(Strategy::Shifted), Some(Strategy::Folded)];
    for grid in [[1, 76_800, 1], [3, 65_536, 2], [1, 1, 70_000], [2, 3, 131_071]] {
        for strategy in forms {
            let choice = strategy.map_or(Choice::AUTOMATIC, |one| Choice::AUTOMATIC.strategy(one));
            let (launches, out) = run(&kernel, grid, choice);
            let expected = if strategy == Some(Strategy::Shifted) { 2..=3 } else { 1..=1 };
            assert!(expected.contains(&launches), "{grid:?} {strategy:?}: {launches}");
            assert!(is_reference(grid, &out), "{grid:?} {strategy:?}");
        }
    }
    // As launches are made that nobody planned.
    let (stream, grid) = (stream(), [1, 76_800, 1]);
    let mut out = stream.alloc_zeros::<u64>(words_of(grid)).expect("memory");
    let mut args = Args::new(&stream);
    args.write(&mut out).value(SALT);
    assert_eq!(guard().launch(&kernel, &request(grid), args), Ok(1));
    assert!(is_reference(grid, &stream.clone_dtoh(&out).expect("it runs")));
    for grid in [[1, 60_000, 1], [1, 76_800, 1], [3, 2, 70_000]] {
        let mut out = stream.alloc_zeros::<u64>(words_of(grid)).expect("memory");
        let mut builder = guard().builder(&stream, &kernel);
        builder.arg(&mut out).arg(&SALT);
        let config =
            LaunchConfig { grid_dim: grid.into(), block_dim: (64, 1, 1), shared_mem_bytes: 0 };
        assert_eq!(builder.launch(config), Ok(1));
        assert!(is_reference(grid, &stream.clone_dtoh(&out).expect("it runs")), "{grid:?}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_kernel_that_belongs_to_one_launch_is_refused_where_it_overflows() {
    let module = load();
    let kernel = kernel(&module, "grid_id");
    let stream = stream();
    let mut out = stream.alloc_zeros::<u64>(70_000).expect("memory");
    let mut launch = |blocks: u64| {
        let mut args = Args::new(&stream);
        args.write(&mut out).value(SALT);
        let grid = Dim3::ONE.with(Axis::Y, blocks);
        let request = LaunchRequest::new(grid, Dim3::new(64, 1, 1));
        guard().launch(&kernel, &request, args)
    };
    assert_eq!(launch(60_000), Ok(1));
    let error = launch(70_000).expect_err("too many blocks");
    let LaunchErrorKind::NotRewritten { refusal, .. } = error.kind() else { panic!("{error}") };
    assert_eq!(refusal.reason, Reason::GridId);
    stream.synchronize().expect("the legal launch ran");
}
