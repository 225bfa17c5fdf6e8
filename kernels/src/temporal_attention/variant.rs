//! Which device code serves a shape, and how its launch is laid out.

use core::fmt;

use gridguard::{ComputeCapability, DeviceLimits};

use super::Shape;
use crate::element::ElementType;
use crate::error::KernelError;

pub(super) const WARP: u64 = 32;
/// Threads of a block of the general kernel.
const GENERAL_WARPS: u64 = 4;
/// Rows of a tile in shared memory of the general kernel.
const GENERAL_TILE: u64 = 32;
/// The most frames whose keys and values a warp holds in registers.
const SHORT_FRAMES: u64 = 32;
/// The most frames of a specialised kernel.
const MAX_FRAMES: u64 = 128;
/// Queries of a tensor core's tile.
const ROWS: u64 = 16;
/// What a thread copies at once.
const PIECE_BYTES: u64 = 16;
/// The most threads of a block.
const MAX_THREADS: u64 = 1024;
/// Barriers of a block beside the one of all threads.
const NAMED_BARRIERS: u64 = 15;
/// Problems one after another: beyond, nothing more is to be gained.
const MAX_ROUNDS: u64 = 64;

const TURING: ComputeCapability = ComputeCapability::new(7, 5);
const AMPERE: ComputeCapability = ComputeCapability::new(8, 0);
const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);

/// Which device code serves a shape. All but the general one are compiled for the shape and take
/// memory, and strides, of whole 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Any shape and type, in f32 arithmetic.
    General,
    /// Tensor cores straight from registers: f16 and bf16, at most 32 frames, a head dimension that
    /// is a multiple of 8, compute capability 8.0.
    Short,
    /// Tensor cores through shared memory: f16 and bf16, at most 128 frames, a head dimension that is
    /// a multiple of 8, compute capability 7.5, for bf16 8.0.
    Tiled,
    /// Hopper's warpgroup instructions: as [`Self::Tiled`], compute capability 9.0 alone.
    Warpgroup,
    /// f32 throughout, no tf32: at most 128 frames, a head dimension that is a multiple of 4.
    SinglePrecision,
}

/// How a variant shares out its work: what a tuner may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaunchParameters {
    /// Warps that share a problem.
    pub warps: u64,
    /// Problems side by side in a block.
    pub problems: u64,
    /// Problems one after another in the place of one.
    pub rounds: u64,
    /// 2 loads the next round's problem while this one is computed, 1 does not.
    pub stages: u64,
}

impl LaunchParameters {
    const ONE: Self = Self { warps: 1, problems: 1, rounds: 1, stages: 1 };

    /// Problems of a block.
    #[must_use]
    pub const fn problems_per_block(&self) -> u64 {
        self.problems * self.rounds
    }

    pub(super) const fn threads(&self) -> u64 {
        WARP * self.warps * self.problems
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Variant {
    /// All variants.
    pub const ALL: [Self; 5] =
        [Self::General, Self::Short, Self::Tiled, Self::Warpgroup, Self::SinglePrecision];

    /// The name, as in the kernels' names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Short => "short",
            Self::Tiled => "tiled",
            Self::Warpgroup => "warpgroup",
            Self::SinglePrecision => "f32",
        }
    }

    /// The one that serves the shape best on `device`.
    ///
    /// Measured on an NVIDIA H200 (`kernels/NOTES.md`): rows of whole 64 bytes go straight to
    /// registers up to 32 frames, and to warpgroups beyond; others through shared memory up to 48.
    ///
    /// # Errors
    ///
    /// [`KernelError::Unsupported`] for bf16 below compute capability 8.0, whose tensor cores do not
    /// take it: nothing slower serves in its place unless asked for.
    pub fn best(
        shape: &Shape,
        element: ElementType,
        device: &DeviceLimits,
    ) -> Result<Self, KernelError> {
        let capability = device.compute_capability;
        if element == ElementType::Bf16 && capability < AMPERE {
            return Err(unsupported("bf16 on tensor cores", AMPERE, device));
        }
        let whole_rows = (shape.head_dim * element.bytes()).is_multiple_of(64);
        let order = match element {
            ElementType::F32 => [Self::SinglePrecision; 3],
            _ if whole_rows => [Self::Short, Self::Warpgroup, Self::Tiled],
            _ if shape.frames <= 48 => [Self::Tiled, Self::Short, Self::General],
            _ => [Self::Warpgroup, Self::Tiled, Self::General],
        };
        let fits = |variant: &Self| {
            let parameters = variant.default_parameters(shape);
            variant.check(shape, element, device).is_ok()
                && variant.shared_bytes(shape, &parameters)
                    <= device.max_shared_bytes_per_block_opt_in
        };
        Ok(order.into_iter().find(fits).unwrap_or(Self::General))
    }

    /// Checks that the variant takes the shape and type, and the device has its instructions.
    pub(super) fn check(
        self,
        shape: &Shape,
        element: ElementType,
        device: &DeviceLimits,
    ) -> Result<(), KernelError> {
        let is_half = element != ElementType::F32;
        let pieces = shape.head_dim.is_multiple_of(8);
        let (takes, what, needed) = match self {
            Self::General => return Ok(()),
            Self::Short => (
                is_half && pieces && shape.frames <= SHORT_FRAMES,
                "f16 or bf16, at most 32 frames, a head dimension that is a multiple of 8",
                AMPERE,
            ),
            Self::Tiled | Self::Warpgroup => (
                is_half && pieces && shape.frames <= MAX_FRAMES,
                "f16 or bf16, at most 128 frames, a head dimension that is a multiple of 8",
                match (self, element) {
                    (Self::Warpgroup, _) => HOPPER,
                    (_, ElementType::Bf16) => AMPERE,
                    _ => TURING,
                },
            ),
            Self::SinglePrecision => (
                !is_half && shape.head_dim.is_multiple_of(4) && shape.frames <= MAX_FRAMES,
                "f32, at most 128 frames, a head dimension that is a multiple of 4",
                TURING,
            ),
        };
        if !takes {
            return Err(KernelError::Variant { variant: self.name(), takes: what });
        }
        let capability = device.compute_capability;
        // Later architectures do not have Hopper's.
        if capability < needed || (self == Self::Warpgroup && capability != HOPPER) {
            return Err(unsupported(self.instructions(element), needed, device));
        }
        Ok(())
    }

    const fn instructions(self, element: ElementType) -> &'static str {
        match (self, element) {
            (Self::Warpgroup, _) => "warpgroup matrix instructions",
            (_, ElementType::Bf16) => "bf16 on tensor cores",
            (Self::Short, _) => "m16n8k16 matrix instructions",
            _ => "tensor cores",
        }
    }

    /// The launch parameters that were fastest on an NVIDIA H200.
    #[must_use]
    pub const fn default_parameters(self, shape: &Shape) -> LaunchParameters {
        let tiles = shape.frames.div_ceil(ROWS);
        let one = LaunchParameters::ONE;
        match self {
            Self::General => LaunchParameters { warps: GENERAL_WARPS, ..one },
            // A block of one warp is too short-lived where there are few frames.
            Self::Short if shape.frames <= 8 => LaunchParameters { problems: 2, ..one },
            Self::Short => one,
            Self::Tiled if shape.frames <= 8 => LaunchParameters { problems: 2, ..one },
            Self::Tiled if shape.head_dim <= 80 => {
                LaunchParameters { warps: tiles.div_ceil(2), ..one }
            }
            Self::Tiled => LaunchParameters { warps: tiles, ..one },
            Self::Warpgroup if shape.frames > 64 && shape.head_dim > 96 => {
                LaunchParameters { warps: 8, ..one }
            }
            Self::Warpgroup => LaunchParameters { warps: 4, ..one },
            Self::SinglePrecision => match tiles {
                1 => LaunchParameters { problems: 2, ..one },
                2 => LaunchParameters { warps: 2, ..one },
                _ => LaunchParameters { warps: tiles.div_ceil(2), ..one },
            },
        }
    }

    /// Checks launch parameters of the caller's.
    pub(super) fn check_parameters(
        self,
        shape: &Shape,
        parameters: &LaunchParameters,
    ) -> Result<(), KernelError> {
        let LaunchParameters { warps, problems, rounds, stages } = *parameters;
        let tiles = shape.frames.div_ceil(ROWS);
        let rotates = matches!(self, Self::Tiled | Self::Warpgroup);
        let warps_taken = match self {
            Self::General => GENERAL_WARPS..=GENERAL_WARPS,
            Self::Short => 1..=1,
            Self::Tiled | Self::SinglePrecision => 1..=tiles,
            Self::Warpgroup => 4..=8,
        };
        let side_by_side = match self {
            Self::General | Self::Warpgroup => 1,
            _ if warps > 1 => NAMED_BARRIERS.min(MAX_THREADS / (WARP * warps.min(tiles))),
            _ => MAX_THREADS / WARP,
        };
        let limits = [
            ("warps", warps, warps_taken),
            ("problems", problems, 1..=side_by_side),
            ("rounds", rounds, 1..=if rotates { MAX_ROUNDS } else { 1 }),
            ("stages", stages, 1..=if rotates && rounds > 1 { 2 } else { 1 }),
        ];
        for (parameter, given, taken) in limits {
            let whole_groups = self != Self::Warpgroup || warps.is_multiple_of(4);
            if !taken.contains(&given) || (parameter == "warps" && !whole_groups) {
                let (least, most) = taken.into_inner();
                let expected = match (self, parameter) {
                    (Self::Warpgroup, "warps") => "4 or 8".into(),
                    _ if least == most => most.to_string(),
                    _ => format!("{least} to {most}"),
                };
                let variant = self.name();
                return Err(KernelError::LaunchParameter { variant, parameter, given, expected });
            }
        }
        Ok(())
    }

    /// Launch parameters worth measuring, the default first.
    pub(super) fn candidates(self, shape: &Shape) -> Vec<LaunchParameters> {
        let default = self.default_parameters(shape);
        let mut candidates = vec![default];
        for warps in [1, 2, 3, 4, 6, 8] {
            for problems in [1, 2, 4, 8] {
                for (rounds, stages) in [(1, 1), (2, 2), (4, 2), (8, 2)] {
                    let one = LaunchParameters { warps, problems, rounds, stages };
                    if one != default && self.check_parameters(shape, &one).is_ok() {
                        candidates.push(one);
                    }
                }
            }
        }
        candidates
    }

    /// Dynamic shared memory of a block.
    pub(super) const fn shared_bytes(self, shape: &Shape, parameters: &LaunchParameters) -> u64 {
        let Shape { frames, head_dim, .. } = *shape;
        let pieces = head_dim / 8;
        match self {
            // Queries and values in whole float4, keys in an odd number of them.
            Self::General => {
                let quads = head_dim.div_ceil(4);
                GENERAL_TILE * PIECE_BYTES * (2 * quads + (quads | 1))
            }
            Self::Short => 0,
            Self::Tiled => {
                parameters.stages * parameters.problems * 3 * frames * (pieces | 1) * PIECE_BYTES
            }
            Self::Warpgroup => {
                let rows = frames.next_multiple_of(ROWS);
                // An odd piece is paired, for the narrowest swizzle.
                parameters.stages * 3 * rows * pieces.next_multiple_of(2) * PIECE_BYTES
            }
            Self::SinglePrecision => {
                // The weights of a tile: 16 rows of 16 keys, padded to 20.
                let weights = parameters.warps * 16 * 20;
                parameters.problems * 4 * (2 * frames * head_dim + weights)
            }
        }
    }

    /// What memory must be aligned to, in bytes.
    pub(super) const fn alignment(self) -> Option<u64> {
        match self {
            Self::General => None,
            _ => Some(PIECE_BYTES),
        }
    }
}

fn unsupported(
    what: &'static str,
    needed: ComputeCapability,
    device: &DeviceLimits,
) -> KernelError {
    KernelError::Unsupported {
        what,
        needed,
        device: device.name.clone(),
        capability: device.compute_capability,
        remedy: "use f16, or ask for the general variant, which computes in f32",
    }
}

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
    fn each_shape_has_its_variant() {
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
        assert_eq!(best(33, 64, f16, 10, 0), Variant::Tiled);
        assert_eq!(best(16, 60, f16, 9, 0), Variant::General);
        assert_eq!(best(129, 64, f16, 9, 0), Variant::General);
        assert_eq!(best(16, 64, f32, 9, 0), Variant::SinglePrecision);
        assert_eq!(best(16, 63, f32, 9, 0), Variant::General);
        assert_eq!(best(16, 64, f16, 7, 5), Variant::Tiled);
        // 104 KB of shared memory where 99 are to be had.
        assert_eq!(best(128, 128, f16, 8, 6), Variant::General);
    }

    #[test]
    fn bf16_on_turing_is_an_error_that_says_why() {
        let error = Variant::best(&shape(16, 64), ElementType::Bf16, &device(7, 5));
        let error = error.expect_err("no tensor cores for it").to_string();
        assert!(
            error.starts_with("bf16 on tensor cores needs compute capability 8.0, "),
            "{error}"
        );
        assert!(
            error.ends_with(
                "has 7.5: use f16, or ask for the general variant, which computes in f32"
            )
        );
    }

    #[test]
    fn a_variant_says_what_it_takes() {
        let check = |variant: Variant, frames, element, major| {
            variant.check(&shape(frames, 64), element, &device(major, 0)).map_err(|e| e.to_string())
        };
        assert_eq!(check(Variant::Tiled, 128, ElementType::F16, 9), Ok(()));
        assert_eq!(
            check(Variant::Short, 33, ElementType::F16, 9).expect_err("too many frames"),
            "the short variant takes f16 or bf16, at most 32 frames, a head dimension that is a \
             multiple of 8"
        );
        let newer = check(Variant::Warpgroup, 64, ElementType::F16, 10).expect_err("not Hopper");
        assert!(newer.starts_with("warpgroup matrix instructions needs compute capability 9.0"));
    }

    #[test]
    fn launch_parameters_out_of_range_are_errors_and_candidates_are_not() {
        let refused = |variant: Variant, parameters| {
            let checked = variant.check_parameters(&shape(81, 64), &parameters);
            checked.expect_err("refused").to_string()
        };
        let one = LaunchParameters::ONE;
        assert_eq!(
            refused(Variant::Warpgroup, LaunchParameters { warps: 6, ..one }),
            "warps is 6, the warpgroup variant takes 4 or 8 here"
        );
        assert_eq!(
            refused(Variant::Tiled, LaunchParameters { warps: 3, stages: 2, ..one }),
            "stages is 2, the tiled variant takes 1 here"
        );
        assert_eq!(
            refused(Variant::Tiled, LaunchParameters { warps: u64::MAX, ..one }),
            "warps is 18446744073709551615, the tiled variant takes 1 to 6 here"
        );
        for variant in Variant::ALL {
            for frames in [1, 16, 81, 128] {
                let shape = shape(frames, 64);
                let candidates = variant.candidates(&shape);
                for parameters in &candidates {
                    assert!(variant.check_parameters(&shape, parameters).is_ok(), "{variant}");
                    assert!(parameters.threads() <= MAX_THREADS);
                }
                assert_eq!(candidates[0], variant.default_parameters(&shape));
            }
        }
    }
}
