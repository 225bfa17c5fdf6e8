//! Compares the layer norm of rows with its f64 reference, whole, split and folded.

use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::layer_norm::{LayerNorm, reference};
use gridguard_kernels::{Deviation, ElementType, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::support::{
    Tensorial, is_the_same_split_and_folded, kernels, overflows, poisoned, stream,
};

const EPSILON: f32 = 1e-5;

/// Rows, weight and bias.
struct Inputs<T> {
    x: Vec<T>,
    weight: Vec<T>,
    bias: Vec<T>,
}

impl<T: Tensorial> Inputs<T> {
    /// Random ones, the rows around `mean`.
    fn new(rows: u64, columns: u64, mean: f32) -> Self {
        let elements =
            |count: u64, seed| uniform::<T>(usize::try_from(count).expect("elements"), seed);
        let mut x = elements(rows * columns, 1);
        x.iter_mut().for_each(|x| *x = T::narrow(x.widen() + mean));
        Self { x, weight: elements(columns, 2), bias: elements(columns, 3) }
    }

    fn norm(&self, operation: LayerNorm, choice: Choice) -> Vec<T> {
        let stream = stream();
        let [x, weight, bias] =
            [&self.x, &self.weight, &self.bias].map(|one| stream.clone_htod(one).expect("memory"));
        let mut out = poisoned::<T>(&stream, x.len());
        let prepared = kernels().prepare(operation, choice).expect("a plan");
        let dims @ [_, columns] = operation.dims();
        let shared = [&weight, &bias].map(|one| Tensor::new(one, [columns]));
        let out_tensor = TensorMut::new(&mut out, dims);
        let launched = prepared.launch(&stream, Tensor::new(&x, dims), shared, EPSILON, out_tensor);
        assert_eq!(launched.expect("launches"), prepared.plan().len());
        stream.clone_dtoh(&out).expect("out")
    }

    fn deviation(&self, out: &[T]) -> Deviation {
        let mut deviation = Deviation::new();
        for (x, out) in self.x.chunks(self.weight.len()).zip(out.chunks(self.weight.len())) {
            deviation.add(out, &reference(x, &self.weight, &self.bias, EPSILON));
        }
        deviation
    }
}

fn operation<T: Tensorial>(rows: u64, columns: u64) -> LayerNorm {
    LayerNorm::new(rows, columns, T::TYPE).expect("a legal shape")
}

fn matches_the_reference<T: Tensorial>(rows: u64, columns: u64, chunk: u64) {
    let (inputs, operation) = (Inputs::<T>::new(rows, columns, 0.0), operation::<T>(rows, columns));
    let whole = inputs.norm(operation, Choice::AUTOMATIC);
    let deviation = inputs.deviation(&whole);
    let within = deviation.within(T::TYPE.rounding_error());
    assert!(within, "{} {rows}x{columns}: {:e}", T::TYPE, deviation.relative());
    let name = format!("{} {rows}x{columns}", T::TYPE);
    is_the_same_split_and_folded(&operation, chunk, &whole, &name, |choice| {
        inputs.norm(operation, choice)
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn layer_norm_matches_the_reference_whole_and_split(
        rows in 1_u64..300,
        columns in prop_oneof![2_u64..300, (1_u64..1200).prop_map(|n| 8 * n), 2_u64..20_000],
        chunk in 1_u64..300,
    ) {
        matches_the_reference::<f16>(rows, columns, chunk);
        matches_the_reference::<bf16>(rows, columns, chunk);
        matches_the_reference::<f32>(rows, columns, chunk);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_statistics_of_rows_far_from_zero_do_not_cancel() {
    // The mean of squares would have no digit of the variance left. The tolerance holds for any row.
    for columns in [320, 1001, 100_000] {
        let inputs = Inputs::<f32>::new(64, columns, 30_000.0);
        let out = inputs.norm(operation::<f32>(64, columns), Choice::AUTOMATIC);
        let deviation = inputs.deviation(&out);
        let within = deviation.within(ElementType::F32.rounding_error());
        assert!(within, "{columns}: {:e}", deviation.relative());
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_row_with_nan_or_infinity_is_nan_and_its_neighbours_are_not() {
    let mut inputs = Inputs::<f16>::new(9, 320, 0.0);
    inputs.x[3 * 320 + 5] = f16::NAN;
    inputs.x[6 * 320 + 319] = f16::INFINITY;
    let out = inputs.norm(operation::<f16>(9, 320), Choice::AUTOMATIC);
    for (row, out) in out.chunks(320).enumerate() {
        let wrong = matches!(row, 3 | 6);
        assert!(out.iter().all(|x| x.is_nan() == wrong), "row {row}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn layer_norm_of_more_rows_than_y_has_blocks_is_split_or_folded() {
    overflows(&LayerNorm::new(200_000, 4096, ElementType::F16).expect("legal"), 4);
    let (inputs, operation) =
        (Inputs::<f16>::new(70_000, 1032, 0.0), operation::<f16>(70_000, 1032));
    let folded = inputs.norm(operation, Choice::AUTOMATIC.strategy(Strategy::Folded));
    assert!(folded == inputs.norm(operation, Choice::AUTOMATIC.strategy(Strategy::Chunked)));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_layer_norm_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let operation = LayerNorm::new(4, 8, ElementType::F32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let x = stream.alloc_zeros::<f32>(32).expect("x");
    let eight = stream.alloc_zeros::<f32>(8).expect("weight");
    let mut out = poisoned::<f32>(&stream, 32);
    let mut refused = |dims, bias| {
        let shared = [Tensor::new(&eight, [8]), bias];
        let out = TensorMut::new(&mut out, [4, 8]);
        let launched = prepared.launch(&stream, Tensor::new(&x, dims), shared, EPSILON, out);
        launched.expect_err("refused").to_string()
    };
    let bias = Tensor::new(&eight, [8]);
    assert_eq!(refused([8, 4], bias), "x has shape [8, 4], the kernel was prepared for [4, 8]");
    let long = Tensor::new(&x, [8]);
    assert_eq!(refused([4, 8], long), "bias has 32 elements, shape [8] has 8");
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|x| x.is_nan()));
}
