#![doc = "Data for gridguard, embedded as text: this crate parses nothing and depends on nothing."]

/// The limits catalogue, in RON: what each compute capability fixes, and what each GPU has.
///
/// Every number stands beside the id of the source that states it; the sources are listed in the
/// same text. Sizes are in bytes, bandwidths in bytes per second.
pub const GPUS_RON: &str = include_str!("../gpus.ron");

/// The launch corpus, in RON: launches from public issue reports, each with its expected verdict.
///
/// Verdicts are for today's limits: 2^31-1 blocks on x, 65,535 on y and z, 1,024 threads a block.
pub const CORPUS_RON: &str = include_str!("../corpus.ron");

/// Tuned choices, in RON: for each device the name of its file and the text.
///
/// Each was measured on the device that its header names, with the driver and on the date that each
/// entry names, by `gridguard tune`.
pub const PROFILES_RON: &[(&str, &str)] =
    &[("nvidia-h200.ron", include_str!("../profiles/nvidia-h200.ron"))];
