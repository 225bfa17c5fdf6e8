//! Compares softmax with its f64 reference, whole, split and folded.

use gridguard::cuda::LaunchRecord;
use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::softmax::{Softmax, reference, tolerance};
use gridguard_kernels::{Deviation, ElementType, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::support::{
    Tensorial, guard, is_the_same_split_and_folded, kernels, overflows, poisoned, stream,
};

/// Elements of one case, at most.
const MOST_ELEMENTS: u64 = 400_000;

/// The softmax of `x`, launched as chosen.
fn softmax<T: Tensorial>(x: &[T], columns: u64, choice: Choice) -> Vec<T> {
    let stream = stream();
    let rows = u64::try_from(x.len()).expect("elements") / columns;
    let mut out = poisoned::<T>(&stream, x.len());
    let x = stream.clone_htod(x).expect("x");
    let operation = Softmax::new(rows, columns, T::TYPE).expect("a legal shape");
    let prepared = kernels().prepare(operation, choice).expect("a plan");
    let dims = [rows, columns];
    let (x, to) = (Tensor::new(&x, dims), TensorMut::new(&mut out, dims));
    let launched = prepared.launch(&stream, x, to);
    assert_eq!(launched.expect("launches"), prepared.plan().len());
    stream.clone_dtoh(&out).expect("out")
}

fn synthetic<T: Tensorial>(rows: u64, columns: u64) -> Vec<T> {
    uniform(usize::try_from(rows * columns).expect("elements"), 1)
}

fn matches_the_reference<T: Tensorial>(rows: u64, columns: u64, chunk: u64) {
    let x = synthetic::<T>(rows, columns);
    let whole = softmax(&x, columns, Choice::AUTOMATIC);
    let length = usize::try_from(columns).expect("columns");
    let mut deviation = Deviation::new();
    for (x, out) in x.chunks(length).zip(whole.chunks(length)) {
        deviation.add(out, &reference(x));
    }
    let within = deviation.within(tolerance(T::TYPE, columns));
    assert!(within, "{} {rows}x{columns}: {:e}", T::TYPE, deviation.relative());
    let operation = Softmax::new(rows, columns, T::TYPE).expect("a legal shape");
    let name = format!("{} {rows}x{columns}", T::TYPE);
    is_the_same_split_and_folded(&operation, chunk, &whole, &name, |choice| {
        softmax(&x, columns, choice)
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn softmax_matches_the_reference_whole_and_split(
        rows in 1_u64..4000,
        columns in prop_oneof![
            1_u64..40,
            1_u64..1200,
            (1_u64..1200).prop_map(|n| 8 * n),
            1_u64..20_000,
            1_u64..140_000,
        ],
        chunk in 1_u64..8,
    ) {
        let rows = rows.min(MOST_ELEMENTS / columns).max(1);
        matches_the_reference::<f16>(rows, columns, chunk);
        matches_the_reference::<bf16>(rows, columns, chunk);
        matches_the_reference::<f32>(rows, columns, chunk);
    }
}

fn special_values_affect_their_own_row_only<T: Tensorial>(columns: u64) {
    let length = usize::try_from(columns).expect("columns");
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 6e4, -6e4];
    let mut x = synthetic::<T>(12, columns);
    for (row, value) in x.chunks_mut(length).step_by(2).zip(special) {
        row[length / 2] = T::narrow(value);
    }
    // A row of -inf only.
    x[..length].fill(T::narrow(f32::NEG_INFINITY));
    let out = softmax(&x, columns, Choice::AUTOMATIC);
    for (place, (x, out)) in x.chunks(length).zip(out.chunks(length)).enumerate() {
        let expected = reference(x);
        let what = format!("{} {columns} row {place}", T::TYPE);
        if expected.iter().any(|weight| weight.is_nan()) {
            assert!(out.iter().all(|weight| weight.widen().is_nan()), "{what}");
        } else {
            let mut deviation = Deviation::new();
            deviation.add(out, &expected);
            assert!(deviation.within(tolerance(T::TYPE, columns)), "{what}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn softmax_of_special_values_is_as_documented() {
    // One element, rows through shared memory, rows of a part of a warp, of a warp, of several, and
    // longer than registers hold; whole vectors and not.
    for columns in [1, 77, 64, 1000, 5000, 5001, 100_000, 100_001] {
        special_values_affect_their_own_row_only::<f16>(columns);
        special_values_affect_their_own_row_only::<bf16>(columns);
        special_values_affect_their_own_row_only::<f32>(columns);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn softmax_of_tensors_between_multiples_of_16_bytes_is_the_same() {
    let stream = stream();
    for columns in [77, 5001, 100_001] {
        let x = synthetic::<f16>(4, columns);
        let aligned = softmax(&x, columns, Choice::AUTOMATIC);
        let operation = Softmax::new(4, columns, ElementType::F16).expect("a legal shape");
        let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
        let reach = x.len();
        for (before_x, before_out) in [(1, 1), (0, 3), (5, 0)] {
            let mut memory = vec![f16::NAN; before_x];
            memory.extend_from_slice(&x);
            let memory = stream.clone_htod(&memory).expect("x");
            let mut out = poisoned::<f16>(&stream, reach + 8);
            let (dims, x) = ([4, columns], memory.slice(before_x..));
            let mut to = out.slice_mut(before_out..before_out + reach);
            let launched =
                prepared.launch(&stream, Tensor::new(&x, dims), TensorMut::new(&mut to, dims));
            launched.expect("launches");
            let out = stream.clone_dtoh(&out).expect("out");
            let (before, out) = out.split_at(before_out);
            let (out, after) = out.split_at(reach);
            assert!(before.iter().chain(after).all(|x| x.is_nan()), "{columns}");
            // The order of summation depends on the address, so the last bits may differ.
            let mut deviation = Deviation::new();
            let expected: Vec<f64> = aligned.iter().map(|x| x.to_f64()).collect();
            deviation.add(out, &expected);
            assert!(deviation.within(tolerance(ElementType::F16, columns)), "{columns}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn softmax_of_more_rows_than_y_has_blocks_is_split_or_folded() {
    overflows(&Softmax::new(200_000, 4096, ElementType::F16).expect("legal"), 4);
    // 66,000 blocks of 128 rows.
    let x = synthetic::<f16>(66_000 * 128, 8);
    let chunked = softmax(&x, 8, Choice::AUTOMATIC.strategy(Strategy::Chunked));
    assert!(chunked.iter().all(|weight| weight.to_f32() > 0.0));
    assert!(chunked == softmax(&x, 8, Choice::AUTOMATIC.strategy(Strategy::Folded)));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_softmax_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let operation = Softmax::new(4, 8, ElementType::F32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let x = stream.alloc_zeros::<f32>(32).expect("x");
    let mut out = poisoned::<f32>(&stream, 32);
    let mut refused = |x_dims, out_dims| {
        let (x, out) = (Tensor::new(&x, x_dims), TensorMut::new(&mut out, out_dims));
        prepared.launch(&stream, x, out).expect_err("refused").to_string()
    };
    let x_refused = "x has shape [8, 4], the kernel was prepared for [4, 8]";
    assert_eq!(refused([8, 4], [4, 8]), x_refused);
    let out_refused = "out has shape [4, 9], the kernel was prepared for [4, 8]";
    assert_eq!(refused([4, 8], [4, 9]), out_refused);
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|x| x.is_nan()));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_recorded_launch_names_the_caller_of_the_kernel() {
    let stream = stream();
    let mut out = poisoned::<f32>(&stream, 8);
    let x = stream.clone_htod(&[0_f32; 8]).expect("x");
    let prepared =
        kernels().prepare(Softmax::new(1, 8, ElementType::F32).expect("legal"), Choice::AUTOMATIC);
    let prepared = prepared.expect("a plan");
    let (x, to) = (Tensor::new(&x, [1, 8]), TensorMut::new(&mut out, [1, 8]));
    let line = line!() + 1;
    let launched = prepared.launch(&stream, x, to);
    assert_eq!(launched, Ok(1));
    let here = |launch: &LaunchRecord| {
        (launch.call_site.file(), launch.call_site.line()) == (file!(), line)
    };
    // Other tests launch in the same context; this stream is this test's own.
    let recent = guard().recent_launches();
    let found = recent.iter().any(here);
    assert!(found || guard().counts().sharing_a_record > 0, "{recent:?}");
}
