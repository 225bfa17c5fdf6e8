//! A pipeline through scratch that most tests here run: a kernel, and a call that copies.
#![allow(unsafe_code, reason = "a stage copies memory through the driver")]

use std::sync::Arc;

use cudarc::driver::result::memcpy_dtod_async;
use cudarc::driver::{CudaSlice, CudaStream, PinnedHostSlice};
use gridguard::{Axis, Chunk, Guard};
use gridguard_pipeline::{
    Budget, Buffer, DeviceMemory, DeviceViews, Error, Pipeline, PipelinePlan, PipelineRun,
    StageResult,
};
use gridguard_test_support::fake_driver::{Driver, in_process_of, launches};

use crate::kernels::{context, guard, items_along, kernel, poisoned, read};

pub(crate) const ITEMS: u64 = 100;

/// Writes the number of each item to two scratch buffers, and copies one of them to the output.
pub(crate) struct Spilling<'a> {
    pub(crate) pipeline: Pipeline<'a>,
    pub(crate) out: Buffer<u64>,
}

/// `before` is called at each copy.
pub(crate) fn spilling<'a>(
    guard: &Guard,
    out_on_host: bool,
    mut before: impl FnMut(&Chunk) -> StageResult + Send + 'a,
) -> Spilling<'a> {
    let mut builder = Pipeline::builder(ITEMS);
    let (one, two) = (builder.scratch::<u64>("one", 1), builder.scratch::<u64>("two", 1));
    let out = builder.output::<u64>("out", 1);
    if out_on_host {
        builder.in_host_memory(out);
    }
    let (request, batch) = items_along(Axis::Y, ITEMS);
    let spill = kernel(guard, "fake_spill_y");
    builder.kernel("spill", &spill, request, batch).write(one).offset().length().write(two);
    let call = move |stream: &Arc<CudaStream>, chunk: &Chunk, views: &DeviceViews<'_>| {
        before(chunk)?;
        copy(stream, views, two, out)
    };
    // SAFETY: it copies buffers of the pipeline on the stream that it gets.
    unsafe { builder.call_in_graphs("copy", call) }.read(two).write(out);
    Spilling { pipeline: builder.build().expect("two stages"), out }
}

pub(crate) fn copy(
    stream: &CudaStream,
    views: &DeviceViews<'_>,
    from: Buffer<u64>,
    to: Buffer<u64>,
) -> StageResult {
    let (from, to) = (views.read(from)?, views.write(to)?);
    assert_eq!(from.bytes, to.bytes);
    let bytes = usize::try_from(to.bytes)?;
    // SAFETY: both are memory of the pipeline, of that size, for work on this stream.
    unsafe { memcpy_dtod_async(to.address, from.address, bytes, stream.cu_stream()) }?;
    Ok(())
}

impl Spilling<'_> {
    /// A graph of chunks of 25 items, two in flight.
    pub(crate) fn graph(&self) -> PipelinePlan {
        let budget = Budget::UNLIMITED.at_most(30).in_flight(2);
        self.pipeline.plan(&budget).expect("it fits").as_graph()
    }

    pub(crate) fn run_plan(
        &mut self,
        guard: &Guard,
        plan: &PipelinePlan,
        stream: &Arc<CudaStream>,
        memory: &mut CudaSlice<u64>,
    ) -> Result<PipelineRun, Error> {
        let memory = DeviceMemory::new(stream).write(self.out, memory);
        self.pipeline.run(guard, plan, memory)
    }

    /// Runs it on the default stream and `more`, and returns what is in its output.
    pub(crate) fn run(
        &mut self,
        guard: &Guard,
        budget: Budget,
        more: &[Arc<CudaStream>],
    ) -> (Result<PipelineRun, Error>, Vec<u64>) {
        let stream = context(guard).default_stream();
        let mut memory: CudaSlice<u64> = poisoned(&stream, ITEMS);
        let plan = self.pipeline.plan(&budget).expect("it fits");
        let bound = DeviceMemory::new(&stream).on_streams(more).write(self.out, &mut memory);
        let run = self.pipeline.run(guard, &plan, bound);
        (run, read(&stream, &memory))
    }
}

pub(crate) fn stream(guard: &Guard) -> Arc<CudaStream> {
    context(guard).new_stream().expect("a stream")
}

/// Runs the body of a test with the guard of the whole fake driver's first device, and a new stream.
pub(crate) fn with_new_stream<B: FnOnce(Guard, Arc<CudaStream>)>(
    settings: &[(&str, &str)],
    body: B,
) {
    in_process_of::<B>(Driver::Whole, settings, || {
        let guard = guard();
        let stream = stream(&guard);
        body(guard, stream);
    });
}

pub(crate) fn streams(guard: &Guard, count: usize) -> Vec<Arc<CudaStream>> {
    (0..count).map(|_| stream(guard)).collect()
}

pub(crate) fn pinned(guard: &Guard, contents: &[u64]) -> PinnedHostSlice<u64> {
    // SAFETY: it is filled before it is read.
    let memory = unsafe { context(guard).alloc_pinned::<u64>(contents.len()) };
    let mut memory = memory.expect("host memory");
    memory.as_mut_slice().expect("idle").copy_from_slice(contents);
    memory
}

/// The arguments of each launch so far.
pub(crate) fn launched_arguments() -> Vec<Vec<u64>> {
    let arguments = |line: &String| {
        let args = line.split("args=").nth(1).and_then(|rest| rest.split(' ').next());
        let numbers = args.expect("arguments").split(',');
        numbers.map(|hex| u64::from_str_radix(hex, 16).expect("hexadecimal")).collect()
    };
    launches().iter().map(arguments).collect()
}
