//! Norm of a sum: `out = norm(x + added) * weight` in f32, and the same in a 16-bit type.
//!
//! Autocast keeps the state of a transformer in f32. A block with norms after its layers adds the output of a layer,
//! normalises the sum, and casts it for the next product: three passes over the state, or this one.

#[cfg(feature = "cuda")]
use core::ffi::c_void;

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::blocks::Rows;
use crate::element::{Element, ElementType, mean, widened};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::Prepared;
use crate::operation::{Code, Operation, U64, WARP, memory, source};

const SOURCE: &str = source!("residual_norm.cu");

const THREADS: u64 = 128;
/// The elements of a vector.
const WIDTH: u64 = 8;
/// The vectors that a thread keeps in registers.
const MAX_STEPS: u64 = 8;
/// The threads of a short row.
const LANES: u64 = 8;

/// The norm of each of `rows` sums of `columns` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResidualNorm {
    rows: Rows,
    centered: bool,
}

impl ResidualNorm {
    /// Normalises `[rows, columns]` along the columns: by the layer norm if `centered`, else by the root mean square
    /// norm. `added` has elements of type `element`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 2048, [`KernelError::NotMultiple`] if they are no multiple
    /// of 8; [`KernelError::TensorType`] for f32; [`KernelError::TooLarge`] if 64 bits cannot count the bytes. Zero
    /// rows are allowed.
    pub fn new(
        rows: u64,
        columns: u64,
        element: ElementType,
        centered: bool,
    ) -> Result<Self, KernelError> {
        let rows = Rows::new(rows, columns, element, WIDTH * MAX_STEPS * WARP)?;
        if !columns.is_multiple_of(WIDTH) {
            let (dimension, of) = ("columns", WIDTH.to_string());
            return Err(KernelError::NotMultiple { dimension, given: columns, of });
        }
        if element == ElementType::F32 {
            let (tensors, given, expected) = ("added tensors", "f32", "f16 or bf16");
            return Err(KernelError::TensorType { tensors, given, expected });
        }
        Ok(Self { rows, centered })
    }

    const fn lanes(&self) -> u64 {
        if self.rows.columns > WIDTH * MAX_STEPS * LANES { WARP } else { LANES }
    }
}

impl Operation for ResidualNorm {
    const KERNEL: &'static str = "residual_norm";
    const SIZES: &'static [&'static str] = Rows::SIZES;
    const SOURCES: &'static [&'static str] = &[SOURCE];

    fn problem(&self) -> (Vec<u64>, String) {
        self.rows.problem()
    }

    fn variant(&self) -> String {
        if self.centered { "centered".to_owned() } else { String::new() }
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let vectors = memory(true);
        let parameters =
            vec![vectors, vectors, vectors, vectors, vectors, U64, Parameter::of::<f32>()];
        let code = Code::new::<Self>(SOURCE, self.rows.element, parameters);
        Ok(code.with([
            ("COLUMNS", self.rows.columns),
            ("THREADS", THREADS),
            ("LANES", self.lanes()),
            ("CENTERED", self.centered.into()),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        self.rows.grid(THREADS / self.lanes(), THREADS)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<ResidualNorm> {
    /// Submits the launches to a stream (a `CUstream`, null for the default stream), and returns their number without
    /// waiting for them. The addresses are of x, added, out and cast, `[rows, columns]`, and of weight, `[columns]`,
    /// all contiguous. x, out and weight are f32. A stream that is being captured is not refused.
    ///
    /// # Safety
    ///
    /// The addresses lead to tensors of these sizes and types in the context of the guard. `stream` is a live stream of
    /// that context. The memory lives until the launches have run. Until then, no other work writes it, or reads out
    /// and cast. out may be x; otherwise out and cast have no element of another tensor. If the stream is being
    /// captured, this also holds for the launches of the graph, and the caller keeps a clone of `self` for as long.
    ///
    /// # Errors
    ///
    /// [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
    #[track_caller]
    #[allow(unsafe_code, reason = "memory and streams of other CUDA bindings")]
    pub unsafe fn launch_raw(
        &self,
        stream: *mut c_void,
        [x, added, out, cast, weight]: [u64; 5],
        epsilon: f32,
    ) -> Result<u64, KernelError> {
        let Rows { columns, element, .. } = self.operation().rows;
        let mut args = gridguard::RawArgs::new();
        for (address, element) in
            [(x, ElementType::F32), (added, element), (out, ElementType::F32), (cast, element)]
        {
            let bytes = columns.saturating_mul(element.bytes());
            args.items_within(address, bytes, bytes, u64::MAX);
        }
        args.address(weight).length().value(epsilon);
        // SAFETY: this function's contract. The arguments are in the order of the kernel's parameters.
        unsafe { self.submit_raw(stream, &args) }
    }
}

/// One row in f64: x, added and weight have `columns` elements.
pub fn reference<T: Element>(
    (x, added): (&[f32], &[T]),
    weight: &[f32],
    epsilon: f32,
    centered: bool,
) -> Vec<f64> {
    let sums: Vec<f64> = widened(x).zip(widened(added)).map(|(x, added)| x + added).collect();
    let center = if centered { mean(sums.iter().copied()) } else { 0.0 };
    let scale = mean(sums.iter().map(|sum| (sum - center).powi(2))) + f64::from(epsilon);
    let normed = sums.iter().map(|sum| (sum - center) / scale.sqrt());
    normed.zip(widened(weight)).map(|(y, weight)| y * weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_rows_share_a_warp() {
        let norm = |columns| ResidualNorm::new(33, columns, ElementType::F16, false);
        assert_eq!(norm(192).expect("legal").request().grid.y, 3);
        assert_eq!(norm(512).expect("legal").lanes(), LANES);
        assert_eq!(norm(520).expect("legal").lanes(), WARP);
        assert_eq!(norm(2048).expect("legal").request().grid.y, 9);
    }

    #[test]
    fn a_row_of_equal_sums_is_its_weight_or_zero() {
        let (x, added) = ([1.0_f32; 8], [2.0_f32; 8]);
        let weight = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, -8.0];
        assert_eq!(reference((&x, &added), &weight, 0.0, false), weight.map(f64::from));
        assert_eq!(reference((&x, &added), &weight, 1.0, true), [0.0; 8]);
    }

    #[test]
    fn unsupported_sizes_and_types_are_errors() {
        let text = |columns, element| {
            ResidualNorm::new(1, columns, element, true).expect_err("unsupported").to_string()
        };
        assert_eq!(text(0, ElementType::F16), "columns is 0, the kernel takes 1 to 2048");
        assert_eq!(text(2056, ElementType::F16), "columns is 2056, the kernel takes 1 to 2048");
        assert_eq!(text(12, ElementType::Bf16), "columns is 12, not a multiple of 8");
        let expected = "the added tensors are f32, the kernel was prepared for f16 or bf16";
        assert_eq!(text(8, ElementType::F32), expected);
        assert!(ResidualNorm::new(u64::MAX, 8, ElementType::F16, true).is_err());
        assert!(ResidualNorm::new(0, 8, ElementType::F16, true).is_ok());
    }
}
