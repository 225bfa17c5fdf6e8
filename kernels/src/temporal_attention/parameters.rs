//! The launch parameters of each variant: defaults, limits, and candidates for the tuner.

use core::ops::RangeInclusive;

use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest};

use super::flash::{self, Division};
use super::shape::{ROWS, Shape};
use super::variant::Variant;
use crate::element::ElementType;
use crate::error::{KernelError, range};
use crate::operation::{VECTOR_BYTES, WARP, named, refused, replaced};

/// Threads of a block of the general kernel.
const GENERAL_WARPS: u64 = 4;
/// Rows of a tile in shared memory of the general kernel.
const GENERAL_TILE: u64 = 32;
/// The most threads of a block.
const MAX_THREADS: u64 = 1024;
/// Barriers of a block besides the one for all threads.
const NAMED_BARRIERS: u64 = 15;
/// This many problems keep all multiprocessors of a device busy, even with several problems for each block.
pub(super) const MANY_PROBLEMS: u64 = 1 << 14;
/// From this shared memory on, so few problems fit on a multiprocessor that each needs more warps.
const LARGE_PROBLEM_BYTES: u64 = 64 << 10;
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
    pub(super) const ONE: Self = Self { warps: 1, problems: 1, rounds: 1, stages: 1, flat: 1 };

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

    pub(super) const fn axis(&self) -> Axis {
        if self.flat == 1 { Axis::X } else { Axis::Y }
    }

    /// The launch over all problems of a shape, with `shared_bytes` of shared memory for each block.
    pub(super) fn grid(&self, shape: &Shape, shared_bytes: u64) -> (LaunchRequest, BatchAxis) {
        let (axis, per_block) = (self.axis(), self.problems_per_block());
        let grid = Dim3::ONE.with(axis, shape.problems().div_ceil(per_block));
        let request = LaunchRequest::new(grid, Dim3::new(self.threads(), 1, 1));
        let batch = BatchAxis::new(axis, shape.items);
        let batch = batch.blocks_per_items(shape.heads, per_block);
        (request.dynamic_shared_bytes(shared_bytes), batch)
    }

    /// These values, replaced by the `given` ones of the same name. They are not checked.
    pub(super) fn with(
        &self,
        kernel: &'static str,
        given: &[(String, u64)],
    ) -> Result<Self, KernelError> {
        let [warps, problems, rounds, stages, flat] = replaced(kernel, self.named(), given)?;
        Ok(Self { warps, problems, rounds, stages, flat })
    }

    /// Checks the values for a kernel that takes these numbers of warps, and several rounds if it `rotates`.
    pub(super) fn check(
        &self,
        kernel: &'static str,
        warps_taken: RangeInclusive<u64>,
        rotates: bool,
    ) -> Result<(), KernelError> {
        let Self { warps, rounds, .. } = *self;
        let limits = [
            ("flat", self.flat, 0..=1),
            ("warps", warps, warps_taken),
            ("problems", self.problems, 1..=side_by_side(warps)),
            ("rounds", rounds, 1..=if rotates { MAX_ROUNDS } else { 1 }),
            ("stages", self.stages, 1..=if rotates && rounds > 1 { 2 } else { 1 }),
        ];
        for (parameter, given, taken) in limits {
            if !taken.contains(&given) {
                return refused(kernel, parameter, given, range(*taken.start(), *taken.end()));
            }
        }
        Ok(())
    }

    /// Combinations worth measuring that a kernel takes, this one first.
    pub(super) fn candidates(&self, is_taken: impl Fn(&Self) -> bool) -> Vec<Self> {
        let mut candidates = vec![*self];
        for warps in [1, 2, 3, 4, 6, 8, 16] {
            for problems in [1, 2, 4, 8] {
                for (rounds, stages) in [(1, 1), (2, 2), (4, 2), (8, 2)] {
                    let one = Self { warps, problems, rounds, stages, ..*self };
                    if one != *self && is_taken(&one) {
                        candidates.push(one);
                    }
                }
            }
        }
        candidates
    }

    /// The candidates with their names, in this layout, then in the other one.
    pub(super) fn in_both_layouts(&self, candidates: &[Self]) -> Vec<Vec<(String, u64)>> {
        let in_layout =
            |flat: u64| candidates.iter().map(move |one| named(Self { flat, ..*one }.named()));
        [self.flat, 1 - self.flat].into_iter().flat_map(in_layout).collect()
    }
}

impl Variant {
    /// The launch parameters that were fastest on an NVIDIA H200.
    pub(super) fn default_parameters(
        self,
        shape: &Shape,
        element: ElementType,
    ) -> LaunchParameters {
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
            Self::Flash => match flash::most_warps(shape) {
                // A block with one warp is too short-lived.
                1 if element != ElementType::F32
                    && shape.longest() <= ROWS
                    && shape.widest() <= 128 =>
                {
                    LaunchParameters { problems: 2, ..one }
                }
                // Two tiles of queries share each load of a key.
                warps @ 7.. if shape.widest() <= flash::PAIRED_HEAD_DIM => {
                    LaunchParameters { warps: warps.div_ceil(2), ..one }
                }
                warps => LaunchParameters { warps: warps.min(8), ..one },
            },
            Self::Warpgroup => {
                let is_large = shape.frames > 64
                    && self.shared_bytes(shape, element, &one) > LARGE_PROBLEM_BYTES;
                let warps = if is_large { 8 } else { 4 };
                let (rounds, stages) = match shape.longest() {
                    _ if shape.problems() < MANY_PROBLEMS => (1, 1),
                    // A block keeps a processor busy only if it loads the next problem in time.
                    ..=64 => (8, 2),
                    ..=96 if shape.head_dim <= 32 => (8, 2),
                    ..=96 if shape.head_dim <= 64 => (2, 1),
                    _ => (1, 1),
                };
                LaunchParameters { warps, rounds, stages, ..one }
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
        element: ElementType,
        parameters: &LaunchParameters,
    ) -> Result<(), KernelError> {
        let warps_taken = match self {
            Self::General => GENERAL_WARPS..=GENERAL_WARPS,
            Self::Short => 1..=1,
            Self::Tiled | Self::SinglePrecision => 1..=shape.frames.div_ceil(ROWS),
            Self::Flash => 1..=flash::most_warps(shape),
            Self::Warpgroup if !matches!(parameters.warps, 4 | 8 | 16) => {
                return refused(self.name(), "warps", parameters.warps, "4, 8 or 16");
            }
            Self::Warpgroup => 4..=16,
        };
        let is_alone = match self {
            Self::General | Self::Warpgroup => true,
            Self::Flash => Division::of(shape, element, parameters.warps).streamed,
            _ => false,
        };
        if is_alone && parameters.problems != 1 {
            return refused(self.name(), "problems", parameters.problems, "1");
        }
        parameters.check(self.name(), warps_taken, matches!(self, Self::Tiled | Self::Warpgroup))
    }

    /// Launch parameters worth measuring, the default first.
    pub(super) fn candidates(self, shape: &Shape, element: ElementType) -> Vec<LaunchParameters> {
        let is_taken = |one: &LaunchParameters| self.check_parameters(shape, element, one).is_ok();
        self.default_parameters(shape, element).candidates(is_taken)
    }

    /// Dynamic shared memory of a block.
    pub(super) fn shared_bytes(
        self,
        shape: &Shape,
        element: ElementType,
        parameters: &LaunchParameters,
    ) -> u64 {
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
            Self::Flash => {
                parameters.problems * Division::of(shape, element, parameters.warps).bytes
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

/// The most problems side by side in a block.
fn side_by_side(warps: u64) -> u64 {
    let most = MAX_THREADS / WARP.saturating_mul(warps.max(1));
    if warps > 1 { most.min(NAMED_BARRIERS) } else { most }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(frames: u64) -> Shape {
        Shape::new(1, 1, frames, 64).expect("legal")
    }

    #[test]
    fn the_defaults_of_any_number_of_keys_fit_into_a_block_of_hopper() {
        let lengths =
            [(1, 128), (8, 128), (16, 128), (17, 128), (64, 64), (96, 96), (128, 1), (128, 128)];
        for (frames, keys) in lengths {
            let shape = Shape::new(1, 1, frames, 128).expect("legal");
            let shape = shape.with_keys(keys).expect("legal");
            for variant in Variant::ALL {
                let parameters = variant.default_parameters(&shape, ElementType::F16);
                assert!(
                    variant.shared_bytes(&shape, ElementType::F16, &parameters) <= 227 << 10,
                    "{variant}: {shape:?}"
                );
            }
        }
    }

    #[test]
    fn a_large_problem_has_more_warpgroups_and_a_short_one_loads_the_next() {
        let defaults = |frames, head_dim| {
            let shape = Shape::new(1 << 15, 1, frames, head_dim).expect("legal");
            let LaunchParameters { warps, rounds, stages, .. } =
                Variant::Warpgroup.default_parameters(&shape, ElementType::F16);
            (warps, rounds, stages)
        };
        assert_eq!(defaults(49, 32), (4, 8, 2));
        assert_eq!(defaults(82, 32), (4, 8, 2));
        assert_eq!(defaults(81, 64), (4, 2, 1));
        assert_eq!(defaults(128, 64), (4, 1, 1));
        assert_eq!(defaults(128, 128), (8, 1, 1));
        assert_eq!(defaults(163, 32), (4, 1, 1));
        assert_eq!(defaults(256, 64), (8, 1, 1));
        assert_eq!(defaults(512, 64), (8, 1, 1));
    }

    #[test]
    fn launch_parameters_out_of_range_are_errors_and_candidates_are_not() {
        let refused = |variant: Variant, parameters| {
            let checked = variant.check_parameters(&shape(81), ElementType::F16, &parameters);
            checked.expect_err("refused").to_string()
        };
        let one = LaunchParameters::ONE;
        assert_eq!(
            refused(Variant::Warpgroup, LaunchParameters { warps: 6, ..one }),
            "warps is 6, the warpgroup variant takes 4, 8 or 16 here"
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
                let candidates = variant.candidates(&shape, ElementType::F16);
                for parameters in &candidates {
                    assert!(
                        variant.check_parameters(&shape, ElementType::F16, parameters).is_ok(),
                        "{variant}"
                    );
                    assert!(parameters.threads() <= MAX_THREADS);
                }
                assert_eq!(candidates[0], variant.default_parameters(&shape, ElementType::F16));
            }
        }
    }
}
