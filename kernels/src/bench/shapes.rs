//! Which problems are tuned and measured.

use super::problem::{Problem, Sizes};
use crate::element::ElementType::{self, Bf16, F16, F32};
use crate::index::IndexType;

impl Problem {
    /// Ten problems of each kernel, for profiles that are shipped: sizes of language, diffusion and
    /// audio models, of up to 1.4 GB a tensor. Most overflow a grid, and some are neighbours.
    #[must_use]
    pub fn shipped() -> Vec<Self> {
        shipped().into_iter().flatten().map(of).collect()
    }

    /// Five problems of five kernels out of the shipped ones, to measure a tuner itself.
    #[must_use]
    pub fn evaluation() -> Vec<Self> {
        let [attention, norm, softmax, upsample, gemm, ..] = shipped();
        let kernels = [attention, norm, softmax, upsample, gemm];
        kernels.into_iter().flat_map(|problems| problems.into_iter().take(5)).map(of).collect()
    }

    /// Problems between the shipped ones that are not among them, for what a neighbour's choice
    /// costs.
    #[must_use]
    pub fn between() -> Vec<Self> {
        BETWEEN.into_iter().map(of).collect()
    }

    /// Problems that a host computes in some milliseconds; two of them overflow a grid.
    #[must_use]
    pub fn small() -> Vec<Self> {
        SMALL.into_iter().map(of).collect()
    }
}

/// Elements and sizes.
type Typed = (ElementType, Sizes);

fn of((element, sizes): Typed) -> Problem {
    Problem { sizes, element, index: IndexType::I64 }
}

/// By kernel, those of [`Problem::evaluation`] first.
const fn shipped() -> [[Typed; 10]; 8] {
    [
        ATTENTION,
        RMS_NORM,
        SOFTMAX,
        UPSAMPLE_NEAREST2D,
        BATCHED_GEMM,
        ARGSORT,
        GET_ROWS,
        REFLECTION_PAD1D,
    ]
}

const ATTENTION: [Typed; 10] = [
    (F16, Sizes::TemporalAttention([15_360, 5, 16, 64])),
    (F16, Sizes::TemporalAttention([15_360, 5, 8, 64])),
    (F16, Sizes::TemporalAttention([61_440, 5, 16, 64])),
    (F16, Sizes::TemporalAttention([25_440, 15, 16, 72])),
    (F16, Sizes::TemporalAttention([15_360, 5, 128, 64])),
    (F16, Sizes::TemporalAttention([15_360, 5, 25, 64])),
    (F16, Sizes::TemporalAttention([15_360, 5, 32, 64])),
    (F16, Sizes::TemporalAttention([9216, 10, 24, 80])),
    (Bf16, Sizes::TemporalAttention([15_360, 5, 16, 64])),
    (F32, Sizes::TemporalAttention([15_360, 5, 16, 64])),
];

const RMS_NORM: [Typed; 10] = [
    (F16, Sizes::RmsNorm([65_536, 4096])),
    (F16, Sizes::RmsNorm([131_072, 4096])),
    (F16, Sizes::RmsNorm([131_072, 1024])),
    (F16, Sizes::RmsNorm([1_048_576, 128])),
    (F16, Sizes::RmsNorm([98_304, 5120])),
    (F16, Sizes::RmsNorm([32_768, 4096])),
    (F16, Sizes::RmsNorm([262_144, 1024])),
    (F16, Sizes::RmsNorm([65_536, 8192])),
    (Bf16, Sizes::RmsNorm([131_072, 4096])),
    (F32, Sizes::RmsNorm([65_536, 4096])),
];

const SOFTMAX: [Typed; 10] = [
    (F16, Sizes::Softmax([1_228_800, 128])),
    (F16, Sizes::Softmax([2_457_600, 128])),
    (F16, Sizes::Softmax([262_144, 1024])),
    (F16, Sizes::Softmax([524_288, 1024])),
    (F16, Sizes::Softmax([76_800, 4096])),
    (F16, Sizes::Softmax([131_072, 2048])),
    // Rows of text tokens, which are no whole vectors.
    (F16, Sizes::Softmax([4_915_200, 77])),
    (F16, Sizes::Softmax([65_536, 8192])),
    (Bf16, Sizes::Softmax([262_144, 1024])),
    (F32, Sizes::Softmax([65_536, 4096])),
];

const UPSAMPLE_NEAREST2D: [Typed; 10] = [
    (F16, Sizes::UpsampleNearest2d([65_536, 32, 32, 64, 64])),
    (F16, Sizes::UpsampleNearest2d([131_072, 32, 32, 64, 64])),
    (F16, Sizes::UpsampleNearest2d([8192, 64, 64, 128, 128])),
    (F16, Sizes::UpsampleNearest2d([262_144, 16, 16, 32, 32])),
    (F16, Sizes::UpsampleNearest2d([32_768, 40, 64, 80, 128])),
    (F16, Sizes::UpsampleNearest2d([16_384, 40, 64, 80, 128])),
    (F16, Sizes::UpsampleNearest2d([524_288, 8, 8, 16, 16])),
    (F16, Sizes::UpsampleNearest2d([1024, 256, 256, 512, 512])),
    (Bf16, Sizes::UpsampleNearest2d([65_536, 32, 32, 64, 64])),
    (F32, Sizes::UpsampleNearest2d([65_536, 32, 32, 64, 64])),
];

const BATCHED_GEMM: [Typed; 10] = [
    (F16, Sizes::BatchedGemm([1_000_000, 16, 16, 8])),
    (F16, Sizes::BatchedGemm([2_000_000, 16, 16, 8])),
    (F32, Sizes::BatchedGemm([1_000_000, 8, 8, 8])),
    (F32, Sizes::BatchedGemm([2_000_000, 8, 8, 8])),
    (F16, Sizes::BatchedGemm([262_144, 32, 32, 32])),
    (F32, Sizes::BatchedGemm([1_000_000, 16, 16, 8])),
    (F16, Sizes::BatchedGemm([131_072, 64, 64, 64])),
    (F32, Sizes::BatchedGemm([65_536, 64, 64, 64])),
    (F32, Sizes::BatchedGemm([131_072, 32, 32, 32])),
    (Bf16, Sizes::BatchedGemm([1_000_000, 16, 16, 8])),
];

const ARGSORT: [Typed; 10] = [
    (F16, Sizes::Argsort([262_144, 256])),
    (F16, Sizes::Argsort([524_288, 256])),
    (F16, Sizes::Argsort([1_048_576, 64])),
    (F16, Sizes::Argsort([131_072, 1024])),
    (F16, Sizes::Argsort([100_000, 1000])),
    (F16, Sizes::Argsort([65_536, 4096])),
    (F32, Sizes::Argsort([65_536, 1024])),
    (F32, Sizes::Argsort([131_072, 1024])),
    (F32, Sizes::Argsort([32_768, 4096])),
    (F32, Sizes::Argsort([4096, 32_768])),
];

const GET_ROWS: [Typed; 10] = [
    (F16, Sizes::GetRows([65_536, 4096, 128_256])),
    (F16, Sizes::GetRows([131_072, 4096, 32_000])),
    (F16, Sizes::GetRows([65_536, 2048, 128_256])),
    (F16, Sizes::GetRows([1_048_576, 128, 1_000_000])),
    (F16, Sizes::GetRows([2_097_152, 128, 1_000_000])),
    (F16, Sizes::GetRows([262_144, 1024, 250_000])),
    (F16, Sizes::GetRows([131_072, 5120, 32_000])),
    (F16, Sizes::GetRows([98_304, 3072, 50_257])),
    (Bf16, Sizes::GetRows([65_536, 4096, 128_256])),
    (F32, Sizes::GetRows([262_144, 768, 30_522])),
];

const REFLECTION_PAD1D: [Typed; 10] = [
    (F16, Sizes::ReflectionPad1d([16, 512, 20_000, 3, 3])),
    (F16, Sizes::ReflectionPad1d([262_144, 1, 1000, 24, 24])),
    (F16, Sizes::ReflectionPad1d([131_072, 80, 48, 3, 3])),
    (F16, Sizes::ReflectionPad1d([65_536, 1, 4096, 512, 512])),
    (F16, Sizes::ReflectionPad1d([524_288, 1, 400, 200, 200])),
    (F16, Sizes::ReflectionPad1d([8192, 64, 512, 3, 3])),
    (F16, Sizes::ReflectionPad1d([100_000, 4, 512, 1, 1])),
    (Bf16, Sizes::ReflectionPad1d([131_072, 1, 1000, 24, 24])),
    (F32, Sizes::ReflectionPad1d([131_072, 1, 1000, 24, 24])),
    (F32, Sizes::ReflectionPad1d([4096, 512, 128, 7, 7])),
];

const BETWEEN: [Typed; 11] = [
    (F16, Sizes::TemporalAttention([30_720, 5, 16, 64])),
    (F16, Sizes::TemporalAttention([15_360, 5, 20, 64])),
    (F16, Sizes::TemporalAttention([20_480, 10, 16, 64])),
    (F16, Sizes::RmsNorm([49_152, 4096])),
    (F16, Sizes::RmsNorm([196_608, 1024])),
    (F16, Sizes::Softmax([1_843_200, 128])),
    (F16, Sizes::Softmax([393_216, 1024])),
    (F16, Sizes::UpsampleNearest2d([98_304, 32, 32, 64, 64])),
    (F16, Sizes::BatchedGemm([1_500_000, 16, 16, 8])),
    (F32, Sizes::BatchedGemm([1_500_000, 8, 8, 8])),
    (F16, Sizes::GetRows([98_304, 4096, 64_000])),
];

const SMALL: [Typed; 10] = [
    (F16, Sizes::TemporalAttention([64, 5, 16, 64])),
    (F32, Sizes::TemporalAttention([128, 5, 16, 64])),
    (F32, Sizes::RmsNorm([256, 4096])),
    (F32, Sizes::RmsNorm([262_144, 8])),
    (F32, Sizes::Softmax([512, 1024])),
    (F32, Sizes::Argsort([256, 1024])),
    (F32, Sizes::GetRows([4096, 256, 32_000])),
    (F32, Sizes::ReflectionPad1d([1024, 1, 1000, 24, 24])),
    (F32, Sizes::UpsampleNearest2d([256, 32, 32, 64, 64])),
    (F32, Sizes::BatchedGemm([65_536, 4, 4, 4])),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn distinct(problems: &[Problem]) -> HashSet<Problem> {
        let set: HashSet<Problem> = problems.iter().copied().collect();
        assert_eq!(set.len(), problems.len());
        set
    }

    #[test]
    fn ten_problems_of_each_kernel_are_shipped() {
        let all = Problem::shipped();
        distinct(&all);
        for kernel in Problem::KERNELS {
            assert_eq!(all.iter().filter(|problem| problem.kernel() == kernel).count(), 10);
        }
    }

    #[test]
    fn a_tuner_is_measured_with_five_shipped_problems_of_five_kernels() {
        let (all, some) = (distinct(&Problem::shipped()), distinct(&Problem::evaluation()));
        assert!(some.len() == 25 && some.is_subset(&all));
        let kernels: HashSet<&str> = some.iter().map(Problem::kernel).collect();
        assert_eq!(kernels.len(), 5);
    }

    #[test]
    fn problems_between_are_within_the_range_of_shipped_ones_and_none_of_them() {
        let all = Problem::shipped();
        for problem in Problem::between() {
            assert!(!all.contains(&problem), "{problem}");
            let like = |other: &&Problem| {
                (other.kernel(), other.dtypes()) == (problem.kernel(), problem.dtypes())
            };
            for (place, (name, size)) in problem.shape().into_iter().enumerate() {
                let sizes = || all.iter().filter(like).map(|other| other.shape()[place].1);
                let range = sizes().min().expect("some")..=sizes().max().expect("some");
                assert!(range.contains(&size), "{problem}: {name} in {range:?}");
            }
        }
    }

    #[test]
    fn small_problems_are_of_every_kernel() {
        let kernels: HashSet<&str> = Problem::small().iter().map(Problem::kernel).collect();
        assert_eq!(kernels.len(), Problem::KERNELS.len());
    }
}
