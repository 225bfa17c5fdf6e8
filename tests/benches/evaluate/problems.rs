//! The problems of our kernels that evaluate the tuner.

use gridguard_kernels::bench::{Problem, ProblemError};

/// The kernels that evaluate the tuner.
const EVALUATED: [&str; 5] =
    ["temporal_attention", "rms_norm", "softmax", "upsample_nearest2d", "batched_gemm"];

/// Sizes between the shipped ones, to measure what using a neighbour's choice costs.
const BETWEEN: [&str; 15] = [
    "batched_gemm f16 1500000x16x16x8",
    "batched_gemm f32 1500000x8x8x8",
    "geglu f16 215040x1280",
    "geglu f16 76800x2560",
    "get_rows f16 98304x4096x64000",
    "layer_norm f16 307200x320",
    "layer_norm f16 76800x640",
    "rms_norm f16 49152x4096",
    "rms_norm f16 196608x1024",
    "softmax f16 1843200x128",
    "softmax f16 393216x1024",
    "temporal_attention f16 30720x5x16x64",
    "temporal_attention f16 15360x5x20x64",
    "temporal_attention f16 20480x10x16x64",
    "upsample_nearest2d f16 98304x32x32x64x64",
];

/// The first five shipped problems of five kernels.
pub(crate) fn evaluation() -> Vec<Problem> {
    let shipped = Problem::shipped();
    let of_kernel =
        |name| shipped.iter().filter(move |problem| problem.kernel() == name).take(5).copied();
    EVALUATED.into_iter().flat_map(of_kernel).collect()
}

/// Problems with sizes between those of shipped ones.
pub(crate) fn between() -> Result<Vec<Problem>, ProblemError> {
    BETWEEN.iter().map(|text| text.parse()).collect()
}
