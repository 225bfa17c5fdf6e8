//! The problems of our kernels that evaluate the tuner.

use gridguard_problems::{Error, Problem};

/// The kernels that evaluate the tuner.
const EVALUATED: [&str; 5] = ["temporal_attention", "rms_norm", "softmax", "layer_norm", "geglu"];

/// Sizes between the shipped ones, to measure what using a neighbour's choice costs.
const BETWEEN: [&str; 11] = [
    "geglu f16 215040x1280",
    "geglu f16 76800x2560",
    "layer_norm f16 307200x320",
    "layer_norm f16 76800x640",
    "rms_norm f16 49152x4096",
    "rms_norm f16 196608x1024",
    "softmax f16 1843200x128",
    "softmax f16 393216x1024",
    "temporal_attention f16 30720x5x16x64",
    "temporal_attention f16 15360x5x20x64",
    "temporal_attention f16 20480x10x16x64",
];

/// The first five shipped problems of five kernels.
pub(crate) fn evaluation() -> Vec<Problem> {
    let shipped = Problem::shipped();
    let of_kernel =
        |name| shipped.iter().filter(move |problem| problem.kernel() == name).take(5).copied();
    EVALUATED.into_iter().flat_map(of_kernel).collect()
}

/// Problems with sizes between those of shipped ones.
pub(crate) fn between() -> Result<Vec<Problem>, Error> {
    BETWEEN.iter().map(|text| text.parse()).collect()
}
