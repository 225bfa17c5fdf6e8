//! Compares the norm of rows with its f64 reference, whole, split and folded.

use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::rms_norm::{RmsNorm, reference};
use gridguard_kernels::{Deviation, ElementType, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::support::{
    Tensorial, is_the_same_split_and_folded, kernels, overflows, poisoned, stream,
};

const EPSILON: f32 = 1e-6;

/// The norm of random rows, launched as chosen.
fn norm<T: Tensorial>(rows: u64, columns: u64, choice: Choice) -> Vec<T> {
    let stream = stream();
    let (x, weight) = synthetic::<T>(rows, columns);
    let (x, weight) = (stream.clone_htod(&x).expect("x"), stream.clone_htod(&weight).expect("w"));
    let mut out = poisoned::<T>(&stream, x.len());
    let operation = RmsNorm::new(rows, columns, T::TYPE).expect("a legal shape");
    let prepared = kernels().prepare(operation, choice).expect("a plan");
    let dims = [rows, columns];
    let (x, weight) = (Tensor::new(&x, dims), Tensor::new(&weight, [columns]));
    let launched = prepared.launch(&stream, x, weight, EPSILON, TensorMut::new(&mut out, dims));
    assert_eq!(launched.expect("launches"), prepared.plan().len());
    stream.clone_dtoh(&out).expect("out")
}

fn synthetic<T: Tensorial>(rows: u64, columns: u64) -> (Vec<T>, Vec<T>) {
    let len = usize::try_from(rows * columns).expect("elements");
    (uniform(len, 1), uniform(usize::try_from(columns).expect("columns"), 2))
}

fn matches_the_reference<T: Tensorial>(rows: u64, columns: u64, chunk: u64) {
    let whole = norm::<T>(rows, columns, Choice::AUTOMATIC);
    let (x, weight) = synthetic::<T>(rows, columns);
    let mut deviation = Deviation::new();
    for (x, out) in x.chunks(weight.len()).zip(whole.chunks(weight.len())) {
        deviation.add(out, &reference(x, &weight, EPSILON));
    }
    let within = deviation.within(T::TYPE.rounding_error());
    assert!(within, "{} {rows}x{columns}: {:e}", T::TYPE, deviation.relative());
    let operation = RmsNorm::new(rows, columns, T::TYPE).expect("a legal shape");
    let name = format!("{} {rows}x{columns}", T::TYPE);
    is_the_same_split_and_folded(&operation, chunk, &whole, &name, |choice| {
        norm::<T>(rows, columns, choice)
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn rms_norm_matches_the_reference_whole_and_split(
        rows in 1_u64..300,
        columns in prop_oneof![1_u64..300, (1_u64..1200).prop_map(|n| 8 * n), 1_u64..20_000],
        chunk in 1_u64..300,
    ) {
        matches_the_reference::<f16>(rows, columns, chunk);
        matches_the_reference::<bf16>(rows, columns, chunk);
        matches_the_reference::<f32>(rows, columns, chunk);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn rms_norm_of_more_rows_than_y_has_blocks_is_split_or_folded() {
    overflows(&RmsNorm::new(200_000, 4096, ElementType::F16).expect("legal"), 4);
    let folded = norm::<f16>(70_000, 256, Choice::AUTOMATIC.strategy(Strategy::Folded));
    assert!(folded == norm::<f16>(70_000, 256, Choice::AUTOMATIC.strategy(Strategy::Chunked)));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_rms_norm_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let operation = RmsNorm::new(4, 8, ElementType::F32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let x = stream.alloc_zeros::<f32>(32).expect("x");
    let mut out = poisoned::<f32>(&stream, 32);
    let mut refused = |dims, columns| {
        let (x, weight) = (Tensor::new(&x, dims), Tensor::new(&x, columns));
        let out = TensorMut::new(&mut out, [4, 8]);
        prepared.launch(&stream, x, weight, EPSILON, out).expect_err("refused").to_string()
    };
    assert_eq!(refused([8, 4], [8]), "x has shape [8, 4], the kernel was prepared for [4, 8]");
    assert_eq!(refused([4, 8], [9]), "weight has shape [9], the kernel was prepared for [8]");
    assert_eq!(refused([4, 8], [8]), "weight has 32 elements, shape [8] has 8");
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|x| x.is_nan()));
}
