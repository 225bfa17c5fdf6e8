//! Products of many small matrices: `c[p] = a[p] b[p]`.
//!
//! Finite elements and particle simulations multiply one small matrix for each cell or particle.
//! Problems are on grid z, several to a block; a million of them overflow it.

use gridguard::{Axis, BatchAxis, DeviceLimits, LaunchRequest};

use crate::bench::spec::{Input, KernelSpec, SizedProblem, TensorSpec};
use crate::blocks::Blocks;
use crate::element::{Element, ElementType, to_usize};
use crate::error::KernelError;
#[cfg(feature = "cuda")]
use crate::launch::{Args, CudaStream, Prepared, Tensor, TensorMut, check_element};
use crate::operation::{
    Code, Operation, Sealed, U64, VECTOR_BYTES, check_elements, check_size, memory, source,
};

const SOURCE: &str = source!("batched_gemm.cu");

/// The most rows and columns of a matrix.
const MAX_SIZE: u64 = 64;
/// Bytes of a, b and c that a block of several problems moves.
const BLOCK_BYTES: u64 = 8192;
/// Bytes of a, b and c for each of its threads; some of them are in flight at any time.
const THREAD_BYTES: u64 = 256;
const MIN_THREADS: u64 = 32;
const MAX_THREADS: u64 = 256;
/// Static shared memory of a block.
const SHARED_BYTES: u64 = 48 << 10;

/// The products of `batch` pairs of matrices, `[m, k]` times `[k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BatchedGemm {
    batch: u64,
    m: u64,
    n: u64,
    k: u64,
    element: ElementType,
}

/// Problems and threads of a block.
struct Geometry {
    problems: u64,
    threads: u64,
}

impl BatchedGemm {
    /// The products of `[batch, m, k]` and `[batch, k, n]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Dimension`] for m, n or k outside 1 to 64; [`KernelError::TooLarge`] if 64 bits
    /// cannot count the bytes. A batch of zero problems is allowed.
    pub fn new(
        batch: u64,
        m: u64,
        n: u64,
        k: u64,
        element: ElementType,
    ) -> Result<Self, KernelError> {
        for (dimension, size) in [("m", m), ("n", n), ("k", k)] {
            check_size(dimension, size, 1..=MAX_SIZE)?;
        }
        let gemm = Self { batch, m, n, k, element };
        for dims in [gemm.a_dims(), gemm.b_dims(), gemm.c_dims()] {
            check_elements(&dims)?;
        }
        Ok(gemm)
    }

    /// The shape of a.
    pub const fn a_dims(&self) -> [u64; 3] {
        [self.batch, self.m, self.k]
    }

    /// The shape of b.
    pub const fn b_dims(&self) -> [u64; 3] {
        [self.batch, self.k, self.n]
    }

    /// The shape of c.
    pub const fn c_dims(&self) -> [u64; 3] {
        [self.batch, self.m, self.n]
    }

    /// Elements of one matrix of a, b and c.
    const fn elements(&self) -> [u64; 3] {
        [self.m * self.k, self.k * self.n, self.m * self.n]
    }

    const fn fills_vectors(&self, elements: u64) -> bool {
        (elements * self.element.bytes()).is_multiple_of(VECTOR_BYTES)
    }

    /// The fewest problems whose matrices fill whole vectors, in a, b and c each.
    fn whole_vectors(&self) -> u64 {
        let fill = |problems: &u64| {
            self.elements().into_iter().all(|elements| self.fills_vectors(problems * elements))
        };
        // As many problems as a vector has elements always do.
        [1, 2, 4].into_iter().find(fill).unwrap_or(VECTOR_BYTES / self.element.bytes())
    }

    /// Shared memory of a block: a and b, and c unless its rows are whole vectors.
    const fn shared_bytes(&self, problems: u64) -> u64 {
        let [a, b, c] = self.elements();
        let c = if self.fills_vectors(self.n) { 0 } else { c };
        problems * (a + b + c) * self.element.bytes()
    }

    fn geometry(&self) -> Geometry {
        let bytes = self.elements().into_iter().sum::<u64>() * self.element.bytes();
        let unit = self.whole_vectors();
        let wanted = (BLOCK_BYTES / bytes).max(1);
        let whole = (wanted / unit * unit).max(unit);
        // If so many do not fit, some blocks move single elements.
        let problems = if self.shared_bytes(whole) <= SHARED_BYTES { whole } else { 1 };
        let threads = (problems * bytes).div_ceil(THREAD_BYTES).next_power_of_two();
        Geometry { problems, threads: threads.clamp(MIN_THREADS, MAX_THREADS) }
    }
}

impl Sealed for BatchedGemm {}

impl Operation for BatchedGemm {
    const KERNEL: &'static str = "batched_gemm";
    const SIZES: &'static [&'static str] = &["batch", "m", "n", "k"];

    fn problem(&self) -> (Vec<u64>, String) {
        (vec![self.batch, self.m, self.n, self.k], self.element.to_string())
    }

    fn code(&self, _: &DeviceLimits) -> Result<Code, KernelError> {
        let Geometry { problems, threads } = self.geometry();
        let [a, b, c] = self.elements().map(|elements| memory(self.fills_vectors(elements)));
        let code = Code::new::<Self>(SOURCE, self.element, vec![a, b, c, U64]);
        Ok(code.with([
            ("SIZE_M", self.m),
            ("SIZE_N", self.n),
            ("SIZE_K", self.k),
            ("THREADS", threads),
            ("PROBLEMS", problems),
        ]))
    }

    fn grid(&self) -> (LaunchRequest, BatchAxis) {
        let Geometry { problems, threads } = self.geometry();
        Blocks { axis: Axis::Z, items: problems, tiles: 1, threads }.grid(self.batch)
    }
}

#[cfg(feature = "cuda")]
impl Prepared<BatchedGemm> {
    /// Submits the launches to `stream` and returns their number without waiting for them. a is
    /// `[batch, m, k]`, b is `[batch, k, n]`, c is `[batch, m, n]`, all contiguous.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if a tensor has another type, shape or length, before anything is launched;
    /// [`KernelError::Launch`] if memory is misaligned or the driver rejects the launch.
    #[track_caller]
    pub fn launch<T: Element>(
        &self,
        stream: &CudaStream,
        a: Tensor<'_, T, 3>,
        b: Tensor<'_, T, 3>,
        c: TensorMut<'_, T, 3>,
    ) -> Result<u64, KernelError> {
        let gemm = self.operation();
        check_element::<T>(gemm.element)?;
        let a = a.contiguous("a", gemm.a_dims())?;
        let b = b.contiguous("b", gemm.b_dims())?;
        let c = c.contiguous("c", gemm.c_dims())?;
        let [a_elements, b_elements, c_elements] = gemm.elements();
        let mut args = Args::new(stream);
        args.read_items(a, a_elements)
            .read_items(b, b_elements)
            .write_items(c, c_elements)
            .length();
        self.submit(args)
    }
}

impl KernelSpec for BatchedGemm {
    type Output<T: Element> = T;

    const SOURCES: &'static [&'static str] = &[SOURCE];
    const SHIPPED: &'static str = "f16 1000000x16x16x8 2000000x16x16x8 f32 1000000x8x8x8 \
        2000000x8x8x8 f16 262144x32x32x32 f32 1000000x16x16x8 f16 131072x64x64x64 f32 \
        65536x64x64x64 131072x32x32x32 bf16 1000000x16x16x8";
    const SMALL: &'static str = "f32 65536x4x4x4";

    fn build(problem: &SizedProblem, _: &DeviceLimits) -> Result<Self, KernelError> {
        let [batch, m, n, k, _] = problem.sizes;
        Self::new(batch, m, n, k, problem.element)
    }

    fn tensors(&self) -> TensorSpec {
        let [a, b, c] = self.elements();
        // Sums of at most 64 products in order have errors that average out.
        TensorSpec::new([Input::Items(a), Input::Items(b)], c, self.element.rounding_error())
    }

    fn expected<T: Element>(&self, inputs: &[&[T]]) -> Vec<f64> {
        reference(inputs[0], inputs[1], to_usize(self.n), to_usize(self.k))
    }
}

/// One product in f64: a is `[m, k]`, b is `[k, n]`.
pub fn reference<T: Element>(a: &[T], b: &[T], n: usize, k: usize) -> Vec<f64> {
    let wide = |x: &T| f64::from(x.widen());
    let (n, k) = (n.max(1), k.max(1));
    let entry = |row: &[T], column: usize| {
        row.iter().zip(b.iter().skip(column).step_by(n)).map(|(a, b)| wide(a) * wide(b)).sum()
    };
    a.chunks(k).flat_map(|row| (0..n).map(move |column| entry(row, column))).collect()
}

#[cfg(test)]
mod tests {
    use gridguard::{Dim3, Parameter};

    use super::*;

    fn gemm(batch: u64, [m, n, k]: [u64; 3], element: ElementType) -> BatchedGemm {
        BatchedGemm::new(batch, m, n, k, element).expect("legal")
    }

    #[test]
    fn problems_on_z_overflow_however_many_a_block_takes() {
        let small = gemm(1_000_000, [16, 16, 8], ElementType::F16);
        assert_eq!(small.request().grid, Dim3::new(1, 1, 125_000));
        assert_eq!(small.request().block, Dim3::new(32, 1, 1));
        assert_eq!(small.batch().blocks(1_000_000), Some(125_000));
        let large = gemm(65_536, [64, 64, 64], ElementType::F32);
        assert_eq!(large.request().grid.z, 65_536);
    }

    #[test]
    fn blocks_fit_shared_memory_and_hold_whole_vectors_or_one_problem() {
        // Each of them may begin behind a gap of less than a vector.
        const GAPS: u64 = 2 * VECTOR_BYTES;
        let sizes = || 1..=MAX_SIZE;
        for element in ElementType::ALL {
            for (m, n) in sizes().flat_map(|m| sizes().map(move |n| (m, n))) {
                for k in sizes() {
                    let gemm = gemm(1, [m, n, k], element);
                    let Geometry { problems, threads } = gemm.geometry();
                    let whole = problems.is_multiple_of(gemm.whole_vectors());
                    let gaps = if whole { 0 } else { GAPS };
                    assert!(whole || problems == 1, "{gemm:?}");
                    assert!(gemm.shared_bytes(problems) + gaps <= SHARED_BYTES, "{gemm:?}");
                    assert!(threads.is_multiple_of(MIN_THREADS), "{gemm:?}");
                }
            }
        }
    }

    #[test]
    fn tensors_of_matrices_that_are_whole_vectors_must_be_aligned() {
        let parameters = |size| {
            let code = gemm(1, size, ElementType::F16).code(&DeviceLimits::any_device());
            code.expect("any device").parameters
        };
        let (aligned, any) = (Parameter::AlignedMemory { bytes: 16 }, Parameter::Memory);
        assert_eq!(parameters([16, 16, 8])[..3], [aligned, aligned, aligned]);
        assert_eq!(parameters([13, 8, 7])[..3], [any, aligned, aligned]);
        assert_eq!(parameters([63, 63, 63])[..3], [any, any, any]);
    }

    #[test]
    fn a_product_with_the_identity_is_the_matrix_itself() {
        let matrix = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let identity = [1.0_f32, 0.0, 0.0, 1.0];
        assert_eq!(reference(&matrix, &identity, 2, 2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(reference(&identity, &matrix, 3, 2), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    }

    #[test]
    fn unsupported_sizes_are_errors() {
        let new = |batch, m, n, k| BatchedGemm::new(batch, m, n, k, ElementType::F16);
        assert!(new(1, 0, 8, 8).is_err() && new(1, 8, 65, 8).is_err() && new(1, 8, 8, 0).is_err());
        assert!(new(u64::MAX, 1, 1, 2).is_err());
        assert!(new(0, 16, 16, 8).is_ok());
    }
}
