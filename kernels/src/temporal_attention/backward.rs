//! The gradients of attention: dq, dk and dv from q, k, v and the gradient of the output.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest};

use super::operation::TemporalAttention;
use super::parameters::{LaunchParameters, ROWS};
use super::shape::Shape;
use super::variant::{AMPERE, MAX_FRAMES, TURING};
use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{Code, Operation, Sealed, VECTOR_BYTES, named, source};

/// The gradients of [`TemporalAttention`] with respect to q, k and v, with its shape, type, options and layout.
///
/// ```
/// use gridguard::{ComputeCapability, DeviceLimits};
/// use gridguard_kernels::temporal_attention::{AttentionBackward, Shape, TemporalAttention};
/// use gridguard_kernels::{ElementType, Operation};
///
/// let mut device = DeviceLimits::any_device();
/// device.compute_capability = ComputeCapability::new(9, 0);
/// let shape = Shape::new(15_360, 5, 16, 64)?;
/// let attention = TemporalAttention::new(shape, ElementType::F16, &device)?.causal();
/// let backward = AttentionBackward::new(attention, &device)?;
/// assert_eq!(backward.request().grid.x, 76_800);
/// # Ok::<(), gridguard_kernels::KernelError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct AttentionBackward {
    /// The variant and the launch parameters of the forward pass have no meaning here.
    pub(super) attention: TemporalAttention,
    parameters: LaunchParameters,
}

/// Columns of an instruction of the tensor cores.
const COLUMNS: u64 = 8;
/// The most tiles of columns whose sums fit into the registers of a warp.
const MAX_COLUMN_TILES: u64 = 10;
/// The name in messages.
const NAME: &str = "backward";

impl AttentionBackward {
    /// The gradients of `attention`. The variant of the forward pass does not matter.
    ///
    /// # Errors
    ///
    /// [`KernelError::Variant`] for more than 128 frames or keys, and for a head dimension that is not a multiple of 8, or
    /// of 4 in f32. Also if the shared memory of a block is too small for a problem. [`KernelError::Unsupported`] below
    /// compute capability 8.0, or 7.5 in f16.
    pub fn new(attention: TemporalAttention, device: &DeviceLimits) -> Result<Self, KernelError> {
        check(&attention, device)?;
        let default = default_parameters(&attention.shape);
        // With a warp for each tile of queries a problem needs less shared memory.
        let most = LaunchParameters { warps: attention.shape.frames.div_ceil(ROWS), ..default };
        let fits = |parameters: &LaunchParameters| {
            shared_bytes(&attention.shape, attention.element, parameters)
                <= device.max_shared_bytes_per_block_opt_in
        };
        let Some(parameters) = [default, most].into_iter().find(fits) else {
            let takes = "problems that fit into the shared memory of a block";
            return Err(KernelError::Variant { variant: NAME, takes });
        };
        let parameters = LaunchParameters { flat: attention.parameters.flat, ..parameters };
        Ok(Self { attention, parameters })
    }

    /// The attention that is differentiated.
    pub const fn attention(&self) -> &TemporalAttention {
        &self.attention
    }
}

/// Checks that the kernel supports the shape and type, and that the device has its instructions.
fn check(attention: &TemporalAttention, device: &DeviceLimits) -> Result<(), KernelError> {
    let (shape, element) = (&attention.shape, attention.element);
    let elements = VECTOR_BYTES / element.bytes();
    if shape.longest() > MAX_FRAMES || !shape.head_dim.is_multiple_of(elements) {
        let takes = "at most 128 frames and keys, and a head dimension that is a multiple of 8, or of 4 in f32";
        return Err(KernelError::Variant { variant: NAME, takes });
    }
    let (what, needed, remedy) = match element {
        ElementType::F16 => ("f16 on tensor cores", TURING, "differentiate in another library"),
        ElementType::Bf16 => ("bf16 on tensor cores", AMPERE, "use f16"),
        ElementType::F32 => ("tf32 on tensor cores", AMPERE, "use f16"),
    };
    if device.compute_capability < needed {
        return Err(KernelError::unsupported(what, needed, device, remedy));
    }
    Ok(())
}

/// The launch parameters that were fastest on an NVIDIA H200.
const fn default_parameters(shape: &Shape) -> LaunchParameters {
    let one = LaunchParameters::ONE;
    match shape.frames.div_ceil(ROWS) {
        1 if shape.longest() <= 11 && shape.head_dim <= 32 => {
            LaunchParameters { problems: 4, ..one }
        }
        tiles => LaunchParameters { warps: tiles.div_ceil(2), ..one },
    }
}

/// Dynamic shared memory of a block: `PROBLEM_BYTES` in `attention_backward.cu` for each problem.
fn shared_bytes(shape: &Shape, element: ElementType, parameters: &LaunchParameters) -> u64 {
    let Shape { frames, keys, head_dim, .. } = *shape;
    let (row_tiles, key_tiles) = (frames.div_ceil(ROWS), keys.div_ceil(ROWS));
    let tile = |columns: u64| ROWS * columns * element.bytes();
    let columns = match head_dim.div_ceil(COLUMNS) {
        all if all <= MAX_COLUMN_TILES => all,
        all => all.div_ceil(2 * all.div_ceil(MAX_COLUMN_TILES)) * 2,
    };
    let block = tile(columns * COLUMNS);
    // Queries and gradients of the output; keys; then values, and weights and gradients of scores.
    let queries = row_tiles * tile(head_dim);
    let keys = key_tiles * tile(head_dim).max(block);
    let areas = row_tiles * block.max(2 * tile(key_tiles * ROWS));
    let last = if row_tiles <= parameters.warps { keys.max(areas) } else { keys + areas };
    parameters.problems * (2 * queries + keys + last)
}

impl Sealed for AttentionBackward {}

impl Operation for AttentionBackward {
    const KERNEL: &'static str = "attention_backward";
    const SIZES: &'static [&'static str] = TemporalAttention::SIZES;

    fn problem(&self) -> (Vec<u64>, String) {
        self.attention.problem()
    }

    /// As of [`TemporalAttention`], without a variant: `y causal keys=77`.
    fn variant(&self) -> String {
        self.attention.described(self.parameters.axis())
    }

    fn parameters(&self) -> Vec<(String, u64)> {
        named(self.parameters.named())
    }

    fn candidates(&self) -> Vec<Vec<(String, u64)>> {
        let is_taken = |one: &LaunchParameters| self.check_parameters(one).is_ok();
        self.parameters.in_both_layouts(&self.parameters.candidates(is_taken))
    }

    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        let parameters = self.parameters.with(Self::KERNEL, parameters)?;
        self.check_parameters(&parameters)?;
        Ok(Self { parameters, ..*self })
    }

    fn code(&self, device: &DeviceLimits) -> Result<Code, KernelError> {
        check(&self.attention, device)?;
        let mut defines = self.attention.option_macros();
        defines.extend(self.attention.shape.macros());
        let LaunchParameters { warps, problems, .. } = self.parameters;
        defines.extend([("WARPS", warps), ("PROBLEMS", problems)]);
        let source = match self.attention.element {
            ElementType::F32 => source!("attention.cu", "tf32.cu", "attention_backward.cu"),
            _ => source!("attention.cu", "attention_backward.cu"),
        };
        let parameters = self.attention.kernel_parameters(7, true);
        let (kernel, architecture_specific) = (Self::KERNEL, false);
        Ok(Code { kernel, source, defines, architecture_specific, parameters })
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let shape = &self.attention.shape;
        let shared = shared_bytes(shape, self.attention.element, &self.parameters);
        self.parameters.grid(shape, shared)
    }
}

impl AttentionBackward {
    fn check_parameters(&self, parameters: &LaunchParameters) -> Result<(), KernelError> {
        parameters.check(NAME, 1..=self.attention.shape.longest().div_ceil(ROWS), false)
    }
}

#[cfg(test)]
mod tests {
    use gridguard::ComputeCapability;

    use super::*;
    use crate::temporal_attention::Layout;

    const F16: ElementType = ElementType::F16;
    const BF16: ElementType = ElementType::Bf16;
    const F32: ElementType = ElementType::F32;

    fn device(major: u32, minor: u32) -> DeviceLimits {
        let kib = match (major, minor) {
            (7, _) => 64,
            (8, 6) => 99,
            _ => 227,
        };
        DeviceLimits {
            compute_capability: ComputeCapability::new(major, minor),
            max_shared_bytes_per_block_opt_in: kib << 10,
            ..DeviceLimits::any_device()
        }
    }

    fn shape(frames: u64, keys: u64, head_dim: u64) -> Shape {
        let shape = Shape::new(15_360, 5, frames, head_dim).expect("legal");
        shape.with_keys(keys).expect("legal")
    }

    fn backward(
        shape: Shape,
        element: ElementType,
        device: &DeviceLimits,
    ) -> Result<AttentionBackward, KernelError> {
        AttentionBackward::new(TemporalAttention::new(shape, element, device)?, device)
    }

    #[test]
    fn the_shared_memory_of_a_problem_is_that_of_the_source() {
        for (frames, keys, head_dim, element, warps, bytes) in [
            (16, 16, 64, F16, 1, 8192),
            (64, 64, 16, F16, 4, 22_528),
            (128, 128, 64, BF16, 8, 114_688),
            (24, 24, 80, F32, 2, 40_960),
            (81, 81, 40, F32, 6, 119_808),
        ] {
            let parameters = LaunchParameters { warps, ..LaunchParameters::ONE };
            let shape = shape(frames, keys, head_dim);
            assert_eq!(shared_bytes(&shape, element, &parameters), bytes, "{shape:?}");
            let two = LaunchParameters { problems: 2, ..parameters };
            assert_eq!(shared_bytes(&shape, element, &two), 2 * bytes, "{shape:?}");
        }
        let wide = Shape { head_dim: 512, ..shape(16, 16, 64) };
        assert_eq!(shared_bytes(&wide, BF16, &LaunchParameters::ONE), 65_536);
    }

    #[test]
    fn the_default_has_the_fewest_warps_whose_shared_memory_fits() {
        let chosen = |frames, keys, head_dim, element, device: &DeviceLimits| {
            let backward = backward(shape(frames, keys, head_dim), element, device);
            backward.map(|one| (one.parameters.warps, one.parameters.problems))
        };
        let hopper = device(9, 0);
        assert_eq!(chosen(16, 16, 64, F16, &hopper), Ok((1, 1)));
        assert_eq!(chosen(11, 11, 32, F16, &hopper), Ok((1, 4)));
        assert_eq!(chosen(11, 128, 32, F16, &hopper), Ok((1, 1)));
        assert_eq!(chosen(64, 16, 16, F16, &hopper), Ok((2, 1)));
        assert_eq!(chosen(81, 81, 40, F32, &hopper), Ok((3, 1)));
        assert_eq!(chosen(128, 128, 128, F16, &hopper), Ok((4, 1)));
        // 107,520 bytes with four warps, 93,184 with seven.
        assert_eq!(chosen(112, 112, 64, F16, &device(8, 6)), Ok((7, 1)));
        let error = chosen(128, 128, 128, F16, &device(8, 6)).expect_err("160 KiB").to_string();
        let expected =
            "the backward variant takes problems that fit into the shared memory of a block";
        assert_eq!(error, expected);
    }

    #[test]
    fn shapes_that_the_kernel_does_not_support_are_errors() {
        let takes = "the backward variant takes at most 128 frames and keys, and a head dimension that is a \
                     multiple of 8, or of 4 in f32";
        for (frames, keys, head_dim, element) in
            [(129, 16, 64, F16), (16, 129, 64, F16), (16, 16, 60, BF16), (16, 16, 62, F32)]
        {
            let error = backward(shape(frames, keys, head_dim), element, &device(9, 0));
            assert_eq!(error.expect_err("refused").to_string(), takes);
        }
        assert!(backward(shape(128, 1, 4), F32, &device(9, 0)).is_ok());
        assert!(backward(shape(16, 16, 8), F16, &device(7, 5)).is_ok());
        let error = backward(shape(16, 16, 64), F32, &device(7, 5)).expect_err("no tf32");
        assert!(
            error.to_string().starts_with("tf32 on tensor cores needs compute capability 8.0"),
            "{error}"
        );
    }

    #[test]
    fn options_and_layout_are_those_of_the_attention() {
        let device = device(9, 0);
        let attention = TemporalAttention::new(shape(16, 77, 64), F16, &device).expect("served");
        let attention = attention.causal().with_bias().with_strides().with_layout(Layout::FoldedY);
        let backward = AttentionBackward::new(attention, &device).expect("served");
        assert_eq!(backward.variant(), "y causal bias strided keys=77");
        assert_eq!(backward.request().grid.y, 76_800);
        let code = backward.code(&device).expect("supported");
        // q, k, v, grad, dq, dk, dv, the bias; items, heads, strides and scale.
        assert_eq!(code.parameters.len(), 12);
        assert_eq!(code.parameters[10], gridguard::Parameter::Value { bytes: 192 });
    }

    #[test]
    fn candidates_are_supported_and_other_parameters_are_errors() {
        let backward = backward(shape(40, 70, 64), BF16, &device(9, 0)).expect("served");
        let candidates = backward.candidates();
        assert_eq!(candidates.first(), Some(&backward.parameters()));
        for parameters in &candidates {
            let taken = backward.with_parameters(parameters).expect("worth measuring");
            assert_eq!(taken.parameters(), *parameters);
        }
        let refused = |name: &str, value| {
            let given = [(name.to_owned(), value)];
            backward.with_parameters(&given).expect_err("refused").to_string()
        };
        assert_eq!(refused("warps", 6), "warps is 6, the backward variant takes 1 to 5 here");
        assert_eq!(
            refused("problems", 17),
            "problems is 17, the backward variant takes 1 to 15 here"
        );
        assert_eq!(refused("rounds", 2), "rounds is 2, the backward variant takes 1 here");
        assert_eq!(
            refused("tiles", 2),
            "attention_backward has no launch parameter tiles, it has warps, problems, rounds, stages, flat"
        );
    }
}
