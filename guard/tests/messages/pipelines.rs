//! Errors of pipelines.

use gridguard::Chunk;
use gridguard::pipeline::{
    BufferUse, BuildError, MemoryError, PipelineRun, PlanError, RunError, StageError,
};

use crate::read_as;

const STAGE: &str = "attention";
const BUFFER: &str = "qkv";

#[test]
fn what_is_no_pipeline_is_told_with_the_declaration_that_fixes_it() {
    let (stage, buffer) = (STAGE.to_owned(), BUFFER.to_owned());
    let names = || (stage.clone(), buffer.clone());
    let two = |error: fn(String, String) -> BuildError| {
        let (stage, buffer) = names();
        error(stage, buffer)
    };
    read_as(&[
        (&BuildError::NoStages, "the pipeline has no stages"),
        (
            &BuildError::TooMany { parts: "stages", given: 1025, most: 1024 },
            "the pipeline has 1025 stages, the limit is 1024",
        ),
        (
            &BuildError::SameName { parts: "buffers", name: buffer.clone() },
            "two buffers have the name qkv",
        ),
        (
            &BuildError::EmptyBuffer(buffer.clone()),
            "buffer qkv is empty: zero elements, or a zero-sized type",
        ),
        (&BuildError::TooLarge(buffer.clone()), "buffer qkv has more than 2^64 - 1 bytes an item"),
        (&BuildError::ScratchTooLarge, "the scratch buffers have more than 2^64 - 1 bytes an item"),
        (
            &BuildError::Overaligned { buffer: buffer.clone(), alignment: 512, limit: 256 },
            "elements of buffer qkv are aligned to 512 bytes, the limit is 256",
        ),
        (
            &BuildError::NotOnHost(buffer.clone()),
            "qkv cannot be in host memory: only an input, an output or an in-place buffer of the \
             pipeline can, each per item",
        ),
        (
            &BuildError::OtherPipeline(stage.clone()),
            "stage attention uses a buffer of another pipeline",
        ),
        (
            &two(|stage, buffer| BuildError::DeclaredTwice(BufferUse { stage, buffer })),
            "stage attention declares buffer qkv twice: declare one that is read and written with \
             update",
        ),
        (
            &two(|stage, buffer| BuildError::PastTheEnd { stage, buffer, first: 96, elements: 96 }),
            "stage attention reads qkv from element 96 on, it has 96",
        ),
        (
            &two(|stage, buffer| BuildError::WritesInput(BufferUse { stage, buffer })),
            "stage attention writes input qkv, which other stages and chunks read: declare the \
             buffer with in_place, or with accumulator if all chunks update it",
        ),
        (
            &two(|stage, buffer| BuildError::ReadBeforeWritten(BufferUse { stage, buffer })),
            "stage attention reads qkv, which no stage before it writes: declare the stage that \
             does, or the buffer as input or in_place if the caller fills it",
        ),
        (
            &two(|stage, buffer| BuildError::AccumulatorNotUpdated(BufferUse { stage, buffer })),
            "stage attention does not update accumulator qkv but reads or overwrites what other \
             chunks left there: declare the use with update, or the buffer per item",
        ),
        (
            &BuildError::NoKernel(stage.clone()),
            "stage attention launches no kernel: remove its arguments, or declare it with kernel",
        ),
        (&BuildError::NeverWritten(buffer.clone()), "no stage writes output qkv"),
        (&BuildError::NeverUsed(buffer.clone()), "no stage uses buffer qkv"),
        (
            &BuildError::OtherBatch { stage: stage.clone(), batch: 11, items: 10 },
            "the launch of stage attention has a batch of 11 items, the pipeline has 10",
        ),
    ]);
}

#[test]
fn what_cannot_be_planned_is_told_with_what_would_do() {
    read_as(&[
        (
            &PlanError::NoCommonChunk {
                limited_by: format!("stage {STAGE}"),
                largest: 3000,
                unit: 3072,
            },
            "stage attention allows chunks of at most 3000 items, the smallest that keeps the \
             alignment of every stage has 3072: raise the limit, or lower an alignment",
        ),
        (
            &PlanError::BudgetTooSmall { budget: 1000, smallest: 4096, chunk: 8 },
            "the budget is 1000 bytes, the smallest possible chunk of 8 items needs 4096 bytes of \
             scratch: raise the budget to that",
        ),
    ]);
}

#[test]
fn what_stops_a_run_is_told_with_stage_chunk_and_items_done() {
    let buffer = || BUFFER.to_owned();
    let stage = || STAGE.to_owned();
    let chunk = Chunk { index: 3, start: 30, items: 10 };
    let done = || Box::new(PipelineRun::default());
    read_as(&[
        (&RunError::OtherPlan, "the plan was made for another pipeline"),
        (&RunError::from(MemoryError::Missing(buffer())), "buffer qkv has no memory"),
        (&MemoryError::Twice(buffer()), "buffer qkv has memory twice"),
        (&MemoryError::OtherPipeline, "memory was given for a buffer of another pipeline"),
        (
            &MemoryError::WrongKind {
                buffer: buffer(),
                expected: "memory to read",
                given: "memory to write",
            },
            "buffer qkv takes memory to read, not memory to write",
        ),
        (
            &RunError::NotCapturable(stage()),
            "stage attention is a call, whose work a graph may not repeat: declare it with \
             call_in_graphs, or run the pipeline without a graph",
        ),
        (
            &RunError::MonitoredGraph,
            "a graph submits all chunks at once and cannot be monitored: remove the monitor, or run \
             the plan without as_graph",
        ),
        (
            &RunError::Outline(stage()),
            "stage attention has no work: an outline can be planned, but not run",
        ),
        (
            &RunError::OtherBackend { stage: stage(), runs_on: "the host", memory_on: "a device" },
            "stage attention runs on the host, the memory given is on a device",
        ),
        (
            &MemoryError::OtherMemory(buffer()),
            "buffer qkv is other memory than the graph was captured with: give the same, or run a \
             new plan.as_graph()",
        ),
        (
            &MemoryError::TooMany { given: 33, most: 32 },
            "the pipeline has 33 buffers of the caller, the limit is 32",
        ),
        (
            &MemoryError::OtherContext("a stream"),
            "a stream belongs to another CUDA context than the guard",
        ),
        (
            &MemoryError::TooFewStreams { in_flight: 3, streams: 2 },
            "the plan has 3 chunks in flight, but there are only 2 streams",
        ),
        (
            &MemoryError::Captured,
            "a stream is being captured, and a graph keeps no memory of a pipeline: run it after \
             the capture",
        ),
        (&RunError::Device("no device was found".into()), "no device was found"),
        (
            &RunError::Late { items: 100, done: done(), error: "illegal address".into() },
            "the device failed after 0 of 100 items: illegal address",
        ),
        (
            &MemoryError::WrongLength { buffer: buffer(), needed: 32, given: 28 },
            "buffer qkv has 28 bytes, the items of the pipeline need 32",
        ),
        (
            &RunError::Poisoned(stage()),
            "stage attention panicked in an earlier run: build the pipeline again to run it",
        ),
        (
            &RunError::Scratch {
                chunk: 8,
                bytes: 4096,
                items: 100,
                done: done(),
                error: StageError::out_of_memory("out of memory"),
            },
            "cannot allocate 4096 bytes of scratch for a chunk of 8 items, after 0 of 100 items: \
             out of memory",
        ),
        (
            &RunError::Stage {
                stage: stage(),
                chunk,
                items: 100,
                done: done(),
                error: StageError::Panicked("index out of bounds".to_owned()),
            },
            "stage attention failed at chunk 3 (items 30..40), after 0 of 100 items: it panicked: \
             index out of bounds",
        ),
        (
            &RunError::Device(StageError::NotRead(
                BufferUse { stage: stage(), buffer: buffer() }.into(),
            )),
            "stage attention did not declare that it reads qkv",
        ),
        (
            &RunError::Device(StageError::NotWritten(
                BufferUse { stage: stage(), buffer: buffer() }.into(),
            )),
            "stage attention did not declare that it writes qkv, or has taken its view already",
        ),
    ]);
}
