//! Layer norm of rows: `out = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias`.
//!
//! Transformers normalise every token with it before each sub-block. Rows are on grid y, which the rows of a
//! long video overflow.

use gridguard::{BatchAxis, DeviceLimits, LaunchRequest, Parameter};

use crate::blocks::{MAX_COLUMNS, Rows};
use crate::element::{Element, ElementType, mean, widened};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{Args, CudaStream, Prepared, Tensor, TensorMut, check_element};
use crate::operation::{Code, Operation, U64, WARP, memory, named, refused, replaced, source};

const SOURCE: &str = source!("row_parts.cu", "layer_norm.cu");

/// The fewest threads of a block by default; short rows share it.
const MIN_THREADS: u64 = 128;
/// The most threads of a block.
const MAX_THREADS: u64 = 1024;
/// Vectors, or elements, of a row for each thread: enough bytes in flight, and few enough registers.
const PARTS: u64 = 4;
/// The most parts of a thread, unless a row is too long for [`MAX_THREADS`].
const MAX_PARTS: u64 = 8;

/// The norm of each of `rows` rows of `columns` elements.
///
/// Statistics are f32 and do not cancel: the variance is of the differences from the mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerNorm {
    rows: Rows,
    /// Threads of a row: a power of two up to a warp, or whole warps.
    threads_per_row: u64,
    rows_per_block: u64,
    /// The number of positions with an embedding, or 0.
    positions: u64,
}

impl LayerNorm {
    /// Normalises `[rows, columns]` along the columns.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for columns outside 1 to 1,048,576; [`KernelError::TooLarge`] if
    /// 64 bits cannot count the bytes. Zero rows are allowed.
    pub fn new(rows: u64, columns: u64, element: ElementType) -> Result<Self, KernelError> {
        let rows = Rows::new(rows, columns, element, MAX_COLUMNS)?;
        let threads_per_row = default_threads(rows.parts());
        let rows_per_block = MIN_THREADS.div_ceil(threads_per_row);
        Ok(Self { rows, threads_per_row, rows_per_block, positions: 0 })
    }

    /// Adds the embedding of a row's position, `row % positions`. After the bias, the kernel takes the embeddings of
    /// shape `[positions, columns]`. Chunks must begin at position 0.
    #[cfg(feature = "cuda")]
    pub(crate) const fn with_positions(self, positions: u64) -> Self {
        Self { positions, ..self }
    }

    /// The shape of x and out.
    pub const fn dims(&self) -> [u64; 2] {
        self.rows.dims()
    }

    const fn threads(&self) -> u64 {
        self.threads_per_row.saturating_mul(self.rows_per_block)
    }

    const fn named(&self) -> [(&'static str, u64); 2] {
        [("threads_per_row", self.threads_per_row), ("rows", self.rows_per_block)]
    }

    /// The same with other launch parameters, if the kernel supports them.
    fn with_geometry(&self, threads_per_row: u64, rows: u64) -> Result<Self, KernelError> {
        let other = Self { threads_per_row, rows_per_block: rows, ..*self };
        let shares_warp = threads_per_row <= WARP && threads_per_row.is_power_of_two();
        let whole_warps = threads_per_row.is_multiple_of(WARP) && threads_per_row > 0;
        if threads_per_row > MAX_THREADS || !(shares_warp || whole_warps) {
            let expected = "powers of two up to 32 and multiples of 32 up to 1024";
            return refused(Self::KERNEL, "threads_per_row", threads_per_row, expected);
        }
        let threads = other.threads();
        if threads == 0 || threads > MAX_THREADS || !threads.is_multiple_of(WARP) {
            let (least, most) = (WARP.div_ceil(threads_per_row), MAX_THREADS / threads_per_row);
            let expected = format!("multiples of {least} up to {most}");
            return refused(Self::KERNEL, "rows", rows, expected);
        }
        Ok(other)
    }
}

/// The number of threads for a row that leaves the fewest threads without a part in the last step. If several
/// numbers do, prefers about [`PARTS`] parts for each thread.
fn default_threads(parts: u64) -> u64 {
    let widths = [1, 2, 4, 8, 16].into_iter().chain((WARP..=MAX_THREADS).step_by(32));
    let steps = |threads: u64| parts.div_ceil(threads);
    let possible = widths.filter(|threads| steps(*threads) <= MAX_PARTS);
    let best = possible.min_by_key(|threads| {
        let steps = steps(*threads);
        (threads * steps, steps.abs_diff(PARTS))
    });
    best.unwrap_or(MAX_THREADS)
}

impl Operation for LayerNorm {
    const KERNEL: &'static str = "layer_norm";
    const SIZES: &'static [&'static str] = Rows::SIZES;
    const SOURCES: &'static [&'static str] = &[SOURCE];

    fn problem(&self) -> (Vec<u64>, String) {
        self.rows.problem()
    }

    fn parameters(&self) -> Vec<(String, u64)> {
        named(self.named())
    }

    /// Fewer and more threads for a row, and larger blocks.
    fn candidates(&self) -> Vec<Vec<(String, u64)>> {
        let mut candidates = vec![*self];
        let (parts, threads) = (self.rows.parts(), self.threads_per_row);
        for threads_per_row in [threads / 2, threads, 2 * threads] {
            for threads in [64, 128, 256, 512] {
                let rows = (threads / threads_per_row.max(1)).max(1);
                let other = self.with_geometry(threads_per_row, rows);
                // More parts than registers hold, or threads without a part, are never faster.
                let fits = parts.div_ceil(threads_per_row.max(1)) <= 2 * MAX_PARTS;
                if let Ok(other) = other
                    && fits
                    && threads_per_row <= parts.next_power_of_two()
                    && !candidates.contains(&other)
                {
                    candidates.push(other);
                }
            }
        }
        candidates.iter().map(Self::parameters).collect()
    }

    fn with_parameters(&self, parameters: &[(String, u64)]) -> Result<Self, KernelError> {
        let [threads_per_row, rows] = replaced(Self::KERNEL, self.named(), parameters)?;
        self.with_geometry(threads_per_row, rows)
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let aligned = self.rows.are_whole_vectors();
        let tensors = if self.positions == 0 { 4 } else { 5 };
        let mut parameters = vec![memory(aligned); tensors];
        parameters.extend([U64, Parameter::of::<f32>()]);
        let code = Code::new::<Self>(SOURCE, self.rows.element, parameters);
        Ok(code.with([
            ("COLUMNS", self.rows.columns),
            ("THREADS", self.threads()),
            ("THREADS_PER_ROW", self.threads_per_row),
            ("ALIGNED", aligned.into()),
            ("POSITIONS", self.positions),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        self.rows.grid(self.rows_per_block, self.threads())
    }
}

#[cfg(feature = "cuda")]
impl Prepared<LayerNorm> {
    /// Submits the launches to `stream` and returns their number without waiting for them. x and out
    /// are `[rows, columns]`, weight and bias are `[columns]`, all contiguous.
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
        [weight, bias]: [Tensor<'_, T, 1>; 2],
        epsilon: f32,
        out: TensorMut<'_, T, 2>,
    ) -> Result<u64, KernelError> {
        let Rows { columns, element, .. } = self.operation().rows;
        check_element::<T>(element)?;
        let x = x.contiguous("x", self.operation().dims())?;
        let weight = weight.contiguous("weight", [columns])?;
        let bias = bias.contiguous("bias", [columns])?;
        let out = out.contiguous("out", self.operation().dims())?;
        let mut args = Args::new(stream);
        args.read_items(x, columns).write_items(out, columns).read(weight).read(bias);
        args.length().value(epsilon);
        self.submit(args)
    }
}

/// One row in f64: x, weight and bias have `columns` elements.
pub fn reference<T: Element>(x: &[T], weight: &[T], bias: &[T], epsilon: f32) -> Vec<f64> {
    let mean = mean(widened(x));
    let variance = self::mean(widened(x).map(|x| (x - mean) * (x - mean)));
    let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
    let pairs = widened(weight).zip(widened(bias));
    widened(x).zip(pairs).map(|(x, (weight, bias))| (x - mean) * scale * weight + bias).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn norm(rows: u64, columns: u64) -> LayerNorm {
        LayerNorm::new(rows, columns, ElementType::F16).expect("legal")
    }

    #[test]
    fn no_thread_of_a_usual_row_is_idle() {
        let threads = |columns| norm(1, columns).threads_per_row;
        // 40, 80, 160, 96 and 128 vectors.
        assert_eq!([320, 640, 1280, 768, 1024].map(threads), [8, 16, 32, 32, 32]);
        assert_eq!([4096, 8192, 1 << 20, 8, 1].map(threads), [128, 256, 1024, 1, 1]);
        assert_eq!(LayerNorm::new(1, 320, ElementType::F32).expect("legal").threads_per_row, 16);
    }

    #[test]
    fn blocks_are_whole_warps_of_whole_rows_for_all_columns() {
        for element in ElementType::ALL {
            for columns in (1..4000).chain([50_257, MAX_COLUMNS - 1, MAX_COLUMNS]) {
                let norm = LayerNorm::new(1, columns, element).expect("legal");
                let same = norm.with_geometry(norm.threads_per_row, norm.rows_per_block);
                assert_eq!(same, Ok(norm), "{columns}");
                for candidate in norm.candidates() {
                    let taken = norm.with_parameters(&candidate).expect("worth measuring");
                    assert_eq!(taken.parameters(), candidate);
                    assert!(taken.threads().is_multiple_of(WARP) && taken.threads() <= MAX_THREADS);
                }
            }
        }
    }

    #[test]
    fn unsupported_geometries_are_errors() {
        let refuse = |name: &str, value| {
            let taken = norm(8, 320).with_parameters(&[(name.to_owned(), value)]);
            taken.expect_err("not taken").to_string()
        };
        assert_eq!(
            refuse("threads_per_row", 48),
            "threads_per_row is 48, the layer_norm variant takes powers of two up to 32 and multiples \
             of 32 up to 1024 here"
        );
        assert_eq!(
            refuse("rows", 3),
            "rows is 3, the layer_norm variant takes multiples of 4 up to 128 here"
        );
        assert_eq!(
            refuse("warps", 1),
            "layer_norm has no launch parameter warps, it has threads_per_row, rows"
        );
        for (name, value) in [("threads_per_row", 0), ("rows", 0), ("rows", u64::MAX)] {
            assert!(refuse(name, value).starts_with(&format!("{name} is {value}")));
        }
    }

    #[test]
    fn normed_rows_have_the_bias_as_mean_and_the_weight_as_deviation() {
        let out = reference(&[1.0_f32, 3.0, 1.0, 3.0], &[2.0; 4], &[5.0; 4], 0.0);
        assert_eq!(out, [3.0, 7.0, 3.0, 7.0]);
        // Equal elements have no variance.
        assert_eq!(reference(&[7.0_f32; 4], &[1.0; 4], &[0.5; 4], 1e-5), [0.5; 4]);
        let nan = reference(&[f32::NAN, 0.0], &[1.0; 2], &[0.0; 2], 1e-5);
        assert!(nan.iter().all(|x| x.is_nan()));
    }
}
