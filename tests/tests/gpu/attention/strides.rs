//! Tensors with any strides of rows, heads and items, read and written in place.

use std::collections::BTreeSet;

use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::temporal_attention::{
    Folded, Shape, TemporalAttention, reference, tolerance,
};
use gridguard_kernels::{Deviation, Element as _, Extent, Tensor, TensorMut};
use half::{bf16, f16};

use super::{attention, deviation, problem_of, problem_sizes, synthetic, variants};
use crate::support::{Tensorial, kernels, poisoned, stream, unit};

/// Copies `[items, heads, frames, head_dim]` to where `extent` says.
pub(super) fn scatter<T: Tensorial>(tensor: &[T], extent: &Extent<4>, len: usize) -> Vec<T> {
    let mut memory = vec![T::narrow(f32::NAN); len];
    for (x, place) in tensor.iter().zip(places(extent)) {
        memory[place] = *x;
    }
    memory
}

/// The position in memory of each element of `[items, heads, frames, head_dim]`, in order.
pub(super) fn places(extent: &Extent<4>) -> impl Iterator<Item = usize> {
    let [items, heads, frames, dims] = extent.dims;
    let [item, head, frame, dim] = extent.strides;
    (0..items).flat_map(move |i| {
        (0..heads).flat_map(move |h| {
            (0..frames).flat_map(move |f| {
                let row = i * item + h * head + f * frame;
                (0..dims).map(move |d| usize::try_from(row + d * dim).expect("a place"))
            })
        })
    })
}

fn strided<T: Tensorial>(operation: TemporalAttention, extent: Extent<4>) {
    let operation = operation.with_strides();
    let shape = *operation.shape();
    let stream = stream();
    let (qkv, _) = synthetic::<T>(&shape, 77);
    let len = usize::try_from(extent.reach()).expect("elements");
    let device = [0, 1, 2]
        .map(|place| stream.clone_htod(&scatter(&qkv[place], &extent, len)).expect("memory"));
    let chunk = unit(&operation);
    for choice in [Choice::AUTOMATIC, Choice::at_most(chunk).strategy(Strategy::Chunked)] {
        let mut out = poisoned::<T>(&stream, len);
        let prepared = kernels().prepare(operation, choice).expect("a plan");
        let tensors = [&device[0], &device[1], &device[2]];
        let tensors = tensors.map(|tensor| Tensor::with_extent(tensor, extent));
        let target = TensorMut::with_extent(&mut out, extent);
        prepared.launch(&stream, tensors, None, shape.scale(), target).expect("launches");
        let memory = stream.clone_dtoh(&out).expect("copies back");
        let out: Vec<T> = places(&extent).map(|place| memory[place]).collect();
        let qkv = [&qkv[0][..], &qkv[1], &qkv[2]];
        let deviation = deviation(&operation, &out, qkv, None);
        let relative = deviation.relative();
        assert!(deviation.within(tolerance(T::TYPE)), "{operation:?}: {relative:e}");
        // Nothing is written between the rows.
        let written: BTreeSet<usize> = places(&extent).collect();
        let between = (0..len).filter(|place| !written.contains(place));
        assert!(between.into_iter().all(|place| memory[place].widen().is_nan()), "{operation:?}");
    }
}

/// Launches by addresses, and compares with a launch by slices bit by bit.
#[allow(unsafe_code, reason = "memory by address")]
fn by_address<T: Tensorial>(operation: TemporalAttention, extent: Extent<4>) {
    use cudarc::driver::{DevicePtr as _, DevicePtrMut as _};

    let shape = *operation.shape();
    let stream = stream();
    let (qkv, bias) = synthetic::<T>(&shape, 78);
    let len = usize::try_from(extent.reach()).expect("elements");
    let device = [0, 1, 2]
        .map(|place| stream.clone_htod(&scatter(&qkv[place], &extent, len)).expect("memory"));
    let bias = stream.clone_htod(&bias).expect("memory");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let (mut out, mut raw) = (poisoned::<T>(&stream, len), poisoned::<T>(&stream, len));
    let tensors = [0, 1, 2].map(|place| Tensor::with_extent(&device[place], extent));
    let of_bias = || Tensor::with_extent(&bias, shape.shared_bias());
    let of_bias = operation.is_biased().then(of_bias);
    let target = TensorMut::with_extent(&mut out, extent);
    let launches = prepared.launch(&stream, tensors, of_bias, shape.scale(), target);
    {
        let [q, k, v] = [0, 1, 2].map(|place| device[place].device_ptr(&stream));
        let (of_bias, to) = (bias.device_ptr(&stream), raw.device_ptr_mut(&stream));
        let addresses = [q.0, k.0, v.0, to.0];
        let of_bias = operation.is_biased().then_some((of_bias.0, shape.shared_bias()));
        let (of_bias, bias) = of_bias.unzip();
        let described = Folded { shape, extents: [extent; 4], bias };
        // SAFETY: memory of these extents and this type, held here, on the stream that owns it.
        let launched = unsafe {
            let stream = stream.cu_stream().cast();
            prepared.launch_raw(stream, (addresses, of_bias), &described, shape.scale())
        };
        assert_eq!(launched, launches, "{operation:?}");
    }
    let bits = |memory| -> Vec<u32> {
        let memory = stream.clone_dtoh(memory).expect("copies back");
        memory.iter().map(|x: &T| x.widen().to_bits()).collect()
    };
    assert_eq!(bits(&raw), bits(&out), "{operation:?}");
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_launch_by_addresses_writes_what_a_launch_by_slices_does() {
    fn all<T: Tensorial>() {
        let shape = Shape::new(70, 3, 16, 64).expect("legal");
        let (plain, swapped) =
            (Extent::contiguous(shape.dims()), Extent::contiguous([70, 16, 3, 64]).swap_axes(1, 2));
        for operation in variants::<T>(shape) {
            by_address::<T>(operation, plain);
            by_address::<T>(operation.causal(), plain);
            by_address::<T>(operation.with_bias().with_strides(), swapped);
        }
    }
    all::<f16>();
    all::<bf16>();
    all::<f32>();
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn tensors_of_any_strides_are_read_and_written_in_place() {
    fn all<T: Tensorial>(frames: u64, head_dim: u64) {
        let shape = Shape::new(5, 3, frames, head_dim).expect("legal");
        let gap = 8;
        let extents = [
            // [batch, frames, heads, head_dim].
            Extent::contiguous([5, frames, 3, head_dim]).swap_axes(1, 2),
            // [frames, items, heads, head_dim]: items are between the rows of others.
            Extent::strided([5, 3, frames, head_dim], [3 * head_dim, head_dim, 15 * head_dim, 1]),
            // Rows, heads and items with gaps.
            Extent::strided(
                [5, 3, frames, head_dim],
                [
                    3 * (frames * (head_dim + gap) + gap) + gap,
                    frames * (head_dim + gap) + gap,
                    head_dim + gap,
                    1,
                ],
            ),
        ];
        for operation in variants::<T>(shape) {
            for extent in extents {
                strided::<T>(operation, extent);
            }
        }
    }
    all::<f16>(16, 64);
    all::<f16>(25, 72);
    all::<bf16>(81, 64);
    all::<f32>(16, 40);
    all::<f32>(20, 128);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn one_key_and_value_may_serve_every_item() {
    let shape = Shape::new(6, 2, 16, 64).expect("legal");
    let (qkv, _) = synthetic::<f16>(&shape, 5);
    let (stream, per_item) = (stream(), 2048);
    let [q, k, v] = [&qkv[0][..], &qkv[1][..per_item], &qkv[2][..per_item]];
    let device = [q, k, v].map(|tensor| stream.clone_htod(tensor).expect("memory"));
    let shared = Extent::strided(shape.dims(), [0, 1024, 64, 1]);
    let operation = attention::<f16>(shape).with_strides();
    let prepared = kernels().prepare(operation, Choice::at_most(2)).expect("a plan");
    let mut out = poisoned::<f16>(&stream, q.len());
    let tensors = [
        Tensor::new(&device[0], shape.dims()),
        Tensor::with_extent(&device[1], shared),
        Tensor::with_extent(&device[2], shared),
    ];
    let target = TensorMut::new(&mut out, shape.dims());
    prepared.launch(&stream, tensors, None, shape.scale(), target).expect("launches");
    let out = stream.clone_dtoh(&out).expect("copies back");
    let (k, v) = (k.repeat(6), v.repeat(6));
    let deviation = deviation(&operation, &out, [q, &k, &v], None);
    assert!(deviation.within(tolerance(f16::TYPE)), "{:e}", deviation.relative());
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn a_bias_may_be_of_items_of_heads_of_both_or_of_keys_alone() {
    fn all<T: Tensorial>(frames: u64, keys: u64, head_dim: u64) {
        let (items, heads) = (5, 3);
        let shape = Shape::new(items, heads, frames, head_dim).expect("legal");
        let shape = shape.with_keys(keys).expect("legal");
        let (qkv, _) = synthetic::<T>(&shape, 41);
        let qkv = [&qkv[0][..], &qkv[1], &qkv[2]];
        let (stream, size) = (stream(), frames * keys);
        for strides in [
            [size, 0, keys, 1],
            [0, size, keys, 1],
            [heads * size, size, keys, 1],
            [keys, 0, 0, 1],
            // Rows with gaps, and none of a multiple of 16 bytes.
            [heads * (size + 3) + 1, size + 3, keys, 1],
        ] {
            let extent = Extent::strided(shape.score_dims(), strides);
            let len = usize::try_from(extent.reach()).expect("elements");
            let mut bias = uniform::<T>(len, 42);
            bias.iter_mut().step_by(5).for_each(|x| *x = T::narrow(f32::NEG_INFINITY));
            let memory = stream.clone_htod(&bias).expect("memory");
            let of_scores: Vec<T> = places(&extent).map(|place| bias[place]).collect();
            for operation in variants::<T>(shape) {
                let operation = operation.with_bias().with_strides();
                let chunk = Choice::at_most(unit(&operation)).strategy(Strategy::Chunked);
                for choice in [Choice::AUTOMATIC, chunk] {
                    let mut out = poisoned::<T>(&stream, qkv[0].len());
                    let prepared = kernels().prepare(operation, choice).expect("a plan");
                    let device = qkv.map(|tensor| stream.clone_htod(tensor).expect("memory"));
                    let (q, k, v) = (&device[0], &device[1], &device[2]);
                    let tensors = [
                        Tensor::new(q, shape.dims()),
                        Tensor::new(k, shape.key_dims()),
                        Tensor::new(v, shape.key_dims()),
                    ];
                    let of_bias = Some(Tensor::with_extent(&memory, extent));
                    let target = TensorMut::new(&mut out, shape.dims());
                    prepared
                        .launch(&stream, tensors, of_bias, shape.scale(), target)
                        .expect("launches");
                    let out = stream.clone_dtoh(&out).expect("copies back");
                    let mut deviation = Deviation::new();
                    let scores = of_scores.chunks(usize::try_from(size).expect("elements"));
                    let problems = out.chunks(problem_sizes(&shape)[0]).zip(scores);
                    for (problem, (out, bias)) in problems.enumerate() {
                        let qkv = problem_of(&shape, problem, qkv);
                        deviation.add(out, &reference(&operation, shape.scale(), qkv, Some(bias)));
                    }
                    let relative = deviation.relative();
                    assert!(
                        deviation.within(tolerance(T::TYPE)),
                        "{operation:?} {strides:?}: {relative:e}"
                    );
                }
            }
        }
    }
    all::<f16>(16, 24, 64);
    all::<f16>(40, 77, 72);
    all::<bf16>(81, 81, 64);
    all::<f32>(16, 25, 40);
}
