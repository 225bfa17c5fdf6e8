//! The transformer block of a motion module, on the memory of PyTorch's tensors.

use core::cell::RefCell;
use core::num::NonZeroUsize;
use core::{ptr, slice};
use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError};
use gridguard::cuda::capture_launches;
use gridguard::profile::{Objective, Policy};
use gridguard::{DeviceLimits, Guard};
use gridguard_kernels::temporal_attention::MAX_FRAMES;
use gridguard_kernels::temporal_block::{
    BLOCK_TENSORS, BlockAddresses, BlockMemory, BlockShape, BlockWeights, TemporalBlock,
    host_pipeline,
};
use gridguard_kernels::{Element, ElementType, Kernels};
use gridguard_pipeline::{Budget, HostMemory, Pipeline, PipelinePlan};
use half::{bf16, f16};
use lru::LruCache;
use pyo3::prelude::*;

use crate::error::{invalid, no_block, stopped, unavailable};
use crate::launches;

/// Items, frames, channels, heads, positions with an embedding, type, device ordinal, and the limit of scratch bytes.
type Problem = (u64, u64, u64, u64, Option<u64>, String, usize, Option<u64>);
/// The addresses of x, y, the weights in the order of `BLOCK_TENSORS`, and the position embeddings.
type Addresses = (u64, u64, Vec<u64>, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    shape: BlockShape,
    positions: Option<u64>,
    element: ElementType,
    device: usize,
    budget: Option<u64>,
}

struct Run {
    addresses: BlockAddresses,
    scratch: (u64, u64),
    stream: usize,
    capturing: bool,
}

struct Ready {
    scratch_bytes: u64,
    /// All code is loaded after the first run.
    has_run: bool,
    run: Box<RunFn>,
}

type RunFn = dyn FnMut(&Run) -> PyResult<()>;

/// A block with its pipeline, which only one thread can run at a time.
struct Prepared<T: 'static> {
    // `pipeline` and `memory` borrow from `block`, so they are declared, and dropped, before it.
    pipeline: Pipeline<'static>,
    memory: BlockMemory<'static, T>,
    block: Arc<TemporalBlock<T>>,
    kernels: Kernels,
    plan: PipelinePlan,
    /// The streams of the chunks in flight beside the first.
    more_streams: Vec<Arc<CudaStream>>,
}

/// Blocks kept by a thread. Beyond that the least recently used is prepared again, mostly from code that is still
/// loaded.
const MAX_PREPARED: NonZeroUsize = NonZeroUsize::new(64).unwrap();
/// Chunks in flight within a budget: one fills the device while the last thread blocks of the other finish.
const IN_FLIGHT: u64 = 2;

thread_local! {
    static PREPARED: RefCell<LruCache<Key, Ready>> =
        RefCell::new(LruCache::new(MAX_PREPARED));
}

/// Prepares a block on this thread, and returns the bytes of scratch that a run needs. Raises `ValueError` with the
/// reason if the kernels do not serve the problem.
#[pyfunction]
pub(crate) fn block_scratch(py: Python<'_>, problem: Problem, capturing: bool) -> PyResult<u64> {
    let key = Key::try_from(problem)?;
    // Other threads may run: compiling takes seconds.
    py.detach(|| prepare(key, capturing))
}

/// Launches a prepared block on a stream of PyTorch.
///
/// The caller, `gridguard.torch`, passes the device's current stream and tensors of the problem's sizes, type and
/// device that are alive. The scratch is as large as `block_scratch` has just returned on this thread. PyTorch's
/// allocator orders all of this memory on the stream.
#[pyfunction]
pub(crate) fn block(
    py: Python<'_>,
    problem: Problem,
    addresses: Addresses,
    scratch: (u64, u64),
    stream: usize,
    capturing: bool,
) -> PyResult<()> {
    let key = Key::try_from(problem)?;
    let run = Run { addresses: block_addresses(addresses)?, scratch, stream, capturing };
    py.detach(|| {
        PREPARED.with_borrow_mut(|prepared| {
            let ready = prepared.get_mut(&key).ok_or_else(not_prepared)?;
            (ready.run)(&run)?;
            ready.has_run = true;
            Ok(())
        })
    })
}

/// Computes a block on the host, in f64, on tensors in host memory. Tests compare PyTorch with it.
#[pyfunction]
pub(crate) fn block_on_host(
    py: Python<'_>,
    problem: Problem,
    addresses: Addresses,
) -> PyResult<()> {
    let (key, addresses) = (Key::try_from(problem)?, block_addresses(addresses)?);
    py.detach(|| match key.element {
        ElementType::F16 => on_host::<f16>(&key, &addresses),
        ElementType::Bf16 => on_host::<bf16>(&key, &addresses),
        ElementType::F32 => on_host::<f32>(&key, &addresses),
    })
}

impl TryFrom<Problem> for Key {
    type Error = PyErr;

    fn try_from(problem: Problem) -> PyResult<Self> {
        let (items, frames, channels, heads, positions, dtype, device, budget) = problem;
        let element = ElementType::ALL.into_iter().find(|element| element.name() == dtype);
        let element = element.ok_or_else(|| invalid("dtype"))?;
        if items == 0 {
            return Err(invalid("empty"));
        }
        if frames > MAX_FRAMES || positions.is_some_and(|positions| positions < frames) {
            return Err(invalid("length"));
        }
        let shape = BlockShape::new(items, frames, channels, heads);
        let shape = shape.map_err(|_| invalid("shape"))?;
        Ok(Self { shape, positions, element, device, budget })
    }
}

fn block_addresses((x, y, tensors, positions): Addresses) -> PyResult<BlockAddresses> {
    let tensors = tensors.try_into().map_err(|_| invalid("not all tensors"))?;
    Ok(BlockAddresses { x, y, tensors, positions })
}

fn prepare(key: Key, capturing: bool) -> PyResult<u64> {
    let known = PREPARED.with_borrow_mut(|prepared| {
        prepared.get(&key).map(|ready| (ready.scratch_bytes, ready.has_run))
    });
    // Loading code may invalidate the capture.
    if capturing && !known.is_some_and(|(_, has_run)| has_run) {
        return Err(invalid("first call during capture"));
    }
    if let Some((bytes, _)) = known {
        return Ok(bytes);
    }
    let ready = match key.element {
        ElementType::F16 => Prepared::<f16>::new(&key)?.ready(),
        ElementType::Bf16 => Prepared::<bf16>::new(&key)?.ready(),
        ElementType::F32 => Prepared::<f32>::new(&key)?.ready(),
    };
    let bytes = ready.scratch_bytes;
    let dropped = PREPARED.with_borrow_mut(|prepared| prepared.push(key, ready));
    drop(dropped);
    Ok(bytes)
}

fn not_prepared() -> PyErr {
    stopped("the block is not prepared on this thread")
}

impl<T: Element + 'static> Prepared<T> {
    fn new(key: &Key) -> PyResult<Self> {
        let kernels = launches::kernels(key.device).map_err(unavailable)?;
        let block = TemporalBlock::without_weights(&kernels, key.shape, key.positions);
        let block = Arc::new(block.map_err(no_block)?);
        // SAFETY: the `Arc` gives the block a stable address, and nothing mutates it. `Self` drops the pipeline and
        // its memory, the only borrowers, before the block: fields drop in the order of their declaration.
        let borrowed: &'static TemporalBlock<T> = unsafe { &*Arc::as_ptr(&block) };
        let (pipeline, memory) = borrowed.pipeline().map_err(no_block)?;

        let guard = kernels.guard();
        let budget =
            key.budget.map_or(Budget::UNLIMITED, |bytes| Budget::bytes(bytes).in_flight(IN_FLIGHT));
        // The name and the objective of the tuner's entries.
        let objective = Objective::Memory { bytes_per_item: 0, bytes: budget.max_bytes() };
        let entry = pipeline.key("temporal_block", Policy::default(), objective);
        let tuned = pipeline.tuned(guard, &entry);
        let plan = pipeline.plan_tuned(tuned, &budget).map_err(stopped)?.plan;
        let context = guard.context().ok_or_else(not_prepared)?;
        let more_streams: Result<_, DriverError> =
            (1..plan.in_flight()).map(|_| context.new_stream()).collect();
        let more_streams = more_streams.map_err(stopped)?;
        Ok(Self { pipeline, memory, block, kernels, plan, more_streams })
    }

    fn ready(mut self) -> Ready {
        let scratch_bytes = self.plan.bytes();
        Ready { scratch_bytes, has_run: false, run: Box::new(move |run| self.run(run)) }
    }

    fn run(&mut self, run: &Run) -> PyResult<()> {
        let Self { pipeline, memory, block, kernels, plan, more_streams } = self;
        let guard = kernels.guard();
        let context = guard.context().ok_or_else(not_prepared)?;
        let handle = ptr::with_exposed_provenance_mut(run.stream);
        // SAFETY: the caller of `block`, which is only `gridguard.torch`, passes a stream of the device's primary
        // context, which is the guard's. The stream outlives `block`, and this wrapper is dropped before.
        let stream = unsafe { context.wrap_borrowed_stream(handle) };
        // SAFETY: by the contract of `block`, the tensors have the problem's sizes and type, and live until it returns.
        // PyTorch's allocator reuses their memory only in stream order. In a capture the graph owns it.
        let bound = unsafe { memory.bind_raw(&stream, &run.addresses) };
        let (address, bytes) = run.scratch;
        // SAFETY: as above.
        let bound = unsafe { bound.scratch_raw(address, bytes) }.on_streams(more_streams);
        let submit = || pipeline.run(guard, plan, bound);
        let ran = if run.capturing {
            launches::keep_loaded(Arc::<TemporalBlock<T>>::clone(block));
            // SAFETY: the graph owns the memory, and PyTorch uses it in the graph's order. The code was kept loaded.
            unsafe { capture_launches(submit) }
        } else {
            submit()
        };
        ran.map(drop).map_err(stopped)
    }
}

fn on_host<T: Element>(key: &Key, addresses: &BlockAddresses) -> PyResult<()> {
    let size = |value: u64| usize::try_from(value).map_err(invalid);
    let copy = |address: u64, count: u64| -> PyResult<Vec<T>> {
        let start = ptr::with_exposed_provenance(size(address)?);
        // SAFETY: the caller of `block_on_host` passes tensors of the problem's sizes and type that are alive,
        // contiguous and aligned.
        let tensor = unsafe { slice::from_raw_parts(start, size(count)?) };
        Ok(tensor.to_vec())
    };
    let (shape, channels) = (&key.shape, key.shape.channels());
    let mut tensors = BLOCK_TENSORS.map(|_| Vec::new());
    for ((tensor, of), address) in tensors.iter_mut().zip(BLOCK_TENSORS).zip(addresses.tensors) {
        *tensor = copy(address, of.elements(channels))?;
    }
    let positions = key.positions.map_or(Ok(Vec::new()), |positions| {
        copy(addresses.positions, positions.saturating_mul(channels))
    })?;
    let weights = BlockWeights::from_tensors(channels, tensors)
        .and_then(|weights| weights.with_positions(positions))
        .map_err(unavailable)?;
    let input = copy(addresses.x, shape.elements())?;
    let start = ptr::with_exposed_provenance_mut(size(addresses.y)?);
    // SAFETY: as above. The output is distinct from the other tensors, and nothing else uses it.
    let out = unsafe { slice::from_raw_parts_mut(start, size(shape.elements())?) };
    let (mut pipeline, x, y) = host_pipeline(shape, &weights).map_err(no_block)?;
    let budget = key.budget.map_or(Budget::UNLIMITED, Budget::bytes);
    let plan = pipeline.plan(&budget).map_err(stopped)?;
    let memory = HostMemory::new().read(x, &input).write(y, out);
    let guard = Guard::host(DeviceLimits::any_device());
    pipeline.run(&guard, &plan, memory).map(drop).map_err(stopped)
}
