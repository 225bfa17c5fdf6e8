//! The launch parameters of each variant: defaults, limits, and candidates for the tuner.

use super::shape::Shape;
use super::variant::Variant;
use crate::error::KernelError;
use crate::operation::{VECTOR_BYTES, WARP, refused};

/// Threads of a block of the general kernel.
const GENERAL_WARPS: u64 = 4;
/// Rows of a tile in shared memory of the general kernel.
const GENERAL_TILE: u64 = 32;
/// Queries in a tile of the tensor cores.
const ROWS: u64 = 16;
/// The most threads of a block.
const MAX_THREADS: u64 = 1024;
/// Barriers of a block besides the one for all threads.
const NAMED_BARRIERS: u64 = 15;
/// As many problems keep all processors of a device busy, also with several for each block.
const MANY_PROBLEMS: u64 = 1 << 14;
/// More rounds than this gain nothing.
const MAX_ROUNDS: u64 = 64;

/// How a variant distributes its work. A tuner may change it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LaunchParameters {
    /// Warps that share a problem.
    pub(super) warps: u64,
    /// Problems that a block computes concurrently.
    pub(super) problems: u64,
    /// Problems that follow each other in each of these slots.
    pub(super) rounds: u64,
    /// 2 loads the next round's problem while computing this one, 1 does not.
    pub(super) stages: u64,
    /// The layout: 1 is flat on x, 0 folded on y.
    pub(super) flat: u64,
}

impl LaunchParameters {
    const ONE: Self = Self { warps: 1, problems: 1, rounds: 1, stages: 1, flat: 1 };

    /// The values with their names.
    pub(super) const fn named(&self) -> [(&'static str, u64); 5] {
        let Self { warps, problems, rounds, stages, flat } = *self;
        [
            ("warps", warps),
            ("problems", problems),
            ("rounds", rounds),
            ("stages", stages),
            ("flat", flat),
        ]
    }

    /// Problems of a block.
    pub(super) const fn problems_per_block(&self) -> u64 {
        self.problems * self.rounds
    }

    pub(super) const fn threads(&self) -> u64 {
        WARP * self.warps * self.problems
    }
}

impl Variant {
    /// The launch parameters that were fastest on an NVIDIA H200.
    pub(super) fn default_parameters(self, shape: &Shape) -> LaunchParameters {
        let tiles = shape.frames.div_ceil(ROWS);
        let one = LaunchParameters::ONE;
        match self {
            Self::General => LaunchParameters { warps: GENERAL_WARPS, ..one },
            // With few frames, a block of one warp is too short-lived.
            Self::Short if shape.longest() <= 8 => LaunchParameters { problems: 2, ..one },
            Self::Short => one,
            Self::Tiled if shape.longest() <= 8 => LaunchParameters { problems: 2, ..one },
            Self::Tiled if shape.head_dim <= 80 => {
                LaunchParameters { warps: tiles.div_ceil(2), ..one }
            }
            Self::Tiled => LaunchParameters { warps: tiles, ..one },
            Self::Warpgroup => {
                let warps = if shape.frames > 64 && shape.head_dim > 96 { 8 } else { 4 };
                let rounds = match shape.longest() {
                    // A block keeps a processor busy only if it loads the next problem in time.
                    ..=64 => 8,
                    129..=192 if shape.head_dim <= 32 => 4,
                    _ => 1,
                };
                let rounds = if shape.problems() < MANY_PROBLEMS { 1 } else { rounds };
                LaunchParameters { warps, rounds, stages: rounds.min(2), ..one }
            }
            Self::SinglePrecision => match tiles {
                // Two problems with many keys exceed the shared memory of a block.
                1 if shape.longest() <= ROWS => LaunchParameters { problems: 2, ..one },
                1 => one,
                2 => LaunchParameters { warps: 2, ..one },
                _ => LaunchParameters { warps: tiles.div_ceil(2), ..one },
            },
        }
    }

    /// Checks that the variant supports launch parameters.
    pub(super) fn check_parameters(
        self,
        shape: &Shape,
        parameters: &LaunchParameters,
    ) -> Result<(), KernelError> {
        let LaunchParameters { warps, problems, rounds, stages, flat } = *parameters;
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
            ("flat", flat, 0..=1),
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
                    (_, "flat") => "0 or 1".into(),
                    (Self::Warpgroup, "warps") => "4 or 8".into(),
                    _ if least == most => most.to_string(),
                    _ => format!("{least} to {most}"),
                };
                return refused(self.name(), parameter, given, expected);
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
                    let one = LaunchParameters { warps, problems, rounds, stages, ..default };
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
        let Shape { frames, keys, head_dim, .. } = *shape;
        let pieces = head_dim / 8;
        match self {
            // Queries and values in whole float4, keys in an odd number of them.
            Self::General => {
                let quads = head_dim.div_ceil(4);
                GENERAL_TILE * VECTOR_BYTES * (2 * quads + (quads | 1))
            }
            Self::Short => 0,
            Self::Tiled => {
                let rows = frames + 2 * keys;
                parameters.stages * parameters.problems * rows * (pieces | 1) * VECTOR_BYTES
            }
            Self::Warpgroup => {
                let rows = frames.next_multiple_of(ROWS) + 2 * keys.next_multiple_of(ROWS);
                // The narrowest swizzle needs an even number of vectors.
                parameters.stages * rows * pieces.next_multiple_of(2) * VECTOR_BYTES
            }
            Self::SinglePrecision => {
                // The weights of a tile: 16 rows of 16 keys, padded to 20.
                let weights = parameters.warps * 16 * 20;
                parameters.problems * 4 * (2 * keys * head_dim + weights)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(frames: u64) -> Shape {
        Shape::new(1, 1, frames, 64).expect("legal")
    }

    #[test]
    fn the_defaults_of_any_number_of_keys_fit_into_a_block_of_hopper() {
        for (frames, keys) in [(1, 128), (8, 128), (16, 128), (17, 128), (128, 1), (128, 128)] {
            let shape = Shape::new(1, 1, frames, 128).expect("legal");
            let shape = shape.with_keys(keys).expect("legal");
            for variant in Variant::ALL {
                let parameters = variant.default_parameters(&shape);
                assert!(
                    variant.shared_bytes(&shape, &parameters) <= 227 << 10,
                    "{variant}: {shape:?}"
                );
            }
        }
    }

    #[test]
    fn launch_parameters_out_of_range_are_errors_and_candidates_are_not() {
        let refused = |variant: Variant, parameters| {
            let checked = variant.check_parameters(&shape(81), &parameters);
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
                let shape = shape(frames);
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
