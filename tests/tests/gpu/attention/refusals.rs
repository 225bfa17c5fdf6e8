//! Tensors that attention rejects.

use gridguard::cuda::LaunchErrorKind;
use gridguard::{ArgsError, Choice};
use gridguard_examples::uniform;
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention, Variant};
use gridguard_kernels::{Extent, KernelError, Tensor, TensorMut};
use half::{bf16, f16};

use super::{attention, variants};
use crate::support::{kernels, poisoned, stream};

#[test]
#[ignore = "needs a CUDA GPU"]
fn misaligned_memory_is_rejected_except_by_the_general_variant() {
    let shape = Shape::new(4, 2, 16, 64).expect("legal");
    let stream = stream();
    let len = usize::try_from(shape.elements()).expect("elements");
    let qkv = [1, 2, 3].map(|seed| uniform::<f16>(len + 1, seed));
    let device =
        [&qkv[0], &qkv[1], &qkv[2]].map(|tensor| stream.clone_htod(tensor).expect("memory"));
    let views = [0, 1, 2].map(|place: usize| device[place].slice(1..));
    for operation in variants::<f16>(shape) {
        let mut out = poisoned::<f16>(&stream, len);
        let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
        let tensors = [&views[0], &views[1], &views[2]].map(|view| Tensor::new(view, shape.dims()));
        let target = TensorMut::new(&mut out, shape.dims());
        let launched = prepared.launch(&stream, tensors, None, shape.scale(), target);
        if operation.variant() == Variant::General {
            assert_eq!(launched, Ok(1));
            let out = stream.clone_dtoh(&out).expect("copies back");
            assert!(out.iter().all(|x| x.to_f32().is_finite()));
            continue;
        }
        let KernelError::Launch(error) = launched.expect_err("misaligned") else {
            panic!("{}", operation.variant());
        };
        let LaunchErrorKind::Args(args) = error.kind() else { panic!("{error}") };
        assert!(matches!(args, ArgsError::Misaligned { index: 0, alignment: 16, .. }), "{args}");
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_tensors_are_rejected_before_any_launch() {
    let shape = Shape::new(4, 2, 16, 64).expect("legal");
    let stream = stream();
    let len = usize::try_from(shape.elements()).expect("elements");
    let x = stream.alloc_zeros::<f16>(len).expect("memory");
    let mut out = poisoned::<f16>(&stream, len);
    let plain = attention::<f16>(shape);
    let mut refused = |operation: TemporalAttention,
                       q: Extent<4>,
                       bias: Option<Extent<4>>,
                       scale,
                       o: Extent<4>| {
        let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
        let tensors = [q, Extent::contiguous(shape.dims()), Extent::contiguous(shape.dims())];
        let tensors = tensors.map(|extent| Tensor::with_extent(&x, extent));
        let bias = bias.map(|bias| Tensor::with_extent(&x, bias));
        let out = TensorMut::with_extent(&mut out, o);
        prepared.launch(&stream, tensors, bias, scale, out).expect_err("refused").to_string()
    };
    let fit = Extent::contiguous(shape.dims());
    let other = Extent::contiguous([4, 2, 64, 16]);
    assert_eq!(
        refused(plain, other, None, 1.0, fit),
        "q has shape [4, 2, 64, 16], the kernel was prepared for [4, 2, 16, 64]"
    );
    let exchanged = Extent::contiguous([4, 16, 2, 64]).swap_axes(1, 2);
    assert_eq!(
        refused(plain, exchanged, None, 1.0, fit),
        "q has strides [2048, 64, 128, 1], the kernel takes contiguous memory unless prepared with \
         strides"
    );
    let shared = Extent::strided(shape.dims(), [0, 1024, 64, 1]);
    assert_eq!(
        refused(plain.with_strides(), fit, None, 1.0, shared),
        "out has strides [0, 1024, 64, 1] for shape [4, 2, 16, 64]: some elements overlap"
    );
    let odd = Extent::strided(shape.dims(), [1024, 512, 31, 1]);
    assert_eq!(
        refused(plain.with_strides(), odd, None, 1.0, fit),
        "q has strides [1024, 512, 31, 1], the kernel takes strides that are multiples of 16 bytes"
    );
    assert_eq!(
        refused(plain, fit, Some(shape.shared_bias()), 1.0, fit),
        "bias was given, the kernel was prepared without it"
    );
    assert_eq!(
        refused(plain.with_bias(), fit, None, 1.0, fit),
        "bias was not given, the kernel was prepared with it"
    );
    let of_items = Extent::strided(shape.score_dims(), [256, 0, 16, 1]);
    assert_eq!(
        refused(plain.with_bias(), fit, Some(of_items), 1.0, fit),
        "bias has strides [256, 0, 16, 1], the kernel takes one contiguous matrix for all items and \
         heads unless prepared with strides"
    );
    let of_columns = Extent::strided(shape.score_dims(), [0, 0, 1, 16]);
    assert_eq!(
        refused(plain.with_bias().with_strides(), fit, Some(of_columns), 1.0, fit),
        "bias has strides [0, 0, 1, 16], the kernel takes rows of contiguous elements"
    );
    let of_keys = Extent::strided([4, 2, 16, 8], [0, 0, 8, 1]);
    assert_eq!(
        refused(plain.with_bias(), fit, Some(of_keys), 1.0, fit),
        "bias has shape [4, 2, 16, 8], the kernel was prepared for [4, 2, 16, 16]"
    );
    assert_eq!(
        refused(plain, fit, None, -1.0, fit),
        "scale is -1, the kernel takes a finite number that is not negative"
    );
    assert_eq!(
        refused(attention::<bf16>(shape), fit, None, 1.0, fit),
        "the tensors are f16, the kernel was prepared for bf16"
    );
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|x| x.to_f32().is_nan()));
}
