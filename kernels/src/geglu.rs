//! The gate of a feed-forward: `out = x * gelu(gate)`, of rows that hold x and then gate.
//!
//! Diffusion models have it in every transformer block, as `GEGLU`, with the GELU of erf. Rows are on
//! grid z, which the rows of a long video overflow.

use gridguard::{Axis, BatchAxis, DeviceLimits, LaunchRequest};

use crate::blocks::{Blocks, MAX_COLUMNS, Rows};
use crate::element::{Element, ElementType, widened};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{CudaStream, Prepared, Tensor, TensorMut};
use crate::operation::{
    Code, Operation, U64, WARP, check_elements, memory, named, refused, replaced, source,
};

const SOURCE: &str = source!("row_parts.cu", "geglu.cu");

/// Threads of a block by default.
const THREADS: u64 = 256;
const MAX_THREADS: u64 = 1024;
/// Vectors of out that a thread stores by default. It loads all of their inputs before the first store.
const VECTORS: u64 = 2;
/// More would leave few threads on a multiprocessor.
const MAX_VECTORS: u64 = 4;

/// The gate over `rows` rows, with `columns` elements of out each.
///
/// GELU is `g * (1 + erf(g / sqrt(2))) / 2`, as PyTorch's `gelu` without approximation. NaN stays NaN, and
/// a gate of -inf gives NaN, as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geglu {
    rows: Rows,
    /// Threads of a block.
    threads: u64,
    /// The most vectors of a thread, or elements if rows are not whole vectors.
    vectors: u64,
}

/// How blocks share the rows: each group of `tiles` blocks serves `items` of them.
struct Geometry {
    items: u64,
    tiles: u64,
    /// Vectors of a thread.
    steps: u64,
}

impl Geglu {
    /// Gates `[rows, 2 * columns]` to `[rows, columns]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 1,048,576; [`KernelError::TooLarge`] if
    /// 64 bits cannot count the bytes. Zero rows are allowed.
    pub fn new(rows: u64, columns: u64, element: ElementType) -> Result<Self, KernelError> {
        let rows = Rows::new(rows, columns, element, MAX_COLUMNS)?;
        check_elements(&[rows.count, 2, rows.columns])?;
        Ok(Self { rows, threads: THREADS, vectors: VECTORS })
    }

    /// The shape of the input: x before gate.
    pub const fn input_dims(&self) -> [u64; 2] {
        [self.rows.count, 2 * self.rows.columns]
    }

    /// The shape of out.
    pub const fn output_dims(&self) -> [u64; 2] {
        self.rows.dims()
    }

    fn geometry(&self) -> Geometry {
        let parts = self.rows.parts();
        let block = self.threads * self.vectors;
        let items = (block / parts).max(1);
        let tiles = (items * parts).div_ceil(block);
        Geometry { items, tiles, steps: (items * parts).div_ceil(tiles * self.threads) }
    }

    const fn named(&self) -> [(&'static str, u64); 2] {
        [("threads", self.threads), ("vectors", self.vectors)]
    }
}

impl Operation for Geglu {
    const KERNEL: &'static str = "geglu";
    const SIZES: &'static [&'static str] = Rows::SIZES;
    const SOURCES: &'static [&'static str] = &[SOURCE];

    fn problem(&self) -> (Vec<u64>, String) {
        self.rows.problem()
    }

    fn parameters(&self) -> Vec<(String, u64)> {
        named(self.named())
    }

    fn candidates(&self) -> Vec<Vec<(String, u64)>> {
        let mut candidates = vec![self.parameters()];
        for threads in [128, 256, 512] {
            for vectors in [1, 2, 4] {
                let other = Self { threads, vectors, ..*self }.parameters();
                if !candidates.contains(&other) {
                    candidates.push(other);
                }
            }
        }
        candidates
    }

    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        let [threads, vectors] = replaced(Self::KERNEL, self.named(), parameters)?;
        if !(WARP..=MAX_THREADS).contains(&threads) || !threads.is_multiple_of(WARP) {
            return refused(Self::KERNEL, "threads", threads, "multiples of 32 up to 1024");
        }
        if !(1..=MAX_VECTORS).contains(&vectors) {
            return refused(Self::KERNEL, "vectors", vectors, "1 to 4");
        }
        Ok(Self { threads, vectors, ..*self })
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let aligned = self.rows.are_whole_vectors();
        let memory = memory(aligned);
        let Geometry { items, tiles, steps } = self.geometry();
        let code = Code::new::<Self>(SOURCE, self.rows.element, vec![memory, memory, U64]);
        Ok(code.with([
            ("COLUMNS", self.rows.columns),
            ("THREADS", self.threads),
            ("STEPS", steps),
            ("ITEMS", items),
            ("TILES", tiles),
            ("ALIGNED", aligned.into()),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let Geometry { items, tiles, .. } = self.geometry();
        let blocks = Blocks { axis: Axis::Z, items, tiles, threads: self.threads };
        blocks.grid(self.rows.count)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<Geglu> {
    /// Submits the launches to `stream` and returns their number without waiting for them. The input is
    /// `[rows, 2 * columns]`, out is `[rows, columns]`, both contiguous.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape or length, before anything is launched;
    /// [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
    #[track_caller]
    pub fn launch<T: Element>(
        &self,
        stream: &CudaStream,
        input: Tensor<'_, T, 2>,
        out: TensorMut<'_, T, 2>,
    ) -> Result<u64, KernelError> {
        let gate = self.operation();
        let (input_dims, output_dims) = (gate.input_dims(), gate.output_dims());
        let input = ("input", input, input_dims);
        self.launch_items(stream, gate.rows.element, input, (out, output_dims))
    }
}

/// One row in f64: the first half of `input` is x, the second gate.
pub fn reference<T: Element>(input: &[T]) -> Vec<f64> {
    let (x, gate) = input.split_at(input.len() / 2);
    widened(x).zip(widened(gate)).map(|(x, gate)| x * gelu(gate)).collect()
}

/// GELU with erf. The complement of erf keeps the digits of small results.
pub(crate) fn gelu(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x * core::f64::consts::FRAC_1_SQRT_2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::VECTOR_BYTES;

    fn gate(rows: u64, columns: u64) -> Geglu {
        Geglu::new(rows, columns, ElementType::F16).expect("legal")
    }

    #[test]
    fn threads_cover_every_element_of_their_rows_for_all_columns() {
        for element in ElementType::ALL {
            for columns in (1..5000).chain([50_257, MAX_COLUMNS - 1, MAX_COLUMNS]) {
                let gate = Geglu::new(1, columns, element).expect("legal");
                for candidate in gate.candidates() {
                    let gate = gate.with_parameters(&candidate).expect("worth measuring");
                    assert_eq!(gate.parameters(), candidate);
                    let Geometry { items, tiles, steps } = gate.geometry();
                    let step = match gate.rows.are_whole_vectors() {
                        true => VECTOR_BYTES / element.bytes(),
                        false => 1,
                    };
                    let parts = items * columns / step;
                    assert!(tiles * gate.threads * steps >= parts, "{columns}");
                    assert!((tiles - 1) * gate.threads * steps < parts, "{columns}");
                    assert!((1..=MAX_VECTORS).contains(&steps) && (items == 1 || tiles == 1));
                }
            }
        }
    }

    #[test]
    fn unsupported_parameters_are_errors() {
        let refuse = |name: &str, value| {
            let taken = gate(8, 320).with_parameters(&[(name.to_owned(), value)]);
            taken.expect_err("not taken").to_string()
        };
        assert_eq!(
            refuse("threads", 48),
            "threads is 48, the geglu variant takes multiples of 32 up to 1024 here"
        );
        assert_eq!(refuse("vectors", 5), "vectors is 5, the geglu variant takes 1 to 4 here");
        assert_eq!(
            refuse("steps", 1),
            "geglu has no launch parameter steps, it has threads, vectors"
        );
        for (name, value) in [("threads", 0), ("vectors", 0), ("threads", u64::MAX)] {
            assert!(refuse(name, value).starts_with(&format!("{name} is {value}")));
        }
    }

    #[test]
    fn the_gate_is_gelu_with_erf() {
        let gated = |x: f32, gate: f32| reference(&[x, gate])[0];
        assert_eq!((gated(3.0, 0.0), gated(2.0, 40.0)), (0.0, 80.0));
        // The values of the normal distribution at 1 and -1, from a table.
        assert!((gated(1.0, 1.0) - 0.841_344_746_068_543).abs() < 1e-15);
        assert!((gated(2.0, -1.0) + 2.0 * 0.158_655_253_931_457).abs() < 1e-15);
        assert!(gated(1.0, f32::NAN).is_nan() && gated(1.0, f32::NEG_INFINITY).is_nan());
        assert_eq!(gated(1.0, f32::INFINITY), f64::INFINITY);
    }
}
