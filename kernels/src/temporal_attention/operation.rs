//! One attention operation: shape, variant, options and launch parameters.

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest, Parameter};

use super::parameters::LaunchParameters;
use super::shape::Shape;
use super::variant::Variant;
use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, U64, memory, refused, replaced};

/// The grid axis that numbers items and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Folded on y, which allows 65,535 blocks: the layout that overflows.
    FoldedY,
    /// Flat on x, which allows 2^31 - 1 blocks.
    FlatX,
}

impl Layout {
    /// Both layouts.
    pub const ALL: [Self; 2] = [Self::FoldedY, Self::FlatX];

    /// The axis.
    #[must_use]
    pub const fn axis(self) -> Axis {
        match self {
            Self::FoldedY => Axis::Y,
            Self::FlatX => Axis::X,
        }
    }

    /// The layout as a launch parameter. The kernels support both.
    fn flat(self) -> (&'static str, u64) {
        (FLAT, u64::from(self == Self::FlatX))
    }
}

/// The launch parameter that chooses the layout: 1 for flat on x, 0 for folded on y.
const FLAT: &str = "flat";

/// Attention over a shape; by default flat on x, contiguous, without mask or bias.
///
/// ```
/// use gridguard::{DeviceLimits, Dim3};
/// use gridguard_kernels::temporal_attention::{Layout, Shape, TemporalAttention};
/// use gridguard_kernels::{ElementType, Operation};
///
/// let shape = Shape::new(15_360, 5, 16, 64)?;
/// let attention = TemporalAttention::new(shape, ElementType::F16, &DeviceLimits::any_device())?;
/// let folded = attention.with_layout(Layout::FoldedY);
/// assert_eq!(folded.request().grid.y, 76_800);
/// # Ok::<(), gridguard_kernels::KernelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct TemporalAttention {
    pub(super) shape: Shape,
    pub(super) element: ElementType,
    layout: Layout,
    pub(super) causal: bool,
    biased: bool,
    pub(super) strided: bool,
    pub(super) variant: Variant,
    parameters: LaunchParameters,
}

impl TemporalAttention {
    /// Attention by the fastest variant for the shape on `device`.
    ///
    /// # Errors
    ///
    /// Those of [`Variant::best`].
    pub fn new(
        shape: Shape,
        element: ElementType,
        device: &DeviceLimits,
    ) -> Result<Self, KernelError> {
        let variant = Variant::best(&shape, element, device)?;
        Self::by_variant(shape, element, device, variant)
    }

    /// Attention by the given variant.
    ///
    /// # Errors
    ///
    /// [`KernelError::Variant`] if it does not support the shape or type, [`KernelError::Unsupported`]
    /// if `device` lacks its instructions.
    pub fn by_variant(
        shape: Shape,
        element: ElementType,
        device: &DeviceLimits,
        variant: Variant,
    ) -> Result<Self, KernelError> {
        variant.check(&shape, element, device)?;
        Ok(Self {
            shape,
            element,
            layout: Layout::FlatX,
            causal: false,
            biased: false,
            strided: false,
            variant,
            parameters: variant.default_parameters(&shape),
        })
    }

    /// Numbers items and heads along this axis.
    pub const fn with_layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// A causal mask: query n attends to the first n + 1 keys.
    pub const fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// Adds a bias of the tensors' type to the scaled scores: `[frames, keys]` for all items and heads, or with
    /// strides `[items, heads, frames, keys]`. -inf hides a key. A query with all keys hidden gives zeros.
    pub const fn with_bias(mut self) -> Self {
        self.biased = true;
        self
    }

    /// Allows any strides on the first three axes of tensors and bias, for example
    /// `[batch, frames, heads, head_dim]` with two axes swapped. Rows must be contiguous.
    pub const fn with_strides(mut self) -> Self {
        self.strided = true;
        self
    }

    /// The same without mask, bias and strides.
    pub const fn plain(mut self) -> Self {
        (self.causal, self.biased, self.strided) = (false, false, false);
        self
    }

    /// The shape.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The variant.
    #[must_use]
    pub const fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether there is a bias.
    #[must_use]
    pub const fn is_biased(&self) -> bool {
        self.biased
    }

    /// Bytes of the strides, if the kernel takes them.
    pub(super) const fn strides_bytes(&self) -> usize {
        if self.biased { BIASED_STRIDES_BYTES } else { STRIDES_BYTES }
    }

    /// Checks that a bias is given if and only if the operation has one.
    #[cfg(any(feature = "cuda", feature = "host"))]
    pub(super) const fn check_bias(&self, is_given: bool) -> Result<(), KernelError> {
        let (given, expected) = match (is_given, self.biased) {
            (true, false) => ("given", "without"),
            (false, true) => ("not given", "with"),
            _ => return Ok(()),
        };
        Err(KernelError::Argument { argument: "bias", given, expected })
    }
}

/// Bytes of `Strides` in `cu/attention.cu` without a bias: three strides of four tensors.
pub(crate) const STRIDES_BYTES: usize = 4 * 3 * 8;
/// Bytes of `Strides` with a bias.
pub(super) const BIASED_STRIDES_BYTES: usize = 5 * 3 * 8;

impl Sealed for TemporalAttention {}

impl Operation for TemporalAttention {
    const KERNEL: &'static str = "temporal_attention";
    const SIZES: &'static [&'static str] = &["items", "heads", "frames", "head_dim"];

    fn size_values(&self) -> Vec<u64> {
        self.shape.dims().into()
    }

    fn dtypes(&self) -> String {
        self.element.to_string()
    }

    /// For example `short y causal keys=77`: the variant, the requested grid axis, the options, and the number of
    /// keys if it differs from the number of frames. A tuned choice may move the launch to the other axis by its
    /// launch parameter `flat`.
    fn variant(&self) -> String {
        let axis = match self.layout {
            Layout::FoldedY => "y",
            Layout::FlatX => "x",
        };
        let mut words = vec![self.variant.name(), axis];
        let options = [("causal", self.causal), ("bias", self.biased), ("strided", self.strided)];
        words.extend(options.iter().filter(|(_, set)| *set).map(|(word, _)| *word));
        let Shape { frames, keys, .. } = self.shape;
        let keys = (keys != frames).then(|| format!("keys={keys}"));
        words.extend(keys.as_deref());
        words.join(" ")
    }

    fn parameters(&self) -> Vec<(String, u64)> {
        self.parameters.with_layout(self.layout.flat())
    }

    /// The condition of `THROUGH_REGISTERS` in `tiled_attention.cu`.
    fn loads_through_cache(&self) -> bool {
        let shape = &self.shape;
        self.variant == Variant::Tiled && shape.head_dim.is_multiple_of(16) && shape.longest() <= 32
    }

    /// The candidates of the variant in this layout, then in the other one.
    fn candidates(&self) -> Vec<Vec<(String, u64)>> {
        let others = Layout::ALL.into_iter().filter(|layout| *layout != self.layout);
        let of_variant = self.variant.candidates(&self.shape);
        let in_layout =
            |layout: Layout| of_variant.iter().map(move |one| one.with_layout(layout.flat()));
        [self.layout].into_iter().chain(others).flat_map(in_layout).collect()
    }

    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        let [warps, problems, rounds, stages] = self.parameters.named();
        let now = [warps, problems, rounds, stages, self.layout.flat()];
        let [warps, problems, rounds, stages, flat] = replaced(Self::KERNEL, now, parameters)?;
        let layout = match flat {
            0 => Layout::FoldedY,
            1 => Layout::FlatX,
            given => return refused(self.variant.name(), FLAT, given, "0 or 1"),
        };
        let wanted = LaunchParameters { warps, problems, rounds, stages };
        self.variant.check_parameters(&self.shape, &wanted)?;
        Ok(Self { parameters: wanted, layout, ..*self })
    }

    fn code(&self, device: &DeviceLimits) -> Result<Code, KernelError> {
        self.variant.check(&self.shape, self.element, device)?;
        let mut parameters = vec![memory(self.variant.loads_vectors()); 4];
        if self.biased {
            parameters.push(Parameter::Memory);
        }
        parameters.extend([U64, Parameter::of::<u32>()]);
        if self.strided {
            parameters.push(Parameter::Value { bytes: self.strides_bytes() });
        }
        parameters.push(Parameter::of::<f32>());

        let mut defines = vec![
            ("ELEMENT", self.element.number()),
            ("CAUSAL", self.causal.into()),
            ("BIAS", self.biased.into()),
            ("STRIDED", self.strided.into()),
        ];
        if self.variant == Variant::General {
            parameters.extend([Parameter::of::<u32>(); 3]);
        } else {
            let Shape { frames, keys, head_dim, .. } = self.shape;
            defines.extend([("FRAMES", frames), ("KEYS", keys), ("HEAD_DIM", head_dim)]);
        }
        let LaunchParameters { warps, problems, rounds, stages } = self.parameters;
        let (warps, problems) = (("WARPS", warps), ("PROBLEMS", problems));
        let (rounds, stages) = (("ROUNDS", rounds), ("STAGES", stages));
        match self.variant {
            Variant::General => {}
            Variant::Short => defines.push(problems),
            Variant::Tiled => defines.extend([warps, problems, rounds, stages]),
            Variant::Warpgroup => defines.extend([warps, rounds, stages]),
            Variant::SinglePrecision => defines.extend([warps, problems]),
        }
        let (kernel, source) = self.variant.code();
        let architecture_specific = self.variant == Variant::Warpgroup;
        Ok(Code { kernel, source, defines, architecture_specific, parameters })
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let (axis, per_block) = (self.layout.axis(), self.parameters.problems_per_block());
        let grid = Dim3::ONE.with(axis, self.shape.problems().div_ceil(per_block));
        let request = LaunchRequest::new(grid, Dim3::new(self.parameters.threads(), 1, 1));
        let shared = self.variant.shared_bytes(&self.shape, &self.parameters);
        let batch = BatchAxis::new(axis, self.shape.items);
        (request.dynamic_shared_bytes(shared), batch.blocks_per_items(self.shape.heads, per_block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attention() -> TemporalAttention {
        let shape = Shape::new(15_360, 5, 16, 64).expect("legal");
        let device = DeviceLimits {
            compute_capability: gridguard::ComputeCapability::new(9, 0),
            ..DeviceLimits::any_device()
        };
        TemporalAttention::new(shape, ElementType::F16, &device).expect("served")
    }

    #[test]
    fn the_motivating_case_asks_for_76_800_blocks_on_y() {
        let folded = attention().with_layout(Layout::FoldedY);
        assert_eq!(folded.request().grid, Dim3::new(1, 76_800, 1));
        assert_eq!(attention().request().grid, Dim3::new(76_800, 1, 1));
    }

    #[test]
    fn blocks_of_several_problems_cover_all_of_them() {
        for problems in [1, 2, 4, 7, 32] {
            let parameters = [("problems".to_owned(), problems)];
            let several = attention().with_parameters(&parameters).expect("legal");
            let blocks = several.request().grid.x;
            assert_eq!(Some(blocks), several.batch().blocks(15_360));
            assert!(blocks * problems >= 76_800);
        }
    }

    #[test]
    fn both_layouts_are_candidates_and_a_choice_of_the_other_one_moves_the_grid() {
        for (asked, other) in [(Layout::FoldedY, Layout::FlatX), (Layout::FlatX, Layout::FoldedY)] {
            let attention = attention().with_layout(asked);
            let candidates = attention.candidates();
            assert_eq!(candidates[0], attention.parameters());
            let (own, others) = candidates.split_at(candidates.len() / 2);
            let flat = |layout: Layout| (FLAT.to_owned(), layout.flat().1);
            assert!(own.iter().all(|set| set.contains(&flat(asked))));
            assert!(others.iter().all(|set| set.contains(&flat(other))));
            for (own, moved) in own.iter().zip(others) {
                let [own, moved] =
                    [own, moved].map(|set| attention.with_parameters(set).expect("supported"));
                assert_eq!(own.with_layout(other), moved);
                assert_eq!(
                    (moved.batch().axis(), own.batch().axis()),
                    (other.axis(), asked.axis())
                );
            }
            // An entry from before there was a choice of layouts.
            let old = attention.with_parameters(&[("problems".to_owned(), 2)]).expect("supported");
            assert_eq!(old.batch().axis(), asked.axis());
            let error = attention.with_parameters(&[(FLAT.to_owned(), 2)]).expect_err("neither");
            assert!(error.to_string().contains("0 or 1"), "{error}");
        }
    }

    #[test]
    fn the_options_determine_the_kernel_parameters() {
        let count = |attention: TemporalAttention| {
            let device = DeviceLimits {
                compute_capability: gridguard::ComputeCapability::new(9, 0),
                ..DeviceLimits::any_device()
            };
            attention.code(&device).expect("supported").parameters.len()
        };
        assert_eq!(count(attention()), 7);
        assert_eq!(count(attention().with_bias()), 8);
        assert_eq!(count(attention().with_bias().with_strides().causal()), 9);
    }
}
