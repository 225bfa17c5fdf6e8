//! Forms of our own kernels: in uneven parts along each axis, and folded, they write what one launch of the
//! original writes, bit for bit.
#![allow(unsafe_code, reason = "launches are made by hand, with arguments that a graph holds")]

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cudarc::driver::sys::{self, CUfunction_attribute, CUgraphInstantiate_flags, CUgraphNodeType};
use cudarc::driver::{CudaContext, CudaFunction, CudaGraph, CudaStream, result};
use cudarc::nvrtc::Ptx;
use gridguard::cuda::{Compiler, capture_launches};
use gridguard::ptx::{FOLDED_WORDS, Fold, SHIFTED_WORDS, rewrite, shifted_words};
use gridguard::{Choice, DeviceLimits, Guard, Parameter};
use gridguard_kernels::Kernels;
use gridguard_problems::{BenchCase, LaunchHandle, Problem};
use rayon::prelude::*;

use super::small_problems::problems;
use super::support::alone;

#[test]
#[ignore = "needs a CUDA GPU"]
fn our_kernels_write_the_same_in_uneven_parts_along_each_axis_and_folded() {
    // Memory of other tests would be compared too, since it comes from the same pool.
    let name = "our_forms::our_kernels_write_the_same_in_uneven_parts_along_each_axis_and_folded";
    alone(name, || {
        let context = CudaContext::new(0).expect("a context");
        // SAFETY: the process uses one stream only.
        unsafe { context.disable_event_tracking() };
        let guard = Arc::new(Guard::with_context(Arc::clone(&context)).expect("a guard"));
        let (kernels, stream) =
            (Kernels::new(Arc::clone(&guard)), context.new_stream().expect("a stream"));
        let problems = problems();
        let compile = |problem: &Problem| {
            let mut case = problem.on_device(&kernels, &stream).expect("memory");
            let handle = case.prepare(&[], Choice::AUTOMATIC, None).expect("a plan");
            (Forms::of(problem, guard.limits(), &context), case, handle)
        };
        let compiled: Vec<_> = problems.par_iter().map(compile).collect();
        let (mut compared, mut cut) = (0, BTreeMap::new());
        for (problem, (forms, case, handle)) in problems.iter().zip(compiled) {
            let launch = Launch::capture(case, handle, &stream, &forms);
            let (comparisons, axes) = launch.compare(problem, &forms);
            compared += comparisons;
            cut.entry(problem.kernel()).or_insert_with(BTreeSet::new).extend(axes);
        }
        println!(
            "{} problems, {compared} comparisons, axes that were cut: {cut:?}",
            problems.len()
        );
        assert!(cut.len() == Problem::KERNELS.len() && cut.values().all(|axes| !axes.is_empty()));
    });
}

/// The entry of a problem's kernel in rewritten PTX, and its forms.
struct Forms {
    parameters: Vec<Parameter>,
    original: CudaFunction,
    shifted: CudaFunction,
    folded: CudaFunction,
}

impl Forms {
    fn of(problem: &Problem, device: &DeviceLimits, context: &Arc<CudaContext>) -> Self {
        let mut code = problem.code(device, &[]).expect("device code");
        // Without overlap, as the guard compiles it for one launch.
        code.defines.push(("OVERLAP", 0));
        let options = code.compile_options(device.compute_capability);
        let compiled = Compiler::find().expect("NVRTC").compile_to_ptx(code.source, &options);
        let compiled = compiled.unwrap_or_else(|error| panic!("{problem}: {error}"));
        let ptx = compiled.image.ptx().expect("PTX");
        let rewritten =
            rewrite(ptx.as_bytes()).unwrap_or_else(|error| panic!("{problem}: {error}"));
        let entry = rewritten.report.entry(code.kernel).expect("the kernel");
        let names = entry.forms.as_ref().unwrap_or_else(|refusal| panic!("{problem}: {refusal}"));
        let text = String::from_utf8(rewritten.text).expect("ASCII");
        let text = text.trim_end_matches('\0').to_owned();
        let module = context.load_module(Ptx::from_src(text)).expect("the driver takes it");
        let function = |name: &str| module.load_function(name).expect("an entry");
        Self {
            parameters: code.parameters,
            original: function(code.kernel),
            shifted: function(&names.shifted),
            folded: function(&names.folded),
        }
    }
}

/// A launch of a kernel as the library makes it, with all its arguments.
struct Launch {
    grid: [u32; 3],
    block: (u32, u32, u32),
    shared_bytes: u32,
    /// The bytes of each argument.
    arguments: Vec<Vec<u8>>,
    /// Allocations that arguments point into, and their contents before the launch.
    memory: Vec<(u64, Vec<u8>)>,
    stream: Arc<CudaStream>,
    /// Holds the memory.
    _case: Box<dyn BenchCase>,
}

impl Launch {
    /// Captures the launch of `case`, which is not run.
    fn capture(
        mut case: Box<dyn BenchCase>,
        handle: LaunchHandle,
        stream: &Arc<CudaStream>,
        forms: &Forms,
    ) -> Self {
        stream.synchronize().expect("the inputs are written");
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).expect("captures");
        // SAFETY: the graph is never launched.
        let launched = unsafe { capture_launches(|| case.launch(handle)) };
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).expect("captured");
        assert_eq!(launched, Ok(1));
        let graph = graph.expect("it holds a launch");
        // SAFETY: the graph is alive.
        let node = unsafe { kernel_node(&graph) };
        let argument = |(at, parameter): (usize, &Parameter)| {
            // SAFETY: the node has an argument for each parameter of the kernel.
            let from = unsafe { node.kernelParams.add(at).read() }.cast::<u8>();
            // SAFETY: it has as many bytes as the parameter.
            unsafe { core::slice::from_raw_parts(from, parameter.bytes()) }.to_vec()
        };
        let arguments: Vec<Vec<u8>> = forms.parameters.iter().enumerate().map(argument).collect();
        let is_memory = |parameter: &Parameter| !matches!(parameter, Parameter::Value { .. });
        let pointers = arguments.iter().zip(&forms.parameters).filter(|(_, one)| is_memory(one));
        let pointers =
            pointers.map(|(bytes, _)| u64::from_ne_bytes(bytes[..].try_into().expect("8 bytes")));
        let allocations: BTreeMap<u64, usize> =
            pointers.filter(|at| *at != 0).map(allocation).collect();
        let memory =
            allocations.into_iter().map(|(base, bytes)| (base, read(base, bytes))).collect();
        Self {
            grid: [node.gridDimX, node.gridDimY, node.gridDimZ],
            block: (node.blockDimX, node.blockDimY, node.blockDimZ),
            shared_bytes: node.sharedMemBytes,
            arguments,
            memory,
            stream: Arc::clone(stream),
            _case: case,
        }
    }

    /// What all memory holds after these launches: each a grid, and the words of a form.
    fn run<const N: usize>(
        &self,
        function: &CudaFunction,
        launches: &[([u32; 3], [u32; N])],
    ) -> Vec<Vec<u8>> {
        for (base, bytes) in &self.memory {
            // SAFETY: the allocation has as many bytes.
            unsafe { result::memcpy_htod_sync(*base, bytes) }.expect("restored");
        }
        // A copy may return before it has reached the device.
        self.stream.context().synchronize().expect("restored");
        let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let shared = i32::try_from(self.shared_bytes).expect("few bytes");
        function.set_attribute(most, shared).expect("the device has it");
        for (grid, words) in launches {
            let mut pointers: Vec<*mut c_void> =
                self.arguments.iter().map(|bytes| bytes.as_ptr().cast_mut().cast()).collect();
            // An original takes one argument fewer, and ignores this one.
            pointers.push(words.as_ptr().cast_mut().cast());
            // SAFETY: the arguments of the library's own launch, and the words of this form.
            let launched = unsafe {
                result::launch_kernel(
                    function.cu_function(),
                    (*grid).into(),
                    self.block,
                    self.shared_bytes,
                    self.stream.cu_stream(),
                    &mut pointers,
                )
            };
            launched.expect("it is launched");
        }
        self.stream.synchronize().expect("it runs");
        self.memory.iter().map(|(base, bytes)| read(*base, bytes.len())).collect()
    }

    /// Compares every form with the original. Returns the number of comparisons, and the axes that were cut.
    fn compare(&self, problem: &Problem, forms: &Forms) -> (usize, Vec<usize>) {
        let grid = self.grid;
        let whole = self.run(&forms.original, &[(grid, [0; 0])]);
        let wrote = whole.iter().zip(&self.memory).any(|(after, (_, before))| after != before);
        assert!(wrote, "{problem} wrote nothing");
        let axes: Vec<usize> = (0..3).filter(|axis| grid[*axis] > 1).collect();
        let on = |axes: &[usize], parts| {
            core::array::from_fn(|axis| if axes.contains(&axis) { parts } else { 1 })
        };
        let single = axes.iter().flat_map(|axis| [1, 2, 3, 7].map(|parts| on(&[*axis], parts)));
        let several = [2, 3].map(|parts| on(&axes, parts));
        let cuts: Vec<[u32; 3]> = single.chain(several).collect();
        for cut in &cuts {
            let launches = shifted_parts(grid, *cut);
            assert!(self.run(&forms.shifted, &launches) == whole, "{problem} shifted, cut {cut:?}");
            if let [some @ .., _] = &launches[..]
                && !some.is_empty()
            {
                // Else equal bytes would mean nothing.
                assert!(self.run(&forms.shifted, some) != whole, "{problem} without its last part");
            }
        }
        for parts in [1, 2, 3, 7] {
            let launches = folded_parts(grid, parts);
            assert!(self.run(&forms.folded, &launches) == whole, "{problem} folded in {parts}");
        }
        (cuts.len() + 4, axes)
    }
}

/// Where at most `parts` parts of `blocks` blocks begin, of growing sizes, and how long they are.
fn uneven(blocks: u32, parts: u32) -> impl Iterator<Item = (u32, u32)> {
    let all = parts * (parts + 1) / 2;
    let begin = move |part: u32| blocks * (part * (part + 1) / 2) / all;
    let parts = (0..parts).map(move |part| (begin(part), begin(part + 1) - begin(part)));
    parts.filter(|(_, size)| *size > 0)
}

/// The shifted launches of `grid`, with `cut` uneven parts along each axis: the size of each, and its words.
fn shifted_parts(grid: [u32; 3], cut: [u32; 3]) -> Vec<([u32; 3], [u32; SHIFTED_WORDS])> {
    let [x, y, z] = [0, 1, 2].map(|axis| uneven(grid[axis], cut[axis]).collect::<Vec<_>>());
    let parts = z.iter().flat_map(|z| y.iter().map(move |y| (y, z)));
    let parts = parts.flat_map(|(y, z)| x.iter().map(move |x| [*x, *y, *z]));
    let words = |part: [(u32, u32); 3]| shifted_words(grid, part.map(|(first, _)| first));
    parts.map(|part| (part.map(|(_, size)| size), words(part))).collect()
}

/// The folded launches of `grid` in uneven parts.
fn folded_parts(grid: [u32; 3], parts: u32) -> Vec<([u32; 3], [u32; FOLDED_WORDS])> {
    let fold = Fold::new(grid).expect("few blocks");
    uneven(fold.blocks(), parts).map(|(first, size)| ([size, 1, 1], fold.words(first))).collect()
}

/// The parameters of a graph's one kernel node.
///
/// # Safety
///
/// They point into the graph, which outlives their use.
unsafe fn kernel_node(graph: &CudaGraph) -> sys::CUDA_KERNEL_NODE_PARAMS {
    let mut nodes = [ptr::null_mut(); 16];
    let mut count = nodes.len();
    // SAFETY: the graph is alive, and the array has that many elements.
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), nodes.as_mut_ptr(), &raw mut count) }
        .result()
        .expect("nodes");
    let is_kernel = |node: &sys::CUgraphNode| {
        let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: the node is of the graph.
        unsafe { sys::cuGraphNodeGetType(*node, &raw mut kind) }.result().expect("its type");
        kind == CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL
    };
    let kernels: Vec<_> = nodes[..count].iter().copied().filter(is_kernel).collect();
    let [kernel] = kernels[..] else { panic!("{} kernels", kernels.len()) };
    let mut node = MaybeUninit::zeroed();
    // SAFETY: the node is a kernel's.
    unsafe { sys::cuGraphKernelNodeGetParams_v2(kernel, node.as_mut_ptr()) }
        .result()
        .expect("its parameters");
    // SAFETY: the driver wrote it.
    unsafe { node.assume_init() }
}

/// The allocation that an address is in, and its bytes.
fn allocation(address: u64) -> (u64, usize) {
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: both pointers are to live numbers.
    unsafe { sys::cuMemGetAddressRange_v2(&raw mut base, &raw mut bytes, address) }
        .result()
        .expect("an allocation");
    (base, bytes)
}

fn read(base: u64, bytes: usize) -> Vec<u8> {
    let mut to = vec![0; bytes];
    // SAFETY: the allocation has as many bytes.
    unsafe { result::memcpy_dtoh_sync(&mut to, base) }.expect("it is read");
    to
}
