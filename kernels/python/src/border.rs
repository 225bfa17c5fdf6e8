//! Which implementation is faster: our kernels up to a border of rows, PyTorch's default beyond it.
//!
//! Measured on an H200 with PyTorch 2.11, without a mask, at 512 to 61,440 problems: our kernels serve only what took
//! them no longer than PyTorch. With a mask PyTorch's kernels take longer, so the same borders hold.

use gridguard::ComputeCapability;
use gridguard_kernels::ElementType;

/// The most queries or keys of problems up to a head dimension: forwards and forwards causal, then of both passes.
pub(crate) type Border = (u64, [u64; 4]);

/// The compute capability of the measured GPU.
pub(crate) const MEASURED: ComputeCapability = ComputeCapability::new(9, 0);

const HALF: &[Border] = &[
    (32, [512, 512, 384, 384]),
    (64, [256, 256, 256, 256]),
    (128, [192, 64, 128, 64]),
    (256, [16, 16, 16, 16]),
    (512, [16, 16, 0, 0]),
];
const SINGLE: &[Border] = &[
    (32, [512, 512, 256, 256]),
    (64, [512, 512, 128, 128]),
    (80, [512, 128, 24, 24]),
    (128, [512, 128, 16, 16]),
    (160, [16, 16, 0, 0]),
];
// On other GPUs our kernels serve what took PyTorch 1.5 times as long on the H200.
const HALF_OF_OTHERS: &[Border] = &[
    (32, [128, 128, 128, 128]),
    (64, [64, 64, 128, 128]),
    (128, [64, 32, 64, 32]),
    (256, [16, 16, 16, 16]),
];
const SINGLE_OF_OTHERS: &[Border] = &[(80, [24, 24, 24, 24]), (160, [16, 16, 0, 0])];

/// The borders on a GPU, by rising head dimensions. Larger ones are PyTorch's, and those that are no multiple of
/// 16 bytes, which were not measured.
pub(crate) fn borders(capability: ComputeCapability, element: ElementType) -> &'static [Border] {
    match (capability == MEASURED, element) {
        (true, ElementType::F32) => SINGLE,
        (true, _) => HALF,
        (false, ElementType::F32) => SINGLE_OF_OTHERS,
        (false, _) => HALF_OF_OTHERS,
    }
}

/// Whether PyTorch's kernels are faster, or were not compared.
pub(crate) fn is_beyond(
    borders: &[Border],
    element: ElementType,
    (rows, head_dim): (u64, u64),
    causal: bool,
    differentiated: bool,
) -> bool {
    let column = usize::from(differentiated) * 2 + usize::from(causal);
    let border = borders.iter().find(|(widest, _)| head_dim <= *widest);
    let most = border.and_then(|(_, rows)| rows.get(column)).copied().unwrap_or_default();
    rows > most || !(head_dim * element.bytes()).is_multiple_of(16)
}
