//! Compares argsort with its reference, whole, split and folded.

use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::argsort::{Argsort, Order, reference};
use gridguard_kernels::{ElementType, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::{Just, ProptestConfig, prop_oneof, proptest};

use super::support::{Tensorial, is_the_same_split_and_folded, kernels, overflows, stream};

/// Elements of one case, at most.
const MOST_ELEMENTS: u64 = 400_000;
/// Not a column.
const POISON: u32 = u32::MAX;

/// The order of the rows of `x`, launched as chosen.
fn argsort<T: Tensorial>(x: &[T], columns: u64, order: Order, choice: Choice) -> Vec<u32> {
    let stream = stream();
    let rows = u64::try_from(x.len()).expect("elements") / columns;
    let mut out = stream.clone_htod(&vec![POISON; x.len()]).expect("memory");
    let x = stream.clone_htod(x).expect("x");
    let operation = Argsort::new(rows, columns, T::TYPE, order).expect("a legal shape");
    let prepared = kernels().prepare(operation, choice).expect("a plan");
    let dims = [rows, columns];
    let (x, to) = (Tensor::new(&x, dims), TensorMut::new(&mut out, dims));
    let launched = prepared.launch(&stream, x, to);
    assert_eq!(launched.expect("launches"), prepared.plan().len());
    stream.clone_dtoh(&out).expect("out")
}

/// Rows of numbers, many of them equal, and rows of special values.
fn synthetic<T: Tensorial>(rows: u64, columns: u64) -> Vec<T> {
    let len = usize::try_from(rows * columns).expect("elements");
    let special =
        [f32::NAN, -f32::NAN, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE];
    let special = special.into_iter().map(T::narrow).cycle();
    let length = usize::try_from(columns).expect("columns");
    let mut x: Vec<T> = uniform(len, 1);
    for (place, row) in x.chunks_mut(length).enumerate() {
        // Rows repeat every three: random, special values, equal elements.
        match place % 3 {
            1 => row.iter_mut().step_by(3).zip(special.clone()).for_each(|(x, other)| *x = other),
            2 => row.iter_mut().for_each(|x| *x = T::narrow((x.widen() * 4.0).round())),
            _ => {}
        }
    }
    x
}

fn matches_the_reference<T: Tensorial>(rows: u64, columns: u64, order: Order, chunk: u64) {
    let x = synthetic::<T>(rows, columns);
    let whole = argsort(&x, columns, order, Choice::AUTOMATIC);
    let length = usize::try_from(columns).expect("columns");
    for (place, (x, out)) in x.chunks(length).zip(whole.chunks(length)).enumerate() {
        let row = format!("{} {rows}x{columns} {order:?} row {place}", T::TYPE);
        assert!(out == reference(x, order), "{row}");
    }
    let operation = Argsort::new(rows, columns, T::TYPE, order).expect("a legal shape");
    let name = format!("{} {rows}x{columns} {order:?}", T::TYPE);
    is_the_same_split_and_folded(&operation, chunk, &whole, &name, |choice| {
        argsort(&x, columns, order, choice)
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn argsort_matches_the_reference_whole_and_split(
        rows in 1_u64..2000,
        columns in prop_oneof![1_u64..40, 1_u64..1200, 1_u64..9000, 1_u64..32_769],
        order in prop_oneof![Just(Order::Ascending), Just(Order::Descending)],
        chunk in 1_u64..8,
    ) {
        let rows = rows.min(MOST_ELEMENTS / columns).max(1);
        matches_the_reference::<f16>(rows, columns, order, chunk);
        matches_the_reference::<bf16>(rows, columns, order, chunk);
        matches_the_reference::<f32>(rows, columns, order, chunk);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn argsort_of_powers_of_two_and_their_neighbours_matches_the_reference() {
    for log in 0..=15 {
        for columns in [(1 << log) - 1, 1 << log, (1 << log) + 1] {
            if (1..=32_768).contains(&columns) {
                matches_the_reference::<f32>(3, columns, Order::Ascending, 1);
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn argsort_of_more_rows_than_y_has_blocks_is_split_or_folded() {
    let operation = Argsort::new(200_000, 8192, ElementType::F16, Order::Ascending);
    overflows(&operation.expect("legal"), 4);
    // 66,000 blocks of 128 rows.
    let x: Vec<f16> = uniform(66_000 * 128 * 2, 1);
    let sorted = |strategy| argsort(&x, 2, Order::Ascending, Choice::AUTOMATIC.strategy(strategy));
    let chunked = sorted(Strategy::Chunked);
    let in_order = x
        .chunks(2)
        .zip(chunked.chunks(2))
        .all(|(x, out)| out == if x[1] < x[0] { [1, 0] } else { [0, 1] });
    assert!(in_order && chunked == sorted(Strategy::Folded));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_argsort_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let operation = Argsort::new(4, 8, ElementType::F32, Order::Ascending).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let x = stream.alloc_zeros::<f32>(32).expect("x");
    let mut out = stream.clone_htod(&[POISON; 32]).expect("out");
    let mut refused = |x_dims, out_dims| {
        let (x, out) = (Tensor::new(&x, x_dims), TensorMut::new(&mut out, out_dims));
        prepared.launch(&stream, x, out).expect_err("refused").to_string()
    };
    let x_refused = "x has shape [8, 4], the kernel was prepared for [4, 8]";
    assert_eq!(refused([8, 4], [4, 8]), x_refused);
    let out_refused = "out has shape [4, 9], the kernel was prepared for [4, 8]";
    assert_eq!(refused([4, 8], [4, 9]), out_refused);
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|column| *column == POISON));
}
