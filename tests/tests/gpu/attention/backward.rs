//! The gradients of attention against the f64 reference.

use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::temporal_attention::{
    AttentionBackward, Folded, Layout, Shape, TemporalAttention, reference_gradients, tolerance,
};
use gridguard_kernels::{Deviation, Extent, KernelError, Operation as _, Tensor, TensorMut};
use half::{bf16, f16};

use super::strides::{places, scatter};
use super::{attention, problem_sizes, synthetic};
use crate::support::{Tensorial, guard, kernels, poisoned, stream, unit};

/// The gradients of an attention; `None` if its problems are larger than the shared memory of this device.
fn backward(attention: TemporalAttention) -> Option<AttentionBackward> {
    match AttentionBackward::new(attention, guard().limits()) {
        Err(KernelError::Variant { takes, .. })
            if takes.contains("shared memory") || attention.dtypes() == "f32" =>
        {
            None
        }
        backward => Some(backward.expect("served")),
    }
}

/// q, k, v, the gradient of the output and a bias. The bias hides some keys, and all keys of the first query.
fn inputs<T: Tensorial>(shape: &Shape) -> ([Vec<T>; 4], Vec<T>) {
    let ([q, k, v], mut bias) = synthetic::<T>(shape, 50);
    let grad = uniform::<T>(q.len(), 60);
    bias.iter_mut().step_by(5).for_each(|x| *x = T::narrow(f32::NEG_INFINITY));
    let keys = usize::try_from(shape.keys()).expect("keys");
    bias[..keys].fill(T::narrow(f32::NEG_INFINITY));
    ([q, k, v, grad], bias)
}

/// The sizes of q, k, v, grad, dq, dk and dv.
fn dims(shape: &Shape) -> [[u64; 4]; 7] {
    let (dims, of_keys) = (shape.dims(), shape.key_dims());
    [dims, of_keys, of_keys, dims, dims, of_keys, of_keys]
}

/// Runs over poisoned memory of these extents; gives the launches and the memory of dq, dk, dv and the gradient of the
/// bias, which is empty unless the operation writes it.
fn launch<T: Tensorial>(
    operation: AttentionBackward,
    choice: Choice,
    inputs: &[Vec<T>; 4],
    bias: Option<(&[T], Extent<4>)>,
    extents: [Extent<4>; 7],
) -> Result<(u64, [Vec<T>; 4]), KernelError> {
    let stream = stream();
    let prepared = kernels().prepare(operation, choice)?;
    let inputs = inputs.each_ref().map(|tensor| stream.clone_htod(tensor).expect("memory"));
    let bias = bias.map(|(bias, extent)| (stream.clone_htod(bias).expect("memory"), extent));
    let bias = bias.as_ref().map(|(bias, extent)| Tensor::with_extent(bias, *extent));
    let [q, k, v, grad, of_gradients @ ..] = extents;
    let shape = operation.attention().shape();
    let of_bias = Extent::contiguous(shape.score_dims());
    let [dq, dk, dv] = of_gradients;
    let mut gradients = [dq, dk, dv, of_bias]
        .map(|extent| poisoned::<T>(&stream, usize::try_from(extent.reach()).expect("elements")));
    let [dq, dk, dv, of_bias] = &mut gradients;
    let tensors = [(0, q), (1, k), (2, v), (3, grad)];
    let tensors = tensors.map(|(at, extent)| Tensor::with_extent(&inputs[at], extent));
    let targets = [(dq, extents[4]), (dk, extents[5]), (dv, extents[6])];
    let targets = targets.map(|(memory, extent)| TensorMut::with_extent(memory, extent));
    let of_bias =
        operation.has_bias_gradient().then(|| TensorMut::new(of_bias, shape.score_dims()));
    let launches = prepared.launch(&stream, tensors, bias, shape.scale(), targets, of_bias)?;
    let mut gradients = gradients.map(|memory| stream.clone_dtoh(&memory).expect("copies back"));
    if !operation.has_bias_gradient() {
        gradients[3].clear();
    }
    Ok((launches, gradients))
}

/// As [`launch`], contiguous, with one bias if the operation has one.
fn run<T: Tensorial>(
    operation: AttentionBackward,
    choice: Choice,
    (inputs, bias): &([Vec<T>; 4], Vec<T>),
) -> (u64, [Vec<T>; 4]) {
    let attention = operation.attention();
    let bias = attention.is_biased().then(|| (&bias[..], attention.shape().shared_bias()));
    let extents = dims(attention.shape()).map(Extent::contiguous);
    launch(operation, choice, inputs, bias, extents).expect("launches")
}

/// Asserts that the contiguous gradients of these problems match the reference.
fn meets<'b, T: Tensorial>(
    operation: &AttentionBackward,
    problems: impl IntoIterator<Item = usize>,
    inputs: &[Vec<T>; 4],
    bias: impl Fn(usize) -> Option<&'b [T]>,
    gradients: &[Vec<T>; 4],
) {
    let shape = operation.attention().shape();
    let [of_q, of_k, ..] = problem_sizes(shape);
    let scores = usize::try_from(shape.frames() * shape.keys()).expect("scores");
    let mut deviations = vec![Deviation::new(); if operation.has_bias_gradient() { 4 } else { 3 }];
    for problem in problems {
        let part = |size: usize| problem * size..(problem + 1) * size;
        let [q, k, v, grad] = inputs;
        let tensors = [&q[part(of_q)], &k[part(of_k)], &v[part(of_k)], &grad[part(of_q)]];
        let expected = reference_gradients(operation, shape.scale(), tensors, bias(problem));
        let sizes = [of_q, of_k, of_k, scores].into_iter().zip(&expected);
        for ((at, deviation), (size, expected)) in deviations.iter_mut().enumerate().zip(sizes) {
            deviation.add(&gradients[at][part(size)], expected);
        }
    }
    let mut all = Deviation::new();
    deviations.iter().for_each(|deviation| all.merge(deviation));
    for (name, deviation) in ["dq", "dk", "dv", "bias"].iter().zip(&deviations) {
        // A single key has the weight 1, and gradients of scores are 0, but for rounding.
        let deviation = if deviation.squared_norm == 0.0 { &all } else { deviation };
        let relative = deviation.relative();
        assert!(deviation.within(tolerance(T::TYPE)), "{operation:?} {name}: {relative:e}");
    }
}

/// One operation whole against the reference, and in chunks.
fn matches_the_reference<T: Tensorial>(operation: AttentionBackward, chunked: bool) {
    let attention = operation.attention();
    let tensors = inputs::<T>(attention.shape());
    let (_, gradients) = run(operation, Choice::AUTOMATIC, &tensors);
    let problems = usize::try_from(attention.shape().problems()).expect("problems");
    let bias = |_| attention.is_biased().then_some(&tensors.1[..]);
    meets(&operation, 0..problems, &tensors.0, bias, &gradients);
    if chunked {
        let choice = Choice::at_most(unit(&operation)).strategy(Strategy::Chunked);
        let (_, split) = run(operation, choice, &tensors);
        assert!(split == gradients, "{operation:?}: chunked and whole differ");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn gradients_meet_the_reference_at_any_number_of_queries_and_keys() {
    fn all<T: Tensorial>() {
        let equal = [1, 11, 16, 17, 49, 77, 128].map(|frames| (frames, frames));
        let long = [(144, 144), (163, 163), (200, 200), (256, 256), (512, 40), (40, 300)];
        let cross = [(1, 128), (128, 1), (11, 77), (77, 16), (17, 49)];
        let head_dims = [64, 32, 40, 72, 8, 80].into_iter().cycle();
        let rows = equal.into_iter().chain(cross).chain(long);
        for ((frames, keys), head_dim) in rows.zip(head_dims) {
            let shape = Shape::new(3, 2, frames, head_dim).expect("legal");
            let shape = shape.with_keys(keys).expect("legal");
            let plain = attention::<T>(shape);
            for attention in [plain, plain.causal(), plain.with_bias(), plain.causal().with_bias()]
            {
                if let Some(operation) = backward(attention) {
                    matches_the_reference::<T>(operation, attention == plain);
                    if attention.is_biased() {
                        matches_the_reference::<T>(operation.with_bias_gradient(), true);
                    }
                }
            }
        }
    }
    // Compilation takes most of the time.
    std::thread::scope(|scope| {
        scope.spawn(all::<f16>);
        scope.spawn(all::<bf16>);
        scope.spawn(all::<f32>);
    });
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn every_head_dimension_meets_the_reference() {
    fn all<T: Tensorial>(step: u64) {
        let wide = [192, 256, 384, 512].into_iter().filter(|_| step > 4);
        for head_dim in (1..=160 / step).map(|n| n * step).chain(wide) {
            // The largest head dimension is the shape's to refuse.
            let Ok(shape) = Shape::new(3, 2, 16, head_dim) else { continue };
            let operation = backward(attention::<T>(shape).with_strides());
            assert!(operation.is_some() || head_dim > 160, "{head_dim}");
            if let Some(operation) = operation {
                matches_the_reference::<T>(operation, false);
            }
        }
    }
    all::<f16>(8);
    all::<bf16>(40);
    all::<f32>(4);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_bias_of_windows_has_gradients_for_each_image() {
    fn all<T: Tensorial>(rows: u64) {
        // Five images; the heads of two windows of three heads.
        let shape = Shape::new(5, 6, rows, 32).expect("legal");
        let Some(operation) = backward(attention::<T>(shape).with_bias().with_strides()) else {
            return;
        };
        let operation = operation.with_bias_gradient();
        let scores = usize::try_from(rows * rows).expect("scores");
        let bias = uniform::<T>(6 * scores, 62);
        let of_bias = Extent::strided(shape.score_dims(), [0, rows * rows, rows, 1]);
        let (tensors, _) = inputs::<T>(&shape);
        let extents = dims(&shape).map(Extent::contiguous);
        let given = Some((&bias[..], of_bias));
        let launched = launch(operation, Choice::AUTOMATIC, &tensors, given, extents);
        let (_, gradients) = launched.expect("launches");
        let of_problem = |problem| Some(&bias[problem % 6 * scores..(problem % 6 + 1) * scores]);
        meets(&operation, 0..30, &tensors, of_problem, &gradients);
    }
    all::<f16>(49);
    all::<bf16>(49);
    all::<f16>(144);
    all::<f32>(16);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn gradients_of_any_strides_are_written_in_place_and_nothing_else_is() {
    fn all<T: Tensorial>(frames: u64, keys: u64, head_dim: u64) {
        let (items, heads) = (5, 3);
        let shape = Shape::new(items, heads, frames, head_dim).expect("legal");
        let shape = shape.with_keys(keys).expect("legal");
        let Some(operation) = backward(attention::<T>(shape).with_bias().with_strides()) else {
            return;
        };
        let operation = operation.with_bias_gradient();
        // Rows of [heads, head_dim]; heads and rows with gaps.
        let gap = 16;
        let extents = dims(&shape).map(|[items, heads, rows, head_dim]| {
            let row = heads * (head_dim + gap) + gap;
            Extent::strided(
                [items, heads, rows, head_dim],
                [rows * row + gap, head_dim + gap, row, 1],
            )
        });
        let of_bias = Extent::contiguous(shape.score_dims());
        let (tensors, _) = inputs::<T>(&shape);
        let len = usize::try_from(of_bias.reach()).expect("elements");
        let mut bias = uniform::<T>(len, 61);
        bias.iter_mut().step_by(3).for_each(|x| *x = T::narrow(f32::NEG_INFINITY));
        let memory = [0, 1, 2, 3].map(|at: usize| {
            let len = usize::try_from(extents[at].reach()).expect("elements");
            scatter(&tensors[at], &extents[at], len)
        });
        let scores = usize::try_from(frames * keys).expect("scores");
        for choice in [Choice::AUTOMATIC, Choice::at_most(1).strategy(Strategy::Chunked)] {
            let launched = launch(operation, choice, &memory, Some((&bias, of_bias)), extents);
            let (_, written) = launched.expect("launches");
            let [dq, dk, dv] = [0, 1, 2].map(|at: usize| {
                places(&extents[4 + at]).map(|place| written[at][place]).collect::<Vec<T>>()
            });
            let gradients = [dq, dk, dv, written[3].clone()];
            let of_problem = |problem| Some(&bias[problem * scores..(problem + 1) * scores]);
            meets(&operation, 0..15, &tensors, of_problem, &gradients);
            for (at, memory) in written.iter().enumerate() {
                let numbers = memory.iter().filter(|x| !x.widen().is_nan()).count();
                assert_eq!(numbers, gradients[at].len(), "{operation:?}: written between rows");
            }
        }
    }
    all::<f16>(16, 16, 64);
    all::<bf16>(40, 77, 72);
    all::<f32>(25, 16, 20);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn gradients_of_70_000_items_are_split_on_y() {
    let shape = Shape::new(70_000, 1, 16, 64).expect("legal");
    let operation = backward(attention::<f16>(shape)).expect("fits");
    let folded =
        backward(attention::<f16>(shape).with_layout(Layout::FoldedY)).expect("fits on y too");
    let tensors = inputs::<f16>(&shape);
    let (launches, split) = run(folded, Choice::AUTOMATIC, &tensors);
    assert_eq!(launches, 2);
    let (launches, flat) = run(operation, Choice::AUTOMATIC, &tensors);
    assert_eq!(launches, 1);
    assert!(split == flat, "split and flat differ");
    let sample = (0..512).map(|n: usize| n * 149_993 % 70_000);
    let boundaries = [0, 34_999, 35_000, 69_999];
    meets(&operation, boundaries.into_iter().chain(sample), &tensors.0, |_| None, &split);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn queries_without_keys_have_gradients_of_zero() {
    fn all<T: Tensorial>(frames: u64) {
        let shape = Shape::new(2, 2, frames, 64).expect("legal");
        let Some(operation) = backward(attention::<T>(shape).with_bias()) else { return };
        let (tensors, mut bias) = inputs::<T>(&shape);
        let is_zero = |x: &T| x.widen() == 0.0;
        let operation = operation.with_bias_gradient();
        let (_, [dq, .., of_bias]) =
            run(operation, Choice::AUTOMATIC, &(tensors.clone(), bias.clone()));
        let rows = usize::try_from(frames).expect("frames");
        for problem in dq.chunks(rows * 64) {
            assert!(problem[..64].iter().all(is_zero), "{operation:?}");
            assert!(frames == 1 || !problem[64..].iter().all(is_zero), "{operation:?}");
        }
        for problem in of_bias.chunks(rows * rows) {
            assert!(problem[..rows].iter().all(is_zero), "{operation:?}");
        }
        bias.fill(T::narrow(f32::NEG_INFINITY));
        let (_, gradients) = run(operation, Choice::AUTOMATIC, &(tensors, bias));
        assert!(gradients.iter().flatten().all(is_zero), "{operation:?}");
    }
    all::<f16>(16);
    all::<bf16>(49);
    all::<f32>(16);
    all::<f32>(1);
}

#[test]
#[ignore = "needs a CUDA GPU"]
#[allow(unsafe_code, reason = "memory by address")]
fn a_launch_by_addresses_writes_what_a_launch_by_slices_does() {
    use cudarc::driver::{DevicePtr as _, DevicePtrMut as _};

    let shape = Shape::new(70, 3, 16, 64).expect("legal").with_keys(20).expect("legal");
    let operation = backward(attention::<f16>(shape).with_bias()).expect("fits");
    let operation = operation.with_bias_gradient();
    let (tensors, bias) = inputs::<f16>(&shape);
    let (launches, expected) = run(operation, Choice::AUTOMATIC, &(tensors.clone(), bias.clone()));
    let stream = stream();
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let read = tensors.each_ref().map(|tensor| stream.clone_htod(tensor).expect("memory"));
    let bias = stream.clone_htod(&bias).expect("memory");
    let mut raw = expected.each_ref().map(|tensor| poisoned::<f16>(&stream, tensor.len()));
    {
        let read = read.each_ref().map(|tensor| tensor.device_ptr(&stream));
        let written = raw.each_mut().map(|tensor| tensor.device_ptr_mut(&stream));
        let bias = bias.device_ptr(&stream);
        let ([q, k, v, grad], [dq, dk, dv, of_bias]) = (&read, &written);
        let addresses = [q.0, k.0, v.0, grad.0, dq.0, dk.0, dv.0];
        let extents = dims(&shape).map(Extent::contiguous);
        let described = Folded { shape, extents, bias: Some(shape.shared_bias()) };
        // SAFETY: memory of these extents and this type, held here, on the stream that owns it.
        let launched = unsafe {
            let stream = stream.cu_stream().cast();
            let (bias, of_bias) = (Some(bias.0), Some(of_bias.0));
            prepared.launch_raw(stream, (addresses, bias), of_bias, &described, shape.scale())
        };
        assert_eq!(launched, Ok(launches));
    }
    let raw = raw.map(|memory| stream.clone_dtoh(&memory).expect("copies back"));
    assert!(raw == expected, "by address and by slice differ");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_and_overlapping_tensors_are_rejected_before_any_launch() {
    let shape = Shape::new(4, 2, 16, 64).expect("legal").with_keys(8).expect("legal");
    let plain = attention::<f16>(shape);
    let (tensors, _) = inputs::<f16>(&shape);
    let refused = |attention, place: usize, extent: Extent<4>| {
        let mut extents = dims(&shape).map(Extent::contiguous);
        extents[place] = extent;
        let operation = backward(attention).expect("fits");
        launch(operation, Choice::AUTOMATIC, &tensors, None, extents).expect_err("refused")
    };
    let other = Extent::contiguous(shape.dims());
    assert_eq!(
        refused(plain, 5, other).to_string(),
        "dk has shape [4, 2, 16, 64], the kernel was prepared for [4, 2, 8, 64]"
    );
    let exchanged = Extent::contiguous([4, 16, 2, 64]).swap_axes(1, 2);
    assert_eq!(
        refused(plain, 3, exchanged).to_string(),
        "grad has strides [2048, 64, 128, 1], the kernel takes contiguous memory unless prepared with strides"
    );
    let shared = Extent::strided(shape.key_dims(), [0, 512, 64, 1]);
    assert_eq!(
        refused(plain.with_strides(), 6, shared).to_string(),
        "dv has strides [0, 512, 64, 1] for shape [4, 2, 8, 64]: some elements overlap"
    );
    let odd = Extent::strided(shape.dims(), [2200, 1100, 66, 1]);
    assert_eq!(
        refused(plain.with_strides(), 4, odd).to_string(),
        "dq has strides [2200, 1100, 66, 1], the kernel takes strides that are multiples of 16 bytes"
    );
    assert_eq!(
        refused(plain.with_bias(), 0, Extent::contiguous(shape.dims())).to_string(),
        "bias was not given, the kernel was prepared with it"
    );
}
