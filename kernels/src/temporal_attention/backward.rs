//! The gradients of attention: dq, dk and dv from q, k, v and the gradient of the output.

mod launch;

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};
use launch::{default_parameters, has_warpgroups};

use super::operation::{Layout, TemporalAttention};
use super::parameters::LaunchParameters;
use super::shape::{COLUMNS, MAX_LONG_FRAMES, ROWS};
use super::slices::{GROUP, MAX_SLICE_WARPS, has_all_keys, slices};
use super::variant::{AMPERE, EQUAL_WIDTHS, TURING};
use crate::element::ElementType;
use crate::error::KernelError;
use crate::operation::{Code, HOPPER, Operation, VECTOR_BYTES, WARP, named, refused, source};

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
    /// Whether it uses Hopper's warpgroup instructions.
    warpgroup: bool,
    /// Steps of 16 keys that a problem is computed by, if it is not computed with all keys at once.
    slice: Option<u64>,
    bias_gradient: bool,
    parameters: LaunchParameters,
}

/// The most tiles of columns whose sums fit into the registers of a warp.
const MAX_COLUMN_TILES: u64 = 10;
/// All sources.
const SOURCES: &[&str] =
    &[source(false, false), source(false, true), source(true, false), source(true, true)];
/// q, k, v, grad, dq, dk and dv.
const TENSORS: usize = 7;
/// The name in messages.
const NAME: &str = "backward";
/// The source of the kernel: these parts, and the parts that all variants have.
macro_rules! backward_source {
    ([$($first:literal),*], [$($part:literal),*]) => {
        source!($($first,)* "tensor_cores.cu", "attention.cu", "attention_tiles.cu", "backward_problem.cu", $($part,)* "attention_backward.cu")
    };
}
/// For warpgroups or not, and for slices of keys or all keys at once.
const fn source(warpgroup: bool, slices: bool) -> &'static str {
    match (warpgroup, slices) {
        (false, false) => backward_source!([], []),
        (false, true) => backward_source!([], ["sliced_backward.cu"]),
        (true, false) => backward_source!(["wgmma.cu"], []),
        (true, true) => backward_source!(["wgmma.cu"], ["sliced_backward.cu"]),
    }
}

impl AttentionBackward {
    /// The gradients of `attention`. The variant of the forward pass does not matter.
    ///
    /// # Errors
    ///
    /// [`KernelError::Variant`] for more than 512 frames or keys, and for a head dimension that is not a multiple of 8, or of
    /// 4 in f32. Also if registers or the shared memory of a block are too small for a problem.
    /// [`KernelError::Unsupported`] below compute capability 8.0, or 7.5 in f16.
    pub fn new(attention: TemporalAttention, device: &DeviceLimits) -> Result<Self, KernelError> {
        check(&attention, device)?;
        let flat = attention.parameters.flat;
        let one = |warpgroup, slice, parameters| Self {
            attention,
            warpgroup,
            slice,
            bias_gradient: false,
            parameters: LaunchParameters { flat, ..parameters },
        };
        let mut all = Vec::new();
        if has_all_keys(&attention) {
            let warpgroup = has_warpgroups(&attention, device);
            let default = default_parameters(&attention, warpgroup);
            // A problem needs less shared memory with one stage and a warp for each tile of queries.
            let once = LaunchParameters { rounds: 1, stages: 1, ..default };
            let most = LaunchParameters { warps: attention.shape.frames.div_ceil(ROWS), ..once };
            all.extend([
                one(warpgroup, None, default),
                one(warpgroup, None, once),
                one(false, None, most),
            ]);
        }
        all.extend(slices(&attention, device).map(|(warpgroup, slice, warps)| {
            one(warpgroup, Some(slice), LaunchParameters { warps, ..LaunchParameters::ONE })
        }));
        let fits = |one: &Self| one.shared_bytes() <= device.max_shared_bytes_per_block_opt_in;
        let takes = "problems that fit into the registers and the shared memory of a block";
        all.into_iter().find(fits).ok_or(KernelError::Variant { variant: NAME, takes })
    }

    /// Also writes the gradient of the bias, for each item and head. The caller adds the gradients of items and heads that
    /// share a bias. Without a bias it writes none.
    pub const fn with_bias_gradient(mut self) -> Self {
        self.bias_gradient = self.attention.biased;
        self
    }

    /// Numbers items and heads along this axis.
    pub const fn with_layout(mut self, layout: Layout) -> Self {
        self.attention = self.attention.with_layout(layout);
        self.parameters.flat = self.attention.parameters.flat;
        self
    }

    /// Whether it writes the gradient of the bias.
    pub const fn has_bias_gradient(&self) -> bool {
        self.bias_gradient
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
    if !shape.has_equal_widths() {
        return Err(KernelError::Variant { variant: NAME, takes: EQUAL_WIDTHS });
    }
    if attention.masked {
        return Err(KernelError::Variant { variant: NAME, takes: "a bias, no boolean mask" });
    }
    if shape.longest() > MAX_LONG_FRAMES || !shape.head_dim.is_multiple_of(elements) {
        let takes = "at most 512 frames and keys and a head dimension that is a multiple of 8, or of 4 in f32";
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

impl AttentionBackward {
    /// The least number of blocks of a multiprocessor. The compiler then uses fewer registers, where that was faster and
    /// costs no spill.
    fn resident_blocks(&self, device: &DeviceLimits) -> u64 {
        let TemporalAttention { shape, element, biased, strided, .. } = &self.attention;
        let LaunchParameters { warps, problems, .. } = self.parameters;
        let is_narrow = shape.head_dim <= 32;
        if device.compute_capability != HOPPER {
            return 1;
        }
        if let Some(slice) = self.slice {
            let is_small = warps == GROUP && is_narrow && *element != ElementType::F32;
            // A last slice of fewer keys needs more registers than three blocks leave.
            let is_cut = !shape.keys.div_ceil(ROWS).is_multiple_of(slice);
            let has_many_sums = self.warpgroup && shape.head_dim > 16 && shape.frames > 128;
            return match is_small && !*biased && !*strided {
                true if is_cut && has_many_sums => 2,
                true => 3,
                false => 1,
            };
        }
        match (self.warpgroup, *element, warps, problems) {
            (true, _, GROUP, _) if is_narrow && *biased && shape.keys > 56 => 3,
            (true, _, GROUP, _) if is_narrow => 4,
            (false, ElementType::F32, 1, 1) if shape.longest() <= ROWS && shape.head_dim <= 64 => {
                12
            }
            (false, ElementType::F16 | ElementType::Bf16, 2, 1)
                if shape.longest() > 48 && shape.head_dim <= 16 && !*biased =>
            {
                10
            }
            (false, ElementType::F16 | ElementType::Bf16, 3, 1)
                if self.attention.causal && is_narrow && !*biased && !*strided =>
            {
                4
            }
            (false, ElementType::F16 | ElementType::Bf16, 5..=6, 1) if shape.head_dim <= 80 => 2,
            _ => 1,
        }
    }

    /// Dynamic shared memory of a block: `PROBLEM_BYTES` in the source for each problem.
    fn shared_bytes(&self) -> u64 {
        let TemporalAttention { shape, element, causal, .. } = &self.attention;
        let LaunchParameters { warps, problems, stages, .. } = self.parameters;
        let (row_tiles, key_tiles) = (shape.frames.div_ceil(ROWS), shape.keys.div_ceil(ROWS));
        let tile = |columns: u64| ROWS * columns * element.bytes();
        let (row, columns) = match shape.head_dim.div_ceil(COLUMNS) {
            // Warpgroup instructions need rows of an even number of vectors.
            all if self.warpgroup => (all.next_multiple_of(2) * COLUMNS, all),
            all if all <= MAX_COLUMN_TILES => (shape.head_dim, all),
            all => (shape.head_dim, all.div_ceil(2 * all.div_ceil(MAX_COLUMN_TILES)) * 2),
        };
        let block = tile(columns * COLUMNS);
        let queries = row_tiles * tile(row);
        let keys = key_tiles * tile(row).max(block);
        let tensors = 2 * (queries + keys);
        // Weights and gradients of scores of the keys that a tile of queries sees, or a block of its gradients.
        let skips = *causal && !self.warpgroup;
        let unit = 2 * tile(ROWS);
        if let Some(slice) = self.slice {
            return problems * (stages * tensors + row_tiles * slice * unit + warps * block);
        }
        let area =
            |tile| (if skips { key_tiles.min(tile) } else { key_tiles }).max(block.div_ceil(unit));
        let areas = (1..=row_tiles).map(area).sum::<u64>() * unit;
        let replace_values = row_tiles <= warps && stages == 1;
        let begin = if replace_values { tensors - keys } else { stages * tensors };
        problems * tensors.max(begin + areas)
    }
}

impl Operation for AttentionBackward {
    const KERNEL: &'static str = "attention_backward";
    const SIZES: &'static [&'static str] = TemporalAttention::SIZES;
    const SOURCES: &'static [&'static str] = SOURCES;

    fn problem(&self) -> (Vec<u64>, String) {
        self.attention.problem()
    }

    /// As of [`TemporalAttention`], without a variant: `y causal keys=77`. With the gradient of the bias also `dbias`.
    fn variant(&self) -> String {
        let attention = self.attention.described(self.parameters.axis());
        if self.bias_gradient { format!("{attention} dbias") } else { attention }
    }

    fn parameters(&self) -> Vec<(String, u64)> {
        named(self.parameters.named())
    }

    /// The shape of which more blocks become resident than were fastest on an NVIDIA H200.
    fn keeps_cache(&self) -> bool {
        let TemporalAttention { shape, element, .. } = &self.attention;
        let is_single = self.parameters.threads() == WARP && shape.longest() <= ROWS;
        is_single && shape.head_dim == 64 && *element != ElementType::F32
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
        let LaunchParameters { warps, problems, rounds, stages, .. } = self.parameters;
        defines.extend([("WARPS", warps), ("PROBLEMS", problems), ("ROUNDS", rounds)]);
        defines.extend([("STAGES", stages), ("BLOCKS", self.resident_blocks(device))]);
        defines.push(("WARPGROUP", self.warpgroup.into()));
        defines.push(("BIAS_GRAD", self.bias_gradient.into()));
        defines.extend(self.slice.map(|steps| ("KEY_SLICE", steps)));
        let source = source(self.warpgroup, self.slice.is_some());
        let mut parameters = self.attention.kernel_parameters(TENSORS, true);
        if self.bias_gradient {
            parameters.insert(TENSORS, Parameter::Memory);
        }
        let (kernel, architecture_specific) = (Self::KERNEL, self.warpgroup);
        Ok(Code { kernel, source, defines, architecture_specific, parameters })
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        self.parameters.grid(&self.attention.shape, self.shared_bytes())
    }
}

impl AttentionBackward {
    fn check_parameters(&self, parameters: &LaunchParameters) -> Result<(), KernelError> {
        let tiles = self.attention.shape.longest().div_ceil(ROWS);
        let LaunchParameters { warps, problems, .. } = *parameters;
        if self.warpgroup && !warps.is_multiple_of(GROUP) {
            return refused(NAME, "warps", warps, "4 or 8");
        }
        if (self.warpgroup || self.slice.is_some()) && problems > 1 {
            return refused(NAME, "problems", problems, "1");
        }
        let warps_taken = match self.slice {
            // Fewer warps have too few registers, and more have fewer registers each.
            Some(_) => self.parameters.warps..=MAX_SLICE_WARPS,
            None if self.warpgroup => 1..=2 * GROUP,
            None => 1..=tiles,
        };
        parameters.check(NAME, warps_taken, true)
    }
}

#[cfg(test)]
mod tests {
    use gridguard::ComputeCapability;

    use super::*;
    use crate::temporal_attention::Shape;

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
        let sliced = |attention, warpgroup, slice, warps, stages| {
            let parameters = LaunchParameters { warps, stages, ..LaunchParameters::ONE };
            let one =
                AttentionBackward { attention, warpgroup, slice, bias_gradient: false, parameters };
            let two = LaunchParameters { problems: 2, ..parameters };
            let two = AttentionBackward { parameters: two, ..one };
            assert_eq!(two.shared_bytes(), 2 * one.shared_bytes());
            one.shared_bytes()
        };
        let bytes =
            |attention, warpgroup, warps, stages| sliced(attention, warpgroup, None, warps, stages);
        let of = |frames, keys, head_dim, element| {
            let shape = shape(frames, keys, head_dim);
            TemporalAttention::new(shape, element, &device(9, 0)).expect("served")
        };
        assert_eq!(bytes(of(16, 16, 64, F16), false, 1, 1), 8192);
        assert_eq!(bytes(of(64, 64, 16, F16), false, 4, 1), 22_528);
        assert_eq!(bytes(of(128, 128, 64, BF16), true, 8, 1), 114_688);
        assert_eq!(bytes(of(128, 128, 64, BF16), true, 8, 2), 196_608);
        assert_eq!(bytes(of(49, 49, 32, F16), true, 4, 2), 49_152);
        assert_eq!(bytes(of(82, 82, 32, BF16).causal(), false, 3, 1), 46_080);
        assert_eq!(bytes(of(81, 81, 64, BF16), false, 6, 1), 73_728);
        assert_eq!(bytes(of(16, 16, 160, F16), false, 1, 1), 20_480);
        assert_eq!(bytes(of(24, 24, 80, F32), false, 2, 1), 43_008);
        assert_eq!(bytes(of(40, 70, 64, F16).causal(), false, 2, 1), 39_936);
        assert_eq!(sliced(of(144, 144, 32, F16), true, Some(3), 4, 1), 68_608);
        assert_eq!(sliced(of(163, 163, 32, BF16).causal(), false, Some(2), 4, 1), 71_680);
        assert_eq!(sliced(of(256, 256, 64, BF16), true, Some(4), 8, 1), 212_992);
        assert_eq!(sliced(of(128, 128, 64, F32), false, Some(2), 8, 1), 196_608);
    }

    #[test]
    fn the_default_is_the_fastest_that_fits() {
        let chosen = |frames, keys, head_dim, element, device: &DeviceLimits| {
            let backward = backward(shape(frames, keys, head_dim), element, device)?;
            let LaunchParameters { warps, problems, rounds, stages, .. } = backward.parameters;
            Ok((backward.warpgroup, warps, problems, rounds, stages))
        };
        let slices = |frames, keys, head_dim, element, device: &DeviceLimits| {
            let served = backward(shape(frames, keys, head_dim), element, device).expect("served");
            (served.warpgroup, served.slice, served.parameters.warps)
        };
        let (hopper, ampere) = (device(9, 0), device(8, 6));
        assert_eq!(chosen(16, 16, 64, F16, &hopper), Ok((false, 1, 1, 1, 1)));
        assert_eq!(chosen(16, 16, 64, F32, &hopper), Ok((false, 1, 1, 1, 1)));
        assert_eq!(chosen(11, 11, 32, F16, &hopper), Ok((false, 1, 4, 1, 1)));
        assert_eq!(chosen(11, 128, 32, F16, &hopper), Ok((false, 1, 1, 1, 1)));
        assert_eq!(chosen(64, 64, 16, F16, &hopper), Ok((false, 2, 1, 8, 1)));
        assert_eq!(chosen(49, 49, 32, F16, &hopper), Ok((true, 4, 1, 6, 2)));
        assert_eq!(chosen(49, 49, 32, F16, &ampere), Ok((false, 2, 1, 8, 1)));
        assert_eq!(chosen(32, 32, 64, F16, &hopper), Ok((false, 1, 1, 1, 1)));
        assert_eq!(chosen(81, 81, 64, F16, &hopper), Ok((false, 6, 1, 1, 1)));
        assert_eq!(chosen(128, 128, 64, F16, &hopper), Ok((true, 8, 1, 8, 2)));
        let biased = TemporalAttention::new(shape(49, 49, 32), F16, &hopper).expect("served");
        let biased = AttentionBackward::new(biased.with_bias(), &hopper).expect("served");
        assert_eq!((biased.parameters.rounds, biased.resident_blocks(&hopper)), (6, 4));
        let resident = |frames| {
            let backward = backward(shape(frames, frames, 32), F16, &hopper).expect("served");
            backward.resident_blocks(&hopper)
        };
        assert_eq!([144, 145, 176, 192].map(resident), [3, 2, 2, 3]);
        let keeps_cache = |frames, element| {
            backward(shape(frames, frames, 64), element, &hopper).expect("served").keeps_cache()
        };
        assert!(keeps_cache(16, BF16) && !keeps_cache(16, F32) && !keeps_cache(32, F16));
        // Two stages need 204,800 bytes with areas of 32,768 each, one less.
        assert_eq!(chosen(128, 128, 96, F16, &hopper), Ok((true, 8, 1, 1, 1)));
        // 107,520 bytes with four warps, 93,184 with seven.
        assert_eq!(chosen(112, 112, 64, F16, &ampere), Ok((false, 7, 1, 1, 1)));
        assert_eq!(slices(144, 144, 32, F16, &hopper), (true, Some(3), 4));
        assert_eq!(slices(144, 144, 32, F16, &ampere), (false, Some(2), 4));
        assert_eq!(slices(256, 256, 64, F16, &hopper), (true, Some(4), 8));
        assert_eq!(slices(512, 512, 32, BF16, &hopper), (false, Some(2), 8));
        assert_eq!(slices(81, 81, 40, F32, &hopper), (false, None, 6));
        assert_eq!(slices(128, 128, 64, F32, &hopper), (false, Some(2), 8));
        // 128 KiB of tensors, and 32 KiB of weights of one step of keys.
        let error: KernelError = chosen(128, 128, 128, F16, &ampere).expect_err("128 KiB");
        assert!(error.to_string().ends_with("the registers and the shared memory of a block"));
    }

    #[test]
    fn shapes_that_the_kernel_does_not_support_are_errors() {
        let takes = "the backward variant takes at most 512 frames and keys and a head dimension that is a \
                     multiple of 8, or of 4 in f32";
        for (frames, keys, head_dim, element) in
            [(513, 16, 64, F16), (16, 513, 64, F16), (16, 16, 60, BF16), (16, 16, 62, F32)]
        {
            let error = backward(shape(frames, keys, head_dim), element, &device(9, 0));
            assert_eq!(error.expect_err("refused").to_string(), takes);
        }
        assert!(backward(shape(32, 1, 4), F32, &device(9, 0)).is_ok());
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
        assert_eq!(code.parameters[10], Parameter::Value { bytes: 192 });
        let backward = backward.with_bias_gradient();
        assert_eq!(backward.variant(), "y causal bias strided keys=77 dbias");
        let code = backward.code(&device).expect("supported");
        // The gradient is contiguous, so it has no strides.
        assert_eq!((code.parameters.len(), code.parameters[7]), (13, Parameter::Memory));
        assert_eq!(code.parameters[11], Parameter::Value { bytes: 192 });
        let plain = AttentionBackward::new(attention.plain(), &device).expect("served");
        assert!(!plain.with_bias_gradient().has_bias_gradient());
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
            refused("problems", 11),
            "problems is 11, the backward variant takes 1 to 10 here"
        );
        assert_eq!(refused("stages", 2), "stages is 2, the backward variant takes 1 here");
        assert_eq!(
            refused("tiles", 2),
            "attention_backward has no launch parameter tiles, it has warps, problems, rounds, stages, flat"
        );
    }
}
