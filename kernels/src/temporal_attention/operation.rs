//! One attention operation: shape, variant, options and launch parameters.

use gridguard::{Axis, BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use super::flash::Division;
use super::parameters::LaunchParameters;
use super::shape::Shape;
use super::variant::Variant;
use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{Code, Operation, U64, memory, named};

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
    pub const fn axis(self) -> Axis {
        match self {
            Self::FoldedY => Axis::Y,
            Self::FlatX => Axis::X,
        }
    }
}

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
    pub(super) causal: bool,
    pub(super) biased: bool,
    /// Whether the bias is a boolean mask.
    pub(super) masked: bool,
    pub(super) strided: bool,
    pub(super) variant: Variant,
    pub(super) parameters: LaunchParameters,
}

impl TemporalAttention {
    /// Attention by the fastest variant for the shape on `device`.
    ///
    /// # Errors
    ///
    /// As [`Variant::best`].
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
            causal: false,
            biased: false,
            masked: false,
            strided: false,
            variant,
            parameters: variant.default_parameters(&shape, element),
        })
    }

    /// Numbers items and heads along this axis.
    pub const fn with_layout(mut self, layout: Layout) -> Self {
        self.parameters.flat = match layout {
            Layout::FoldedY => 0,
            Layout::FlatX => 1,
        };
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

    /// As [`Self::with_bias`], with a boolean mask of bytes: 0 hides a key. Only launches by address take one.
    pub const fn with_mask(mut self) -> Self {
        (self.biased, self.masked) = (true, true);
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
        (self.causal, self.strided) = (false, false);
        (self.biased, self.masked) = (false, false);
        self
    }

    /// The shape.
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The variant.
    pub const fn variant(&self) -> Variant {
        self.variant
    }

    /// Whether there is a bias.
    pub const fn is_biased(&self) -> bool {
        self.biased
    }

    /// Bytes of the strides of `tensors` tensors, and of the bias if there is one.
    pub(super) fn strides_bytes(&self, tensors: usize) -> usize {
        (tensors + usize::from(self.biased)) * STRIDE_BYTES
    }

    /// The parameters of a kernel with these tensors before the bias.
    pub(super) fn kernel_parameters(&self, tensors: usize, in_vectors: bool) -> Vec<Parameter> {
        let mut parameters = vec![memory(in_vectors); tensors];
        if self.biased {
            parameters.push(Parameter::Memory);
        }
        parameters.extend([U64, Parameter::of::<u32>()]);
        if self.strided {
            parameters.push(Parameter::Value { bytes: self.strides_bytes(tensors) });
        }
        parameters.push(Parameter::of::<f32>());
        parameters
    }

    /// The macros of type and options.
    pub(super) fn option_macros(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("ELEMENT", self.element.number()),
            ("CAUSAL", self.causal.into()),
            ("BIAS", u64::from(self.biased) + u64::from(self.masked)),
            ("STRIDED", self.strided.into()),
        ]
    }

    /// For example `x causal keys=77`: the axis and the options. The number of keys follows if it differs from the
    /// number of frames, and the head dimension of v if k has another.
    pub(super) fn described(&self, axis: Axis) -> String {
        let mut words = vec![if axis == Axis::X { "x" } else { "y" }];
        let options = [
            ("causal", self.causal),
            ("bias", self.biased),
            ("mask", self.masked),
            ("strided", self.strided),
        ];
        words.extend(options.iter().filter(|(_, set)| *set).map(|(word, _)| *word));
        let Shape { frames, keys, value_dim, .. } = self.shape;
        let keys = (keys != frames).then(|| format!("keys={keys}"));
        let value_dim = (!self.shape.has_equal_widths()).then(|| format!("value_dim={value_dim}"));
        words.extend(keys.as_deref());
        words.extend(value_dim.as_deref());
        words.join(" ")
    }

    /// The sizes that the general kernel takes as its last arguments; none for a kernel compiled for them.
    #[cfg(feature = "cuda")]
    pub(crate) fn runtime_sizes(&self) -> impl Iterator<Item = u32> + use<> {
        let Shape { frames, keys, head_dim, .. } = self.shape;
        let count = if self.variant == Variant::General { 3 } else { 0 };
        [frames, keys, head_dim].map(narrow).into_iter().take(count)
    }

    /// Checks that a bias of the tensors' type is given if and only if the operation has one.
    pub(super) const fn check_bias(&self, is_given: bool) -> Result<(), KernelError> {
        if self.masked {
            let (given, expected) = ("given otherwise", "with a mask by its address");
            return Err(KernelError::Argument { argument: "bias", given, expected });
        }
        check_given("bias", is_given, self.biased)
    }
}

/// Checks that an argument is given if and only if the operation was prepared with it.
pub(super) const fn check_given(
    argument: &'static str,
    is_given: bool,
    is_prepared: bool,
) -> Result<(), KernelError> {
    let (given, expected) = match (is_given, is_prepared) {
        (true, false) => ("given", "without"),
        (false, true) => ("not given", "with"),
        _ => return Ok(()),
    };
    Err(KernelError::Argument { argument, given, expected })
}

/// A size that the kernels count in 32 bits; a shape has no larger one.
#[cfg(feature = "cuda")]
pub(crate) fn narrow(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// Bytes of `Stride` in `cu/attention.cu`: three strides of a tensor.
pub(super) const STRIDE_BYTES: usize = 3 * 8;
/// Bytes of `Strides` without a bias.
#[cfg(feature = "cuda")]
pub(crate) const STRIDES_BYTES: usize = 4 * STRIDE_BYTES;

impl Operation for TemporalAttention {
    const KERNEL: &'static str = "temporal_attention";
    const SIZES: &'static [&'static str] = &["items", "heads", "frames", "head_dim"];
    const SOURCES: &'static [&'static str] = &[
        Variant::General.code().1,
        Variant::Short.code().1,
        Variant::Tiled.code().1,
        Variant::Flash.code().1,
        Variant::Warpgroup.code().1,
        Variant::SinglePrecision.code().1,
    ];

    fn problem(&self) -> (Vec<u64>, String) {
        (self.shape.dims().into(), self.element.to_string())
    }

    /// For example `short y causal keys=77`: the variant, the requested grid axis, the options, and the number of
    /// keys if it differs from the number of frames. A tuned choice may move the launch to the other axis by its
    /// launch parameter `flat`.
    fn variant(&self) -> String {
        format!("{} {}", self.variant, self.described(self.parameters.axis()))
    }

    fn parameters(&self) -> Vec<(String, u64)> {
        named(self.parameters.named())
    }

    /// If loads use registers and the L1 cache: the condition of `THROUGH_REGISTERS` in `tiled_attention.cu`.
    fn keeps_cache(&self) -> bool {
        let shape = &self.shape;
        self.variant == Variant::Tiled && shape.head_dim.is_multiple_of(16) && shape.longest() <= 32
    }

    /// The candidates of the variant in this layout, then in the other one.
    fn candidates(&self) -> Vec<Vec<(String, u64)>> {
        self.parameters.in_both_layouts(&self.variant.candidates(&self.shape, self.element))
    }

    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        let wanted = self.parameters.with(Self::KERNEL, parameters)?;
        self.variant.check_parameters(&self.shape, self.element, &wanted)?;
        Ok(Self { parameters: wanted, ..*self })
    }

    fn code(&self, device: &DeviceLimits) -> Result<Code, KernelError> {
        self.variant.check(&self.shape, self.element, device)?;
        let mut parameters = self.kernel_parameters(4, self.variant.loads_vectors());
        let mut defines = self.option_macros();
        if self.variant == Variant::General {
            parameters.extend([Parameter::of::<u32>(); 3]);
        } else {
            defines.extend(self.shape.macros());
        }
        let LaunchParameters { warps, problems, rounds, stages, .. } = self.parameters;
        let (warps, problems) = (("WARPS", warps), ("PROBLEMS", problems));
        let (rounds, stages) = (("ROUNDS", rounds), ("STAGES", stages));
        match self.variant {
            Variant::General => {}
            Variant::Short => defines.push(problems),
            Variant::Tiled => defines.extend([warps, problems, rounds, stages]),
            Variant::Flash => {
                let LaunchParameters { warps: count, .. } = self.parameters;
                defines.extend([warps, problems]);
                defines.extend(Division::of(&self.shape, self.element, count).macros());
                defines.push(("BLOCKS", 1));
                if !self.shape.has_equal_widths() {
                    defines.push(("VALUE_DIM", self.shape.value_dim));
                }
            }
            Variant::Warpgroup => defines.extend([warps, rounds, stages]),
            Variant::SinglePrecision => defines.extend([warps, problems]),
        }
        let (kernel, source) = self.variant.code();
        let architecture_specific = self.variant == Variant::Warpgroup;
        Ok(Code { kernel, source, defines, architecture_specific, parameters })
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let shared = self.variant.shared_bytes(&self.shape, self.element, &self.parameters);
        self.parameters.grid(&self.shape, shared)
    }
}

#[cfg(test)]
mod tests {
    use gridguard::Dim3;

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
            let flat = |layout: Layout| ("flat".to_owned(), u64::from(layout == Layout::FlatX));
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
            let error = attention.with_parameters(&[("flat".to_owned(), 2)]).expect_err("neither");
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
