//! Compares products of small matrices with their f64 reference, whole, split and folded.

use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::batched_gemm::{BatchedGemm, reference};
use gridguard_kernels::{Deviation, ElementType, Tensor, TensorMut};
use half::{bf16, f16};
use proptest::prelude::{ProptestConfig, prop_oneof, proptest};

use super::support::{
    Tensorial, is_the_same_split_and_folded, kernels, overflows, poisoned, stream,
};

/// Elements of a, b and c of one case together, at most.
const MOST_ELEMENTS: u64 = 400_000;

fn operation<T: Tensorial>(batch: u64, [m, n, k]: [u64; 3]) -> BatchedGemm {
    BatchedGemm::new(batch, m, n, k, T::TYPE).expect("a legal shape")
}

/// Random matrices of this shape.
fn synthetic<T: Tensorial>(dims: [u64; 3], seed: u64) -> Vec<T> {
    uniform(count(dims), seed)
}

fn count(dims: [u64; 3]) -> usize {
    usize::try_from(dims.into_iter().product::<u64>()).expect("elements")
}

/// The products of random matrices, launched as chosen.
fn multiply<T: Tensorial>(batch: u64, sizes: [u64; 3], choice: Choice) -> Vec<T> {
    let stream = stream();
    let operation = operation::<T>(batch, sizes);
    let (a_dims, b_dims, c_dims) = (operation.a_dims(), operation.b_dims(), operation.c_dims());
    let a = stream.clone_htod(&synthetic::<T>(a_dims, 1)).expect("a");
    let b = stream.clone_htod(&synthetic::<T>(b_dims, 2)).expect("b");
    let mut c = poisoned::<T>(&stream, count(c_dims));
    let prepared = kernels().prepare(operation, choice).expect("a plan");
    let (a, b) = (Tensor::new(&a, a_dims), Tensor::new(&b, b_dims));
    let launched = prepared.launch(&stream, a, b, TensorMut::new(&mut c, c_dims));
    assert_eq!(launched.expect("launches"), prepared.plan().len());
    stream.clone_dtoh(&c).expect("c")
}

fn matches_the_reference<T: Tensorial>(batch: u64, sizes: [u64; 3], chunk: u64) {
    let operation = operation::<T>(batch, sizes);
    let [m, n, k] = sizes.map(|size| usize::try_from(size).expect("a size"));
    let (a, b) = (synthetic::<T>(operation.a_dims(), 1), synthetic::<T>(operation.b_dims(), 2));
    let whole = multiply::<T>(batch, sizes, Choice::AUTOMATIC);
    let mut deviation = Deviation::new();
    for ((a, b), c) in a.chunks(m * k).zip(b.chunks(k * n)).zip(whole.chunks(m * n)) {
        deviation.add(c, &reference(a, b, n, k));
    }
    let within = deviation.within(T::TYPE.rounding_error());
    assert!(within, "{} {batch} of {sizes:?}: {:e}", T::TYPE, deviation.relative());
    let name = format!("{} {batch} of {sizes:?}", T::TYPE);
    is_the_same_split_and_folded(&operation, chunk, &whole, &name, |choice| {
        multiply::<T>(batch, sizes, choice)
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn batched_gemm_matches_the_reference_whole_and_split(
        batch in 1_u64..20_000,
        m in prop_oneof![1_u64..20, 1_u64..65],
        n in prop_oneof![1_u64..20, 1_u64..65],
        k in prop_oneof![1_u64..20, 1_u64..65],
        chunk in 1_u64..8,
    ) {
        let batch = batch.min(MOST_ELEMENTS / (m * k + k * n + m * n)).max(1);
        matches_the_reference::<f16>(batch, [m, n, k], chunk);
        matches_the_reference::<bf16>(batch, [m, n, k], chunk);
        matches_the_reference::<f32>(batch, [m, n, k], chunk);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn batched_gemm_of_whole_vectors_and_of_large_odd_sizes_matches_the_reference() {
    for sizes in [[16, 16, 8], [8, 8, 8], [32, 24, 40], [64, 64, 64], [63, 63, 63], [61, 64, 33]] {
        matches_the_reference::<f16>(37, sizes, 1);
        matches_the_reference::<f32>(37, sizes, 1);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn batched_gemm_of_tensors_between_multiples_of_16_bytes_is_the_same() {
    let stream = stream();
    let (batch, sizes) = (50, [7, 5, 3]);
    let aligned = multiply::<f16>(batch, sizes, Choice::AUTOMATIC);
    let operation = operation::<f16>(batch, sizes);
    let (a_dims, b_dims, c_dims) = (operation.a_dims(), operation.b_dims(), operation.c_dims());
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let behind = |elements: Vec<f16>| {
        let mut memory = vec![f16::NAN];
        memory.extend(elements);
        stream.clone_htod(&memory).expect("memory")
    };
    let (a, b) = (behind(synthetic(a_dims, 1)), behind(synthetic(b_dims, 2)));
    let mut c = poisoned::<f16>(&stream, count(c_dims) + 2);
    let (a, b) = (a.slice(1..), b.slice(1..));
    let mut to = c.slice_mut(1..=count(c_dims));
    let (a, b) = (Tensor::new(&a, a_dims), Tensor::new(&b, b_dims));
    prepared.launch(&stream, a, b, TensorMut::new(&mut to, c_dims)).expect("launches");
    let c = stream.clone_dtoh(&c).expect("c");
    assert!(c[0].is_nan() && c[count(c_dims) + 1].is_nan());
    assert!(c[1..=count(c_dims)] == aligned);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn batched_gemm_of_more_problems_than_z_has_blocks_is_split_or_folded() {
    overflows(&BatchedGemm::new(1_000_000, 16, 16, 8, ElementType::F16).expect("legal"), 2);
    // A block for each problem.
    let multiply =
        |strategy| multiply::<f16>(66_000, [40, 24, 24], Choice::AUTOMATIC.strategy(strategy));
    let chunked = multiply(Strategy::Chunked);
    assert!(chunked.iter().all(|x| !x.is_nan()));
    assert!(chunked == multiply(Strategy::Folded));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_batched_gemm_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let operation = BatchedGemm::new(2, 4, 8, 2, ElementType::F32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let a = stream.alloc_zeros::<f32>(16).expect("a");
    let b = stream.alloc_zeros::<f32>(32).expect("b");
    let mut c = poisoned::<f32>(&stream, 64);
    let mut refused = |a_dims, b_dims, c_dims| {
        let (a, b) = (Tensor::new(&a, a_dims), Tensor::new(&b, b_dims));
        let c = TensorMut::new(&mut c, c_dims);
        prepared.launch(&stream, a, b, c).expect_err("refused").to_string()
    };
    let (a_dims, b_dims, c_dims) = ([2, 4, 2], [2, 2, 8], [2, 4, 8]);
    let of_a = "a has shape [2, 2, 4], the kernel was prepared for [2, 4, 2]";
    assert_eq!(refused([2, 2, 4], b_dims, c_dims), of_a);
    let of_b = "b has shape [1, 2, 8], the kernel was prepared for [2, 2, 8]";
    assert_eq!(refused(a_dims, [1, 2, 8], c_dims), of_b);
    let of_c = "c has shape [2, 4, 9], the kernel was prepared for [2, 4, 8]";
    assert_eq!(refused(a_dims, b_dims, [2, 4, 9]), of_c);
    assert!(stream.clone_dtoh(&c).expect("c").iter().all(|x| x.is_nan()));
}
