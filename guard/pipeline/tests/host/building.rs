//! Declarations that contradict each other are refused before anything is planned.

use bytemuck::{Pod, Zeroable};
use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest};
use gridguard_pipeline::{BufferUse, BuildError, Pipeline, PipelineBuilder};

use crate::limits;

/// What `declare` makes of a builder of 10 items.
fn refused(declare: impl FnOnce(&mut PipelineBuilder<'_>)) -> BuildError {
    let mut builder = Pipeline::builder(10);
    declare(&mut builder);
    builder.build().map(|_| ()).expect_err("a mistake")
}

fn names(stage: &str, buffer: &str) -> (String, String) {
    (stage.to_owned(), buffer.to_owned())
}

#[test]
fn a_pipeline_without_stages_is_refused() {
    assert_eq!(refused(|_| {}), BuildError::NoStages);
    let unused = refused(|builder| {
        builder.input::<f32>("x", 1);
    });
    assert_eq!(unused, BuildError::NoStages);
}

#[test]
fn names_are_unique() {
    let stages = refused(|builder| {
        builder.outline("twice");
        builder.outline("twice");
    });
    assert_eq!(stages, BuildError::SameName { parts: "stages", name: "twice".to_owned() });
    let buffers = refused(|builder| {
        let (x, y) = (builder.input::<f32>("x", 1), builder.input::<f64>("x", 2));
        builder.outline("read").read(x).read(y);
    });
    assert_eq!(buffers, BuildError::SameName { parts: "buffers", name: "x".to_owned() });
}

#[test]
fn what_another_chunk_reads_is_not_written() {
    let (stage, buffer) = names("scale", "x");
    for shared in [false, true] {
        for update in [false, true] {
            let error = refused(|builder| {
                let x = match shared {
                    true => builder.shared_input::<f32>("x", 8),
                    false => builder.input::<f32>("x", 8),
                };
                let scale = builder.outline("scale");
                let _ = if update { scale.update(x) } else { scale.write(x) };
            });
            let (stage, buffer) = (stage.clone(), buffer.clone());
            assert_eq!(error, BuildError::WritesInput(BufferUse { stage, buffer }));
        }
    }
}

#[test]
fn an_accumulator_is_only_updated() {
    for write in [false, true] {
        let error = refused(|builder| {
            let sum = builder.accumulator::<f32>("sum", 1);
            builder.outline("add").update(sum);
            let use_sum = builder.outline("use");
            let _ = if write { use_sum.write(sum) } else { use_sum.read(sum) };
        });
        let (stage, buffer) = names("use", "sum");
        assert_eq!(error, BuildError::AccumulatorNotUpdated(BufferUse { stage, buffer }));
    }
}

#[test]
fn what_no_stage_wrote_is_not_read() {
    for output in [false, true] {
        for update in [false, true] {
            let error = refused(|builder| {
                let x = match output {
                    true => builder.output::<f32>("x", 8),
                    false => builder.scratch::<f32>("x", 8),
                };
                let early = builder.outline("early");
                let _ = if update { early.update(x) } else { early.read(x) };
                builder.outline("late").write(x);
            });
            let (stage, buffer) = names("early", "x");
            assert_eq!(error, BuildError::ReadBeforeWritten(BufferUse { stage, buffer }));
        }
    }
}

#[test]
fn a_buffer_is_declared_once_in_a_stage_and_used_by_one() {
    let error = refused(|builder| {
        let x = builder.in_place::<f32>("x", 8);
        builder.outline("both").read(x).write(x);
    });
    let (stage, buffer) = names("both", "x");
    assert_eq!(error, BuildError::DeclaredTwice(BufferUse { stage, buffer }));
    let error = refused(|builder| {
        builder.input::<f32>("x", 8);
        builder.outline("nothing");
    });
    assert_eq!(error, BuildError::NeverUsed("x".to_owned()));
    let error = refused(|builder| {
        builder.output::<f32>("y", 8);
        builder.outline("nothing");
    });
    assert_eq!(error, BuildError::NeverWritten("y".to_owned()));
}

#[test]
fn a_buffer_of_another_pipeline_is_refused() {
    let mut other = Pipeline::builder(10);
    let foreign = other.input::<f32>("x", 8);
    let error = refused(|builder| {
        builder.outline("first");
        builder.outline("second").read(foreign);
    });
    assert_eq!(error, BuildError::OtherPipeline("second".to_owned()));
}

/// As many bytes, at addresses that are multiples of 512.
#[derive(Clone, Copy)]
#[repr(C, align(512))]
struct Page<const BYTES: usize>([u8; BYTES]);

#[allow(unsafe_code, reason = "elements of more than one number")]
mod elements {
    use super::{Page, Pod, Zeroable};

    // SAFETY: only bytes, none of them padding.
    unsafe impl Zeroable for Page<0> {}
    // SAFETY: as above.
    unsafe impl Pod for Page<0> {}
    // SAFETY: as above.
    unsafe impl Zeroable for Page<512> {}
    // SAFETY: as above.
    unsafe impl Pod for Page<512> {}
}

#[test]
fn sizes_are_more_than_zero_and_fit_64_bits() {
    let empty = BuildError::EmptyBuffer("x".to_owned());
    let x = |builder: &mut PipelineBuilder<'_>, elements| {
        builder.scratch::<u64>("x", elements);
        builder.outline("stage");
    };
    assert_eq!(refused(|builder| x(builder, 0)), empty);
    assert_eq!(refused(|builder| x(builder, 1 << 61)), { BuildError::TooLarge("x".to_owned()) });
    let error = refused(|builder| {
        builder.scratch::<()>("x", 8);
    });
    assert_eq!(error, empty);
    let error = refused(|builder| {
        builder.input::<Page<0>>("x", 8);
    });
    assert_eq!(error, empty, "the size comes first");
    let error = refused(|builder| {
        builder.input::<Page<512>>("x", 8);
    });
    let buffer = "x".to_owned();
    assert_eq!(error, BuildError::Overaligned { buffer, alignment: 512, limit: 256 });
    let error = refused(|builder| {
        let (x, y) = (builder.scratch::<u8>("x", 1 << 63), builder.scratch::<u8>("y", 1 << 63));
        builder.outline("first").write(x);
        builder.outline("second").write(y);
    });
    assert_eq!(error, BuildError::ScratchTooLarge);
}

#[test]
fn the_number_of_parts_is_bounded() {
    let most = 1024;
    let given = most + 1;
    let stages = refused(|builder| {
        for stage in 0..given {
            builder.outline(stage.to_string());
        }
    });
    assert_eq!(stages, BuildError::TooMany { parts: "stages", given, most });
    let buffers = refused(|builder| {
        for buffer in 0..given {
            builder.input::<u8>(buffer.to_string(), 1);
        }
        builder.outline("stage");
    });
    assert_eq!(buffers, BuildError::TooMany { parts: "buffers", given, most });
}

#[test]
fn a_launch_is_for_the_items_of_the_pipeline() {
    let error = refused(|builder| {
        let request = LaunchRequest::new(Dim3::new(1, 11, 1), Dim3::new(64, 1, 1));
        builder.outline("launch").launches(request, BatchAxis::new(Axis::Y, 11), &limits("k"));
    });
    assert_eq!(error, BuildError::OtherBatch { stage: "launch".to_owned(), batch: 11, items: 10 });
}

#[test]
fn only_the_callers_buffers_per_item_are_in_host_memory() {
    let not_on_host = |buffer: &str| BuildError::NotOnHost(buffer.to_owned());
    let fixed = refused(|builder| {
        let w = builder.shared_input::<f32>("w", 8);
        builder.in_host_memory(w);
    });
    assert_eq!(fixed, not_on_host("w"));
    let sum = refused(|builder| {
        let sum = builder.accumulator::<f32>("sum", 8);
        builder.in_host_memory(sum);
    });
    assert_eq!(sum, not_on_host("sum"));
    let scratch = refused(|builder| {
        let t = builder.scratch::<f32>("t", 8);
        builder.in_host_memory(t);
    });
    assert_eq!(scratch, not_on_host("t"));
    let foreign = refused(|builder| {
        let other = Pipeline::builder(10).input::<f32>("x", 1);
        builder.in_host_memory(other);
    });
    assert_eq!(foreign, not_on_host("a buffer of another pipeline"));
}
