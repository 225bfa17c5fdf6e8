//! Compares all variants and layouts of attention with golden tensors and the f64 reference.

mod backward;
mod refusals;
mod strides;

use std::collections::BTreeSet;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use gridguard::{Choice, Rule, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::temporal_attention::{
    Layout, MAX_HEAD_DIM, Shape, TemporalAttention, Variant, reference, tolerance,
};
use gridguard_kernels::{Deviation, Element, KernelError, Operation as _, Tensor, TensorMut};
use gridguard_tests::golden::{self, Golden};
use half::{bf16, f16};
use proptest::prelude::{Just, ProptestConfig, any, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use crate::support::{Tensorial, guard, kernels, poisoned, stream, unit};

fn attention<T: Tensorial>(shape: Shape) -> TemporalAttention {
    TemporalAttention::new(shape, T::TYPE, guard().limits()).expect("served")
}

/// Those variants that take the shape and type on this device.
fn variants<T: Tensorial>(shape: Shape) -> Vec<TemporalAttention> {
    let by = |variant| TemporalAttention::by_variant(shape, T::TYPE, guard().limits(), variant);
    Variant::ALL.into_iter().filter_map(|variant| by(variant).ok()).collect()
}

/// Runs over poisoned memory; gives the launches and the result.
fn run<T: Tensorial>(
    operation: TemporalAttention,
    choice: Choice,
    qkv: [&[T]; 3],
    bias: Option<&[T]>,
) -> (u64, Vec<T>) {
    let stream = stream();
    let shape = operation.shape();
    let dims = [shape.dims(), shape.key_dims(), shape.value_dims()];
    let out_dims = shape.out_dims();
    let prepared = kernels().prepare(operation, choice).expect("a plan");
    let qkv = qkv.map(|tensor| stream.clone_htod(tensor).expect("memory"));
    let bias = bias.map(|bias| stream.clone_htod(bias).expect("memory"));
    let bias = bias.as_ref().map(|bias| Tensor::with_extent(bias, shape.shared_bias()));
    let elements = out_dims.into_iter().product::<u64>();
    let mut out = poisoned::<T>(&stream, usize::try_from(elements).expect("elements"));
    let tensors = [0, 1, 2].map(|at| Tensor::new(&qkv[at], dims[at]));
    let scale = operation.shape().scale();
    let launches = prepared
        .launch(&stream, tensors, bias, scale, TensorMut::new(&mut out, out_dims))
        .expect("launches");
    (launches, stream.clone_dtoh(&out).expect("copies back"))
}

/// Three random tensors and a bias.
fn synthetic<T: Tensorial>(shape: &Shape, seed: u64) -> ([Vec<T>; 3], Vec<T>) {
    let problems = usize::try_from(shape.problems()).expect("problems");
    let [q, k, v, _] = problem_sizes(shape).map(|size| problems * size);
    let bias = usize::try_from(shape.frames() * shape.keys()).expect("elements");
    let qkv = [(q, 1), (k, 2), (v, 3)].map(|(len, n)| uniform::<T>(len, seed + n));
    (qkv, uniform::<T>(bias, seed + 4))
}

/// How far `out`, contiguous, is from the reference.
fn deviation<T: Tensorial>(
    operation: &TemporalAttention,
    out: &[T],
    qkv: [&[T]; 3],
    bias: Option<&[T]>,
) -> Deviation {
    let mut deviation = Deviation::new();
    for (problem, out) in out.chunks(problem_sizes(operation.shape())[3]).enumerate() {
        let qkv = problem_of(operation.shape(), problem, qkv);
        deviation.add(out, &reference(operation, operation.shape().scale(), qkv, bias));
    }
    deviation
}

/// Elements of one problem in q, k, v and out.
fn problem_sizes(shape: &Shape) -> [usize; 4] {
    [shape.dims(), shape.key_dims(), shape.value_dims(), shape.out_dims()]
        .map(|[.., rows, columns]| usize::try_from(rows * columns).expect("elements"))
}

/// q, k and v of one problem, out of contiguous ones.
fn problem_of<'a, T>(shape: &Shape, problem: usize, [q, k, v]: [&'a [T]; 3]) -> [&'a [T]; 3] {
    let sizes = problem_sizes(shape);
    [(q, sizes[0]), (k, sizes[1]), (v, sizes[2])]
        .map(|(tensor, size)| &tensor[problem * size..(problem + 1) * size])
}

fn against_golden<T: Tensorial>(golden: &Golden<T>) {
    for layout in Layout::ALL {
        for operation in variants::<T>(golden.shape) {
            let operation = operation.with_layout(layout);
            let qkv = [&golden.q[..], &golden.k, &golden.v];
            let (_, out) = run(operation, Choice::AUTOMATIC, qkv, None);
            let mut deviation = Deviation::new();
            deviation.add(&out, &golden.out);
            let within = deviation.within(tolerance(T::TYPE));
            let (name, relative) = (golden.name, deviation.relative());
            assert!(within, "{name} {layout:?} {}: {relative:e}", operation.variant());
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn golden_tensors_of_pytorch_are_met_by_every_variant_on_both_layouts() {
    golden::f16().iter().for_each(against_golden);
    golden::f32().iter().for_each(against_golden);
}

/// Compares the first and last item of each half and problems all over with the reference.
fn motivating_case<T: Tensorial>() {
    let shape = Shape::new(15_360, 5, 16, 64).expect("legal");
    let (qkv, _) = synthetic::<T>(&shape, 0);
    let tensors = [&qkv[0][..], &qkv[1], &qkv[2]];
    let operation = attention::<T>(shape);
    let one_block_a_problem = [("problems".to_owned(), 1)];
    let operation = operation.with_parameters(&one_block_a_problem).expect("legal");
    let folded = operation.with_layout(Layout::FoldedY);
    let (launches, split) = run(folded, Choice::AUTOMATIC, tensors, None);
    assert_eq!(launches, 2);
    let (launches, flat) = run(operation, Choice::AUTOMATIC, tensors, None);
    assert_eq!(launches, 1);
    assert!(split == flat, "split and flat differ");
    assert!(split.iter().all(|x| x.widen().is_finite()));

    let boundaries = [0, 7679, 7680, 15_359].into_iter().flat_map(|item| item * 5..item * 5 + 5);
    let sample = (0..512).map(|n: usize| n * 149_993 % 76_800);
    let problems: BTreeSet<usize> = boundaries.chain(sample).collect();
    let mut deviation = Deviation::new();
    for problem in problems {
        let part = problem * 1024..(problem + 1) * 1024;
        let qkv = tensors.map(|tensor| &tensor[part.clone()]);
        deviation.add(&split[part.clone()], &reference(&operation, shape.scale(), qkv, None));
    }
    println!("{}: relative error {:.2e}", T::TYPE, deviation.relative());
    assert!(deviation.within(tolerance(T::TYPE)), "{:e}", deviation.relative());
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn the_motivating_case_is_right_on_both_layouts_and_bit_for_bit_the_same() {
    motivating_case::<f16>();
    motivating_case::<bf16>();
    motivating_case::<f32>();
}

/// One operation in chunks and whole, against the reference.
fn matches_the_reference<T: Tensorial>(operation: TemporalAttention, seed: u64, chunk: u64) {
    let (qkv, mut bias) = synthetic::<T>(operation.shape(), seed);
    // Some keys are hidden, and one query sees none.
    let keys = usize::try_from(operation.shape().keys()).expect("keys");
    bias.iter_mut().step_by(5).for_each(|x| *x = T::narrow(f32::NEG_INFINITY));
    bias[..keys].fill(T::narrow(f32::NEG_INFINITY));
    let bias = operation.is_biased().then_some(&bias[..]);
    let qkv = [&qkv[0][..], &qkv[1], &qkv[2]];
    let (_, out) = run(operation, Choice::AUTOMATIC, qkv, bias);
    let deviation = deviation(&operation, &out, qkv, bias);
    let relative = deviation.relative();
    assert!(deviation.within(tolerance(T::TYPE)), "{operation:?}: {relative:e}");
    let chunk = chunk * unit(&operation);
    let chunked = Choice::at_most(chunk).strategy(Strategy::Chunked);
    let (_, chunked) = run(operation, chunked, qkv, bias);
    assert!(chunked == out, "{operation:?}: chunked and whole differ");
}

/// All variants that take the shape, with mask and bias as said.
fn random_shape<T: Tensorial>(shape: Shape, causal: bool, biased: bool, seed: u64, chunk: u64) {
    for mut operation in variants::<T>(shape) {
        if causal {
            operation = operation.causal();
        }
        if biased {
            operation = operation.with_bias();
        }
        matches_the_reference::<T>(operation, seed, chunk);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn random_shapes_meet_the_reference_by_every_variant_whole_and_split(
        items in 1_u64..9,
        heads in 1_u64..6,
        frames in prop_oneof![1_u64..33, 33_u64..129, Just(16), Just(32), Just(128), 129_u64..257, 257_u64..300],
        // As many as the frames, or any number.
        keys in prop_oneof![Just(None), Just(None), (1_u64..300).prop_map(Some), (1_u64..33).prop_map(Some)],
        head_dim in prop_oneof![(1_u64..21).prop_map(|n| 8 * n), 1_u64..161, Just(64)],
        causal in any::<bool>(),
        biased in any::<bool>(),
        seed in 0_u64..1000,
        chunk in 1_u64..5,
    ) {
        let shape = Shape::new(items, heads, frames, head_dim).expect("legal");
        let shape = shape.with_keys(keys.unwrap_or(frames)).expect("legal");
        // Compilation and references take most of the time.
        std::thread::scope(|scope| {
            scope.spawn(|| random_shape::<f16>(shape, causal, biased, seed, chunk));
            scope.spawn(|| random_shape::<bf16>(shape, causal, biased, seed, chunk));
            scope.spawn(|| random_shape::<f32>(shape, causal, biased, seed, chunk));
        });
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_short_shape_matches_the_reference() {
    for head_dim in (8..=MAX_HEAD_DIM).step_by(8) {
        for frames in [1, 7, 8, 9, 16, 17, 25, 31, 32] {
            let shape = Shape::new(3, 2, frames, head_dim).expect("legal");
            let limits = guard().limits();
            let operation = TemporalAttention::by_variant(shape, f16::TYPE, limits, Variant::Short);
            let is_taken = head_dim <= 160 || (frames <= 16 && head_dim <= 256);
            assert_eq!(operation.is_ok(), is_taken, "{frames} x {head_dim}");
            if let Ok(operation) = operation {
                matches_the_reference::<f16>(operation, frames, 2);
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn heads_wider_than_160_match_the_reference() {
    fn all<T: Tensorial>() {
        for (frames, head_dim) in [(5, 161), (130, 192), (33, 256), (20, 511), (16, 512)] {
            let shape = Shape::new(3, 2, frames, head_dim).expect("legal");
            let variants = variants::<T>(shape);
            assert!(variants.iter().any(|one| one.variant() == Variant::General), "{head_dim}");
            variants.into_iter().for_each(|one| matches_the_reference::<T>(one, frames, 1));
        }
    }
    all::<f16>();
    all::<f32>();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn values_of_another_head_dimension_match_the_reference() {
    fn all<T: Tensorial>() {
        let sizes = [(16, 16, 64, 128), (40, 77, 192, 128), (81, 81, 64, 8), (300, 200, 128, 64)];
        for (frames, keys, head_dim, value_dim) in sizes {
            let shape = Shape::new(3, 2, frames, head_dim).expect("legal").with_keys(keys);
            let shape = shape.and_then(|shape| shape.with_value_dim(value_dim)).expect("legal");
            for causal in [false, true] {
                random_shape::<T>(shape, causal, causal, frames, 2);
            }
            assert_eq!(attention::<T>(shape).variant(), Variant::Flash);
        }
    }
    all::<f16>();
    all::<bf16>();
    all::<f32>();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_head_dimension_of_the_long_variants_matches_the_reference() {
    let dims = (8..=160).step_by(8);
    let usual = dims.flat_map(|head_dim| [33, 81, 128].map(|frames| (frames, head_dim)));
    let longer = [32, 64, 128].into_iter();
    let longer = longer.flat_map(|head_dim| [129, 163, 256].map(|frames| (frames, head_dim)));
    for (frames, head_dim) in usual.chain(longer) {
        let shape = Shape::new(2, 1, frames, head_dim).expect("legal");
        for operation in variants::<bf16>(shape) {
            if operation.variant() != Variant::General {
                matches_the_reference::<bf16>(operation, frames, 1);
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn launch_parameters_change_nothing_but_the_launch() {
    fn all<T: Tensorial>(frames: u64, keys: u64) {
        let shape = Shape::new(7, 3, frames, 40).expect("legal").with_keys(keys).expect("legal");
        for operation in variants::<T>(shape) {
            let (qkv, _) = synthetic::<T>(&shape, 9);
            let qkv = [&qkv[0][..], &qkv[1], &qkv[2]];
            for parameters in operation.candidates().into_iter().step_by(3) {
                let operation = operation.with_parameters(&parameters).expect("a candidate");
                // The planner rejects what needs more shared memory than the device has.
                let prepared = kernels().prepare(operation, Choice::AUTOMATIC);
                if let Err(KernelError::Violations(violations)) = prepared {
                    assert!(violations.contains(Rule::SharedMemoryTotal), "{violations}");
                    continue;
                }
                let (_, out) = run(operation, Choice::AUTOMATIC, qkv, None);
                let deviation = deviation(&operation, &out, qkv, None);
                let relative = deviation.relative();
                assert!(deviation.within(tolerance(T::TYPE)), "{operation:?}: {relative:e}");
            }
        }
    }
    all::<f16>(16, 16);
    all::<f16>(81, 81);
    all::<f16>(40, 70);
    all::<f32>(33, 33);
    all::<f32>(50, 20);
}

/// An uninitialised tensor of `len` elements on the device.
fn large<T: Tensorial>(stream: &Arc<CudaStream>, len: usize) -> cudarc::driver::CudaSlice<T> {
    // SAFETY: the caller or the kernel writes each element before it is read; f16, bf16 and f32 have
    // no invalid bit patterns.
    #[allow(unsafe_code, reason = "zeroing 9 GB takes longer than the test")]
    unsafe {
        stream.alloc::<T>(len).expect("memory")
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn offsets_beyond_2_to_the_32_elements_are_correct() {
    // 4,297,064,448 elements of 2 bytes a tensor, contiguous; the last items are past 2^32.
    let shape = Shape::new(4_196_352, 1, 16, 64).expect("legal");
    let len = usize::try_from(shape.elements()).expect("elements");
    assert!(shape.elements() > 1 << 32);
    let stream = stream();
    let tail = 512 * 1024;
    let (tails, _) = synthetic::<f16>(&Shape::new(512, 1, 16, 64).expect("legal"), 3);
    let mut tensors = [1, 2, 3].map(|_| large::<f16>(&stream, len));
    for (tensor, tail_of) in tensors.iter_mut().zip(&tails) {
        let mut head = tensor.slice_mut(..tail);
        stream.memcpy_htod(tail_of, &mut head).expect("copies");
        let mut end = tensor.slice_mut(len - tail..);
        stream.memcpy_htod(tail_of, &mut end).expect("copies");
    }
    let mut out = large::<f16>(&stream, len);
    for layout in Layout::ALL {
        let mut end = out.slice_mut(len - tail..);
        stream.memcpy_htod(&vec![f16::NAN; tail], &mut end).expect("copies");
        let operation = attention::<f16>(shape).with_layout(layout);
        let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
        let launches = if layout == Layout::FlatX { 1 } else { 65 };
        assert_eq!(prepared.plan().len(), launches);
        let tensors = [&tensors[0], &tensors[1], &tensors[2]];
        let tensors = tensors.map(|tensor| Tensor::new(tensor, shape.dims()));
        let target = TensorMut::new(&mut out, shape.dims());
        prepared.launch(&stream, tensors, None, shape.scale(), target).expect("launches");
        let qkv = [&tails[0][..], &tails[1], &tails[2]];
        for part in [0..tail, len - tail..len] {
            let out = stream.clone_dtoh(&out.slice(part)).expect("copies back");
            let deviation = deviation(&operation, &out, qkv, None);
            assert!(deviation.within(tolerance(f16::TYPE)), "{:e}", deviation.relative());
        }
    }
}
