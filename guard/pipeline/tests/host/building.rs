//! Declarations that contradict each other are refused before anything is planned, with these texts.

use bytemuck::{Pod, Zeroable};
use expect_test::expect_file;
use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest};
use gridguard_pipeline::{Error, ErrorKind, Pipeline, PipelineBuilder};
use gridguard_test_support::{check_messages, texts};

use crate::limits;

type Declare<'a> = &'a dyn Fn(&mut PipelineBuilder<'_>);

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

/// The mistakes in what each of these declares with a builder of 10 items.
fn refused(declarations: &[Declare<'_>]) -> Vec<String> {
    let mistake = |declare: &Declare<'_>| {
        let mut builder = Pipeline::builder(10);
        declare(&mut builder);
        let error = builder.build().map(drop).expect_err("a mistake");
        assert_eq!(error.kind(), ErrorKind::Declaration);
        error
    };
    let errors: Vec<Error> = declarations.iter().map(mistake).collect();
    let errors: Vec<_> = errors.iter().map(erased).collect();
    texts(&errors)
}

fn erased(error: &Error) -> &dyn core::error::Error {
    error
}

#[test]
fn mistakes_in_declarations_are_refused_with_their_texts() {
    let sections = [
        ("stages and names", refused(&STAGES_AND_NAMES)),
        ("sizes", refused(&SIZES)),
        ("uses", refused(&USES)),
        ("other pipelines and launches", others()),
        ("host memory", refused(&HOST_MEMORY)),
    ];
    check_messages(&expect_file!["messages.txt"], &sections);
}

const STAGES_AND_NAMES: [Declare<'_>; 6] = [
    &|_| {},
    &|builder| _ = builder.input::<f32>("unused", 1),
    &|builder| {
        builder.outline("twice");
        builder.outline("twice");
    },
    &|builder| {
        let (x, y) = (builder.input::<f32>("x", 1), builder.input::<f64>("x", 2));
        builder.outline("read").read(x).read(y);
    },
    &|builder| (0..1025).for_each(|stage| _ = builder.outline(stage.to_string())),
    &|builder| {
        (0..1025).for_each(|buffer| _ = builder.input::<u8>(buffer.to_string(), 1));
        builder.outline("stage");
    },
];

const SIZES: [Declare<'_>; 6] = [
    &|builder| _ = builder.scratch::<u64>("zero", 0),
    &|builder| _ = builder.scratch::<u64>("huge", 1 << 61),
    &|builder| _ = builder.scratch::<()>("nothing", 8),
    // The size comes first.
    &|builder| _ = builder.input::<Page<0>>("empty page", 8),
    &|builder| _ = builder.input::<Page<512>>("page", 8),
    &|builder| {
        let (x, y) = (builder.scratch::<u8>("x", 1 << 63), builder.scratch::<u8>("y", 1 << 63));
        builder.outline("first").write(x);
        builder.outline("second").write(y);
    },
];

const USES: [Declare<'_>; 13] = [
    &|builder| {
        let x = builder.shared_input::<f32>("shared", 8);
        builder.outline("scale").update(x);
    },
    &|builder| {
        let x = builder.shared_input::<f32>("shared", 8);
        builder.outline("scale").write(x);
    },
    &|builder| {
        let x = builder.input::<f32>("x", 8);
        builder.outline("scale").update(x);
    },
    &|builder| {
        let x = builder.input::<f32>("x", 8);
        builder.outline("scale").write(x);
    },
    &|builder| {
        let sum = builder.accumulator::<f32>("sum", 1);
        builder.outline("add").update(sum);
        builder.outline("use").write(sum);
    },
    &|builder| {
        let sum = builder.accumulator::<f32>("sum", 1);
        builder.outline("add").update(sum);
        builder.outline("use").read(sum);
    },
    &|builder| {
        let x = builder.output::<f32>("out", 8);
        builder.outline("early").update(x);
        builder.outline("late").write(x);
    },
    &|builder| {
        let x = builder.output::<f32>("out", 8);
        builder.outline("early").read(x);
        builder.outline("late").write(x);
    },
    &|builder| {
        let x = builder.scratch::<f32>("t", 8);
        builder.outline("early").update(x);
        builder.outline("late").write(x);
    },
    &|builder| {
        let x = builder.scratch::<f32>("t", 8);
        builder.outline("early").read(x);
        builder.outline("late").write(x);
    },
    &|builder| {
        let x = builder.in_place::<f32>("x", 8);
        builder.outline("both").read(x).write(x);
    },
    &|builder| {
        builder.input::<f32>("x", 8);
        builder.outline("nothing");
    },
    &|builder| {
        builder.output::<f32>("y", 8);
        builder.outline("nothing");
    },
];

fn others() -> Vec<String> {
    let foreign = Pipeline::builder(10).input::<f32>("x", 8);
    refused(&[
        &|builder| {
            builder.outline("first");
            builder.outline("second").read(foreign);
        },
        &|builder| {
            let request = LaunchRequest::new(Dim3::new(1, 11, 1), Dim3::new(64, 1, 1));
            builder.outline("launch").launches(request, BatchAxis::new(Axis::Y, 11), &limits("k"));
        },
        &|builder| builder.in_host_memory(foreign),
    ])
}

const HOST_MEMORY: [Declare<'_>; 3] = [
    &|builder| {
        let w = builder.shared_input::<f32>("w", 8);
        builder.in_host_memory(w);
    },
    &|builder| {
        let sum = builder.accumulator::<f32>("sum", 8);
        builder.in_host_memory(sum);
    },
    &|builder| {
        let t = builder.scratch::<f32>("t", 8);
        builder.in_host_memory(t);
    },
];
