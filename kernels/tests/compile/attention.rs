//! Attention and its gradients.

use gridguard::DeviceLimits;
use gridguard_kernels::temporal_attention::{AttentionBackward, Shape, TemporalAttention, Variant};
use gridguard_kernels::{ElementType, KernelError};

use super::{all_compile, code};

/// Frames and head dimensions that are compiled for f16 and bf16.
const HALF_SHAPES: [(u64, u64); 26] = [
    (8, 64),
    (16, 64),
    (25, 64),
    (32, 64),
    (16, 40),
    (16, 72),
    (24, 80),
    (16, 96),
    (32, 128),
    (40, 72),
    (48, 96),
    (64, 64),
    (81, 64),
    (128, 64),
    (128, 128),
    (8, 160),
    (16, 160),
    (24, 160),
    (32, 160),
    (128, 160),
    (16, 256),
    (144, 32),
    (163, 32),
    (256, 64),
    (256, 128),
    (512, 64),
];
/// Those for f32.
const SINGLE_SHAPES: [(u64, u64); 8] =
    [(16, 64), (16, 40), (25, 64), (128, 64), (128, 128), (16, 160), (24, 160), (128, 160)];

/// Frames, keys and head dimension of cross-attention. f32 has the first three: `NOTES.md` says which shapes spill.
const CROSS_SHAPES: [(u64, u64, u64); 5] =
    [(16, 24, 64), (16, 77, 64), (128, 20, 80), (1, 128, 128), (100, 128, 40)];

fn attention(
    frames: u64,
    head_dim: u64,
    element: ElementType,
    device: &DeviceLimits,
) -> Option<TemporalAttention> {
    let shape = Shape::new(100_000, 5, frames, head_dim).expect("legal");
    match TemporalAttention::new(shape, element, device) {
        Err(KernelError::Unsupported { .. }) if element == ElementType::Bf16 => None,
        // Turing has no kernel for such heads.
        Err(KernelError::Variant { .. }) if head_dim > 160 => None,
        attention => Some(attention.expect("served")),
    }
}

#[test]
#[ignore = "needs NVRTC"]
fn attention_compiles_for_every_architecture_without_a_spill() {
    all_compile(|device| {
        let mut codes = Vec::new();
        for element in ElementType::ALL {
            let shapes =
                if element == ElementType::F32 { &SINGLE_SHAPES[..] } else { &HALF_SHAPES };
            for (frames, head_dim) in shapes {
                let Some(attention) = attention(*frames, *head_dim, element, device) else {
                    continue;
                };
                // The general kernel has a test of its own.
                if attention.variant() == Variant::General && *frames > 128 {
                    continue;
                }
                codes.push(code(&attention, device));
                codes.push(code(&attention.with_strides(), device));
            }
            let cross =
                if element == ElementType::F32 { &CROSS_SHAPES[..3] } else { &CROSS_SHAPES };
            for (frames, keys, head_dim) in cross.iter().copied() {
                let shape = Shape::new(100_000, 5, frames, head_dim).expect("legal");
                let shape = shape.with_keys(keys).expect("legal");
                if let Ok(attention) = TemporalAttention::new(shape, element, device) {
                    codes.push(code(&attention, device));
                    codes.push(code(&attention.with_bias().with_strides(), device));
                    codes.push(code(&attention.with_mask().with_strides(), device));
                }
            }
            if let Some(attention) = attention(16, 64, element, device) {
                codes.push(code(&attention.causal(), device));
                codes.push(code(&attention.causal().with_bias().with_strides(), device));
            }
            if let Some(attention) = attention(81, 64, element, device) {
                codes.push(code(&attention.causal().with_bias().with_strides(), device));
            }
        }
        codes
    });
}

/// Frames, keys and head dimensions of the flash variant that other variants are faster for on some device.
/// The last two have values of another width.
const FLASH_SHAPES: [(u64, u64, u64, u64); 13] = [
    (16, 16, 512, 512),
    (24, 24, 80, 80),
    (33, 33, 56, 56),
    (49, 49, 96, 96),
    (64, 64, 256, 256),
    (81, 81, 40, 40),
    (128, 128, 64, 64),
    (144, 144, 32, 32),
    (33, 77, 160, 160),
    (512, 512, 64, 64),
    (256, 256, 128, 128),
    (64, 64, 192, 128),
    (200, 200, 64, 128),
];

#[test]
#[ignore = "needs NVRTC"]
fn flash_and_general_attention_compile_for_every_architecture_without_a_spill() {
    all_compile(|device| {
        let mut codes = Vec::new();
        for element in ElementType::ALL {
            let shape = Shape::new(1, 1, 300, 77).expect("legal");
            let plain = TemporalAttention::by_variant(shape, element, device, Variant::General);
            let plain = plain.expect("takes all");
            codes.push(code(&plain, device));
            codes.push(code(&plain.causal().with_bias().with_strides(), device));
            codes.push(code(&plain.with_mask().with_strides(), device));
            for (frames, keys, head_dim, value_dim) in FLASH_SHAPES {
                let shape = Shape::new(100_000, 5, frames, head_dim).expect("legal");
                let shape = shape.with_keys(keys).expect("legal");
                let shape = shape.with_value_dim(value_dim).expect("legal");
                let flash = Variant::Flash;
                if let Ok(attention) = TemporalAttention::by_variant(shape, element, device, flash)
                {
                    codes.push(code(&attention, device));
                    codes.push(code(&attention.causal().with_bias().with_strides(), device));
                    codes.push(code(&attention.with_mask(), device));
                }
            }
        }
        codes
    });
}

/// Frames, keys and head dimension of attention whose gradients are compiled. f32 has the first ones: `NOTES.md` says
/// which shapes spill.
const BACKWARD_SHAPES: [(u64, u64, u64); 19] = [
    (16, 16, 64),
    (11, 11, 32),
    (16, 16, 40),
    (24, 24, 80),
    (81, 81, 40),
    (49, 49, 96),
    (128, 128, 64),
    (40, 150, 32),
    (64, 64, 16),
    (49, 49, 32),
    (16, 77, 64),
    (128, 20, 80),
    (1, 128, 128),
    (16, 16, 160),
    (144, 144, 32),
    (163, 163, 32),
    (256, 256, 64),
    (512, 77, 40),
    (512, 512, 24),
];

#[test]
#[ignore = "needs NVRTC"]
fn attention_backward_compiles_for_every_architecture_without_a_spill() {
    all_compile(|device| {
        let mut codes = Vec::new();
        for element in ElementType::ALL {
            let count = if element == ElementType::F32 { 8 } else { BACKWARD_SHAPES.len() };
            for (frames, keys, head_dim) in BACKWARD_SHAPES.into_iter().take(count) {
                let shape = Shape::new(100_000, 5, frames, head_dim).expect("legal");
                let shape = shape.with_keys(keys).expect("legal");
                let Ok(attention) = TemporalAttention::new(shape, element, device) else {
                    continue;
                };
                for attention in [attention, attention.causal().with_bias().with_strides()] {
                    // Not on devices without the instructions, or with too little shared memory.
                    if let Ok(backward) = AttentionBackward::new(attention, device) {
                        codes.push(code(&backward, device));
                        let backward = backward.with_bias_gradient();
                        // `NOTES.md` says that the other shape spills.
                        if backward.has_bias_gradient() && (keys, head_dim) != (128, 64) {
                            codes.push(code(&backward, device));
                        }
                    }
                }
            }
        }
        codes
    });
}
