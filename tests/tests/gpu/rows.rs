//! Kernels of rows against their f64 references: random sizes, special values, more rows than the grid has blocks, and
//! tensors of other shapes.

use core::fmt::Debug;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use gridguard::cuda::LaunchRecord;
use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::argsort::{Argsort, Order};
use gridguard_kernels::geglu::{self, Geglu};
use gridguard_kernels::layer_norm::{self, LayerNorm};
use gridguard_kernels::residual_norm::ResidualNorm;
use gridguard_kernels::rms_norm::RmsNorm;
use gridguard_kernels::softmax::{self, Softmax};
use gridguard_kernels::{
    Deviation, Element, ElementType, KernelError, Operation, Prepared, Tensor, TensorMut,
};
use gridguard_problems::Problem;
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, prop_oneof, proptest};
use proptest::sample::select;
use proptest::strategy::Strategy as _;

use super::support::{Tensorial, guard, kernels, overflows, poisoned, stream};

const KERNELS: [&str; 5] = ["argsort", "geglu", "layer_norm", "rms_norm", "softmax"];
/// Elements of one case, at most.
const MOST_ELEMENTS: u64 = 400_000;

/// Asserts that a kernel writes the right output whole, in about this many chunks, and folded.
fn is_right(kernel: &str, element: ElementType, [rows, columns]: [u64; 2], chunks: u64) {
    let name = format!("{kernel} {element} {rows}x{columns}");
    let problem: Problem = name.parse().unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut case = problem.on_device(kernels(), &stream()).expect("memory");
    case.verify().unwrap_or_else(|error| panic!("{name}: {error}"));
    let unit = case.setups().expect("the default")[0].batch.unit().expect("small");
    let chunk = rows.div_ceil(chunks).next_multiple_of(unit);
    let split = Choice::at_most(chunk).strategy(Strategy::Chunked);
    for choice in [Choice::AUTOMATIC, split, Choice::AUTOMATIC.strategy(Strategy::Folded)] {
        let handle = case.prepare(&[], choice, None).expect("a plan");
        case.check(handle).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn kernels_of_rows_match_their_references_whole_split_and_folded(
        kernel in select(&KERNELS[..]),
        element in select(&ElementType::ALL[..]),
        rows in 1_u64..4000,
        columns in prop_oneof![2_u64..40, 2_u64..1200, (1_u64..1200).prop_map(|n| 8 * n), 2_u64..32_769],
        chunks in 2_u64..8,
    ) {
        is_right(kernel, element, [rows.min(MOST_ELEMENTS / columns).max(1), columns], chunks);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn rows_of_powers_of_two_and_their_neighbours_match_the_reference() {
    for columns in (0..=15).flat_map(|log| [(1 << log) - 1, 1 << log, (1 << log) + 1]) {
        for kernel in ["argsort", "softmax"] {
            if (1..=32_768).contains(&columns) {
                is_right(kernel, ElementType::F32, [3, columns], 2);
            }
        }
    }
    is_right("softmax", ElementType::F16, [3, 140_000], 2);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn more_rows_than_the_grid_has_blocks_are_split_or_folded() {
    const ROWS: u64 = 200_000;
    let half = ElementType::F16;
    overflows(&Argsort::new(ROWS, 8192, half, Order::Ascending).expect("legal"), 4);
    overflows(&Geglu::new(ROWS, 4096, half).expect("legal"), 4);
    overflows(&LayerNorm::new(ROWS, 4096, half).expect("legal"), 4);
    overflows(&RmsNorm::new(ROWS, 4096, half).expect("legal"), 4);
    overflows(&Softmax::new(ROWS, 4096, half).expect("legal"), 4);
    overflows(&ResidualNorm::new(2_200_704, 192, half, false).expect("legal"), 3);
    for (kernel, rows, columns) in [
        // 66,000 blocks of 128 rows.
        ("argsort", 66_000 * 128, 2),
        ("geglu", 70_000, 520),
        ("layer_norm", 70_000, 1032),
        ("rms_norm", 70_000, 256),
        ("softmax", 66_000 * 128, 8),
    ] {
        is_right(kernel, half, [rows, columns], 2);
    }
}

/// The output of an operation, which `launch` starts.
fn output<O: Operation, T: Tensorial>(
    stream: &Arc<CudaStream>,
    operation: O,
    elements: usize,
    launch: impl FnOnce(&Prepared<O>, &mut CudaSlice<T>) -> Result<u64, KernelError>,
) -> Vec<T> {
    let mut out = poisoned::<T>(stream, elements);
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let launched = launch(&prepared, &mut out);
    assert_eq!(launched.expect("launches"), prepared.plan().len());
    stream.clone_dtoh(&out).expect("out")
}

fn rows<T: Tensorial>(rows: u64, columns: u64) -> Vec<T> {
    uniform(usize::try_from(rows * columns).expect("elements"), 1)
}

fn softmax_of<T: Tensorial>(x: &[T], columns: u64) -> Vec<T> {
    let rows = u64::try_from(x.len()).expect("elements") / columns;
    let operation = Softmax::new(rows, columns, T::TYPE).expect("legal");
    let (stream, dims) = (stream(), [rows, columns]);
    let x = stream.clone_htod(x).expect("x");
    output(&stream, operation, x.len(), |prepared, out| {
        prepared.launch(&stream, Tensor::new(&x, dims), TensorMut::new(out, dims))
    })
}

fn special_values_affect_their_own_row_only<T: Tensorial>(columns: u64) {
    let length = usize::try_from(columns).expect("columns");
    let special = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 6e4, -6e4];
    let mut x = rows::<T>(12, columns);
    for (row, value) in x.chunks_mut(length).step_by(2).zip(special) {
        row[length / 2] = T::narrow(value);
    }
    // A row of -inf only.
    x[..length].fill(T::narrow(f32::NEG_INFINITY));
    let out = softmax_of(&x, columns);
    for (place, (x, out)) in x.chunks(length).zip(out.chunks(length)).enumerate() {
        let expected = softmax::reference(x);
        let what = format!("{} {columns} row {place}", T::TYPE);
        if expected.iter().any(|weight| weight.is_nan()) {
            assert!(out.iter().all(|weight| weight.widen().is_nan()), "{what}");
        } else {
            let mut deviation = Deviation::new();
            deviation.add(out, &expected);
            assert!(deviation.within(softmax::tolerance(T::TYPE, columns)), "{what}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn softmax_of_special_values_is_as_documented() {
    // One element, rows through shared memory, rows of a part of a warp, of a warp, of several, and longer than
    // registers hold; whole vectors and not.
    for columns in [1, 77, 64, 1000, 5000, 5001, 100_000, 100_001] {
        special_values_affect_their_own_row_only::<f16>(columns);
        special_values_affect_their_own_row_only::<bf16>(columns);
        special_values_affect_their_own_row_only::<f32>(columns);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn softmax_of_tensors_between_multiples_of_16_bytes_is_the_same() {
    for columns in [77, 5001, 100_001] {
        let (x, dims) = (rows::<f16>(4, columns), [4, columns]);
        let aligned = softmax_of(&x, columns);
        let (stream, reach) = (stream(), x.len());
        for (before_x, before_out) in [(1, 1), (0, 3), (5, 0)] {
            let memory = [vec![f16::NAN; before_x], x.clone()].concat();
            let memory = stream.clone_htod(&memory).expect("x");
            let operation = Softmax::new(4, columns, ElementType::F16).expect("legal");
            let out = output::<_, f16>(&stream, operation, reach + 8, |prepared, out| {
                let x = memory.slice(before_x..);
                let mut to = out.slice_mut(before_out..before_out + reach);
                prepared.launch(&stream, Tensor::new(&x, dims), TensorMut::new(&mut to, dims))
            });
            let (before, out) = out.split_at(before_out);
            let (out, after) = out.split_at(reach);
            assert!(before.iter().chain(after).all(|x| x.is_nan()), "{columns}");
            // The order of summation depends on the address, so the last bits may differ.
            let mut deviation = Deviation::new();
            let expected: Vec<f64> = aligned.iter().map(|x| x.to_f64()).collect();
            deviation.add(out, &expected);
            assert!(deviation.within(softmax::tolerance(ElementType::F16, columns)), "{columns}");
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_recorded_launch_names_the_caller_of_the_kernel() {
    let stream = stream();
    let mut out = poisoned::<f32>(&stream, 8);
    let x = stream.clone_htod(&[0_f32; 8]).expect("x");
    let operation = Softmax::new(1, 8, ElementType::F32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
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

/// The layer norm of rows, with a weight of ones and a bias of zeros.
fn layer_norm_of<T: Tensorial>(x: &[T], columns: u64) -> Vec<T> {
    let rows = u64::try_from(x.len()).expect("elements") / columns;
    let operation = LayerNorm::new(rows, columns, T::TYPE).expect("legal");
    let (stream, dims) = (stream(), operation.dims());
    let affine = affine::<T>(columns).map(|one| stream.clone_htod(&one).expect("memory"));
    let x = stream.clone_htod(x).expect("x");
    output(&stream, operation, x.len(), |prepared, out| {
        let affine = affine.each_ref().map(|one| Tensor::new(one, [columns]));
        let out = TensorMut::new(out, dims);
        prepared.launch(&stream, Tensor::new(&x, dims), affine, EPSILON, out)
    })
}

fn affine<T: Tensorial>(columns: u64) -> [Vec<T>; 2] {
    [1.0, 0.0].map(|one| vec![T::narrow(one); usize::try_from(columns).expect("columns")])
}

const EPSILON: f32 = 1e-5;

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_statistics_of_rows_far_from_zero_do_not_cancel() {
    // The mean of squares would have no digit of the variance left. The tolerance holds for any row.
    for columns in [320, 1001, 100_000] {
        let mut x = rows::<f32>(64, columns);
        x.iter_mut().for_each(|x| *x += 30_000.0);
        let [weight, bias] = affine(columns);
        let mut deviation = Deviation::new();
        for (x, out) in x.chunks(weight.len()).zip(layer_norm_of(&x, columns).chunks(weight.len()))
        {
            deviation.add(out, &layer_norm::reference(x, &weight, &bias, EPSILON));
        }
        let within = deviation.within(ElementType::F32.rounding_error());
        assert!(within, "{columns}: {:e}", deviation.relative());
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_row_with_nan_or_infinity_is_nan_and_its_neighbours_are_not() {
    let mut x = rows::<f16>(9, 320);
    x[3 * 320 + 5] = f16::NAN;
    x[6 * 320 + 319] = f16::INFINITY;
    for (row, out) in layer_norm_of(&x, 320).chunks(320).enumerate() {
        let wrong = matches!(row, 3 | 6);
        assert!(out.iter().all(|x| x.is_nan() == wrong), "row {row}");
    }
}

fn gated<T: Tensorial>(input: &[T], columns: u64) -> Vec<T> {
    let rows = u64::try_from(input.len()).expect("elements") / (2 * columns);
    let operation = Geglu::new(rows, columns, T::TYPE).expect("legal");
    let (stream, from, to) = (stream(), operation.input_dims(), operation.output_dims());
    let input = stream.clone_htod(input).expect("input");
    output(&stream, operation, input.len() / 2, |prepared, out| {
        prepared.launch(&stream, Tensor::new(&input, from), TensorMut::new(out, to))
    })
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
    for (gate, out) in gates.iter().zip(&gated(&input, 64)) {
        let exact = geglu::reference(&[f16::ONE, *gate])[0];
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
    fn of<T: Tensorial>() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        let gates = [nan, infinity, -infinity, 0.0, -0.0, 100.0, -100.0, 1.0];
        let input: Vec<T> = [1.0; 8].into_iter().chain(gates).map(T::narrow).collect();
        let out: Vec<f32> = gated(&input, 8).into_iter().map(Element::widen).collect();
        assert!(out[0].is_nan() && out[1] == infinity && out[2].is_nan(), "{out:?}");
        assert!(out[3..5].iter().all(|x| *x == 0.0) && out[6] == 0.0, "{out:?}");
        assert!((out[5] - 100.0).abs() < 0.5 && (out[7] - 0.841).abs() < 0.01, "{out:?}");
    }
    of::<f16>();
    of::<bf16>();
    of::<f32>();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_tensors_are_rejected_before_any_launch() {
    fn refused(launched: Result<u64, impl ToString + Debug>) -> String {
        launched.expect_err("refused").to_string()
    }
    let (stream, single) = (stream(), ElementType::F32);
    let long = stream.alloc_zeros::<f32>(64).expect("memory");
    let (x, eight) = (long.slice(..32), long.slice(..8));
    let mut memory = poisoned::<f32>(&stream, 32);
    let prepare = Choice::AUTOMATIC;
    let softmax = kernels().prepare(Softmax::new(4, 8, single).expect("legal"), prepare);
    let rms_norm = kernels().prepare(RmsNorm::new(4, 8, single).expect("legal"), prepare);
    let layer_norm = kernels().prepare(LayerNorm::new(4, 8, single).expect("legal"), prepare);
    let geglu = kernels().prepare(Geglu::new(4, 8, single).expect("legal"), prepare);
    let (softmax, rms_norm) = (softmax.expect("a plan"), rms_norm.expect("a plan"));
    let (layer_norm, geglu) = (layer_norm.expect("a plan"), geglu.expect("a plan"));
    let right = Tensor::new(&x, [4, 8]);
    let mut check = |expected: &str, launch: &dyn Fn(TensorMut<'_, f32, 2>) -> String| {
        assert_eq!(launch(TensorMut::new(&mut memory, [4, 8])), expected);
    };
    check("x has shape [8, 4], the kernel was prepared for [4, 8]", &|out| {
        refused(softmax.launch(&stream, Tensor::new(&x, [8, 4]), out))
    });
    check("weight has shape [9], the kernel was prepared for [8]", &|out| {
        refused(rms_norm.launch(&stream, right, Tensor::new(&long, [9]), EPSILON, out))
    });
    check("bias has 32 elements, shape [8] has 8", &|out| {
        let affine = [Tensor::new(&eight, [8]), Tensor::new(&x, [8])];
        refused(layer_norm.launch(&stream, right, affine, EPSILON, out))
    });
    check("input has shape [4, 8], the kernel was prepared for [4, 16]", &|out| {
        refused(geglu.launch(&stream, right, out))
    });
    let out = TensorMut::new(&mut memory, [4, 9]);
    let expected = "out has shape [4, 9], the kernel was prepared for [4, 8]";
    assert_eq!(refused(softmax.launch(&stream, right, out)), expected);
    assert!(stream.clone_dtoh(&memory).expect("out").iter().all(|x| x.is_nan()));
}
