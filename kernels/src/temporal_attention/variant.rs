//! The implementations of attention and the choice among them.

use derive_more::Display;
use gridguard::{ComputeCapability, DeviceLimits};

use super::flash;
use super::shape::{MAX_LONG_FRAMES, NARROW_HEAD_DIM, Shape};
use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{HOPPER, source};

/// The most frames whose keys and values a warp keeps in registers.
const SHORT_FRAMES: u64 = 32;
/// Frames and keys of one tile.
const TILE_FRAMES: u64 = 16;
/// The most frames, and the most keys, of a specialised variant on every architecture.
pub const MAX_FRAMES: u64 = 128;
/// The widest heads that one warp keeps in registers, up to [`TILE_FRAMES`] frames and keys.
const SHORT_HEAD_DIM: u64 = 256;
/// The widest heads of the other variants, and of the block.
pub const WIDE_HEAD_DIM: u64 = 160;

pub(super) const TURING: ComputeCapability = ComputeCapability::new(7, 5);
pub(super) const AMPERE: ComputeCapability = ComputeCapability::new(8, 0);

/// An implementation of attention. All but the general one are compiled for the shape and need memory
/// and strides aligned to 16 bytes.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash)]
#[display("{}", self.name())]
pub enum Variant {
    /// Any shape and type, in f32 arithmetic.
    General,
    /// Tensor cores, operands loaded to registers directly: f16 and bf16, at most 32 frames and keys, a head dimension that
    /// is a multiple of 8 up to 160, or with up to 16 frames and keys 256, compute capability 8.0.
    Short,
    /// Tensor cores through shared memory: f16 and bf16, at most 128 frames and keys, a head dimension that is
    /// a multiple of 8 up to 160, compute capability 7.5, for bf16 8.0.
    Tiled,
    /// Tensor cores with an online softmax over blocks of keys: at most 512 frames and keys, a head dimension that is a
    /// multiple of 8 up to 512, above 128 with at most 128 keys; compute capability 8.0, for f16 7.5. In f32, whose
    /// head dimension is a multiple of 4, three products in TF32 replace one, with an error of at most 2^-18 of the
    /// product. k and v may have different head dimensions.
    Flash,
    /// Hopper's warpgroup instructions: as [`Self::Tiled`] with at most 512 frames and keys and a head dimension of at
    /// most 128, compute capability 9.0 alone.
    Warpgroup,
    /// f32 throughout, no tf32: at most 128 frames and keys, a head dimension that is a multiple of 4 and at
    /// most 128, or with up to 16 frames and keys 160.
    SinglePrecision,
}

impl Variant {
    /// All variants.
    pub const ALL: [Self; 6] = [
        Self::General,
        Self::Short,
        Self::Tiled,
        Self::Flash,
        Self::Warpgroup,
        Self::SinglePrecision,
    ];

    /// The name, as in the names of the kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Short => "short",
            Self::Tiled => "tiled",
            Self::Flash => "flash",
            Self::Warpgroup => "warpgroup",
            Self::SinglePrecision => "f32",
        }
    }

    /// The fastest variant for the shape on `device`.
    ///
    /// Measured on an NVIDIA H200 (`NOTES.md`). With rows of a multiple of 64 bytes, up to 32 frames are fastest
    /// from registers, and more with warpgroups. With other rows, up to 48 frames are fastest through shared memory. Products
    /// in f32 do not follow IEEE arithmetic; [`Self::SinglePrecision`] does.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] for bf16 below compute capability 8.0, whose tensor cores do not
    /// support it. There is no silent fallback to the slower [`Self::General`].
    pub fn best(
        shape: &Shape,
        element: ElementType,
        device: &DeviceLimits,
    ) -> Result<Self, KernelError> {
        let capability = device.compute_capability;
        if element == ElementType::Bf16 && capability < AMPERE {
            return Err(KernelError::unsupported("bf16 on tensor cores", AMPERE, device, REMEDY));
        }
        let whole_rows = (shape.head_dim * element.bytes()).is_multiple_of(64);
        let order = match element {
            ElementType::F32 => [Self::Flash, Self::SinglePrecision, Self::General],
            _ if !shape.has_equal_widths() => [Self::Flash; 3],
            _ if shape.head_dim > WIDE_HEAD_DIM => [Self::Flash, Self::Short, Self::General],
            _ if whole_rows => [Self::Short, Self::Warpgroup, Self::Flash],
            _ if shape.longest() <= 48 => [Self::Tiled, Self::Flash, Self::Short],
            _ => [Self::Warpgroup, Self::Flash, Self::General],
        };
        let serves = |variant: &Self| variant.check(shape, element, device).is_ok();
        Ok(order.into_iter().find(serves).unwrap_or(Self::General))
    }

    /// Checks that the variant supports the shape and type, and that the device has its instructions.
    pub(super) fn check(
        self,
        shape: &Shape,
        element: ElementType,
        device: &DeviceLimits,
    ) -> Result<(), KernelError> {
        if self != Self::Flash && !shape.has_equal_widths() {
            return Err(KernelError::Variant { variant: self.name(), takes: EQUAL_WIDTHS });
        }
        let is_half = element != ElementType::F32;
        let pieces = shape.head_dim.is_multiple_of(8);
        let one_tile = shape.longest() <= TILE_FRAMES;
        let is_narrow = shape.head_dim <= NARROW_HEAD_DIM;
        let is_usual = shape.head_dim <= WIDE_HEAD_DIM;
        let (takes, what, needed) = match self {
            Self::General => {
                let parameters = self.default_parameters(shape, element);
                let needed = self.shared_bytes(shape, element, &parameters);
                let takes = "heads whose tiles fit into the shared memory of a block, up to 160 on any device";
                let fits = shape.head_dim <= WIDE_HEAD_DIM
                    || needed <= device.max_shared_bytes_per_block_opt_in;
                let refused = KernelError::Variant { variant: self.name(), takes };
                return if fits { Ok(()) } else { Err(refused) };
            }
            Self::Short => (
                is_half
                    && pieces
                    && shape.longest() <= SHORT_FRAMES
                    && (is_usual || (one_tile && shape.head_dim <= SHORT_HEAD_DIM)),
                "f16 or bf16, at most 32 frames and keys, a head dimension that is a multiple of 8 up to 160, or up \
                 to 256 with at most 16 frames and keys",
                AMPERE,
            ),
            Self::Tiled => (
                is_half && pieces && is_usual && shape.longest() <= MAX_FRAMES,
                "f16 or bf16, at most 128 frames and keys, a head dimension that is a multiple of 8 up to 160",
                if element == ElementType::Bf16 { AMPERE } else { TURING },
            ),
            Self::Flash => (
                flash::takes(shape, element),
                "at most 512 frames and keys and a head dimension that is a multiple of 8, or 4 in f32, up to 128, or at \
                 most 128 keys and a head dimension up to 512",
                if element == ElementType::F16 { TURING } else { AMPERE },
            ),
            Self::Warpgroup => (
                is_half && pieces && is_narrow && shape.longest() <= MAX_LONG_FRAMES,
                "f16 or bf16, at most 512 frames and keys, a head dimension that is a multiple of 8 and at \
                 most 128",
                HOPPER,
            ),
            Self::SinglePrecision => (
                !is_half
                    && shape.head_dim.is_multiple_of(4)
                    && (one_tile && is_usual || is_narrow && shape.longest() <= MAX_FRAMES),
                "f32, at most 128 frames and keys, a head dimension that is a multiple of 4 and at most 128, \
                 or at most 16 frames and keys and a head dimension up to 160",
                TURING,
            ),
        };
        if !takes {
            return Err(KernelError::Variant { variant: self.name(), takes: what });
        }
        let capability = device.compute_capability;
        // Later architectures lack Hopper's instructions.
        if capability < needed || (self == Self::Warpgroup && capability != HOPPER) {
            let what = self.instructions(element);
            return Err(KernelError::unsupported(what, needed, device, REMEDY));
        }
        let parameters = self.default_parameters(shape, element);
        let bytes = self.shared_bytes(shape, element, &parameters);
        if bytes > device.max_shared_bytes_per_block_opt_in {
            let takes = "problems that fit into the shared memory of a block";
            return Err(KernelError::Variant { variant: self.name(), takes });
        }
        Ok(())
    }

    /// The kernel's name and its source.
    pub(super) const fn code(self) -> (&'static str, &'static str) {
        match self {
            Self::General => ("general_attention", source!("attention.cu", "general_attention.cu")),
            Self::Short => ("short_attention", source!("attention.cu", "short_attention.cu")),
            Self::Tiled => ("tiled_attention", source!("attention.cu", "tiled_attention.cu")),
            Self::Flash => (
                "flash_attention",
                source!(
                    "tensor_cores.cu",
                    "attention.cu",
                    "attention_tiles.cu",
                    "flash_attention.cu"
                ),
            ),
            Self::Warpgroup => (
                "warpgroup_attention",
                source!("tensor_cores.cu", "wgmma.cu", "attention.cu", "warpgroup_attention.cu"),
            ),
            Self::SinglePrecision => ("f32_attention", source!("attention.cu", "f32_attention.cu")),
        }
    }

    const fn instructions(self, element: ElementType) -> &'static str {
        match (self, element) {
            (Self::Warpgroup, _) => "warpgroup matrix instructions",
            (_, ElementType::Bf16) => "bf16 on tensor cores",
            (Self::Flash, ElementType::F32) => "tf32 on tensor cores",
            (Self::Short, _) => "m16n8k16 matrix instructions",
            _ => "tensor cores",
        }
    }

    /// Whether it loads vectors of 16 bytes, which memory and strides must be aligned to.
    pub(super) const fn loads_vectors(self) -> bool {
        !matches!(self, Self::General)
    }
}

pub(super) const EQUAL_WIDTHS: &str = "values with the head dimension of the keys";
const REMEDY: &str = "use f16, or the general variant, which computes in f32";

#[cfg(test)]
mod tests {
    use super::*;

    fn device(major: u32, minor: u32) -> DeviceLimits {
        let compute_capability = ComputeCapability::new(major, minor);
        let opt_in = if major == 9 { 232_448 } else { 101_376 };
        DeviceLimits {
            compute_capability,
            max_shared_bytes_per_block_opt_in: opt_in,
            ..DeviceLimits::any_device()
        }
    }

    fn shape(frames: u64, head_dim: u64) -> Shape {
        Shape::new(1, 1, frames, head_dim).expect("legal")
    }

    #[test]
    fn each_shape_gets_its_fastest_variant() {
        let best = |frames, head_dim, element, major, minor| {
            Variant::best(&shape(frames, head_dim), element, &device(major, minor)).expect("served")
        };
        let (f16, bf16, f32) = (ElementType::F16, ElementType::Bf16, ElementType::F32);
        assert_eq!(best(32, 64, f16, 9, 0), Variant::Short);
        assert_eq!(best(1, 96, bf16, 9, 0), Variant::Short);
        assert_eq!(best(16, 72, f16, 9, 0), Variant::Tiled);
        assert_eq!(best(33, 64, f16, 9, 0), Variant::Warpgroup);
        assert_eq!(best(40, 72, f16, 9, 0), Variant::Tiled);
        assert_eq!(best(100, 72, f16, 9, 0), Variant::Warpgroup);
        assert_eq!(best(33, 64, f16, 10, 0), Variant::Flash);
        assert_eq!(best(16, 60, f16, 9, 0), Variant::General);
        assert_eq!(best(129, 64, f16, 8, 0), Variant::Flash);
        assert_eq!(best(129, 64, f16, 9, 0), Variant::Warpgroup);
        assert_eq!(best(256, 128, bf16, 9, 0), Variant::Warpgroup);
        assert_eq!(best(512, 64, f16, 9, 0), Variant::Warpgroup);
        assert_eq!(best(513, 64, f16, 9, 0), Variant::General);
        // Warpgroups need 384 KB of shared memory, the device has 227.
        assert_eq!(best(512, 128, f16, 9, 0), Variant::Flash);
        assert_eq!(best(16, 64, f32, 9, 0), Variant::Flash);
        assert_eq!(best(16, 64, f32, 7, 5), Variant::SinglePrecision);
        assert_eq!(best(16, 63, f32, 9, 0), Variant::General);
        assert_eq!(best(16, 64, f16, 7, 5), Variant::Flash);
        assert_eq!(best(16, 160, f16, 9, 0), Variant::Short);
        assert_eq!(best(16, 256, f16, 9, 0), Variant::Flash);
        assert_eq!(best(17, 256, f16, 9, 0), Variant::Flash);
        assert_eq!(best(16, 512, bf16, 9, 0), Variant::Flash);
        // More columns than warpgroups have instructions for.
        assert_eq!(best(64, 160, f16, 9, 0), Variant::Flash);
        assert_eq!(best(17, 160, f32, 9, 0), Variant::Flash);
        // Needs 192 KB of shared memory, the device has 99.
        assert_eq!(best(128, 256, f16, 8, 6), Variant::General);
        let wide_values = shape(16, 64).with_value_dim(128).expect("legal");
        let best = Variant::best(&wide_values, f16, &device(9, 0)).expect("served");
        assert_eq!(best, Variant::Flash);
        let error = Variant::General.check(&wide_values, f16, &device(9, 0)).expect_err("refused");
        let expected = "the general variant takes values with the head dimension of the keys";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn bf16_on_turing_is_an_error_with_a_remedy() {
        let error = Variant::best(&shape(16, 64), ElementType::Bf16, &device(7, 5));
        let error = error.expect_err("no tensor cores for it").to_string();
        assert!(
            error.starts_with("bf16 on tensor cores needs compute capability 8.0, "),
            "{error}"
        );
        assert!(error.ends_with("has 7.5: use f16, or the general variant, which computes in f32"));
    }

    #[test]
    fn a_variant_rejects_what_it_does_not_support() {
        let check = |variant: Variant, frames, element, major| {
            variant.check(&shape(frames, 64), element, &device(major, 0)).map_err(|e| e.to_string())
        };
        assert_eq!(check(Variant::Tiled, 128, ElementType::F16, 9), Ok(()));
        assert_eq!(
            check(Variant::Short, 33, ElementType::F16, 9).expect_err("too many frames"),
            "the short variant takes f16 or bf16, at most 32 frames and keys, a head dimension that is a multiple of \
             8 up to 160, or up to 256 with at most 16 frames and keys"
        );
        let wide = Shape::new(1, 1, 16, 256).expect("legal");
        let small = DeviceLimits { max_shared_bytes_per_block_opt_in: 64 << 10, ..device(7, 5) };
        let error = Variant::General.check(&wide, ElementType::F32, &small).expect_err("too wide");
        assert!(error.to_string().contains("up to 160 on any device"), "{error}");
        let newer = check(Variant::Warpgroup, 64, ElementType::F16, 10).expect_err("not Hopper");
        assert!(newer.starts_with("warpgroup matrix instructions needs compute capability 9.0"));
    }
}
