//! The exact text of every message.
#![cfg(all(feature = "cuda", feature = "profile"))]

use expect_test::expect_file;
use gridguard::Chunk;
use gridguard::cuda::{CudaError, CudaErrorKind, CudaLibrary};
use gridguard::profile::StoredChoice;
use gridguard_pipeline::{
    BufferUse, BuildError, EntryRefusal, MemoryError, PipelineRun, PlanError, ProductError,
    ProductShape, RunError, StageError,
};
use gridguard_test_support::{check_messages, texts};

const STAGE: &str = "attention";
const BUFFER: &str = "qkv";

#[test]
fn every_message_has_exactly_its_text() {
    let sections = [
        ("declarations of pipelines", declarations_of_pipelines()),
        ("plans of pipelines", plans_of_pipelines()),
        ("runs of pipelines", runs_of_pipelines()),
        ("products", products()),
        ("entries for pipelines", entries_for_pipelines()),
    ];
    check_messages(&expect_file!["messages.txt"], &sections);
}

fn declarations_of_pipelines() -> Vec<String> {
    let (stage, buffer) = (STAGE.to_owned(), BUFFER.to_owned());
    let names = || (stage.clone(), buffer.clone());
    let two = |error: fn(String, String) -> BuildError| {
        let (stage, buffer) = names();
        error(stage, buffer)
    };
    texts(&[
        &BuildError::NoStages,
        &BuildError::TooMany { parts: "stages", given: 1025, most: 1024 },
        &BuildError::SameName { parts: "buffers", name: buffer.clone() },
        &BuildError::EmptyBuffer(buffer.clone()),
        &BuildError::TooLarge(buffer.clone()),
        &BuildError::ScratchTooLarge,
        &BuildError::Overaligned { buffer: buffer.clone(), alignment: 512, limit: 256 },
        &BuildError::NotOnHost(buffer.clone()),
        &BuildError::OtherPipeline(stage.clone()),
        &two(|stage, buffer| BuildError::DeclaredTwice(BufferUse { stage, buffer })),
        &two(|stage, buffer| BuildError::PastTheEnd { stage, buffer, first: 96, elements: 96 }),
        &two(|stage, buffer| BuildError::WritesInput(BufferUse { stage, buffer })),
        &two(|stage, buffer| BuildError::ReadBeforeWritten(BufferUse { stage, buffer })),
        &two(|stage, buffer| BuildError::AccumulatorNotUpdated(BufferUse { stage, buffer })),
        &BuildError::NoKernel(stage.clone()),
        &BuildError::NeverWritten(buffer.clone()),
        &BuildError::NeverUsed(buffer.clone()),
        &BuildError::OtherBatch { stage: stage.clone(), batch: 11, items: 10 },
    ])
}

fn plans_of_pipelines() -> Vec<String> {
    texts(&[
        &PlanError::NoCommonChunk {
            limited_by: format!("stage {STAGE}"),
            largest: 3000,
            unit: 3072,
        },
        &PlanError::BudgetTooSmall { budget: 1000, smallest: 4096, chunk: 8 },
    ])
}

fn runs_of_pipelines() -> Vec<String> {
    let buffer = || BUFFER.to_owned();
    let stage = || STAGE.to_owned();
    let chunk = Chunk { index: 3, start: 30, items: 10 };
    let done = || Box::new(PipelineRun::default());
    texts(&[
        &RunError::OtherPlan,
        &RunError::from(MemoryError::Missing(buffer())),
        &MemoryError::Twice(buffer()),
        &MemoryError::OtherPipeline,
        &MemoryError::WrongKind {
            buffer: buffer(),
            expected: "memory to read",
            given: "memory to write",
        },
        &RunError::NotCapturable(stage()),
        &RunError::MonitoredGraph,
        &RunError::Outline(stage()),
        &RunError::OtherBackend { stage: stage(), runs_on: "the host", memory_on: "a device" },
        &MemoryError::OtherMemory(buffer()),
        &MemoryError::TooMany { given: 33, most: 32 },
        &MemoryError::OtherContext("a stream"),
        &MemoryError::TooFewStreams { in_flight: 3, streams: 2 },
        &MemoryError::Captured,
        &RunError::Device("no device was found".into()),
        &RunError::Late { items: 100, done: done(), error: "illegal address".into() },
        &MemoryError::WrongLength { buffer: buffer(), needed: 32, given: 28 },
        &RunError::Poisoned(stage()),
        &RunError::Scratch {
            chunk: 8,
            bytes: 4096,
            items: 100,
            done: done(),
            error: StageError::out_of_memory("out of memory"),
        },
        &RunError::Stage {
            stage: stage(),
            chunk,
            items: 100,
            done: done(),
            error: StageError::Panicked("index out of bounds".to_owned()),
        },
        &RunError::Device(StageError::NotRead(
            BufferUse { stage: stage(), buffer: buffer() }.into(),
        )),
        &RunError::Device(StageError::NotWritten(
            BufferUse { stage: stage(), buffer: buffer() }.into(),
        )),
    ])
}

fn products() -> Vec<String> {
    let shape = ProductShape { rows: 16, inner: 320, columns: 960, bias: true, residual: false };
    let tried = vec![("libcublasLt.so".to_owned(), "No such file or directory".to_owned())];
    texts(&[
        &ProductError::from(CudaError::from(CudaErrorKind::SymbolMissing {
            of: CudaLibrary::CublasLt,
            library: "libc.so.6".to_owned(),
            symbol: "cublasLtGetVersion",
        })),
        &ProductError::from(CudaError::from(CudaErrorKind::LibraryMissing {
            of: CudaLibrary::CublasLt,
            tried,
        })),
        &ProductError::Call {
            call: "cublasLtMatmul",
            code: 7,
            name: "CUBLAS_STATUS_INVALID_VALUE".to_owned(),
        },
        &ProductError::Size { size: "rows", given: 0, most: 2_147_483_647 },
        &ProductError::NoAlgorithm { shape, element: "f16", workspace_bytes: 0 },
        &ProductError::Algorithm { given: 4, count: 4 },
        &ProductError::Buffer {
            tensor: "x",
            given: "640 bytes an item".to_owned(),
            expected: "10240 bytes an item".to_owned(),
        },
        &ProductError::MisalignedItems { tensor: "out", bytes: 24 },
        &ProductError::Operand { tensor: "bias", given: "not given", expected: "with" },
        &ProductError::Misaligned { tensor: "x", address: 0x7f02 },
    ])
}

fn entries_for_pipelines() -> Vec<String> {
    let parameter = |entry, pipeline| {
        let name = "attention.block".into();
        EntryRefusal::Parameter { name, entry, pipeline }
    };
    [
        parameter(Some(128), Some(64)),
        parameter(Some(128), None),
        EntryRefusal::InFlight,
        EntryRefusal::Choice { choice: StoredChoice::Folded },
        EntryRefusal::OverBudget { what: "bytes of scratch", needed: 4096, allowed: 1024 },
    ]
    .map(|refusal| refusal.to_string())
    .into()
}
