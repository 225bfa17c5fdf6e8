//! Data for gridguard, embedded as text. The crate neither parses it nor has dependencies.

/// The limits catalogue, in RON: the numbers of each compute capability and of each GPU.
///
/// Every number has the id of its source; the text also lists the sources. Sizes are in bytes, bandwidths in
/// bytes per second.
pub const GPUS_RON: &str = include_str!("../gpus.ron");

/// The launch corpus, in RON: launches from public issue reports, each with its expected verdict.
///
/// Verdicts are for current limits: 2^31-1 blocks on x, 65,535 on y and z, 1,024 threads per block.
pub const CORPUS_RON: &str = include_str!("../corpus.ron");

/// Tuned choices, in RON: the file name and the text for each device.
///
/// `gridguard tune` measured them on the device in the header. Each entry has its driver and date.
pub const PROFILES_RON: &[(&str, &str)] = &[
    ("nvidia-h100-80gb-hbm3.ron", include_str!("../profiles/nvidia-h100-80gb-hbm3.ron")),
    ("nvidia-h200.ron", include_str!("../profiles/nvidia-h200.ron")),
];

/// Up to how many queries or keys our kernels serve attention on a measured GPU, and PyTorch's beyond: one profile for
/// each GPU.
///
/// The sizes of an entry are a head dimension, and the rows of each kind of call. Those with the variant `elsewhere` are
/// for GPUs that have no borders of their own.
pub const BORDERS_RON: &[&str] = &[include_str!("../borders/nvidia-h200.ron")];

/// The folder of the rows that explain failures, where this crate was compiled. Build scripts read it.
pub const FAILURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/failures");
