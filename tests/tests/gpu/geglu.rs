//! Compares the gate of a feed-forward with its f64 reference, whole, split and folded.

use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::geglu::{Geglu, reference};
use gridguard_kernels::{Deviation, Element, ElementType, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::support::{
    Tensorial, is_the_same_split_and_folded, kernels, overflows, poisoned, stream,
};

fn operation<T: Tensorial>(rows: u64, columns: u64) -> Geglu {
    Geglu::new(rows, columns, T::TYPE).expect("a legal shape")
}

fn gate<T: Tensorial>(operation: Geglu, input: &[T], choice: Choice) -> Vec<T> {
    let stream = stream();
    let device = stream.clone_htod(input).expect("memory");
    let mut out = poisoned::<T>(&stream, input.len() / 2);
    let prepared = kernels().prepare(operation, choice).expect("a plan");
    let from = Tensor::new(&device, operation.input_dims());
    let launched =
        prepared.launch(&stream, from, TensorMut::new(&mut out, operation.output_dims()));
    assert_eq!(launched.expect("launches"), prepared.plan().len());
    stream.clone_dtoh(&out).expect("out")
}

/// Random rows, with gates from -4 to 4.
fn rows_of<T: Tensorial>(rows: u64, columns: u64) -> Vec<T> {
    let mut input = uniform::<T>(usize::try_from(rows * 2 * columns).expect("elements"), 1);
    input.iter_mut().for_each(|x| *x = T::narrow(4.0 * x.widen()));
    input
}

fn deviation<T: Tensorial>(columns: u64, input: &[T], out: &[T]) -> Deviation {
    let columns = usize::try_from(columns).expect("columns");
    let mut deviation = Deviation::new();
    for (input, out) in input.chunks(2 * columns).zip(out.chunks(columns)) {
        deviation.add(out, &reference(input));
    }
    deviation
}

fn matches_the_reference<T: Tensorial>(rows: u64, columns: u64, chunk: u64) {
    let (input, operation) = (rows_of::<T>(rows, columns), operation::<T>(rows, columns));
    let whole = gate(operation, &input, Choice::AUTOMATIC);
    let deviation = deviation(columns, &input, &whole);
    let within = deviation.within(T::TYPE.rounding_error());
    assert!(within, "{} {rows}x{columns}: {:e}", T::TYPE, deviation.relative());
    let name = format!("{} {rows}x{columns}", T::TYPE);
    is_the_same_split_and_folded(&operation, chunk, &whole, &name, |choice| {
        gate(operation, &input, choice)
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn geglu_matches_the_reference_whole_and_split(
        rows in 1_u64..300,
        columns in prop_oneof![1_u64..300, (1_u64..1200).prop_map(|n| 8 * n), 1_u64..10_000],
        chunk in 1_u64..300,
    ) {
        matches_the_reference::<f16>(rows, columns, chunk);
        matches_the_reference::<bf16>(rows, columns, chunk);
        matches_the_reference::<f32>(rows, columns, chunk);
    }
}

/// Every f16 number as gate, by its bits: within a unit in the last place of the rounded reference.
#[test]
#[ignore = "needs a CUDA GPU"]
fn every_gate_of_f16_is_within_a_unit_in_the_last_place() {
    let gates: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let input: Vec<f16> = gates
        .chunks(64)
        .flat_map(|gates| core::iter::repeat_n(f16::ONE, 64).chain(gates.iter().copied()))
        .collect();
    let out = gate(operation::<f16>(1024, 64), &input, Choice::AUTOMATIC);
    for (gate, out) in gates.iter().zip(&out) {
        let exact = reference(&[f16::ONE, *gate])[0];
        if exact.is_nan() {
            assert!(out.is_nan(), "gelu({gate}) is {out}");
            continue;
        }
        let nearest = f16::from_f64(exact);
        let unit = f16::from_bits((nearest.to_bits() & 0x7fff).saturating_add(1)).to_f64()
            - f16::from_bits(nearest.to_bits() & 0x7fff).to_f64();
        let near = (out.to_f64() - exact).abs() <= unit;
        assert!(near || *out == nearest, "gelu({gate}) is {out}, not {nearest}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn gates_without_a_number_give_what_the_formula_gives() {
    fn gated<T: Tensorial>(gates: [f32; 8]) -> Vec<f32> {
        let input: Vec<T> = [1.0; 8].into_iter().chain(gates).map(T::narrow).collect();
        let out = gate(operation::<T>(1, 8), &input, Choice::AUTOMATIC);
        out.into_iter().map(Element::widen).collect()
    }
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    for out in [f16::TYPE, bf16::TYPE, f32::TYPE].map(|element| {
        let gates = [nan, infinity, -infinity, 0.0, -0.0, 100.0, -100.0, 1.0];
        match element {
            ElementType::F16 => gated::<f16>(gates),
            ElementType::Bf16 => gated::<bf16>(gates),
            ElementType::F32 => gated::<f32>(gates),
        }
    }) {
        assert!(out[0].is_nan() && out[1] == infinity && out[2].is_nan(), "{out:?}");
        assert!(out[3..5].iter().all(|x| *x == 0.0) && out[6] == 0.0, "{out:?}");
        assert!((out[5] - 100.0).abs() < 0.5 && (out[7] - 0.841).abs() < 0.01, "{out:?}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn geglu_of_more_rows_than_z_has_blocks_is_split_or_folded() {
    overflows(&Geglu::new(200_000, 4096, ElementType::F16).expect("legal"), 4);
    let (input, operation) = (rows_of::<f16>(70_000, 520), operation::<f16>(70_000, 520));
    let folded = gate(operation, &input, Choice::AUTOMATIC.strategy(Strategy::Folded));
    assert!(folded == gate(operation, &input, Choice::AUTOMATIC.strategy(Strategy::Chunked)));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_geglu_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let prepared = kernels().prepare(operation::<f32>(4, 8), Choice::AUTOMATIC).expect("a plan");
    let input = stream.alloc_zeros::<f32>(64).expect("input");
    let mut out = poisoned::<f32>(&stream, 32);
    let mut refused = |from, to| {
        let (from, to) = (Tensor::new(&input, from), TensorMut::new(&mut out, to));
        prepared.launch(&stream, from, to).expect_err("refused").to_string()
    };
    assert_eq!(
        refused([4, 8], [4, 8]),
        "input has shape [4, 8], the kernel was prepared for [4, 16]"
    );
    assert_eq!(
        refused([4, 16], [8, 4]),
        "out has shape [8, 4], the kernel was prepared for [4, 8]"
    );
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|x| x.is_nan()));
}
