//! The first product of a gated feed-forward and its gate in one kernel: `out = (x W^T + b) * gelu(x V^T + c)`.
//!
//! The product has twice the columns of out, and stays in registers. Needs Hopper. On other devices, use a product by
//! cuBLASLt and [`crate::geglu`].

use gridguard::{Axis, BatchAxis, DeviceLimits, LaunchRequest};

use crate::blocks::{Blocks, Rows};
use crate::element::{Element, ElementType, widened};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{Args, CudaStream, Prepared, Tensor, TensorMut, check_element};
use crate::operation::{
    Code, HOPPER, Operation, U64, check_elements, check_size, memory, named, refused, replaced,
    source,
};

const SOURCE: &str = source!("wgmma.cu", "gated_product.cu");

/// One warpgroup loads, two compute.
const THREADS: u64 = 384;
/// Rows of a tile.
const ROWS: u64 = 64;
/// Columns of x that are multiplied at a time.
const KEYS: u64 = 64;
/// Bytes of a row of [`KEYS`] columns.
const ROW_BYTES: u64 = 128;
const STAGE_BYTES: u64 = ROWS * ROW_BYTES;
/// The most tiles of a block by default. Loading its weights then takes a small part of its time.
const ROUNDS: u64 = 37;
const MAX_ROUNDS: u64 = 1024;
/// The most stages of x in shared memory. More are not faster.
const MAX_STAGES: u64 = 8;
const MIN_STAGES: u64 = 4;
/// The shared memory of a block on a device with these instructions.
const SHARED_BYTES: u64 = 227 << 10;
/// The most columns of x with whose weights enough stages fit into shared memory.
const MAX_INNER: u64 = 640;
/// The longest row that is tested.
const MAX_COLUMNS: u64 = 1 << 16;

/// The gated product of `[rows, inner]` to `[rows, columns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GatedProduct {
    rows: Rows,
    inner: u64,
    /// The most tiles of 64 rows of a block; the blocks of a chunk share its tiles evenly.
    rounds: u64,
}

impl GatedProduct {
    /// x is `[rows, inner]`, weight `[2 * columns, inner]` and bias `[2 * columns]`, values before gates. out is
    /// `[rows, columns]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for inner outside 1 to 640 and columns outside 1 to 65,536,
    /// [`KernelError::NotMultiple`] if either is no multiple of 64; [`KernelError::TensorType`] for f32;
    /// [`KernelError::TooLarge`] if 64 bits cannot count the bytes. Zero rows are allowed.
    pub fn new(
        rows: u64,
        inner: u64,
        columns: u64,
        element: ElementType,
    ) -> Result<Self, KernelError> {
        check_size("inner", inner, 1..=MAX_INNER)?;
        let rows = Rows::new(rows, columns, element, MAX_COLUMNS)?;
        check_elements(&[rows.count, inner])?;
        for (dimension, given) in [("inner", inner), ("columns", columns)] {
            if !given.is_multiple_of(KEYS) {
                let of = KEYS.to_string();
                return Err(KernelError::NotMultiple { dimension, given, of });
            }
        }
        if element == ElementType::F32 {
            let (tensors, given, expected) = ("tensors", "f32", "f16 or bf16");
            return Err(KernelError::TensorType { tensors, given, expected });
        }
        Ok(Self { rows, inner, rounds: ROUNDS })
    }

    /// The same with blocks of whole items of `rows` rows, so that a chunk can be a few items.
    #[cfg(feature = "cuda")]
    pub(crate) fn for_items(self, rows: u64) -> Result<Self, KernelError> {
        // ROWS is a power of two.
        let common = 1 << rows.trailing_zeros().min(ROWS.trailing_zeros());
        let step = (rows / common).max(1);
        self.with_rounds((ROUNDS / step).max(1).saturating_mul(step))
    }

    fn with_rounds(self, rounds: u64) -> Result<Self, KernelError> {
        if !(1..=MAX_ROUNDS).contains(&rounds) {
            return refused(Self::KERNEL, "rounds", rounds, format!("1 to {MAX_ROUNDS}"));
        }
        Ok(Self { rounds, ..self })
    }

    /// Columns of out of a block: 128, or 64 if the weights of 128 do not fit into shared memory.
    fn tile(&self) -> u64 {
        // The barriers take less than two rows.
        let least = self.weight_bytes(128) + MIN_STAGES * STAGE_BYTES + 2 * ROW_BYTES;
        let fits = self.rows.columns.is_multiple_of(128) && least <= SHARED_BYTES;
        if fits { 128 } else { 64 }
    }

    const fn weight_bytes(&self, tile: u64) -> u64 {
        2 * tile * self.inner * 2
    }

    fn stages(&self) -> u64 {
        let left = SHARED_BYTES - self.weight_bytes(self.tile()) - 2 * ROW_BYTES;
        (left / STAGE_BYTES).min(MAX_STAGES)
    }

    fn shared_bytes(&self) -> u64 {
        let barriers = 2 * self.stages() + self.inner / KEYS;
        self.weight_bytes(self.tile()) + self.stages() * STAGE_BYTES + 8 * barriers
    }
}

impl Operation for GatedProduct {
    const KERNEL: &'static str = "gated_product";
    const SIZES: &'static [&'static str] = &["rows", "inner", "columns"];
    const SOURCES: &'static [&'static str] = &[SOURCE];

    fn problem(&self) -> (Vec<u64>, String) {
        (vec![self.rows.count, self.inner, self.rows.columns], self.rows.element.to_string())
    }

    fn parameters(&self) -> Vec<(String, u64)> {
        named([("rounds", self.rounds)])
    }

    fn candidates(&self) -> Vec<Vec<(String, u64)>> {
        let rounds = [ROUNDS, 8, 16, 24, 74, 148, 296];
        rounds.map(|rounds| Self { rounds, ..*self }.parameters()).into()
    }

    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        let [rounds] = replaced(Self::KERNEL, [("rounds", self.rounds)], parameters)?;
        self.with_rounds(rounds)
    }

    fn code(&self, device: &DeviceLimits) -> Result<Code, KernelError> {
        if device.compute_capability != HOPPER {
            let (what, remedy) = ("the gated product", "use a product and geglu");
            return Err(KernelError::unsupported(what, HOPPER, device, remedy));
        }
        let vectors = memory(true);
        let parameters = vec![vectors, vectors, vectors, vectors, U64];
        let mut code = Code::new::<Self>(SOURCE, self.rows.element, parameters);
        code.architecture_specific = true;
        Ok(code.with([
            ("INNER", self.inner),
            ("COLUMNS", self.rows.columns),
            ("TILE", self.tile()),
            ("STAGES", self.stages()),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let (items, tiles) = (ROWS * self.rounds, self.rows.columns / self.tile());
        let blocks = Blocks { axis: Axis::Z, items, tiles, threads: THREADS };
        let (request, batch) = blocks.grid(self.rows.count);
        (request.dynamic_shared_bytes(self.shared_bytes()), batch)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<GatedProduct> {
    /// Submits the launches to `stream` and returns their number without waiting for them. x is `[rows, inner]`,
    /// weight `[2 * columns, inner]`, bias `[2 * columns]`, out `[rows, columns]`, all contiguous.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape or length, before anything is launched;
    /// [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
    #[track_caller]
    pub fn launch<T: Element>(
        &self,
        stream: &CudaStream,
        x: Tensor<'_, T, 2>,
        weight: Tensor<'_, T, 2>,
        bias: Tensor<'_, T, 1>,
        out: TensorMut<'_, T, 2>,
    ) -> Result<u64, KernelError> {
        let GatedProduct { rows: Rows { count, columns, element }, inner, .. } = *self.operation();
        check_element::<T>(element)?;
        let x = x.contiguous("x", [count, inner])?;
        let weight = weight.contiguous("weight", [2 * columns, inner])?;
        let bias = bias.contiguous("bias", [2 * columns])?;
        let out = out.contiguous("out", [count, columns])?;
        let mut args = Args::new(stream);
        args.read_items(x, inner).read(weight).read(bias).write_items(out, columns).length();
        self.submit(args)
    }
}

/// One row in f64. x has `inner` elements, weight `2 * columns` rows of `inner` elements, bias `2 * columns`.
pub fn reference<T: Element>(x: &[T], weight: &[T], bias: &[T]) -> Vec<f64> {
    let rows = weight.chunks(x.len().max(1)).zip(widened(bias));
    let dot = |row: &[T]| widened(row).zip(widened(x)).map(|(w, x)| w * x).sum::<f64>();
    let wide: Vec<f64> = rows.map(|(row, bias)| dot(row) + bias).collect();
    let (values, gates) = wide.split_at(wide.len() / 2);
    values.iter().zip(gates).map(|(value, gate)| value * crate::geglu::gelu(*gate)).collect()
}

#[cfg(test)]
mod tests {
    use gridguard::Dim3;

    use super::*;

    fn product(rows: u64, inner: u64, columns: u64) -> GatedProduct {
        GatedProduct::new(rows, inner, columns, ElementType::F16).expect("legal")
    }

    #[test]
    fn weights_stages_and_barriers_fit_into_shared_memory() {
        for inner in (64..=MAX_INNER).step_by(64) {
            for columns in [64, 128, 192, 4 * inner] {
                let product = product(1, inner, columns);
                assert!((MIN_STAGES..=MAX_STAGES).contains(&product.stages()), "{inner}");
                assert!(product.shared_bytes() <= SHARED_BYTES, "{inner}");
                assert!(columns.is_multiple_of(product.tile()));
            }
        }
        assert_eq!((product(1, 384, 1536).tile(), product(1, 448, 1792).tile()), (128, 64));
    }

    #[test]
    fn the_grid_covers_all_columns_and_tiles() {
        let request = product(245_760, 320, 1280).request();
        assert_eq!((request.grid, request.block), (Dim3::new(10, 1, 104), Dim3::new(384, 1, 1)));
        let fewer = product(1, 640, 2560).with_parameters(&[("rounds".to_owned(), 4)]);
        assert_eq!(fewer.expect("legal").request().grid, Dim3::new(40, 1, 1));
        assert_eq!(product(0, 64, 64).request().grid.z, 0);
    }

    #[test]
    fn unsupported_sizes_types_and_parameters_are_errors() {
        let new = |inner, columns, element| GatedProduct::new(1, inner, columns, element);
        let half = ElementType::F16;
        for (inner, columns) in [(0, 64), (32, 64), (704, 64), (64, 0), (64, 96), (64, 1 << 17)] {
            assert!(new(inner, columns, half).is_err(), "{inner} {columns}");
        }
        assert!(new(64, 64, ElementType::F32).is_err());
        assert!(GatedProduct::new(1 << 60, 64, 64, half).is_err());
        for rounds in [0, MAX_ROUNDS + 1, u64::MAX] {
            let taken = product(1, 64, 64).with_parameters(&[("rounds".to_owned(), rounds)]);
            assert!(taken.is_err(), "{rounds}");
        }
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn blocks_can_be_made_of_whole_items() {
        for (frames, rounds) in
            [(1, 37), (16, 37), (24, 36), (7, 35), (33, 33), (128, 36), (127, 127)]
        {
            let product = product(1, 320, 1280).for_items(frames).expect("few rounds");
            assert_eq!(product.rounds, rounds, "{frames}");
            assert_eq!(64 * rounds % frames, 0, "{frames}");
        }
        assert!(product(1, 320, 1280).for_items(1025).is_err());
        assert!(product(1, 320, 1280).for_items(u64::MAX).is_err());
    }

    #[test]
    fn the_error_for_other_devices_names_the_alternative() {
        let error = product(1, 64, 64).code(&DeviceLimits::any_device()).expect_err("no Hopper");
        assert!(error.to_string().ends_with("use a product and geglu"), "{error}");
    }

    #[test]
    fn the_reference_is_a_product_and_its_gate() {
        // Values are x, gates twice x plus 1.
        let out = reference(&[3.0_f32], &[1.0, 2.0], &[0.0, 1.0]);
        let gate = crate::geglu::reference(&[3.0_f32, 7.0]);
        assert_eq!(out, gate);
    }
}
