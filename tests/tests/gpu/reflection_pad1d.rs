//! Compares reflection padding with its reference, whole, split and folded.

use gridguard::Choice;
use gridguard_examples::uniform;
use gridguard_kernels::reflection_pad1d::{ReflectionPad1d, reference};
use gridguard_kernels::{Deviation, ElementType, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, any, prop_oneof, proptest};
use proptest::sample::Index;

use super::support::{
    Tensorial, is_the_same_split_and_folded, kernels, overflows, poisoned, stream,
};

/// The input's shape, the pads, and where input and output begin in their memory, in elements.
#[derive(Clone, Copy, Debug)]
struct Case {
    dims: [u64; 3],
    pads: [u64; 2],
    begin: [usize; 2],
}

impl Case {
    fn operation<T: Tensorial>(&self) -> ReflectionPad1d {
        ReflectionPad1d::new(self.dims, self.pads, T::TYPE).expect("legal")
    }

    fn input<T: Tensorial>(&self) -> Vec<T> {
        uniform(len(self.dims), 1)
    }

    fn run<T: Tensorial>(&self, choice: Choice) -> Vec<T> {
        let stream = stream();
        let (operation, [from, to]) = (self.operation::<T>(), self.begin);
        let before = vec![T::narrow(f32::NAN); from];
        let input = stream.clone_htod(&[before, self.input()].concat()).expect("input");
        let mut out = poisoned::<T>(&stream, to + len(operation.output_dims()));
        let prepared = kernels().prepare(operation, choice).expect("a plan");
        let launched = prepared.launch(
            &stream,
            Tensor::new(&input.slice(from..), operation.input_dims()),
            TensorMut::new(&mut out.slice_mut(to..), operation.output_dims()),
        );
        assert_eq!(launched.expect("launches"), prepared.plan().len());
        let out = stream.clone_dtoh(&out).expect("out");
        assert!(out[..to].iter().all(|x| x.widen().is_nan()), "before the tensor");
        out[to..].to_vec()
    }

    fn matches_the_reference<T: Tensorial>(&self, blocks: u64) {
        let whole = self.run::<T>(Choice::AUTOMATIC);
        let [left, right] = self.pads.map(|pad| usize::try_from(pad).expect("elements"));
        let width = usize::try_from(self.dims[2]).expect("elements");
        let mut deviation = Deviation::new();
        for (row, out) in self.input::<T>().chunks(width).zip(whole.chunks(left + width + right)) {
            deviation.add(out, &reference(row, left, right));
        }
        assert!(deviation.within(0.0), "{} {self:?}", T::TYPE);
        let name = format!("{} {self:?}", T::TYPE);
        is_the_same_split_and_folded(&self.operation::<T>(), blocks, &whole, &name, |choice| {
            self.run::<T>(choice)
        });
    }
}

fn len(dims: [u64; 3]) -> usize {
    usize::try_from(dims.iter().product::<u64>()).expect("elements")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn reflection_pad1d_matches_the_reference_whole_split_and_folded(
        width in prop_oneof![1_usize..12, 1_usize..300, 1_usize..20_000],
        pads in any::<[Index; 2]>(),
        short_pads in any::<bool>(),
        channels in 1_u64..8,
        elements in 1_u64..300_000,
        begin in any::<[Index; 2]>(),
        blocks in 1_u64..5,
    ) {
        let widest = if short_pads { width.min(20) } else { width };
        let pads = pads.map(|pad| u64::try_from(pad.index(widest)).expect("elements"));
        let width = u64::try_from(width).expect("elements");
        let batch = (elements / (channels * (width + pads[0] + pads[1]))).max(1);
        let begin = begin.map(|begin| begin.index(8));
        let case = Case { dims: [batch, channels, width], pads, begin };
        case.matches_the_reference::<f16>(blocks);
        case.matches_the_reference::<bf16>(blocks);
        case.matches_the_reference::<f32>(blocks);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn reflection_pad1d_of_a_larger_batch_than_z_has_blocks_is_split_or_folded() {
    overflows(
        &ReflectionPad1d::new([200_000, 64, 1000], [3, 4], ElementType::F16).expect("legal"),
        4,
    );
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn more_channels_than_y_has_blocks_are_one_launch() {
    let case = Case { dims: [2, 70_000, 3], pads: [2, 1], begin: [0, 0] };
    case.matches_the_reference::<f16>(1);
    let prepared = kernels().prepare(case.operation::<f16>(), Choice::AUTOMATIC).expect("a plan");
    assert_eq!(prepared.plan().len(), 1);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_reflection_pad1d_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let operation = ReflectionPad1d::new([2, 3, 4], [1, 2], ElementType::F32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let input = stream.alloc_zeros::<f32>(24).expect("input");
    let mut out = poisoned::<f32>(&stream, 42);
    let mut refused = |len: usize, dims, out_dims| {
        let input = input.slice(..len);
        let (input, out) = (Tensor::new(&input, dims), TensorMut::new(&mut out, out_dims));
        prepared.launch(&stream, input, out).expect_err("refused").to_string()
    };
    let other = refused(24, [3, 2, 4], [2, 3, 7]);
    assert_eq!(other, "input has shape [3, 2, 4], the kernel was prepared for [2, 3, 4]");
    let other = refused(24, [2, 3, 4], [2, 3, 4]);
    assert_eq!(other, "out has shape [2, 3, 4], the kernel was prepared for [2, 3, 7]");
    let shorter = refused(23, [2, 3, 4], [2, 3, 7]);
    assert_eq!(shorter, "input has 23 elements, shape [2, 3, 4] has 24");
    let half = stream.alloc_zeros::<f16>(24).expect("input");
    let mut half_out = poisoned::<f16>(&stream, 42);
    let (half, half_out) =
        (Tensor::new(&half, [2, 3, 4]), TensorMut::new(&mut half_out, [2, 3, 7]));
    let other = prepared.launch(&stream, half, half_out).expect_err("refused").to_string();
    assert_eq!(other, "the tensors are f16, the kernel was prepared for f32");
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|x| x.is_nan()));
}
