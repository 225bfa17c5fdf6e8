//! One attention launch: what is computed, by which variant, on which axis of the grid.

use gridguard::{Axis, BatchAxis, DeviceLimits, Dim3, LaunchRequest, Parameter};

use super::{LaunchParameters, Shape, Variant};
use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, U64, source};

/// On which axis the grid numbers items and heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Folded on y, where 65,535 blocks are allowed: the layout that overflows.
    FoldedY,
    /// Flat on x, where 2^31 - 1 are.
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
}

/// Attention over a shape: flat on x, contiguous, without mask or bias, unless said otherwise.
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
    shape: Shape,
    element: ElementType,
    layout: Layout,
    causal: bool,
    biased: bool,
    strided: bool,
    variant: Variant,
    parameters: LaunchParameters,
}

impl TemporalAttention {
    /// Attention by the variant that serves the shape best on `device`.
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

    /// Attention by a variant of the caller's.
    ///
    /// # Errors
    ///
    /// [`KernelError::Variant`] where it does not take the shape or type,
    /// [`KernelError::Unsupported`] where `device` has no instructions for it.
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

    /// Numbers items and heads along another axis.
    pub const fn with_layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// A frame attends to itself and those before it.
    pub const fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// A bias of `[frames, frames]`, of the tensors' type, is added to the scaled scores of every
    /// item and head. A row of -inf hides a key; a query that sees no key gives zeros.
    pub const fn with_bias(mut self) -> Self {
        self.biased = true;
        self
    }

    /// Tensors may have any strides on their first three axes, such as those of
    /// `[batch, frames, heads, head_dim]`; their rows are contiguous.
    pub const fn with_strides(mut self) -> Self {
        self.strided = true;
        self
    }

    /// Launch parameters of the caller's.
    ///
    /// # Errors
    ///
    /// [`KernelError::LaunchParameter`] where the variant does not take them.
    pub fn with_parameters(mut self, parameters: LaunchParameters) -> Result<Self, KernelError> {
        self.variant.check_parameters(&self.shape, &parameters)?;
        self.parameters = parameters;
        Ok(self)
    }

    /// The same over other items: what serves a problem does not depend on how many there are.
    #[cfg(feature = "profile")]
    pub(super) const fn with_shape(mut self, shape: Shape) -> Self {
        self.shape = shape;
        self
    }

    /// Launch parameters worth measuring, the default first.
    #[must_use]
    pub fn candidates(&self) -> Vec<LaunchParameters> {
        self.variant.candidates(&self.shape)
    }

    /// The shape.
    #[must_use]
    pub const fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The type of the tensors' elements.
    #[must_use]
    pub const fn element(&self) -> ElementType {
        self.element
    }

    /// The axis of items and heads.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// The variant.
    #[must_use]
    pub const fn variant(&self) -> Variant {
        self.variant
    }

    /// The launch parameters.
    #[must_use]
    pub const fn parameters(&self) -> &LaunchParameters {
        &self.parameters
    }

    /// Whether a frame attends only to itself and those before it.
    #[must_use]
    pub const fn is_causal(&self) -> bool {
        self.causal
    }

    /// Whether there is a bias.
    #[must_use]
    pub const fn is_biased(&self) -> bool {
        self.biased
    }

    /// Whether tensors may have strides of their own.
    #[must_use]
    pub const fn is_strided(&self) -> bool {
        self.strided
    }
}

/// Four tensors' strides of items, heads and frames.
pub(super) const STRIDES_BYTES: usize = 4 * 3 * 8;

impl Sealed for TemporalAttention {}

impl Operation for TemporalAttention {
    fn code(&self, device: &DeviceLimits) -> Result<Code, KernelError> {
        self.variant.check(&self.shape, self.element, device)?;
        let memory = match self.variant.alignment() {
            Some(bytes) => Parameter::AlignedMemory { bytes },
            None => Parameter::Memory,
        };
        let mut parameters = vec![memory; 4];
        if self.biased {
            parameters.push(Parameter::Memory);
        }
        parameters.extend([U64, Parameter::of::<u32>()]);
        if self.strided {
            parameters.push(Parameter::Value { bytes: STRIDES_BYTES });
        }
        parameters.push(Parameter::of::<f32>());

        let mut defines = vec![
            ("ELEMENT", self.element.number()),
            ("CAUSAL", self.causal.into()),
            ("BIAS", self.biased.into()),
            ("STRIDED", self.strided.into()),
        ];
        let LaunchParameters { warps, problems, rounds, stages } = self.parameters;
        let (frames, head_dim) = (self.shape.frames, self.shape.head_dim);
        let shape = [("FRAMES", frames), ("HEAD_DIM", head_dim)];
        let (kernel, source) = match self.variant {
            Variant::General => {
                parameters.extend([Parameter::of::<u32>(); 2]);
                ("general_attention", source!("attention_prelude.cu", "general_attention.cu"))
            }
            Variant::Short => {
                defines.extend(shape);
                defines.push(("PROBLEMS", problems));
                ("short_attention", source!("attention_prelude.cu", "short_attention.cu"))
            }
            Variant::Tiled => {
                defines.extend(shape);
                defines.extend([("WARPS", warps), ("PROBLEMS", problems)]);
                defines.extend([("ROUNDS", rounds), ("STAGES", stages)]);
                ("tiled_attention", source!("attention_prelude.cu", "tiled_attention.cu"))
            }
            Variant::Warpgroup => {
                defines.extend(shape);
                defines.extend([("WARPS", warps), ("ROUNDS", rounds), ("STAGES", stages)]);
                ("warpgroup_attention", source!("attention_prelude.cu", "warpgroup_attention.cu"))
            }
            Variant::SinglePrecision => {
                defines.extend(shape);
                defines.extend([("WARPS", warps), ("PROBLEMS", problems)]);
                ("f32_attention", source!("attention_prelude.cu", "f32_attention.cu"))
            }
        };
        let architecture_specific = self.variant == Variant::Warpgroup;
        Ok(Code { kernel, source, defines, architecture_specific, parameters })
    }

    fn request(&self) -> LaunchRequest {
        let blocks = self.shape.problems().div_ceil(self.parameters.problems_per_block());
        let grid = Dim3::ONE.with(self.layout.axis(), blocks);
        LaunchRequest::new(grid, Dim3::new(self.parameters.threads(), 1, 1))
            .dynamic_shared_bytes(self.variant.shared_bytes(&self.shape, &self.parameters))
    }

    fn batch(&self) -> BatchAxis {
        BatchAxis::new(self.layout.axis(), self.shape.items)
            .blocks_per_items(self.shape.heads, self.parameters.problems_per_block())
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
            let parameters = LaunchParameters { problems, ..*attention().parameters() };
            let several = attention().with_parameters(parameters).expect("legal");
            let blocks = several.request().grid.x;
            assert_eq!(Some(blocks), several.batch().blocks(15_360));
            assert!(blocks * problems >= 76_800);
        }
    }

    #[test]
    fn what_is_computed_decides_over_parameters() {
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
