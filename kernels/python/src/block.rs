//! The transformer block of a motion module, on the memory of tensors.

use core::cell::RefCell;
use core::num::NonZeroUsize;
use core::{ptr, slice};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cudarc::driver::CudaStream;
use gridguard::cuda::capture_launches;
use gridguard::pipeline::{Budget, HostMemory, Pipeline, PipelinePlan};
use gridguard::profile::{Objective, Policy};
use gridguard::{DeviceLimits, Guard};
use gridguard_kernels::temporal_attention::MAX_FRAMES;
use gridguard_kernels::temporal_block::{
    BlockAddresses, BlockMemory, BlockShape, BlockWeights, TemporalBlock, block_tensors,
    host_pipeline,
};
use gridguard_kernels::{Element, ElementType, Kernels};
use half::{bf16, f16};
use lru::LruCache;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::BlockFailure;
use crate::launches;

/// Items, frames, channels and heads; how many positions have an embedding; the type; the device; and the most
/// bytes of scratch.
type Problem = (u64, u64, u64, u64, Option<u64>, String, usize, Option<u64>);
/// The addresses of x, y, the tensors in the order of `BLOCK_TENSORS`, and the embeddings of positions.
type Addresses = (u64, u64, Vec<u64>, u64);

/// What is kept for a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    shape: BlockShape,
    positions: Option<u64>,
    element: ElementType,
    device: usize,
    budget: Option<u64>,
}

/// Bytes of scratch that a run needs, or why the kernels do not compute it.
#[derive(IntoPyObject)]
pub(crate) enum Scratch {
    Bytes(u64),
    Refused(&'static str),
}

/// One run.
struct Run {
    addresses: BlockAddresses,
    /// The address and the bytes of scratch.
    scratch: (u64, u64),
    stream: usize,
    capturing: bool,
}

/// A block of any type that is ready to run on this thread.
trait Ready {
    /// Bytes of scratch that a run needs.
    fn bytes(&self) -> u64;
    /// Whether a run would load no more code.
    fn has_run(&self) -> bool;
    /// What graphs that captured a run need.
    fn code(&self) -> Arc<dyn Send + Sync>;
    /// Submits a run.
    fn run(&mut self, run: &Run) -> Result<(), BlockFailure>;
}

/// A block with its pipeline, which cuBLASLt's objects keep on one thread.
struct Kept<T: 'static> {
    // Before the block, from which they borrow.
    pipeline: Pipeline<'static>,
    memory: BlockMemory<'static, T>,
    block: Arc<TemporalBlock<T>>,
    kernels: Kernels,
    plan: PipelinePlan,
    /// For chunks in flight beside the first.
    more: Vec<Arc<CudaStream>>,
    has_run: bool,
}

/// The most pipelines that a thread keeps. Those of another shape are made again beyond that, from kernels that
/// are mostly still loaded.
const MAX_KEPT: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Chunks in flight within a budget, so that one fills the device while the last blocks of another end.
const IN_FLIGHT: u64 = 2;

thread_local! {
    static KEPT: RefCell<LruCache<Key, Box<dyn Ready>>> = RefCell::new(LruCache::new(MAX_KEPT));
    /// A further stream of each device.
    static STREAMS: RefCell<HashMap<usize, Arc<CudaStream>>> = RefCell::default();
}
static CAPTURED: LazyLock<Mutex<HashMap<Key, Arc<dyn Send + Sync>>>> =
    LazyLock::new(Mutex::default);

/// Prepares a block on this thread.
#[pyfunction]
pub(crate) fn block_scratch(
    py: Python<'_>,
    problem: Problem,
    capturing: bool,
) -> PyResult<Scratch> {
    Ok(match Key::new(problem)? {
        // Compiling takes seconds: other threads may run meanwhile.
        Ok(key) => py.detach(|| prepare(key, capturing))?,
        Err(reason) => Scratch::Refused(reason),
    })
}

/// Submits a prepared block to a stream of PyTorch.
///
/// The caller, `gridguard.torch`, passes tensors of the problem that are alive, on its device and of its type,
/// scratch of as many bytes as `block_scratch` returned just now, on this thread, and the device's current stream,
/// on which PyTorch's allocator orders their memory.
#[pyfunction]
pub(crate) fn block(
    py: Python<'_>,
    problem: Problem,
    addresses: Addresses,
    scratch: (u64, u64),
    stream: usize,
    capturing: bool,
) -> PyResult<()> {
    let key = Key::new(problem)?.map_err(PyValueError::new_err)?;
    let run = Run { addresses: of_tensors(addresses)?, scratch, stream, capturing };
    let submitted = py.detach(|| {
        KEPT.with_borrow_mut(|kept| {
            let ready = kept.get_mut(&key).ok_or(BlockFailure::NotPrepared)?;
            if capturing {
                CAPTURED.lock().entry(key).or_insert_with(|| ready.code());
            }
            ready.run(&run)
        })
    });
    Ok(submitted?)
}

/// The block on the host, in f64: what tests compare with PyTorch. Addresses are of memory of this process.
#[pyfunction]
pub(crate) fn block_on_host(
    py: Python<'_>,
    problem: Problem,
    addresses: Addresses,
) -> PyResult<Option<&'static str>> {
    let key = match Key::new(problem)? {
        Ok(key) => key,
        Err(reason) => return Ok(Some(reason)),
    };
    let addresses = of_tensors(addresses)?;
    let ran = py.detach(|| match key.element {
        ElementType::F16 => on_host::<f16>(&key, &addresses),
        ElementType::Bf16 => on_host::<bf16>(&key, &addresses),
        ElementType::F32 => on_host::<f32>(&key, &addresses),
    });
    Ok(ran.map(|()| None)?)
}

impl Key {
    /// The key, or why the kernels do not compute the problem.
    fn new(problem: Problem) -> PyResult<Result<Self, &'static str>> {
        let (items, frames, channels, heads, positions, dtype, device, budget) = problem;
        let element = ElementType::ALL.into_iter().find(|element| element.name() == dtype);
        let element = element.ok_or_else(|| PyValueError::new_err(format!("no type {dtype}")))?;
        if items == 0 {
            return Ok(Err("empty"));
        }
        if frames > MAX_FRAMES || positions.is_some_and(|positions| positions < frames) {
            return Ok(Err("length"));
        }
        let Ok(shape) = BlockShape::new(items, frames, channels, heads) else {
            return Ok(Err("shape"));
        };
        Ok(Ok(Self { shape, positions, element, device, budget }))
    }
}

fn of_tensors((x, y, tensors, positions): Addresses) -> PyResult<BlockAddresses> {
    let tensors = tensors.try_into().map_err(|_| PyValueError::new_err("not all tensors"))?;
    Ok(BlockAddresses { x, y, tensors, positions })
}

fn prepare(key: Key, capturing: bool) -> Result<Scratch, BlockFailure> {
    let known = KEPT.with_borrow_mut(|kept| kept.get(&key).map(|one| (one.bytes(), one.has_run())));
    match known {
        // Loading code may end the capture.
        None | Some((_, false)) if capturing => {
            return Ok(Scratch::Refused("first call during capture"));
        }
        Some((bytes, _)) => return Ok(Scratch::Bytes(bytes)),
        None => {}
    }
    let ready: Box<dyn Ready> = match key.element {
        ElementType::F16 => Box::new(Kept::<f16>::new(&key)?),
        ElementType::Bf16 => Box::new(Kept::<bf16>::new(&key)?),
        ElementType::F32 => Box::new(Kept::<f32>::new(&key)?),
    };
    let bytes = ready.bytes();
    let dropped = KEPT.with_borrow_mut(|kept| kept.push(key, ready));
    drop(dropped);
    Ok(Scratch::Bytes(bytes))
}

impl<T: Element + 'static> Kept<T> {
    fn new(key: &Key) -> Result<Self, BlockFailure> {
        let kernels = launches::kernels(key.device)?;
        let block = TemporalBlock::without_weights(&kernels, key.shape, key.positions)?;
        let block = Arc::new(block);
        // SAFETY: the block lies behind an `Arc`, so it does not move, nothing changes it, and `Self` keeps it
        // until the pipeline and its memory, which alone borrow so long, are dropped: fields are in the order
        // of their declaration.
        #[allow(unsafe_code, reason = "a value beside what it borrows from")]
        let borrowed: &'static TemporalBlock<T> = unsafe { &*Arc::as_ptr(&block) };
        let (pipeline, memory) = borrowed.pipeline()?;

        let guard = kernels.guard();
        let budget =
            key.budget.map_or(Budget::UNLIMITED, |bytes| Budget::bytes(bytes).in_flight(IN_FLIGHT));
        // The name and the objective of the tuner's entries.
        let objective = Objective::Memory { bytes_per_item: 0, bytes: budget.max_bytes() };
        let entry = pipeline.key("temporal_block", Policy::default(), objective);
        let tuned = pipeline.tuned(guard, &entry);
        let plan = pipeline.plan_tuned(guard, tuned, &budget)?.plan;
        let more = match plan.in_flight() {
            1 => Vec::new(),
            _ => vec![further_stream(&kernels, key.device)?],
        };
        Ok(Self { pipeline, memory, block, kernels, plan, more, has_run: false })
    }
}

impl<T: Element + 'static> Ready for Kept<T> {
    fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    fn has_run(&self) -> bool {
        self.has_run
    }

    fn code(&self) -> Arc<dyn Send + Sync> {
        let block: Arc<dyn Send + Sync> = Arc::<TemporalBlock<T>>::clone(&self.block);
        block
    }

    fn run(&mut self, run: &Run) -> Result<(), BlockFailure> {
        let Self { pipeline, memory, kernels, plan, more, has_run, .. } = self;
        let guard = kernels.guard();
        let context = guard.context().ok_or(BlockFailure::NotPrepared)?;
        let handle = ptr::with_exposed_provenance_mut(run.stream);
        // SAFETY: the caller of `block`, which is `gridguard.torch` alone, passes a stream of the device's primary
        // context, which the guard is in, and keeps it until `block` returns. It is dropped before.
        #[allow(unsafe_code, reason = "a stream of another CUDA binding")]
        let stream = unsafe { context.wrap_borrowed_stream(handle) };
        // SAFETY: as of `block`: tensors of the problem's sizes and type, contiguous, alive until it returns,
        // whose memory PyTorch's allocator reuses only in the order of the stream. In a capture it is the
        // graph's.
        #[allow(unsafe_code, reason = "memory of another CUDA binding")]
        let bound = unsafe { memory.bind_raw(&stream, &run.addresses) };
        let (address, bytes) = run.scratch;
        // SAFETY: as above.
        #[allow(unsafe_code, reason = "memory of another CUDA binding")]
        let bound = unsafe { bound.scratch_raw(address, bytes) }.on_streams(more);
        let submit = || guard.run_pipeline(pipeline, plan, bound);
        let ran = if run.capturing {
            // SAFETY: the memory is the graph's, in whose order PyTorch uses it, and `block` kept the code.
            #[allow(unsafe_code, reason = "a capture of another CUDA binding")]
            unsafe {
                capture_launches(submit)
            }
        } else {
            submit()
        };
        ran?;
        *has_run = true;
        Ok(())
    }
}

fn further_stream(kernels: &Kernels, device: usize) -> Result<Arc<CudaStream>, BlockFailure> {
    STREAMS.with_borrow_mut(|streams| {
        if let Some(stream) = streams.get(&device) {
            return Ok(Arc::clone(stream));
        }
        let context = kernels.guard().context().ok_or(BlockFailure::NotPrepared)?;
        let stream = context.new_stream().map_err(BlockFailure::stream)?;
        streams.insert(device, Arc::clone(&stream));
        Ok(stream)
    })
}

fn on_host<T: Element>(key: &Key, addresses: &BlockAddresses) -> Result<(), BlockFailure> {
    let elements = |count: u64| usize::try_from(count).map_err(|_| BlockFailure::NotPrepared);
    let copy = |address: u64, count: u64| -> Result<Vec<T>, BlockFailure> {
        let start = ptr::with_exposed_provenance(elements(address)?);
        // SAFETY: the caller of `block_on_host` passes tensors of the problem's sizes and type that are alive,
        // contiguous and aligned.
        #[allow(unsafe_code, reason = "memory of PyTorch")]
        let tensor = unsafe { slice::from_raw_parts(start, elements(count)?) };
        Ok(tensor.to_vec())
    };
    let (shape, channels) = (&key.shape, key.shape.channels());
    let mut tensors = block_tensors().map(|_| Vec::new());
    for ((tensor, of), address) in tensors.iter_mut().zip(block_tensors()).zip(addresses.tensors) {
        let columns = if of.columns == 0 { 1 } else { of.columns * channels };
        *tensor = copy(address, of.rows * channels * columns)?;
    }
    let weights = BlockWeights::from_tensors(channels, tensors)?;
    let positions = key.positions.map_or(Ok(Vec::new()), |positions| {
        copy(addresses.positions, positions.saturating_mul(channels))
    })?;
    let weights = weights.with_positions(positions)?;
    let input = copy(addresses.x, shape.elements())?;
    let start = ptr::with_exposed_provenance_mut(elements(addresses.y)?);
    // SAFETY: as above; nothing else uses the output, which is another tensor than the others.
    #[allow(unsafe_code, reason = "memory of PyTorch")]
    let out = unsafe { slice::from_raw_parts_mut(start, elements(shape.elements())?) };
    let (mut pipeline, x, y) = host_pipeline(shape, &weights)?;
    let budget = key.budget.map_or(Budget::UNLIMITED, Budget::bytes);
    let plan = pipeline.plan(&budget)?;
    let guard = Guard::host(DeviceLimits::any_device());
    guard.run_pipeline(&mut pipeline, &plan, HostMemory::new().read(x, &input).write(y, out))?;
    Ok(())
}
