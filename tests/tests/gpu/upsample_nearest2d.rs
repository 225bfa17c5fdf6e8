//! Compares nearest-neighbour resizing with its reference, whole, split and folded.

use gridguard::Choice;
use gridguard_examples::uniform;
use gridguard_kernels::upsample_nearest2d::{UpsampleNearest2d, reference};
use gridguard_kernels::{Deviation, ElementType, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::{Just, ProptestConfig, any, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::support::{
    Tensorial, is_the_same_split_and_folded, kernels, overflows, poisoned, stream,
};

/// Planes, input and output size, and where the tensors begin in their memory, in elements.
#[derive(Clone, Copy, Debug)]
struct Case {
    planes: u64,
    input: [u64; 2],
    output: [u64; 2],
    begin: usize,
}

impl Case {
    fn operation<T: Tensorial>(&self) -> UpsampleNearest2d {
        UpsampleNearest2d::new(self.planes, self.input, self.output, T::TYPE).expect("legal")
    }

    /// Where tensors begin: rows of whole vectors need aligned memory.
    fn begin<T: Tensorial>(&self) -> usize {
        if (self.output[1] * T::TYPE.bytes()).is_multiple_of(16) { 0 } else { self.begin }
    }

    fn input<T: Tensorial>(&self) -> Vec<T> {
        uniform(len(self.operation::<T>().input_dims()), 1)
    }

    fn run<T: Tensorial>(&self, choice: Choice) -> Vec<T> {
        let stream = stream();
        let (operation, begin) = (self.operation::<T>(), self.begin::<T>());
        let before = vec![T::narrow(f32::NAN); begin];
        let input = stream.clone_htod(&[before, self.input()].concat()).expect("input");
        let mut out = poisoned::<T>(&stream, begin + len(operation.output_dims()));
        let prepared = kernels().prepare(operation, choice).expect("a plan");
        let launched = prepared.launch(
            &stream,
            Tensor::new(&input.slice(begin..), operation.input_dims()),
            TensorMut::new(&mut out.slice_mut(begin..), operation.output_dims()),
        );
        assert_eq!(launched.expect("launches"), prepared.plan().len());
        let out = stream.clone_dtoh(&out).expect("out");
        assert!(out[..begin].iter().all(|x| x.widen().is_nan()), "before the tensor");
        out[begin..].to_vec()
    }

    fn matches_the_reference<T: Tensorial>(&self, blocks: u64) {
        let whole = self.run::<T>(Choice::AUTOMATIC);
        let [in_plane, out_plane] =
            [self.input, self.output].map(|[height, width]| len([1, height, width]));
        let mut deviation = Deviation::new();
        for (plane, out) in self.input::<T>().chunks(in_plane).zip(whole.chunks(out_plane)) {
            deviation.add(out, &reference(plane, self.input, self.output));
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

/// The same size, several times as large, or any other.
fn sizes() -> impl proptest::strategy::Strategy<Value = ([u64; 2], [u64; 2])> {
    let size = || prop_oneof![1_u64..12, 1_u64..100];
    let times = || prop_oneof![Just(1_u64), Just(2), Just(3), Just(4), Just(8)];
    prop_oneof![
        (size(), size(), times(), times()).prop_map(|(height, width, down, right)| (
            [height, width],
            [height * down, width * right]
        )),
        (size(), size(), 1_u64..200, 1_u64..200).prop_map(
            |(height, width, out_height, out_width)| ([height, width], [out_height, out_width])
        ),
        (size(), size(), 1_u64..60, 1_u64..30).prop_map(|(height, width, out_height, vectors)| (
            [height, width],
            [out_height, 8 * vectors]
        )),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn upsample_nearest2d_matches_the_reference_whole_split_and_folded(
        (input, output) in sizes(),
        elements in 1_u64..300_000,
        begin in any::<proptest::sample::Index>(),
        blocks in 1_u64..5,
    ) {
        let planes = (elements / (output[0] * output[1]).max(input[0] * input[1])).max(1);
        let case = Case { planes, input, output, begin: begin.index(8) };
        case.matches_the_reference::<f16>(blocks);
        case.matches_the_reference::<bf16>(blocks);
        case.matches_the_reference::<f32>(blocks);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn upsample_nearest2d_of_more_planes_than_z_has_blocks_is_split_or_folded() {
    overflows(
        &UpsampleNearest2d::new(200_000, [64; 2], [128; 2], ElementType::F16).expect("legal"),
        4,
    );
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn zero_planes_need_no_launch() {
    let stream = stream();
    let operation = UpsampleNearest2d::new(0, [3, 4], [6, 8], ElementType::F16).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let mut memory = stream.alloc_zeros::<f16>(16).expect("memory");
    let (input, mut out) = memory.split_at_mut(8);
    let (input, mut out) = (input.slice(..0), out.slice_mut(..0));
    let (input, out) = (Tensor::new(&input, [0, 3, 4]), TensorMut::new(&mut out, [0, 6, 8]));
    assert_eq!(prepared.launch(&stream, input, out).expect("nothing to do"), 0);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_upsample_nearest2d_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let operation = UpsampleNearest2d::new(2, [3, 4], [6, 8], ElementType::F32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let memory = stream.alloc_zeros::<f32>(25).expect("input");
    let mut out = poisoned::<f32>(&stream, 97);
    let mut refused = |from: usize, dims, to: usize, out_dims| {
        let (input, mut out) = (memory.slice(from..), out.slice_mut(to..));
        let (input, out) = (Tensor::new(&input, dims), TensorMut::new(&mut out, out_dims));
        prepared.launch(&stream, input, out).expect_err("refused").to_string()
    };
    let (dims, out_dims) = ([2, 3, 4], [2, 6, 8]);
    let other = refused(1, [2, 4, 3], 1, out_dims);
    assert_eq!(other, "input has shape [2, 4, 3], the kernel was prepared for [2, 3, 4]");
    let other = refused(1, dims, 1, [4, 3, 8]);
    assert_eq!(other, "out has shape [4, 3, 8], the kernel was prepared for [2, 6, 8]");
    let longer = refused(0, dims, 1, out_dims);
    assert_eq!(longer, "input has 25 elements, shape [2, 3, 4] has 24");
    // One element from the start is not aligned for vectors.
    assert!(refused(1, dims, 1, out_dims).contains("upsample_nearest2d"));
    let half = stream.alloc_zeros::<f16>(24).expect("input");
    let mut half_out = poisoned::<f16>(&stream, 96);
    let (input, half_out) = (Tensor::new(&half, dims), TensorMut::new(&mut half_out, out_dims));
    let other = prepared.launch(&stream, input, half_out).expect_err("refused").to_string();
    assert_eq!(other, "the tensors are f16, the kernel was prepared for f32");
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|x| x.is_nan()));
}
